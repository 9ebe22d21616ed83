"""`Llama`: open a GGUF file, generate text, chat, report."""

import contextlib
import os
from typing import TYPE_CHECKING, Any, Self

from npurt.device.device import Device
from npurt.device.verify import Sampler as Checks
from npurt.device.verify import mode
from npurt.errors import SettingError, brief
from npurt.graph.sizes import SIZES
from npurt.llm.decode.embed import Embedder
from npurt.llm.decode.generate import Generator, Timing
from npurt.llm.decode.parts import Part
from npurt.llm.decode.text import TextGenerator
from npurt.llm.file.adapter import Lora, adapters
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import TensorInfo
from npurt.llm.file.mapped import errors_of
from npurt.llm.session.context import Context
from npurt.llm.session.devices import Devices
from npurt.llm.session.lock import Lock, locked
from npurt.llm.session.model import Model
from npurt.llm.session.setup import set_up
from npurt.llm.spec.diffusion import open_network
from npurt.llm.spec.opening import open_drafts, require_draft, require_verifies
from npurt.llm.spec.speculator import Speculator
from npurt.llm.state.hidden_states import HiddenStates
from npurt.llm.state.state import State
from npurt.llm.text import named_templates
from npurt.runtime.open.arguments import flag, integer, none_at_minus_one, optional_integer

if TYPE_CHECKING:
    from npurt.llm.text.chat import ChatTemplate

# dir() does not list attributes that only other parts of npurt use.
INTERNALS = (
    "account", "can_shift", "context", "embedder", "file", "fit", "generator", "head",
    "hidden_states", "lock", "marks_calls", "model", "output_matrix", "read", "speculator",
    "weight_bytes",
)  # fmt: skip

MAX_SEQUENCES = 4096  # upper bound of max_sequences; far above the capacity of a host

of_model = Part["Llama", Model]("model")
of_context = Part["Llama", Context]("context")
of_texts = Part["Llama", TextGenerator]("_texts")
of_embedder = Part["Llama", Embedder]("embedder")


class Llama:
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
        checks, adapted = Checks(mode(verify)), adapters(lora)
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
            if draft is not None:
                require_verifies(devices)
            with errors_of(path):
                if network is not None:
                    setup = setup.capturing(network.shape.layers)
                self.model = opened.enter_context(
                    Model(
                        setup,
                        devices,
                        checks,
                        strict=flag("strict", strict),
                        progress=flag("progress", progress),
                    )
                )
            self.context = Context(self.model, shift=shift)
            opened.callback(self.context.release)
            self.generator = Generator(self.context)
            self.embedder = Embedder(self.context)
            self._texts = TextGenerator(self.generator, seed=seed, template=template)
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
        from npurt.models.hub import Hub
        from npurt.models.reference import Reference

        wanted = Reference.of(repo_id, filename, revision)
        path = Hub.usual().fetch(wanted, progress=progress)
        return cls(path, progress=progress, **arguments)

    # --- Text -----------------------------------------------------------------------------------

    tokenize = of_texts(TextGenerator.tokenize)
    detokenize = of_texts(TextGenerator.detokenize)
    generate = of_texts(TextGenerator.generate)
    chat = of_texts(TextGenerator.chat)
    fit = of_texts(TextGenerator.fit)
    apply_chat_template = of_texts(TextGenerator.apply_chat_template)
    parse_answer = of_texts(TextGenerator.parse_answer)
    marks_calls = of_texts(TextGenerator.marks_calls)
    embed = of_embedder(Embedder.embed)
    rerank = of_embedder(Embedder.rerank)

    @property
    def template(self) -> "ChatTemplate":
        """The chat template, from the argument *chat_template* or else from the file."""
        return self._texts.template

    @property
    def seed(self) -> int | None:
        """The seed of sampling; None chooses a random seed for each generation."""
        return self._texts.seed

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self._texts.seed = seed

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

    # --- The context ----------------------------------------------------------------------------

    eval = of_context(Context.eval)
    eval_last = of_context(Context.eval_last)
    read = of_context(Context.read)
    reset = of_context(Context.reset)
    rewind = of_context(Context.rewind)
    rollback = of_context(Context.rollback)
    snapshot = of_context(Context.snapshot)
    restore = of_context(Context.restore)
    save_state = of_context(Context.save_state)
    load_state = of_context(Context.load_state)

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
    def hidden_states(self) -> HiddenStates | None:
        """The captured hidden states; None when no draft network reads them."""
        return self.context.hidden_states

    @property
    def context_shift(self) -> bool:
        """Whether a full context removes the older half of its tokens."""
        return self.context.shift

    @context_shift.setter
    def context_shift(self, shift: bool) -> None:
        self.context.shift = flag("context_shift", shift)

    @property
    def can_shift(self) -> bool:
        """Whether a full context can remove old tokens to make space for a new one."""
        return self.context.can_shift

    # --- The model ------------------------------------------------------------------------------

    token_embeddings = of_model(Model.token_embeddings)
    output_matrix = of_model(Model.output_matrix)
    head = of_model(Model.head)
    account = of_model(Model.account)
    report = of_model(Model.report)
    trace = of_model(Model.trace)

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
