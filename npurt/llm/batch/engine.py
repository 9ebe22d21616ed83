"""`Engine`: many texts of one model at once, from any thread."""

import contextlib
import os
import weakref
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import fields
from typing import Any, Literal, Self, overload

from npurt.device import Device
from npurt.errors import SettingError
from npurt.llm.batch.events import Stats
from npurt.llm.batch.loop import Listener, Loop
from npurt.llm.batch.memory import kv_budget
from npurt.llm.batch.request import Request
from npurt.llm.batch.scheduler import Scheduler
from npurt.llm.batch.sequence import Sequence
from npurt.llm.decode.model import Llama
from npurt.llm.decode.options import Request as Asked
from npurt.llm.decode.samplers.settings import Sampling
from npurt.llm.decode.text import MAX_TEXTS
from npurt.llm.spec.opening import Drafts, open_drafts, require_draft
from npurt.runtime.execute.executor import runs_graphs
from npurt.runtime.open.arguments import flag, integer, optional_integer

USUAL_SEQUENCES = 8
PREFIXES = 32  # texts that are kept, by default
SPARE = 2  # sequences: that of `Llama`, and one that is being copied


class Engine:
    """Evaluates many texts together: each step has tokens of all of them.

    Each text is what it would be alone, token for token.  Any thread may call any method.

    Args:
        model: A file, or an open `Llama` with a `max_sequences` of more than two.  The engine has
            it alone until it is closed, and does not close it; what is in its context is forgotten.
        device: As for `Llama`.
        max_sequences: The most texts that are evaluated at a time; others wait.
        kv_bytes: Bytes for keys and values of all texts; by default a quarter of the free memory.
        prefixes: The most texts that are kept for requests that begin with the same tokens.
        snapshot_bytes: Bytes for copies of states that only go forward, which bounds *prefixes* of
            such models; by default half of *kv_bytes*.
        draft: As for `Llama`, for each text while that pays; None: do not draft.  An open model
            that has a draft of its own uses that.
        draft_max, draft_device: As for `Llama`.
        on_step: Called after each step, by the engine's thread, with what it did for all texts.
        options: Other arguments of `Llama`.

    Attributes:
        llm: The model.
        sizes: How many texts there may be, and the memory that they have, in words.

    Raises:
        SettingError: An argument makes no sense.  Others as of `Llama`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Llama,
        device: str | Device | None = "auto",
        *,
        max_sequences: int | None = None,
        kv_bytes: int | None = None,
        prefixes: int = PREFIXES,
        snapshot_bytes: int | None = None,
        draft: str | os.PathLike[str] | None = "lookup",
        draft_max: int | None = None,
        draft_device: str | None = None,
        on_step: Listener | None = None,
        **options: Any,
    ) -> None:
        require_draft(draft, draft_max=draft_max, draft_device=draft_device)
        drafting: dict[str, Any] = {
            "draft": draft,
            "draft_max": draft_max,
            "draft_device": draft_device,
        }
        wanted = optional_integer("max_sequences", max_sequences, 1)
        most = USUAL_SEQUENCES if wanted is None else wanted
        kept = integer("prefixes", prefixes, 0)
        snapshots = optional_integer("snapshot_bytes", snapshot_bytes, 0)
        with contextlib.ExitStack() as opened:
            if isinstance(model, Llama):
                self.llm = model
                count = model.model.setup.limits.sequences
                running = min(most, count - SPARE)
                own = (*options.values(), kv_bytes, draft_max, draft_device)
                if running < 1 or any(value is not None for value in own):
                    raise SettingError(
                        f"an engine of a model that was opened for {count} sequences",
                        remedy="open it with max_sequences=40 or more and all other options, or "
                        "pass its path",
                    )
                kept = min(kept, count - SPARE - running)
                model.reset()
            else:
                running, budget = most, kv_budget(kv_bytes)
                snapshots = budget // 2 if snapshots is None else snapshots
                self.llm = opened.enter_context(
                    Llama(
                        model, device, max_sequences=running + kept + SPARE,
                        kv_bytes=budget, **({} if draft == "lookup" else drafting), **options,
                    )
                )  # fmt: skip
            if running > self.llm.n_batch:
                raise SettingError(
                    f"{running} sequences do not fit runs of {self.llm.n_batch} rows",
                    remedy="use a smaller max_sequences, or a larger n_batch (-b)",
                )
            each = self.llm.model.executor.recurrent_bytes
            if each and snapshots is not None:
                kept = min(kept, snapshots // each)
            self.sizes = _sizes(self.llm, running, kept)
            self.llm.model.ledger.notes.append(self.sizes)
            drafts = None if draft is None else _drafts(self.llm, opened, **drafting)
            scheduler = Scheduler(self.llm.model, sequences=running, prefixes=kept, drafts=drafts)
            self._loop = Loop(scheduler, self.llm.lock, on_step)
            self._loop.start(opened.pop_all())
        self._close = weakref.finalize(self, Loop.close, self._loop)

    @overload
    def submit(
        self, prompt: str | Items[int], sampling: Sampling | Mapping[str, Any] | None = None, *,
        n: Literal[1] | None = None, **options: Any,
    ) -> Request: ...  # fmt: skip

    @overload
    def submit(
        self, prompt: str | Items[int], sampling: Sampling | Mapping[str, Any] | None = None, *,
        n: int, **options: Any,
    ) -> Request | list[Request]: ...  # fmt: skip

    def submit(
        self,
        prompt: str | Items[int],
        sampling: Sampling | Mapping[str, Any] | None = None,
        *,
        n: int | None = 1,
        priority: int = 0,
        deadline: float | None = None,
        prompt_tokens: int | None = None,
        reusable: int = 0,
        salt: str = "",
        prompt_logprobs: bool = False,
        echo: bool | None = False,
        **options: Any,
    ) -> Request | list[Request]:
        """Begin to continue *prompt*, a text or token ids.

        Args:
            sampling: Settings of sampling, which may also be among *options*.
            n: The number of texts, as for `Llama.generate`; several come as a list of requests.
            priority: Requests with a higher one come first.
            deadline: Seconds after which the text ends.
            prompt_tokens: How many of *prompt*'s ids are the prompt's: others were generated
                before, and the text goes on after them.
            reusable: How many ids later prompts are likely to begin with; of models with states
                that only go forward, these are kept there.
            salt: Requests of different salts share nothing that was evaluated.
            prompt_logprobs: Whether to say how likely the tokens of the prompt are, which is then
                evaluated even if it is kept; with *max_tokens* 0 that is all.
            echo: Begin the text with the prompt.
            options: Those of `Llama.generate`: *max_tokens*, *stop*, *logprobs* and others.

        Raises:
            ContextFull: The prompt can never fit.
            LayoutError: There is no token, or one is not in the vocabulary.
            SettingError: An option makes no sense, or the engine is closed.
            UnsupportedOp: npurt does not have the option.
        """
        count = 1 if n is None else integer("n", n, 1, MAX_TEXTS)
        asked = Asked.of(_settings(sampling) | options, self.llm.seed)
        ids = self.llm.tokenize(prompt) if isinstance(prompt, str) else self.llm.model.valid(prompt)
        texts = [
            Sequence(
                self._loop.new_id(), list(ids), asked.nth(i), self.llm.tokenizer,
                prompt=prompt_tokens, priority=priority, deadline=deadline, salt=salt,
                reusable=reusable, prompt_logprobs=flag("prompt_logprobs", prompt_logprobs),
            )
            for i in range(count)
        ]  # fmt: skip
        if flag("echo", echo):
            read = self.llm.detokenize
            begin = prompt if isinstance(prompt, str) else read(ids[: texts[0].prompt])
            for text in texts:
                text.echo = begin
        requests = [Request(text.id, self.cancel) for text in texts]
        for request, text in zip(requests, texts, strict=True):
            self._loop.submit(request, text)
        return requests if count > 1 else requests[0]

    @overload
    def chat(
        self, messages: Items[Mapping[str, Any]], *, template: Mapping[str, Any] | None = None,
        n: Literal[1] | None = None, **options: Any,
    ) -> Request: ...  # fmt: skip

    @overload
    def chat(
        self, messages: Items[Mapping[str, Any]], *, template: Mapping[str, Any] | None = None,
        n: int, **options: Any,
    ) -> Request | list[Request]: ...  # fmt: skip

    def chat(
        self, messages: Items[Mapping[str, Any]], *, template: Mapping[str, Any] | None = None,
        n: int | None = 1, **options: Any,
    ) -> Request | list[Request]:  # fmt: skip
        """Begin to answer *messages*, by the model's chat template.

        Args:
            template: *tools* and variables of the template.
            n, options: Those of `submit`.

        Raises:
            Those of `submit` and `Llama.apply_chat_template`.
        """
        ids = self.llm.apply_chat_template(messages, **dict(template or {}))
        chosen: Any = n  # an overload is for 1, and one for other numbers
        requests: Request | list[Request] = self.submit(ids, n=chosen, **options)
        return requests

    def cancel(self, request: Request) -> None:
        """End a text; see `Request.cancel`."""
        self._loop.cancel(request)

    def stats(self) -> Stats:
        """Return the present state, after the step that is going on."""
        return self._loop.stats()

    def close(self) -> None:
        """End all texts; close the model if the engine opened it.  A second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _drafts(
    llm: Llama, opened: contextlib.ExitStack, draft: str | os.PathLike[str],
    draft_max: int | None, draft_device: str | None,
) -> Drafts | None:  # fmt: skip
    """Return what drafts for the texts of *llm*: its own draft, or lookup where that can be."""
    if llm.generator.drafts:
        return llm.generator.drafts
    if draft != "lookup":
        raise SettingError(
            f"{draft} cannot draft for a model that is open already",
            remedy="open the model with this draft",
        )
    model = llm.model
    if runs_graphs(llm.device) or not llm.config.causal or model.setup.limits.rows < 2:
        return None
    return open_drafts("lookup", None, model, opened, most=draft_max, device=draft_device)


def _sizes(llm: Llama, running: int, kept: int) -> str:
    """Say how much memory the engine has for texts."""
    room, memory = llm.model.executor.room(), "memory of their own"
    if room:
        memory = (
            f"{room.total} pages of {room.page} positions for keys and values, "
            f"{room.nbytes} bytes ({room.nbytes / 2**20:.1f} MiB)"
        )
    return f"engine: {running} texts at a time, {kept} kept; they have {memory}"


def _settings(given: Sampling | Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(given, Sampling):
        return {field.name: getattr(given, field.name) for field in fields(given)}
    return dict(given or {})
