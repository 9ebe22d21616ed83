"""Prompt caches: contexts that outlive other texts, also in files.

mlx-lm has a cache for each layer, npurt one of the whole context: here the list has one element.
"""

import contextlib
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npurt.compat.mlx_lm.missing import refuse
from npurt.errors import SettingError, StateFormatError, brief
from npurt.files import replacing
from npurt.llm.decode.model import Llama
from npurt.llm.spec.assistant import shared
from npurt.llm.state.state import Snapshot
from npurt.runtime.open.arguments import integer, listed, require_path

FORM = 1  # of the files


@dataclass(repr=False)
class PromptCache:
    """The tokens of a context, and a copy of its state after some of the first tokens.

    Tokens without a state are evaluated by the next generation; so are those that `trim` left.
    """

    tokens: tuple[int, ...] = ()
    snapshot: Snapshot | None = None

    def __repr__(self) -> str:
        state = "no state" if self.snapshot is None else f"a state of {self.snapshot.nbytes} bytes"
        return f"PromptCache({len(self.tokens)} tokens, {state})"

    @property
    def offset(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def size(self) -> int:
        """Return the number of tokens."""
        return len(self.tokens)

    def empty(self) -> bool:
        """Return whether there are no tokens."""
        return not self.tokens

    def is_trimmable(self) -> bool:
        """Return True: tokens can be taken back."""
        return True

    def trim(self, n: int) -> int:
        """Take back the last *n* tokens; return how many there were."""
        taken = min(max(n, 0), len(self.tokens))
        self.tokens = self.tokens[: len(self.tokens) - taken]
        return taken

    def enter(self, model: Llama) -> None:
        """Bring the state to *model*, unless its context has at least as much of the tokens.

        Raises:
            LayoutError: The state is of another model, or does not fit.
        """
        if self.snapshot is not None:
            here = shared(model.history, self.tokens)
            if here < shared(self.snapshot.tokens, self.tokens):
                model.restore(self.snapshot)

    def leave(self, model: Llama, tokens: Sequence[int]) -> None:
        """Keep *tokens*, and the state of *model* if it is one of their beginnings."""
        self.tokens = tuple(tokens)
        with contextlib.suppress(SettingError):  # closed, or in use by another thread
            if shared(model.history, self.tokens) == model.n_tokens:
                self.snapshot = model.snapshot()


def make_prompt_cache(model: Llama, max_kv_size: int | None = None) -> list[PromptCache]:
    """Return an empty cache for *model*.

    Raises:
        UnsupportedOp: *max_kv_size* is not None.
    """
    refuse(locals(), "max_kv_size")
    return [PromptCache()]


def save_prompt_cache(
    file_name: str | os.PathLike[str],
    cache: Sequence[PromptCache],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write *cache* and *metadata* to a file of npurt's own form, whole or not at all.

    Raises:
        StateFormatError: The file cannot be written.
    """
    states = _states(cache)
    if len(states) != 1:
        raise SettingError(
            f"there are {len(states)} states to be saved",
            remedy="pass what make_prompt_cache returned: one",
        )
    [only] = states
    about: dict[str, Any] = {"form": FORM, "metadata": metadata or {}, "snapshot": None}
    arrays = {"tokens": np.array(only.tokens, np.int64)}
    if (kept := only.snapshot) is not None:
        about["snapshot"] = [kept.own, kept.integers, kept.model.hex(), len(kept.arrays)]
        arrays["seen"] = np.array(kept.tokens, np.int64)
        arrays |= {f"array{i}": array for i, array in enumerate(kept.arrays)}
    try:
        with replacing(Path(require_path(file_name))) as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise StateFormatError(
            f"{file_name} cannot be written: {error.strerror}", remedy="choose another place"
        ) from error


def load_prompt_cache(file_name: str | os.PathLike[str], return_metadata: bool = False) -> Any:
    """Return the cache in a file, and with *return_metadata* its metadata.

    Raises:
        StateFormatError: The file cannot be read, or `save_prompt_cache` did not write it.
    """
    path = require_path(file_name)
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            if about["form"] != FORM:
                raise ValueError(f"its form is {about['form']}")
            cache = PromptCache(tuple(file["tokens"].tolist()))
            if about["snapshot"] is not None:
                own, integers, model, count = about["snapshot"]
                arrays = tuple(file[f"array{i}"] for i in range(count))
                seen = tuple(file["seen"].tolist())
                cache.snapshot = Snapshot(seen, arrays, own, integers, bytes.fromhex(model))
    except (OSError, ValueError, TypeError, LookupError, EOFError, zipfile.BadZipFile) as error:
        raise StateFormatError(
            f"{brief(file_name)} holds no prompt cache: {error}",
            remedy="pass a file that npurt's save_prompt_cache wrote",
        ) from error
    return ([cache], about["metadata"]) if return_metadata else [cache]


def can_trim_prompt_cache(cache: Sequence[PromptCache]) -> bool:
    """Return whether tokens of *cache* can be taken back."""
    return all(each.is_trimmable() for each in _states(cache))


def trim_prompt_cache(cache: Sequence[PromptCache], num_tokens: int) -> int:
    """Take back the last *num_tokens* of *cache*; return how many there were."""
    count = integer("num_tokens", num_tokens, 0)
    return max((each.trim(count) for each in _states(cache)), default=0)


def _states(cache: Sequence[PromptCache]) -> list[PromptCache]:
    """Return the states of the argument *cache*.

    Raises:
        SettingError: It is no list of states.
    """
    found = listed("cache", cache, "what make_prompt_cache returned")
    if not all(isinstance(each, PromptCache) for each in found):
        raise SettingError(
            f"cache is {brief(cache)}", remedy="cache must be what make_prompt_cache returned"
        )
    return found
