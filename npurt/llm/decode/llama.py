"""`Llama`: open a GGUF file, generate text, chat, report."""

import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Self, overload

import numpy as np

from npurt.base import late
from npurt.device.device import F32, Device
from npurt.device.verify import Sampler, mode
from npurt.errors import SettingError, brief
from npurt.graph.sizes import SIZES
from npurt.llm.decode.embed import Embedder, Text
from npurt.llm.decode.generate import Generator, Timing
from npurt.llm.decode.text import TextGenerator
from npurt.llm.file.adapter import Lora, adapters
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import TensorInfo
from npurt.llm.file.mapped import errors_of
from npurt.llm.file.pooling import Pooling, pooling_of
from npurt.llm.session.context import Context
from npurt.llm.session.devices import Devices
from npurt.llm.session.loaded_model import LoadedModel
from npurt.llm.session.lock import Lock, locked
from npurt.llm.session.setup import set_up
from npurt.llm.spec.diffusion import open_network
from npurt.llm.spec.opening import open_drafts, require_draft
from npurt.llm.spec.speculator import Speculator
from npurt.llm.state.state import Snapshot, State
from npurt.llm.text import named_templates
from npurt.runtime.open.arguments import flag, integer, none_at_minus_one, optional_integer
from npurt.runtime.report.ledger import Report

# dir() does not list attributes that only other parts of npurt use.
INTERNALS = (
    "context", "embedder", "file", "fit", "generator", "lock", "marks_calls", "model", "speculator",
)  # fmt: skip

MAX_SEQUENCES = 4096  # upper bound of max_sequences; far above the capacity of a host


class Llama(TextGenerator):
    """A language model from a GGUF file.

    One thread at a time can use a model: concurrent use raises SettingError.  Open a model for each
    thread, or protect the calls with a lock.

    Args:
        path: The file, or another form of a model for `npurt.models.locate`: a name of
            `npurt models`, ``hf:user/repo:QUANT``, an https URL.  A model that is not on this
            machine is downloaded.  `npurt.llm.arch` lists the architectures that npurt runs.
        device: The device that runs matrix products: a name from `npurt.devices`, or a `Device`.
            The CPU runs everything else.  `close` closes this `Device`, but a failure to open the
            model does not.
        n_ctx: Positions of the KV cache.  The default is the context length from training, at most
            4096; 0 is the whole context length from training.  A larger number gives a warning.
        n_batch: The largest number of tokens in one run, 1 to 512; the default is 512.
        n_threads: CPU threads; the default depends on the machine's cores and CPU limits.
        seed: The seed of sampling; by default, and with -1, a random seed for each generation.
        kv_type: The type of the KV cache's elements, ``"f16"`` or ``"f32"``.
        verify: Which matrix products are checked: ``"off"``, ``"sample"`` or ``"always"``.
        strict: Raise an error when *device* cannot run a matrix product or a delta net, from the
            start or after a failure.
        context_shift: When the context is full, remove the older half of its tokens instead of
            ending the generation.
        chat_template: Jinja source to use instead of the file's template, or the name of a format:
            ``"chatml"``, ``"gemma"``, ``"llama2"``, ``"llama3"``, ``"mistral"``, ``"phi3"``,
            ``"zephyr"``.
        progress: Show progress bars on a terminal.
        draft: Decode speculatively.  ``"lookup"`` drafts from the sequence itself; a path is the
            file of a smaller model with the same vocabulary, or of a DFlash draft for this model,
            in a form for *path*.
            The completion has the same tokens as without drafts.
        draft_max: The largest number of draft tokens in a step; a controller chooses the number for
            each step.  The default is 8, or less if *n_batch* or *n_ctx* is too small for 8.
        draft_device: The name of the device for the matrix products of a draft model; by default
            the CPU.
        lora: LoRA adapters in GGUF files: a path, ``(path, scale)``, or a list of these.
        max_sequences: The largest number of sequences in the KV cache at a time.
        kv_bytes: Bytes of the KV cache for all sequences; by default enough for *max_sequences*
            full sequences.

    Raises:
        DownloadError: The model cannot be downloaded.
        ModelFormatError: npurt cannot run the file, or cannot use *draft* with it.
        DeviceNotFound: The device does not exist.
        SettingError: The value of an argument is invalid.
        NotOffloaded: *strict* is true, and *device* cannot run part of the model.
    """

    lock: Lock  # held by the thread that uses the model

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: str | Device | None = "auto",
        *,
        n_ctx: int | None = None,
        n_batch: int | None = None,
        n_threads: int | None = None,
        seed: int | None = None,
        kv_type: str = "f16",
        verify: str | None = None,
        strict: bool = False,
        context_shift: bool = False,
        chat_template: str | None = None,
        progress: bool = True,
        draft: str | os.PathLike[str] | None = None,
        draft_max: int | None = None,
        draft_device: str | None = None,
        lora: Lora | None = None,
        max_sequences: int = 1,
        kv_bytes: int | None = None,
    ) -> None:
        n_ctx = optional_integer("n_ctx", n_ctx)
        n_threads = optional_integer("n_threads", n_threads, 0)
        draft_max = optional_integer("draft_max", draft_max)
        if not isinstance(draft, str | os.PathLike | None):
            raise SettingError(f"draft is {brief(draft)}", remedy='pass a path, or "lookup"')
        require_draft(draft, draft_max=draft_max, draft_device=draft_device)
        sequences = integer("max_sequences", max_sequences, 1, MAX_SEQUENCES)
        kv_bytes = optional_integer("kv_bytes", kv_bytes, 1)
        maximum = SIZES.rows
        self.n_batch = integer("n_batch", maximum if n_batch is None else n_batch, 1, maximum)
        seed, shift = none_at_minus_one("seed", seed), flag("context_shift", context_shift)
        template = None if chat_template is None else named_templates.source(chat_template)
        checks, adapted = Sampler(mode(verify)), adapters(lora)
        with contextlib.ExitStack() as opened:  # after an error, closes in reverse order
            with errors_of(path):
                file = opened.enter_context(GGUF(path, progress=progress))
                setup = set_up(
                    file, n_ctx, self.n_batch, kv_type, adapted, sequences=sequences,
                    kv_bytes=kv_bytes,
                )  # fmt: skip
            network = (
                open_network(draft, setup, progress=progress)
                if draft and draft != "lookup"
                else None
            )
            devices = opened.enter_context(Devices(device, n_threads))
            with errors_of(path):
                if network is not None:
                    setup = setup.capturing(network.shape.layers)
                self.model = opened.enter_context(
                    LoadedModel(
                        setup,
                        devices,
                        checks,
                        strict=flag("strict", strict),
                        progress=flag("progress", progress),
                    )
                )
            self.context = Context(self.model, shift=shift)
            opened.callback(self.context.release)
            super().__init__(Generator(self.context), seed=seed, template=template)
            self.embedder = Embedder(self.context)
            if draft is not None:
                drafts = open_drafts(
                    draft, network, self.model, opened, maximum=draft_max, device=draft_device
                )
                self.generator.draft_with(drafts, opened)
            self._opened = contextlib.ExitStack()
            if devices.device is device:
                self._opened.callback(device.close)
            self._opened.push(opened.pop_all())
        self.path, self.metadata = file.path, file.metadata
        self.config, self.n_ctx = self.model.config, self.model.n_ctx
        self.tokenizer, self.lock = self.model.tokenizer, self.model.lock

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        *,
        revision: str | None = None,
        progress: bool = True,
        **arguments: Any,
    ) -> Self:
        """Open a model from a Hugging Face hub; download files that are not in the cache.

        Args:
            repo_id: ``user/repo`` or ``user/repo:QUANT``; the default for QUANT is Q4_K_M, then
                Q8_0, then any file.
            filename: A file name, or a pattern such as ``*q8_0.gguf``; used instead of QUANT.
            revision: Branch, tag or commit; by default main.
            progress: Show progress bars on a terminal.
            arguments: The other arguments of `Llama`.

        Raises:
            DownloadError: The model cannot be downloaded.
            SettingError: *repo_id* has another form, or the repository has no matching file.
        """
        with late.imports():
            from npurt.models.hub import Hub
            from npurt.models.reference import Reference

        wanted = Reference.of(repo_id, filename, revision)
        path = Hub.usual().fetch(wanted, progress=progress)
        return cls(path, progress=progress, **arguments)

    # --- Generations ----------------------------------------------------------------------------

    @property
    def timing(self) -> Timing:
        """Counts and times of the latest completion."""
        return self.generator.timing

    @property
    def timings(self) -> tuple[Timing, ...]:
        """Counts and times of each completion of the latest call, in order."""
        return self.generator.timings

    @property
    def speculator(self) -> Speculator | None:
        """The speculator, which drafts tokens; None without a draft."""
        return self.generator.speculator

    @speculator.setter
    def speculator(self, speculator: Speculator | None) -> None:
        self.generator.speculator = speculator

    # --- Embeddings -----------------------------------------------------------------------------

    @overload
    def embed(  # type: ignore[overload-overlap]
        self,
        texts: str,
        normalize: bool = True,
        *,
        pooling: str | None = None,
        truncate: bool = False,
    ) -> F32: ...

    @overload
    def embed(  # type: ignore[overload-overlap]
        self,
        texts: Sequence[Text],
        normalize: bool = True,
        *,
        pooling: Literal["none"],
        truncate: bool = False,
    ) -> list[F32]: ...

    @overload
    def embed(
        self,
        texts: Sequence[Text],
        normalize: bool = True,
        *,
        pooling: str | None = None,
        truncate: bool = False,
    ) -> F32: ...

    def embed(
        self,
        texts: str | Sequence[Text],
        normalize: bool = True,
        *,
        pooling: str | None = None,
        truncate: bool = False,
    ) -> F32 | list[F32]:
        """Return the embedding of a text, float32 ``[D]``, or of each text in a list, ``[N, D]``.

        The other texts in the list do not change any bit of an embedding.  The context is restored
        afterwards.  A text may also be a list of all its token ids.

        Args:
            normalize: Scale each embedding to length 1.
            pooling: ``"mean"``, ``"cls"`` (the first token) or ``"last"``; ``"none"`` returns a
                vector for each token, ``[T, D]``, or a list of such arrays for several texts;
                ``"rank"`` returns the scores of a reranker.  The default is the pooling in the
                file's metadata, otherwise the mean.
            truncate: Cut texts that are longer than the context.

        Raises:
            ContextFull: A text is longer than the context.
            LayoutError: A text is neither a str nor token ids, or has no tokens.
            ModelFormatError: The file has no classifier, which ``"rank"`` needs.
            SettingError: *pooling* is not the name of a pooling.
        """
        if isinstance(texts, str):
            return self.embedder.each([texts], normalize, pooling=pooling, truncate=truncate)[
                0
            ].values
        made = self.embedder.each(texts, normalize, pooling=pooling, truncate=truncate)
        arrays = [embedding.values for embedding in made]
        if pooling_of(pooling, self.model.file.metadata) is Pooling.NONE:
            return arrays
        return np.stack(arrays) if arrays else np.empty((0, self.model.config.width), np.float32)

    def rerank(self, query: str, documents: Sequence[str]) -> F32:
        """Return the relevance of each document to *query*, float32 ``[N]``; larger is better.

        The model must be a reranker; `text.pairs` makes the tokens of a query and a document.

        Raises:
            ContextFull: A pair has more tokens than the context has positions; no pair is
                evaluated.
            LayoutError: A text is not a str.
            ModelFormatError: The file has no classifier.
        """
        return self.embedder.rerank(query, documents)

    # --- The context ----------------------------------------------------------------------------

    def eval(self, ids: Sequence[int]) -> F32:
        """Append *ids* to the context; return their logits, float32 ``[len(ids), n_vocab]``.

        Nothing is appended if this raises.

        Raises:
            ContextFull: There are not enough free positions, and `context_shift` is off.
            LayoutError: An id is not in the vocabulary.
        """
        return self.context.eval(ids)

    def eval_last(self, ids: Sequence[int]) -> F32:
        """Append *ids*, at least one; return the logits of the last id, ``[n_vocab]``.

        The next call overwrites the logits.  This is cheaper than `eval`, because only one row is
        multiplied by the output matrix.
        """
        return self.context.eval_last(ids)

    def reset(self) -> None:
        """Remove all tokens from the context."""
        self.context.reset()

    def rewind(self, n_tokens: int) -> None:
        """Keep only the first *n_tokens* tokens of the context.

        Tokens beyond `state.reach` are evaluated again.

        Raises:
            LayoutError: *n_tokens* is negative.
        """
        self.context.rewind(n_tokens)

    def rollback(self, n_tokens: int) -> None:
        """Remove the last *n_tokens* tokens of the context: see `rewind`.

        Raises:
            LayoutError: The context has fewer tokens.
        """
        self.context.rollback(n_tokens)

    def snapshot(self) -> Snapshot:
        """Return a copy of the state, for `restore`."""
        return self.context.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Set tokens and state to *snapshot*.

        A Hexagon computes delta nets in integers.  When their states move between a Hexagon and
        another kind of device, they are rounded to float32 precision, and the report notes this.
        Later results then differ by as much as the results of the two devices.

        Raises:
            LayoutError: *snapshot* is not a snapshot, is of another model, or does not fit the
                context.  Nothing has changed.
        """
        self.context.restore(snapshot)

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write tokens and state to the file *path*.  An error leaves an existing file unchanged.

        Raises:
            StateFormatError: The file cannot be written.
        """
        self.context.save_state(path)

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Set tokens and state to those in the file *path*, with the rounding of `restore`.

        Raises:
            StateFormatError: The file is damaged, is of another model or kv_type, or does not fit
                the context.  Nothing has changed.
        """
        self.context.load_state(path)

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the context."""
        return self.context.n_tokens

    @property
    def history(self) -> tuple[int, ...]:
        """The tokens in the context."""
        return self.context.history

    @property
    def state(self) -> State:
        """The state of the context."""
        return self.context.state

    @property
    def context_shift(self) -> bool:
        """Whether a full context removes the older half of its tokens."""
        return self.context.shift

    @context_shift.setter
    def context_shift(self, shift: bool) -> None:
        self.context.shift = flag("context_shift", shift)

    # --- The model ------------------------------------------------------------------------------

    def token_embeddings(self, ids: Sequence[int]) -> F32:
        """Return the embeddings of *ids*, as the input of the first layer, ``[T, D]``.

        Raises:
            LayoutError: An id is not in the vocabulary.
        """
        return self.model.token_embeddings(ids)

    def report(self) -> Report:
        """Return the ledger: the device, time and verification of each op."""
        return self.model.report()

    def trace(self, path: str | os.PathLike[str]) -> AbstractContextManager[None]:
        """Write a trace of the ``with`` body to *path*, for Perfetto or chrome://tracing.

        The file is written at the end, also after an error or Ctrl-C.

        Raises:
            SettingError: *path* is not a path, or the file cannot be written.
        """
        return self.model.trace(path)

    @property
    def file(self) -> GGUF:
        """The GGUF file."""
        return self.model.file

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The tensors of the file."""
        return tuple(self.model.file.tensors.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices, including the output matrix, excluding the token embeddings."""
        return self.model.weight_bytes

    @property
    def device(self) -> Device:
        """The device that runs matrix products."""
        return self.model.devices.device

    @property
    def threads(self) -> int:
        """The number of CPU threads; 1 if numpy replaces the CPU kernels."""
        return self.model.devices.threads

    @locked
    def close(self) -> None:
        """Release devices, threads, memory and file.  A second call does nothing.

        `report` still works afterwards.

        Raises:
            SettingError: Another thread is using the model; nothing is released.
        """
        self.speculator = self.generator.drafts = None
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __dir__(self) -> list[str]:
        names = (name for name in super().__dir__() if name not in INTERNALS)
        return [name for name in names if not name.startswith("_") or name.startswith("__")]

    def __repr__(self) -> str:
        ledger = self.model.ledger
        return f"Llama({self.path.name}, {self.config.architecture}, {ledger.device})"
