"""Prompt caches: saved contexts, in memory or in files.

In mlx-lm, a prompt cache is a list with a cache for each layer.  In npurt, the list has one
element, the cache of the whole context.
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

from npurt.base.files import replacing
from npurt.compat.mlx_lm.missing import refuse
from npurt.errors import SettingError, StateFormatError, brief
from npurt.llm.decode.llama import Llama
from npurt.llm.spec.assistant import shared
from npurt.llm.state.state import Snapshot
from npurt.runtime.open.arguments import integer, listed, require_path

FORM = 1  # version of the file format


@dataclass(repr=False)
class PromptCache:
    """The tokens of a context, and a snapshot of the state after a prefix of these tokens.

    The next generation evaluates the tokens that the snapshot does not include.
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
        """Return whether the cache has no tokens."""
        return not self.tokens

    def is_trimmable(self) -> bool:
        """Return True, because tokens can be removed from every cache."""
        return True

    def trim(self, n: int) -> int:
        """Remove the last *n* tokens, or all if fewer; return the number of removed tokens."""
        taken = min(max(n, 0), len(self.tokens))
        self.tokens = self.tokens[: len(self.tokens) - taken]
        return taken

    def enter(self, model: Llama) -> None:
        """Restore the snapshot in *model* if it shares more tokens with the cache than the context.

        Raises:
            LayoutError: The snapshot belongs to another model, or does not fit in the context.
        """
        if self.snapshot is not None:
            here = shared(model.history, self.tokens)
            if here < shared(self.snapshot.tokens, self.tokens):
                model.restore(self.snapshot)

    def leave(self, model: Llama, tokens: Sequence[int]) -> None:
        """Store *tokens*, and a snapshot of *model* if its context is a prefix of *tokens*."""
        self.tokens = tuple(tokens)
        with contextlib.suppress(SettingError):  # the model is closed, or another thread uses it
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
    """Write *cache* and *metadata* atomically to a file in npurt's format.

    Raises:
        SettingError: *cache* is no list with one prompt cache.
        StateFormatError: The file cannot be written.
    """
    states = _states(cache)
    if len(states) != 1:
        raise SettingError(
            f"the cache has {len(states)} elements, not 1",
            remedy="pass the result of make_prompt_cache",
        )
    [only] = states
    about: dict[str, Any] = {"form": FORM, "metadata": metadata or {}, "snapshot": None}
    arrays = {"tokens": np.array(only.tokens, np.int64)}
    if (snapshot := only.snapshot) is not None:
        about["snapshot"] = [
            snapshot.own,
            snapshot.integers,
            snapshot.model.hex(),
            len(snapshot.arrays),
        ]
        arrays["seen"] = np.array(snapshot.tokens, np.int64)
        arrays |= {f"array{i}": array for i, array in enumerate(snapshot.arrays)}
    try:
        with replacing(Path(require_path(file_name))) as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise StateFormatError(
            f"{file_name} cannot be written: {error.strerror}", remedy="choose another path"
        ) from error


def load_prompt_cache(file_name: str | os.PathLike[str], return_metadata: bool = False) -> Any:
    """Return the cache in a file, or with *return_metadata* a tuple of the cache and its metadata.

    Raises:
        StateFormatError: The file cannot be read, or `save_prompt_cache` did not write it.
    """
    path = require_path(file_name)
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            if about["form"] != FORM:
                raise ValueError(f"its format has version {about['form']}, not {FORM}")
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
    """Return whether tokens can be removed from *cache*."""
    return all(each.is_trimmable() for each in _states(cache))


def trim_prompt_cache(cache: Sequence[PromptCache], num_tokens: int) -> int:
    """Remove the last *num_tokens* tokens of *cache*; return the number of removed tokens."""
    count = integer("num_tokens", num_tokens, 0)
    return max((each.trim(count) for each in _states(cache)), default=0)


def _states(cache: Sequence[PromptCache]) -> list[PromptCache]:
    """Return the argument *cache* as a list of prompt caches.

    Raises:
        SettingError: *cache* is no list of prompt caches.
    """
    found = listed("cache", cache, "the result of make_prompt_cache")
    if not all(isinstance(each, PromptCache) for each in found):
        raise SettingError(
            f"cache is {brief(cache)}", remedy="cache must be the result of make_prompt_cache"
        )
    return found
