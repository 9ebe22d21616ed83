"""The methods of llama-cpp-python's `Llama` for files, tokens, the context and saved states."""

import abc
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from npurt.base import late
from npurt.compat.folders import model_in
from npurt.compat.llama_cpp.arguments import (
    FORMATS,
    MODEL_DEFAULTS,
    RANDOM_SEED,
    kv_type,
    missing,
    pooling,
    refuse,
    seed_of,
)
from npurt.compat.llama_cpp.calls import FORMAT, TEMPLATE
from npurt.compat.llama_cpp.lists import LlamaPromptLookupDecoding, LlamaState
from npurt.compat.llama_cpp.llama_cache import BaseLlamaCache
from npurt.compat.llama_cpp.llama_chat_format import registered
from npurt.compat.llama_cpp.refused import no_attribute
from npurt.compat.sampling import F32, Ids
from npurt.errors import LayoutError, NumericsError, SettingError, brief
from npurt.llm.decode.llama import Llama as Model
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.mapped import errors_of
from npurt.llm.spec.assistant import shared
from npurt.llm.state.state_file import SavedState
from npurt.llm.text.detokenize import as_ids
from npurt.llm.text.tokenizer import Tokenizer
from npurt.llm.text.vocabulary import token_texts
from npurt.runtime.open.arguments import flag, integer, require_path

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


class OpenModel:
    """An open model with a context.

    The object can be pickled; unpickling opens the file again with an empty context.

    Args:
        model_path: The GGUF file.
        vocab_only: Open only the vocabulary; methods that need weights raise SettingError.
        seed: The seed of sampling; -1 uses a random seed for each completion.
        n_ctx: Positions of the context; 0 uses the model's training context.
        n_batch: The number of tokens evaluated at once, at most 512.
        n_threads: CPU threads; by default npurt chooses.
        pooling_type: The pooling of embeddings: 0 none, 1 mean, 2 cls, 3 last, 4 rank, -1 the
            file's pooling.
        embedding: No effect, because every model can embed.
        last_n_tokens_size: The number of last tokens that penalties apply to; -1 for all.
        chat_format: The name of a chat template, or of a format or handler registered with
            `llama_chat_format`; by default the file's template, or Llama 2's if it has none.
        chat_handler: A function of the model and the arguments of a chat that returns the answer.
        logits_all: Store the logits after each token that `eval` evaluates.
        spm_infill: Place the suffix before the prefix in prompts that fill in text.
        draft_model: A `LlamaPromptLookupDecoding`, which does not change the output.
        type_k: The element type of keys in the KV cache: 1 for f16, 0 for f32.
        type_v: The element type of values, which must equal *type_k*.
        verbose: Show progress bars on a terminal.
        device: The device of matrix products, as for `npurt.Llama`; llama-cpp-python has no such
            argument.

    Raises:
        ValueError: The file cannot be opened: npurt's ModelFormatError or SettingError.
        UnsupportedOp: npurt does not support an argument.
    """

    def __init__(
        self, model_path: str, *, n_gpu_layers: int = 0, split_mode: int = 1, main_gpu: int = 0,
        tensor_split: list[float] | None = None, vocab_only: bool = False, use_mmap: bool = True,
        use_mlock: bool = False, kv_overrides: dict[str, Any] | None = None,
        seed: int = RANDOM_SEED, n_ctx: int = 512, n_batch: int = 512, n_ubatch: int = 512,
        n_threads: int | None = None, n_threads_batch: int | None = None,
        rope_scaling_type: int | None = -1, pooling_type: int = -1, attention_type: int = -1,
        rope_freq_base: float = 0.0, rope_freq_scale: float = 0.0, yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0, yarn_beta_fast: float = 32.0, yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0, logits_all: bool = False, embedding: bool = False,
        offload_kqv: bool = True, flash_attn: bool = False, op_offload: bool | None = None,
        swa_full: bool | None = None, no_perf: bool = False, last_n_tokens_size: int = 64,
        lora_base: str | None = None, lora_scale: float = 1.0, lora_path: str | None = None,
        numa: bool | int = False, chat_format: str | None = None, chat_handler: Any = None,
        draft_model: Any = None, tokenizer: Any = None, type_k: int | None = None,
        type_v: int | None = None, spm_infill: bool = False, verbose: bool = True,
        device: str | None = "auto",
    ) -> None:  # fmt: skip
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        refuse(self._arguments, MODEL_DEFAULTS)
        self.draft_model, self.tokenizer_ = draft_model, tokenizer
        self.kv_overrides, self.numa, self.tensor_split = kv_overrides, numa, tensor_split
        self.lora_base, self.lora_path, self.lora_scale = lora_base, lora_path, lora_scale
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch
        self.spm_infill = flag("spm_infill", spm_infill)
        if not (draft_model is None or isinstance(draft_model, LlamaPromptLookupDecoding)):
            raise missing(f"draft_model={brief(draft_model)}")
        self.model_path = require_path(model_path)
        if not isinstance(chat_format, str | None):
            raise SettingError(
                f"chat_format is {brief(chat_format)}", remedy="pass a name such as chatml"
            )
        if chat_handler is not None and not callable(chat_handler):
            raise SettingError(
                f"chat_handler is {brief(chat_handler)}", remedy="chat_handler must be a function"
            )
        self.chat_format, self.chat_handler = chat_format, chat_handler
        named = None if chat_handler or registered(str(chat_format)) else chat_format
        if named == FORMAT:
            named = TEMPLATE
        self.verbose = flag("verbose", verbose)
        self._logits_all = flag("logits_all", logits_all)
        self.n_batch = min(integer("n_batch", n_batch, 1), 512)
        self.last_n_tokens_size = integer("last_n_tokens_size", last_n_tokens_size, -1)
        self._seed = seed_of(seed)
        self._pooling = pooling(pooling_type)
        self.cache: BaseLlamaCache | None = None
        self._rows: list[F32] = []  # logits that `eval` computed after the last tokens
        self._model: Model | None = None
        if flag("vocab_only", vocab_only):
            with errors_of(self.model_path), GGUF(self.model_path) as file:
                self._metadata = file.metadata
                self._tokenizer = Tokenizer.from_gguf(self._metadata)
            return
        self._model = Model(
            self.model_path,
            device,
            n_ctx=n_ctx,
            n_batch=self.n_batch,
            n_threads=n_threads,
            kv_type=kv_type(type_k, type_v),
            chat_template=None if named is None else FORMATS.get(named, named),
            progress=self.verbose,
            draft=None if draft_model is None else "lookup",
            draft_max=None if draft_model is None else draft_model.num_pred_tokens,
            lora=None if lora_path is None else (lora_path, lora_scale),
        )
        self._metadata, self._tokenizer = self._model.metadata, self._model.tokenizer

    @classmethod
    def from_pretrained(
        cls, repo_id: str, filename: str | None = None, additional_files: Any = None,
        local_dir: Any = None, local_dir_use_symlinks: Any = "auto", cache_dir: Any = None,
        **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Open a model from a Hugging Face hub or from a folder.

        Args:
            repo_id: ``user/repo``, or a folder.
            filename: The file, or a pattern such as ``*q8_0.gguf``.
            additional_files: Refused unless None.
            local_dir: An existing folder that has the file; another value is refused.
            cache_dir: Refused unless None.
            local_dir_use_symlinks: No effect.
            kwargs: Arguments of the class.

        Raises:
            DownloadError: The model cannot be downloaded.
            ModelFormatError: No model in the folder matches, or several do.
            UnsupportedOp: npurt does not support an argument.
        """
        with late.imports():
            from npurt.models.hub import Hub
            from npurt.models.reference import Reference

        pattern = "*.gguf" if filename is None else filename
        for place in (local_dir, repo_id):
            folder = None if place is None else Path(require_path(place))
            if folder and isinstance(pattern, str) and folder.is_dir():
                return cls(str(model_in(folder, pattern)), **kwargs)
        refuse(locals(), dict.fromkeys(("additional_files", "local_dir", "cache_dir")))
        path = Hub.usual().fetch(
            Reference.of(repo_id, filename, None), progress=kwargs.get("verbose", True)
        )
        return cls(str(path), **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return self._arguments

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def _llm(self) -> Model:
        if self._model is None:
            raise SettingError(
                "only the vocabulary of this model is open", remedy="open it without vocab_only"
            )
        return self._model

    ctx, model = no_attribute("ctx"), no_attribute("model")
    context_params = no_attribute("context_params")
    model_params = no_attribute("model_params")

    # --- Tokens ---------------------------------------------------------------------------------

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Return the ids of UTF-8 *text*.

        Args:
            text: UTF-8 bytes.
            add_bos: Add BOS if the file's metadata require it.
            special: Encode the texts of control tokens as these tokens.

        Raises:
            LayoutError: *text* is not bytes, or not UTF-8.
        """
        if not isinstance(text, bytes):
            raise LayoutError(f"text is {brief(text)}", remedy='pass bytes: text.encode("utf-8")')
        try:
            words = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise LayoutError(f"text is no UTF-8: {error}", remedy="encode it in UTF-8") from error
        begin = None if flag("add_bos", add_bos) else False
        return self._tokenizer.encode(words, add_bos=begin, special=flag("special", special))

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of *tokens*; remove a leading space if the first token is BOS.

        Raises:
            LayoutError: *tokens* are no ids of the vocabulary.
        """
        tokenizer, ids = self._tokenizer, as_ids(tokens)
        hidden = frozenset() if flag("special", special) else tokenizer.control
        data = b"".join(tokenizer.piece(token) for token in ids if token not in hidden)
        begins = bool(ids) and ids[0] == tokenizer.bos
        return data.removeprefix(b" ") if begins else data

    def tokenizer(self) -> "LlamaTokenizer":
        """Return the tokenizer."""
        return LlamaTokenizer(self)

    def token_bos(self) -> int:
        """Return the id of BOS, or -1 if the model has no BOS."""
        return -1 if self._tokenizer.bos is None else self._tokenizer.bos

    def token_eos(self) -> int:
        """Return the id of EOS, or -1 if the model has no EOS."""
        return -1 if self._tokenizer.eos is None else self._tokenizer.eos

    def token_nl(self) -> int:
        """Return the last id in the encoding of a newline, which usually is one token."""
        return self._tokenizer.encode("\n", add_bos=False)[-1]

    # --- The model and its state ----------------------------------------------------------------

    def n_ctx(self) -> int:
        """Return the number of positions of the context."""
        return self._llm.n_ctx

    def n_vocab(self) -> int:
        """Return the size of the vocabulary."""
        return len(token_texts(self._metadata))

    def n_embd(self) -> int:
        """Return the width of the model."""
        return self._llm.config.width

    @property
    def n_tokens(self) -> int:
        """The number of tokens in the context."""
        return self._llm.n_tokens

    @property
    def input_ids(self) -> Ids:
        """The tokens of the context."""
        return np.array(self._llm.history, np.intc)

    @property
    def eval_tokens(self) -> deque[int]:
        """The tokens of the context, as a deque."""
        return deque(self._llm.history, maxlen=self._llm.n_ctx)

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The logits that `eval` computed for the last token, or for all with *logits_all*."""
        rows = (row.tolist() for rows in self._rows for row in rows)
        return deque(rows, maxlen=self._llm.n_ctx if self._logits_all else 1)

    @property
    def scores(self) -> F32:
        """The logits after each token of the context, ``[n_tokens, n_vocab]``.

        Raises:
            SettingError: The model was not opened with *logits_all*, or another method than `eval`
                evaluated some of the tokens.
        """
        scores = self._scores()
        if not self._logits_all or len(scores) != self.n_tokens:
            raise SettingError(
                f"logits are available for {len(scores)} of {self.n_tokens} tokens",
                remedy="open the model with logits_all=True, reset() it and eval() the tokens",
            )
        return scores

    def _scores(self) -> F32:
        """Return the logits that `eval` computed, as one array."""
        return np.concatenate([np.empty((0, self.n_vocab()), np.float32), *self._rows])

    @property
    def metadata(self) -> dict[str, str]:
        """The scalar metadata of the file, as strings."""
        single = {k: v for k, v in self._metadata.items() if isinstance(v, str | int | float)}
        return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in single.items()}

    def set_seed(self, seed: int) -> None:
        """Set the seed of later completions; -1 uses a random seed for each completion."""
        self._seed = seed_of(seed)

    def reset(self) -> None:
        """Empty the context."""
        self._rows = []
        self._llm.reset()

    def eval(self, tokens: Sequence[int]) -> None:
        """Append *tokens* to the context.

        Raises:
            ContextFull: The tokens do not fit in the context.
            LayoutError: *tokens* are no token ids.
        """
        ids = self._llm.model.valid(tokens)
        if ids and self._logits_all:
            self._rows.append(self._llm.eval(ids))
        elif ids:
            self._rows = [self._llm.eval_last(ids)[None].copy()]

    def save_state(self) -> LlamaState:
        """Return a copy of the state of the context, which can be pickled."""
        snapshot = self._llm.snapshot()
        return LlamaState(
            input_ids=self.input_ids,
            scores=self._scores(),
            n_tokens=self.n_tokens,
            llama_state=snapshot,
            llama_state_size=snapshot.nbytes,
            seed=self._seed,
        )

    def load_state(self, state: LlamaState) -> None:
        """Restore a state from `save_state`.

        Raises:
            LayoutError: *state* is no state, or belongs to another model.
            StateFormatError: The file of the state is damaged, or belongs to another model.
        """
        if not isinstance(state, LlamaState):
            raise LayoutError(
                f"{brief(state)} is no state", remedy="pass the result of save_state()"
            )
        if isinstance(state.llama_state, SavedState):
            self._llm.load_state(state.llama_state.path)
        else:
            self._llm.restore(state.llama_state)
        self._rows = [state.scores.copy()] if len(state.scores) else []
        self._seed = state.seed

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Store the state after each completion in *cache*; None disables the cache.

        A completion begins from the state in the cache that has the longest common prefix with the
        prompt, if this prefix is longer than the prefix that the context and the prompt share.

        Raises:
            UnsupportedOp: *cache* is no cache.
        """
        if not isinstance(cache, BaseLlamaCache | None):
            raise missing(f"set_cache({brief(cache)})", "pass a LlamaRAMCache or LlamaDiskCache")
        self.cache = cache

    def _recall(self, prompt: Sequence[int]) -> None:
        """Load a cached state if it shares a longer prefix with *prompt* than the context does."""
        if self.cache is not None and prompt in self.cache:
            state = self.cache[prompt]
            llama_state, seed = state.llama_state, self._seed
            more = shared(llama_state.tokens, prompt) > shared(self._llm.history, prompt)
            if more and llama_state.model == self._llm.model.identity:
                self.load_state(state)
                self._seed = seed

    def _remembered(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yield *pieces*, then store the state of the context in the cache."""
        yield from pieces
        if self.cache is not None:
            state = self.save_state()
            self.cache[state.input_ids.tolist()] = state

    def close(self) -> None:
        """Release the model."""
        if self._model is not None:
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @staticmethod
    def logits_to_logprobs(logits: Any, axis: int = -1) -> F32:
        """Return the log probabilities of *logits* along *axis*.

        Raises:
            LayoutError: *logits* are no array of numbers, or have no elements along *axis*.
            NumericsError: A logit is NaN or +infinity, or all logits along *axis* are -infinity.
        """
        try:
            values = np.asarray(logits)
            if values.dtype.kind not in "fiub":
                raise TypeError(f"they are {values.dtype}")
            values = values.astype(np.float32)
            maximum = values.max(axis=operator.index(axis), keepdims=True)
        except (TypeError, ValueError, OverflowError) as error:
            raise LayoutError(
                f"{brief(logits)} has no logits along axis {brief(axis, 40)}: {error}",
                remedy="pass an array of numbers, such as Llama.eval_logits, and one of its axes",
            ) from error
        if not np.isfinite(maximum).all():
            raise NumericsError(
                f"the largest of the logits is {maximum.max()}", remedy="pass logits of a model"
            )
        below = values - maximum
        logs: F32 = below - np.log(np.exp(below).sum(axis=axis, keepdims=True))
        return logs

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Return the length of the longest common prefix of *a* and *b*.

        Raises:
            LayoutError: *a* or *b* are no token ids.
        """
        return shared(as_ids(a), as_ids(b))


class BaseLlamaTokenizer(abc.ABC):
    """The interface of a tokenizer; npurt uses only the tokenizer of the file."""

    @abc.abstractmethod
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Return the ids of *text*."""

    @abc.abstractmethod
    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of *tokens*."""


class LlamaTokenizer(BaseLlamaTokenizer):
    """The tokenizer of a model."""

    def __init__(self, llama: OpenModel) -> None:
        self._llama = llama

    @classmethod
    def from_ggml_file(cls, path: str) -> "LlamaTokenizer":
        """Return the tokenizer of a GGUF file."""
        return cls(OpenModel(path, vocab_only=True, verbose=False))

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Return the ids of UTF-8 *text*; see `Llama.tokenize`."""
        return self._llama.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of *tokens*; see `Llama.detokenize`."""
        return self._llama.detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Return the ids of *text*.

        Raises:
            LayoutError: *text* is no str.
        """
        if not isinstance(text, str):
            raise LayoutError(f"text is {brief(text)}", remedy="pass a str; tokenize takes bytes")
        return self.tokenize(text.encode("utf-8", "ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of *tokens*, without bytes that are not UTF-8."""
        return self.detokenize(tokens).decode("utf-8", "ignore")
