"""`Engine`: evaluate many requests of one model together, from any thread."""

import contextlib
import os
import weakref
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import fields
from typing import Any, Literal, Self, overload

from npurt.device.device import Device
from npurt.errors import SettingError
from npurt.llm.decode.llama import Llama
from npurt.llm.decode.options import GenerationRequest
from npurt.llm.decode.samplers.settings import Sampling
from npurt.llm.decode.text import MAX_TEXTS
from npurt.llm.engine.events import Stats
from npurt.llm.engine.loop import Listener, Loop
from npurt.llm.engine.request import Request
from npurt.llm.engine.scheduler import Scheduler
from npurt.llm.engine.sequence import Sequence
from npurt.llm.session.memory import kv_budget
from npurt.llm.spec.opening import Drafts, open_drafts, require_draft
from npurt.runtime.open.arguments import flag, integer, optional_integer

USUAL_SEQUENCES = 8
PREFIXES = 32  # cached prefixes, by default
SPARE = 2  # sequences for the context of `Llama` and for the copy of a prefix


class Engine:
    """Evaluates many requests together: each step has tokens of all running sequences.

    Each completion has the same tokens as if it were generated alone.  Any thread may call any
    method.

    Args:
        model: A model as for `Llama`, or an open `Llama` with a `max_sequences` above 2.  Only the
            engine may use an open `Llama` until the engine is closed.  The engine removes the
            tokens in its context, and does not close it.
        device: As for `Llama`.
        max_sequences: The largest number of sequences evaluated together; other requests wait.
        kv_bytes: Bytes of the KV cache for all sequences; by default a quarter of the free memory.
        prefixes: The largest number of cached prefixes.
        snapshot_bytes: Bytes for the recurrent states of cached prefixes, which limits *prefixes*
            of recurrent models; by default half of *kv_bytes*.
        draft: As for `Llama`; None turns drafts off.  For each sequence, the engine drafts while
            this saves time.  An open `Llama` with a draft uses that draft.
        draft_max, draft_device: As for `Llama`.
        on_step: A function that the engine's thread calls after each step, with the events of all
            requests.
        options: Other arguments of `Llama`.

    Attributes:
        llm: The model.
        sizes: The largest numbers of sequences and prefixes, and the size of the KV cache, as text.

    Raises:
        SettingError: The value of an argument is invalid.  Other errors are those of `Llama`.
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
        maximum = USUAL_SEQUENCES if wanted is None else wanted
        cached = integer("prefixes", prefixes, 0)
        snapshots = optional_integer("snapshot_bytes", snapshot_bytes, 0)
        with contextlib.ExitStack() as opened:
            if isinstance(model, Llama):
                self.llm = model
                count = model.model.setup.limits.sequences
                running = min(maximum, count - SPARE)
                own = (*options.values(), kv_bytes, draft_max, draft_device)
                if running < 1 or any(value is not None for value in own):
                    raise SettingError(
                        f"the engine cannot use a model that was opened for {count} sequences",
                        remedy="open it with max_sequences=40 or more and all other options, or "
                        "pass its path",
                    )
                cached = min(cached, count - SPARE - running)
                model.reset()
            else:
                running, budget = maximum, kv_budget(kv_bytes)
                snapshots = budget // 2 if snapshots is None else snapshots
                self.llm = opened.enter_context(
                    Llama(
                        model, device, max_sequences=running + cached + SPARE,
                        kv_bytes=budget, **({} if draft == "lookup" else drafting), **options,
                    )
                )  # fmt: skip
            if running > self.llm.n_batch:
                raise SettingError(
                    f"{running} sequences do not fit into runs of {self.llm.n_batch} rows",
                    remedy="use a smaller max_sequences, or a larger n_batch (-b)",
                )
            each = self.llm.model.executor.recurrent_bytes
            if each and snapshots is not None:
                cached = min(cached, snapshots // each)
            self.sizes = _sizes(self.llm, running, cached)
            self.llm.model.ledger.notes.append(self.sizes)
            drafts = None if draft is None else _drafts(self.llm, opened, **drafting)
            scheduler = Scheduler(self.llm.model, sequences=running, prefixes=cached, drafts=drafts)
            self._longest = scheduler.longest
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
        detokenize: bool = True,
        echo: bool | None = False,
        **options: Any,
    ) -> Request | list[Request]:
        """Submit a request to complete *prompt*, a text or token ids; return its handle.

        Args:
            sampling: Sampling settings, which may also be among *options*.
            n: The number of completions, as for `Llama.generate`; if *n* is above 1, a list of
                handles is returned.
            priority: Requests with a higher priority are evaluated first.
            deadline: Seconds after which the request ends.
            prompt_tokens: The number of prompt tokens among the ids in *prompt*.  Further ids were
                generated earlier, and the completion continues after them.
            reusable: The number of first ids that later prompts are likely to begin with.  For a
                recurrent model, the state at this position is cached.
            salt: Requests share cached prefixes only with requests of the same salt.
            prompt_logprobs: Whether to compute log probabilities of the prompt's tokens.  The whole
                prompt is then evaluated, even if it is cached.  With *max_tokens* 0, nothing is
                generated.
            detokenize: Whether tokens are decoded to text.  Without it, the events have only token
                ids, and *stop* may have no texts.
            echo: Begin the completion with the prompt.
            options: The options of `Llama.generate`: *max_tokens*, *stop*, *logprobs* and others.

        Raises:
            ContextFull: The prompt is longer than the context.
            LayoutError: There is no token, or an id is not in the vocabulary.
            SettingError: The value of an option is invalid, or the engine is closed.
            UnsupportedOp: npurt does not support an option.
        """
        count = 1 if n is None else integer("n", n, 1, MAX_TEXTS)
        asked = GenerationRequest.of(_settings(sampling) | options, self.llm.seed)
        ids = self.llm.tokenize(prompt) if isinstance(prompt, str) else self.llm.model.valid(prompt)
        sequences = [
            Sequence(
                self._loop.new_id(), list(ids), asked.nth(i), self.llm.tokenizer,
                prompt=prompt_tokens, priority=priority, deadline=deadline, salt=salt,
                reusable=reusable, prompt_logprobs=flag("prompt_logprobs", prompt_logprobs),
                detokenize=flag("detokenize", detokenize),
            )
            for i in range(count)
        ]  # fmt: skip
        if flag("echo", echo):
            read = self.llm.detokenize
            begin = prompt if isinstance(prompt, str) else read(ids[: sequences[0].prompt])
            for sequence in sequences:
                sequence.echo = begin
        requests = [Request(each.id, self.cancel, self._loop.require_process) for each in sequences]
        for request, sequence in zip(requests, sequences, strict=True):
            self._loop.submit(request, sequence)
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
        """Submit a request to answer *messages*; the model's chat template makes the prompt.

        The oldest turns of a conversation that is too long are left out, as in `Llama.chat`.

        Args:
            template: *tools* and other variables of the template.
            n, options: As for `submit`.

        Raises:
            The errors of `submit` and `Llama.apply_chat_template`.
        """
        ids = self.llm.fit(
            messages,
            lambda kept: self.llm.apply_chat_template(kept, **dict(template or {})),
            options.get("max_tokens"),
            self._longest,
        )
        chosen: Any = n  # Any, because the overloads distinguish 1 from other numbers
        requests: Request | list[Request] = self.submit(ids, n=chosen, **options)
        return requests

    def cancel(self, request: Request) -> None:
        """End a request; see `Request.cancel`."""
        self._loop.cancel(request)

    def stats(self) -> Stats:
        """Return the state of the engine at the end of the present step."""
        return self._loop.stats()

    def close(self) -> None:
        """End all requests; close a model that the engine opened.  A second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _drafts(
    llm: Llama, opened: contextlib.ExitStack, draft: str | os.PathLike[str],
    draft_max: int | None, draft_device: str | None,
) -> Drafts | None:  # fmt: skip
    """Return the draft of *llm*, or else lookup; None if the model cannot verify drafts."""
    if llm.generator.drafts:
        return llm.generator.drafts
    if draft != "lookup":
        raise SettingError(
            f"{draft} cannot draft for a model that is open already",
            remedy="open the model with this draft",
        )
    model = llm.model
    if not llm.config.causal or model.setup.limits.rows < 2:
        return None
    return open_drafts("lookup", None, model, opened, maximum=draft_max, device=draft_device)


def _sizes(llm: Llama, running: int, cached: int) -> str:
    """Return a line with the numbers of sequences and prefixes, and the size of the KV cache."""
    capacity, memory = llm.model.executor.capacity(), "separate for each sequence"
    if capacity:
        memory = (
            f"{capacity.total} pages of {capacity.page} positions for keys and values, "
            f"{capacity.nbytes} bytes ({capacity.nbytes / 2**20:.1f} MiB)"
        )
    return f"engine: {running} sequences at a time, {cached} cached prefixes; memory: {memory}"


def _settings(given: Sampling | Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(given, Sampling):
        return {field.name: getattr(given, field.name) for field in fields(given)}
    return dict(given or {})
