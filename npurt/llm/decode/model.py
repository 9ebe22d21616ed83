"""`Llama`: load a GGUF file, generate text, chat, report."""

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from npurt.cpu.abi import limits
from npurt.cpu.device import CpuDevice
from npurt.cpu.recurrent import SPACING
from npurt.device import Device
from npurt.errors import ModelFormatError, SettingError
from npurt.llm.decode.generate import Timing
from npurt.llm.decode.text import TextGenerator
from npurt.llm.file.adapter import Lora, adapters
from npurt.llm.file.gguf import TensorInfo, errors_of
from npurt.llm.session.lock import Lock, locked
from npurt.llm.spec.assistant import Assistant
from npurt.llm.spec.diffusion import Diffusion, open_network
from npurt.llm.spec.drafter import Drafter
from npurt.llm.spec.lookup import Lookup
from npurt.llm.spec.speculator import Speculator
from npurt.llm.text import named_templates
from npurt.llm.text.tokenizer import Tokenizer
from npurt.llm.text.vocabulary import token_texts
from npurt.reference.device import ReferenceDevice
from npurt.runtime.execute.executor import runs_graphs
from npurt.runtime.open.arguments import integer, none_at_minus_one, optional_integer
from npurt.runtime.open.devices import open_device, open_host
from npurt.runtime.report.ledger import Ledger, Report
from npurt.runtime.report.trace import written_to
from npurt.segment import Compiler
from npurt.verify import Sampler as Checks
from npurt.verify import mode

USUAL_DRAFT = 8  # the most tokens of a draft, by default
# What other parts of npurt use of a model, and old names: dir() lists neither.
OLD_NAMES = ("embed", "taps", "turn")
INTERNALS = (
    "account", "can_shift", "file", "head", "hidden_states", "lock", "output_matrix", "read",
    "speculator", "weight_bytes",
)  # fmt: skip


class Llama(TextGenerator):
    """A language model from a GGUF file.

    One thread at a time can use it: concurrent use raises SettingError.  Open a model for each
    thread, or hold a lock of your own.

    Args:
        path: The file; architectures as in `npurt.llm.arch`.
        device: Where products run: see `npurt.devices`, or a `Device`, which is closed with the
            model, but not if that cannot be opened.  The host does the rest.
        n_ctx: Positions of the KV cache; by default what the model was trained for, at most 4096;
            0: all that it was trained for.  More gives a warning.
        n_batch: Tokens evaluated at once, 1 to 512, which is the default.
        n_threads: CPU threads; by default what the machine's cores and limits suggest.
        seed: Of sampling; by default, and with -1, different each time.
        kv_type: ``"f16"`` or ``"f32"``: elements of the KV cache.
        verify: ``"off"``, ``"sample"`` or ``"always"``: which products are checked.
        strict: Refuse to load when a product or a delta net would not run on *device*, and to go on
            when one cannot any more.
        context_shift: When the context is full, forget the older half instead of stopping.
        chat_template: Jinja source to use instead of the file's, or the name of a format:
            ``"chatml"``, ``"gemma"``, ``"llama2"``, ``"llama3"``, ``"mistral"``, ``"phi3"``,
            ``"zephyr"``.
        progress: Show progress bars on a terminal.
        draft: Decode speculatively: ``"lookup"`` drafts from the text itself, a path names a
            smaller model with the same vocabulary, or a DFlash draft made for this model.  The text
            stays the same, token for token.
        draft_max: The most tokens to draft at once; a controller decides how many at each step.  By
            default 8, or as many as *n_batch* and *n_ctx* leave room for.
        draft_device: Where the products of a smaller model run, by name; by default the CPU.
        lora: LoRA adapters in the form of GGUF: a path, ``(path, scale)``, or a list of these.

    Raises:
        ModelFormatError: npurt cannot run the file, or *draft* with it.
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
    ) -> None:
        n_ctx = optional_integer("n_ctx", n_ctx)
        n_threads = optional_integer("n_threads", n_threads, 0)
        draft_max = optional_integer("draft_max", draft_max)
        _require_draft(draft, draft_max=draft_max, draft_device=draft_device)
        most = limits().rows
        self.n_batch = integer("n_batch", most if n_batch is None else n_batch, 1, most)
        self.seed = none_at_minus_one("seed", seed)
        self.context_shift = context_shift
        self.timing = Timing()
        self._progress = progress
        self._template = None if chat_template is None else named_templates.source(chat_template)
        self._checks = Checks(mode(verify))
        self._closed = False
        self._opened = contextlib.ExitStack()  # what is closed with the model, last first
        self.lock = Lock()
        self.speculator: Speculator | None = None
        self._adapters = adapters(lora)
        try:
            with errors_of(path):
                self._open_model(path, n_ctx, kv_type)
                self._check_vocabulary()
            self._network = open_network(draft, self) if draft and draft != "lookup" else None
            self._open_devices(device, n_threads)
            self._ledger = Ledger(f"{self._device.caps.name}: {self._device.caps.detail}", strict)
            if draft is not None and runs_graphs(self._device):
                raise SettingError(
                    f"{self._device.caps.name} does not verify drafts",
                    remedy="leave draft (-md) out",
                )
            with errors_of(path):
                self._load()
            if draft is not None:
                self._speculate(draft, draft_max, draft_device or "cpu")
        except BaseException:
            self._opened.close()
            raise
        if self._device is device:
            self._opened.callback(device.close)

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
        """Open a model of a Hugging Face hub; what its cache lacks is downloaded.

        Args:
            repo_id: ``user/repo`` or ``user/repo:QUANT``; without QUANT, Q4_K_M, then Q8_0, then
                any file is taken.
            filename: The file, or a pattern such as ``*q8_0.gguf``, instead of QUANT.
            revision: Branch, tag or commit; by default main.
            progress: Show progress bars on a terminal.
            arguments: As for `Llama`.

        Raises:
            DownloadError: The model cannot be downloaded.
            SettingError: *repo_id* has another form, or there is no such file.
        """
        from npurt.models.hub import Hub, Reference

        wanted = Reference.of(repo_id, filename, revision)
        path = Hub.usual().fetch(wanted, progress=progress)
        return cls(path, progress=progress, **arguments)

    # --- Loading --------------------------------------------------------------------------------

    def _open_devices(self, device: str | Device | None, threads: int | None) -> None:
        if isinstance(device, Device):
            self._device = device
        else:
            self._device = self._opened.enter_context(open_device(device, threads=threads))
        if isinstance(self._device, CpuDevice):
            self._cpu = self._device
        elif not runs_graphs(self._device):
            self._cpu = self._opened.enter_context(CpuDevice(threads))
        self._other = ReferenceDevice()  # it refuses nothing
        if runs_graphs(self._device) and type(self._device) is not ReferenceDevice:
            host = self._opened.enter_context(open_host(threads))
            assert isinstance(host, Compiler), "a host that runs no graphs"
            self._other = host

    def _load(self) -> None:
        with ThreadPoolExecutor(1) as beside:  # the vocabulary takes as long as the weights
            tokenizer = beside.submit(Tokenizer.from_gguf, self.metadata)
            self._build(self._network.shape.layers if self._network else ())
        self.tokenizer = tokenizer.result()

    def _check_vocabulary(self) -> None:
        """Refuse a vocabulary without embeddings before memory is spent on it."""
        count = len(token_texts(self.metadata))
        if count != self.config.n_vocab:
            raise ModelFormatError(
                f"the vocabulary has {count} tokens, the embedding {self.config.n_vocab} rows",
                remedy="convert the model to GGUF again; its metadata and tensors disagree",
            )

    def _speculate(self, draft: str | os.PathLike[str], most: int | None, device: str) -> None:
        most = self._most_drafted(most)
        self.speculator = Speculator(self._drafter(draft, device), most)
        self._ledger.add_status_note(self.speculator.controller.speculation.line)

    def _most_drafted(self, wanted: int | None) -> int:
        """Return the most draft tokens of a pass; a rollback of all of them needs no pass."""
        room = self._decoder.rows - 1
        if not self._state.shifts:
            room = min(room, SPACING)
        if room < 1:
            raise SettingError(
                "a model that takes tokens one by one cannot verify a draft",
                remedy="use an n_batch (-b) and an n_ctx (-c) of 2 or more, or no draft",
            )
        most = min(USUAL_DRAFT, room) if wanted is None else wanted
        if not 1 <= most <= room:
            raise SettingError(
                f"{most} tokens cannot be drafted at once",
                remedy=f"use a draft_max of 1 to {room}",
            )
        return most

    def _drafter(self, draft: str | os.PathLike[str], device: str) -> Drafter:
        if draft != "lookup" and self._network is None:
            return self._assistant(draft, device)
        if device != "cpu":
            raise SettingError(
                f"{Path(draft).name} cannot draft on {device}",
                remedy="leave draft_device (-devd) out: lookup and block drafts run on the host",
            )
        if self._network is None:
            return Lookup()
        return Diffusion(Path(draft).name, self._network, self)

    def _assistant(self, path: str | os.PathLike[str], device: str) -> Assistant:
        small = Llama(path, device, n_ctx=self.n_ctx, n_threads=self.threads, seed=self.seed,
                      verify=self._checks.mode.value, strict=self._ledger.strict,
                      progress=self._progress)  # fmt: skip
        self._opened.enter_context(small)
        if runs_graphs(small.device):
            raise SettingError(
                f"{device} cannot draft", remedy="leave draft_device (-devd) out, or use an NPU"
            )
        assistant = Assistant(small, self)
        self._ledger.include("draft_", small._ledger)
        return assistant

    # --- Accounts -------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """Where products run."""
        return self._device

    @property
    def threads(self) -> int:
        """CPU threads in use; 1 where numpy is in place of the CPU's kernels."""
        host = self._other if runs_graphs(self._device) else self._cpu
        return host.engine.threads if isinstance(host, CpuDevice) else 1

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The tensors of the file."""
        return tuple(self._file.tensors.values())

    def report(self) -> Report:
        """Return the ledger: which ops ran on which device, how long, verified or not."""
        return self._ledger.report()

    @contextlib.contextmanager
    def trace(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Write a trace of the ``with`` body to *path*, for Perfetto or chrome://tracing.

        The file is written whole at the end, also after an error or Ctrl-C.

        Raises:
            SettingError: The file cannot be written.
        """
        with written_to(path) as trace:
            self._ledger.watch(trace)
            try:
                yield
            finally:
                self._ledger.watch(None)

    @locked
    def close(self) -> None:
        """Release devices, threads, memory and file.  A second call does nothing.

        `report` still works afterwards.

        Raises:
            SettingError: Another thread is using the model; nothing is released.
        """
        if self._closed:
            return
        self._closed = True
        self._ledger.freeze()
        try:
            self._opened.close()
        finally:
            self._state.release()
            self._forget()
            self.speculator = self._network = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __dir__(self) -> list[str]:
        hidden = (*INTERNALS, *OLD_NAMES)
        names = (name for name in super().__dir__() if name not in hidden)
        return [name for name in names if not name.startswith("_") or name.startswith("__")]

    def __repr__(self) -> str:
        return f"Llama({self.path.name}, {self.config.architecture}, {self._ledger.device})"


def _require_draft(draft: str | os.PathLike[str] | None, **settings: object) -> None:
    """Refuse draft options without a draft."""
    for name, value in settings.items():
        if value is not None and draft is None:
            raise SettingError(
                f"{name} is {value}, and there is no draft",
                remedy=f"name a draft (-md), or leave {name} out",
            )
