"""`Llama`: a GGUF file, loaded, and what one does with it."""

import operator
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from npurt.cpu.device import CpuDevice
from npurt.cpu.engine import MAX_ROWS
from npurt.device import F32, Device
from npurt.errors import LayoutError, ModelFormatError, SettingError
from npurt.llm import arch, weights
from npurt.llm.arch.decoder import Model, Rope, buffers, build, tensors
from npurt.llm.cache import Cache
from npurt.llm.chat import ChatTemplate
from npurt.llm.config import read_config
from npurt.llm.generate import Generation, Timing
from npurt.llm.gguf import GGUF, TensorInfo
from npurt.llm.metadata import optional
from npurt.llm.progress import Progress
from npurt.llm.rope import tables
from npurt.llm.sampler import Sampler, Sampling
from npurt.llm.spec.assistant import Assistant
from npurt.llm.spec.lookup import Lookup
from npurt.llm.spec.speculator import Speculator
from npurt.llm.tokenizer import Tokenizer
from npurt.runtime.devices import open_device
from npurt.runtime.ledger import Ledger, Report
from npurt.runtime.plan import Plan
from npurt.runtime.verify import Sampler as Checks
from npurt.runtime.verify import mode

USUAL_CONTEXT = 4096  # positions, when nobody says and the model can do more

Prompt = str | Sequence[int]
Message = dict[str, Any]


class Llama:
    """A language model from a GGUF file.

    Args:
        path: The file; architectures llama and qwen2.
        device: Where products run: see `npurt.devices`, or a `Device`, which is closed with the
            model.  The host does the rest.
        n_ctx: Positions of the KV cache; by default what the model was trained for, at most 4096.
        n_batch: Tokens evaluated at once, 1 to 512.
        n_threads: CPU threads; by default what the machine's cores and limits suggest.
        seed: Of sampling; by default different each time.
        kv_type: ``"f16"`` or ``"f32"``: elements of the KV cache.
        verify: ``"off"``, ``"sample"`` or ``"always"``: which products are checked.
        strict: Refuse to load when a product would not run on *device*.
        context_shift: When the context is full, forget the older half instead of stopping.
        chat_template: Jinja source to use instead of the file's.
        progress: Show progress bars on a terminal.
        draft: Decode speculatively: ``"lookup"`` guesses from the text itself, a path names a
            smaller model with the same vocabulary.  The text stays the same, token for token.
        draft_max: Tokens to guess at once, at most; how many is decided while it runs.

    Raises:
        ModelFormatError: npurt cannot run the file, or *draft* has another vocabulary.
        DeviceNotFound: There is no such device.
        SettingError: An argument makes no sense.
        NotOffloaded: See *strict*.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: str | Device | None = "auto",
        *,
        n_ctx: int | None = None,
        n_batch: int = MAX_ROWS,
        n_threads: int | None = None,
        seed: int | None = None,
        kv_type: str = "f16",
        verify: str | None = None,
        strict: bool = False,
        context_shift: bool = False,
        chat_template: str | None = None,
        progress: bool = True,
        draft: str | os.PathLike[str] | None = None,
        draft_max: int = 8,
    ) -> None:
        if not 1 <= n_batch <= MAX_ROWS:
            raise SettingError(
                f"a batch of {n_batch} tokens cannot be had", remedy=f"use 1 to {MAX_ROWS}"
            )
        self.path = Path(path)
        self.n_batch = n_batch
        self.seed = seed
        self.context_shift = context_shift
        self.timing = Timing()
        self._progress = progress
        self._template = chat_template
        self._checks = Checks(mode(verify))
        self._closed = False
        self.speculator: Speculator | None = None
        self._file = GGUF(path)
        self.metadata = self._file.metadata
        self._open_model(n_ctx, kv_type)
        self._device = (
            device if isinstance(device, Device) else open_device(device, threads=n_threads)
        )
        self._cpu = self._device if isinstance(self._device, CpuDevice) else CpuDevice(n_threads)
        self._ledger = Ledger(f"{self._device.caps.name}: {self._device.caps.detail}")
        try:
            with ThreadPoolExecutor(1) as beside:  # the vocabulary takes as long as the weights
                tokenizer = beside.submit(Tokenizer.from_gguf, self.metadata)
                self._build(strict)
            self.tokenizer = tokenizer.result()
            self._check_vocabulary()
        except BaseException:
            self.close()
            raise
        self._history: list[int] = []  # tokens in the cache
        if draft is not None:
            self._speculate(draft, draft_max)

    # --- Loading --------------------------------------------------------------------------------

    def _open_model(self, n_ctx: int | None, kv_type: str) -> None:
        architecture = arch.find(self._file.architecture)
        embedding = self._file.tensors.get(weights.EMBEDDING)
        self.config = read_config(self.metadata, embedding.shape[0] if embedding else 1)
        weights.check(self._file, tensors(self.config))
        self._rope = architecture.rope
        self.n_ctx = n_ctx if n_ctx else min(self.config.n_context, USUAL_CONTEXT)
        self._cache = Cache(self.config, self.n_ctx, kv_type)

    def _build(self, strict: bool) -> None:
        file, config = self._file, self.config
        total = sum(info.nbytes for info in file.tensors.values())
        with Progress("load", total, "B", shown=self._progress) as bar:
            placed = weights.load(file, self._device, self._cpu, strict=strict, progress=bar.add)
        norms = weights.vectors(file)
        cos, sin = tables(config, self.n_ctx, norms.get("rope_freqs"))
        rows = min(self.n_batch, self.n_ctx)
        model = Model(config, self._rope, placed, norms, cos, sin, self._cache, rows)
        self._model = model
        self._buffers = buffers(model)
        self._logits = np.empty((1, config.n_vocab), np.float32)
        self._embedding = file[weights.EMBEDDING]
        self._plan = Plan(self._cpu, self._ledger, self._checks)
        build(self._plan, model, self._buffers, self._logits)
        self._plan.prepare()

    def _check_vocabulary(self) -> None:
        if self.tokenizer.n_vocab != self.config.n_vocab:
            raise ModelFormatError(
                f"the vocabulary has {self.tokenizer.n_vocab} tokens, "
                f"the embedding {self.config.n_vocab} rows",
                remedy="convert the model to GGUF again; its metadata and tensors disagree",
            )

    def _speculate(self, draft: str | os.PathLike[str], most: int) -> None:
        try:
            if not 1 <= most < self._model.rows:
                raise SettingError(
                    f"{most} tokens cannot be guessed at once",
                    remedy=f"use a draft_max of 1 to {self._model.rows - 1}",
                )
            drafter = Lookup() if draft == "lookup" else self._assistant(draft)
        except BaseException:
            self.close()
            raise
        self.speculator = Speculator(drafter, most)
        self._ledger.remark(self.speculator.controller.speculation.line)

    def _assistant(self, path: str | os.PathLike[str]) -> Assistant:
        small = Llama(path, "cpu", n_ctx=self.n_ctx, n_threads=self.threads, seed=self.seed,
                      verify=self._checks.mode.value, progress=self._progress)  # fmt: skip
        try:
            return Assistant(small, self)
        except BaseException:
            small.close()
            raise

    # --- Tokens ---------------------------------------------------------------------------------

    def tokenize(self, text: str, add_bos: bool | None = None, special: bool = True) -> list[int]:
        """Return the ids of *text*; see `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_bos=add_bos, special=special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of *ids*."""
        return self.tokenizer.decode(ids)

    # --- Evaluation -----------------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """Tokens in the cache."""
        return self._cache.length

    @property
    def history(self) -> tuple[int, ...]:
        """The tokens in the cache."""
        return tuple(self._history)

    def eval(self, ids: Sequence[int]) -> F32:
        """Append *ids* to the cache; return their logits, float32 ``[len(ids), n_vocab]``.

        Raises:
            ContextFull: They do not fit, and `context_shift` is off; nothing is appended.
            LayoutError: An id is not one of the vocabulary; nothing is appended.
        """
        ids = self._valid(ids)
        out = np.empty((len(ids), self.config.n_vocab), np.float32)
        self._make_room(len(ids))
        for start in range(0, len(ids), self._model.rows):
            part = ids[start : start + self._model.rows]
            self._forward(part, 0, out[start : start + len(part)])
        return out

    def eval_last(self, ids: Sequence[int]) -> F32:
        """Append *ids*, at least one; return the logits of the last, ``[n_vocab]``.

        They are overwritten by the next call.  Cheaper than `eval`: the output matrix is
        multiplied by one row only.
        """
        ids = self._valid(ids)
        if not ids:
            raise LayoutError(
                "there is no token to evaluate", remedy="pass a prompt of at least one token"
            )
        self._make_room(len(ids))
        rows = self._model.rows
        many = self._progress and len(ids) > rows
        with Progress("prefill", len(ids), "token", shown=many) as bar:
            for start in range(0, len(ids), rows):
                part = ids[start : start + rows]
                self._forward(part, len(part) - 1, self._logits)
                bar.add(len(part))
        row: F32 = self._logits[0]
        return row

    def reset(self) -> None:
        """Forget everything in the cache."""
        self.rewind(0)

    def rewind(self, n_tokens: int) -> None:
        """Keep only the first *n_tokens* tokens in the cache.

        Raises:
            LayoutError: *n_tokens* is negative.
        """
        if n_tokens < 0:
            raise LayoutError(f"{n_tokens} tokens cannot be kept", remedy="keep 0 or more")
        del self._history[n_tokens:]
        self._cache.truncate(n_tokens)

    def _forward(self, ids: list[int], head: int, out: F32) -> None:
        """Append one batch; write the logits of rows from *head* on to *out*."""
        self._require_open()
        self._buffers.x[: len(ids)] = self._embedding[np.asarray(ids)].dequantize()
        self._plan.run(len(ids), self._cache.length, head, out)
        self._cache.length += len(ids)
        self._history += ids

    def _valid(self, ids: Sequence[int]) -> list[int]:
        try:
            tokens = [operator.index(i) for i in ids]
        except TypeError as error:
            raise LayoutError(
                f"token ids are integers: {error}", remedy="pass ids from tokenize() of this model"
            ) from error
        wrong = [i for i in tokens if not 0 <= i < self.config.n_vocab]
        if wrong:
            raise LayoutError(
                f"token id {wrong[0]} is not in the vocabulary of {self.config.n_vocab}",
                remedy="pass ids from tokenize() of this model",
            )
        return tokens

    @property
    def can_shift(self) -> bool:
        """True when a full context makes room for one token more."""
        return self.context_shift and self.n_ctx > 1

    def _make_room(self, count: int) -> None:
        full = self._cache.length + count > self.n_ctx
        if self.can_shift and full and count <= self.n_ctx // 2:
            keep = 1 if self.tokenizer.add_bos else 0
            drop = max(count, (self._cache.length - keep) // 2)
            self._cpu.engine.settle()
            halves = self._rope is Rope.HALVES
            self._cache.shift(keep, drop, self._model.cos, self._model.sin, halves=halves)
            del self._history[keep : keep + drop]
        self._cache.require(count)

    # --- Generation -----------------------------------------------------------------------------

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        stream: bool = False,
    ) -> str | Iterator[str]:
        """Continue *prompt*, a text or token ids; what the cache shares with it is kept.

        Args:
            max_tokens: Stop after so many; None: at the model's end, or when the context is full.
            temperature: 0 takes the likeliest token each time.
            top_k, top_p, min_p, repeat_penalty: See `Sampling`.
            seed: Of this generation; by default the model's.
            stop: Texts that end the generation and are not part of it.
            stream: Return an iterator of pieces of text instead of the whole.

        Raises:
            ContextFull: The prompt does not fit.
            SettingError: An option makes no sense.
        """
        sampling = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            seed=self.seed if seed is None else seed,
        )
        ids = self.tokenize(prompt) if isinstance(prompt, str) else self._valid(prompt)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        sampler = Sampler(sampling, self.tokenizer.never_sampled)
        pieces = iter(Generation(self, ids, sampler, stops, max_tokens, self.speculator))
        return pieces if stream else "".join(pieces)

    def chat(
        self, messages: Sequence[Message], *, stream: bool = False, **options: Any
    ) -> str | Iterator[str]:
        """Answer *messages*, dicts with ``role`` and ``content``, by the model's chat template.

        Args:
            options: Those of `generate`.

        Raises:
            ModelFormatError: The file has no chat template, or a broken one.
        """
        text = self.template.render(list(messages))
        bos = self._text(self.tokenizer.bos)
        printed = bool(bos) and text.startswith(bos)
        ids = self.tokenize(text, add_bos=False if printed else None)
        return self.generate(ids, stream=stream, **options)

    @property
    def template(self) -> ChatTemplate:
        """The chat template, from the file or as given."""
        source = self._template or optional(self.metadata, "tokenizer.chat_template", str, "")
        if not source:
            raise ModelFormatError(
                f"{self.path.name} has no chat template",
                remedy="use generate() with a plain prompt, or pass chat_template=",
            )
        return ChatTemplate(
            source, bos=self._text(self.tokenizer.bos), eos=self._text(self.tokenizer.eos)
        )

    def _text(self, token: int | None) -> str:
        return "" if token is None else self.detokenize([token])

    # --- Accounts -------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """Where products run."""
        return self._device

    @property
    def threads(self) -> int:
        """CPU threads in use."""
        return self._cpu.engine.threads

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """What the file holds."""
        return tuple(self._file.tensors.values())

    def report(self) -> Report:
        """Return the ledger: what ran where, how long, verified or not."""
        return self._ledger.report()

    def close(self) -> None:
        """Release threads and file.  A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self.speculator is not None:
            self.speculator.drafter.close()
        self._device.close()
        self._cpu.close()
        self._file.close()

    def _require_open(self) -> None:
        if self._closed:
            raise SettingError("this model is closed", remedy="open the file again with Llama()")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Llama({self.path.name}, {self.config.architecture}, {self._ledger.device})"
