"""The function `load` of mlx-lm, which opens a GGUF file and its tokenizer."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, overload

from npurt.base import late
from npurt.compat.folders import model_in
from npurt.compat.mlx_lm.missing import missing, refuse
from npurt.compat.mlx_lm.tokenizer_utils import TokenizerWrapper
from npurt.errors import ModelFormatError
from npurt.llm.decode.llama import Llama
from npurt.runtime.open.arguments import flag, require_path

IGNORED = frozenset(["trust_remote_code", "use_fast"])  # tokenizer options without effect


@overload
def load(
    path_or_hf_repo: str | os.PathLike[str],
    tokenizer_config: Mapping[str, Any] | None = None,
    *,
    return_config: Literal[False] = False,
    **options: Any,
) -> tuple[Llama, TokenizerWrapper]: ...


@overload
def load(
    path_or_hf_repo: str | os.PathLike[str],
    tokenizer_config: Mapping[str, Any] | None = None,
    *,
    return_config: Literal[True],
    **options: Any,
) -> tuple[Llama, TokenizerWrapper, dict[str, Any]]: ...


def load(
    path_or_hf_repo: str | os.PathLike[str],
    tokenizer_config: Mapping[str, Any] | None = None,
    model_config: Mapping[str, Any] | None = None,
    adapter_path: str | None = None,
    lazy: bool = False,
    return_config: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> Any:
    """Return a model and its tokenizer, and with *return_config* the metadata of the file.

    Args:
        path_or_hf_repo: A model as for `npurt.Llama`, a folder with one GGUF file, or a hub
            repository with GGUF files: ``user/repo`` or ``user/repo:QUANT``.
        tokenizer_config: ``eos_token``, an additional token that ends a generation, and
            ``chat_template``.
        model_config: Refused unless None or empty.
        adapter_path: Refused unless None.
        lazy: No effect.
        return_config: Also return the metadata.
        revision: The branch, tag or commit of the repository.
        trust_remote_code: No effect, because npurt runs no code of a repository.
        options: Arguments of `npurt.Llama`, such as *device* and *n_ctx*.

    Raises:
        DownloadError: The repository cannot be read.
        ModelFormatError: npurt cannot run the file.
        UnsupportedOp: npurt does not support an argument.
    """
    refuse(locals(), "model_config", "adapter_path")
    with_config = flag("return_config", return_config)
    config = {k: v for k, v in (tokenizer_config or {}).items() if k not in IGNORED}
    end, template = config.pop("eos_token", None), config.pop("chat_template", None)
    for name in config:
        raise missing(f"tokenizer_config[{name!r}]")
    llm = Llama(_file(path_or_hf_repo, revision), chat_template=template, **options)
    try:
        tokenizer = TokenizerWrapper(llm)
        if end is not None:
            tokenizer.add_eos_token(end)
    except BaseException:
        llm.close()
        raise
    return (llm, tokenizer, dict(llm.metadata)) if with_config else (llm, tokenizer)


def _file(place: str | os.PathLike[str], revision: str | None) -> Path:
    path = Path(require_path(place))
    if path.is_dir():
        return model_in(path)
    with late.imports():
        from npurt.models.hub import Hub
        from npurt.models.location import locate
        from npurt.models.reference import Reference

    repository = str(place).removeprefix("hf:")
    if revision is None or repository == str(place):
        try:
            return locate(place)
        except ModelFormatError:
            if repository.count("/") != 1:
                raise
    return Hub.usual().fetch(Reference.of(repository, None, revision))
