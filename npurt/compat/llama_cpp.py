"""`Llama` with the interface of llama-cpp-python: change the import, and a script runs.

Names, defaults and the shapes of results are those of its documentation.  What only chooses how a
machine works, such as *n_gpu_layers*, has no effect.  What would change a result and is not here
raises UnsupportedOp with its name.
Source: https://llama-cpp-python.readthedocs.io/en/latest/api-reference/ (0.3), MIT: the names,
defaults and shapes only.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, Self, overload

from npurt.errors import LayoutError, UnsupportedOp
from npurt.llm.decode.model import Llama as Model
from npurt.llm.state.state import Snapshot
from npurt.runtime.open.arguments import integer, optional_integer

RANDOM_SEED = 0xFFFFFFFF  # its LLAMA_DEFAULT_SEED; -1 means the same

# Its names of chat formats -> npurt's, where they differ.
FORMATS = {"llama-2": "llama2", "llama-3": "llama3", "mistral-instruct": "mistral"}
# Arguments of the constructor that change no text.
MACHINE = frozenset(
    ["flash_attn", "main_gpu", "n_gpu_layers", "n_threads_batch", "n_ubatch", "no_perf", "numa",
     "offload_kqv", "op_offload", "split_mode", "swa_full", "tensor_split", "use_mlock",
     "use_mmap"]
)  # fmt: skip
# Arguments of the constructor that npurt does not have, and the values that change nothing.
MODEL_DEFAULTS: dict[str, Any] = {
    "attention_type": -1, "chat_handler": None, "draft_model": None, "embedding": False,
    "kv_overrides": None, "last_n_tokens_size": 64, "logits_all": False,
    "lora_base": None, "lora_path": None, "lora_scale": 1.0, "pooling_type": -1,
    "rope_freq_base": 0.0, "rope_freq_scale": 0.0,
    "rope_scaling_type": -1, "rpc_servers": None, "spm_infill": False, "tokenizer": None,
    "vocab_only": False, "yarn_attn_factor": 1.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0,
    "yarn_ext_factor": -1.0, "yarn_orig_ctx": 0,
}  # fmt: skip
# The same of completions.  Mirostat's constants have no effect while it is off.
DEFAULTS: dict[str, Any] = {
    "frequency_penalty": 0.0, "function_call": None, "functions": None, "grammar": None,
    "logit_bias": None, "logits_processor": None, "logprobs": False, "mirostat_mode": 0,
    "presence_penalty": 0.0, "stopping_criteria": None, "suffix": None, "tfs_z": 1.0,
    "tool_choice": "auto", "top_logprobs": None, "typical_p": 1.0,
}  # fmt: skip
IDLE = frozenset(["mirostat_eta", "mirostat_tau"])
KV_TYPES = {None: "f16", 0: "f32", 1: "f16"}  # numbers of ggml's types
FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}

Result = dict[str, Any]


class Llama:
    """A model behind llama-cpp-python's interface.

    Args:
        model_path: The GGUF file.
        n_ctx: Positions; 0: all that the model was trained for.
        n_batch: Tokens evaluated at once; at most 512 are.
        n_threads: CPU threads; by default what the machine suggests.
        seed: Of sampling; -1: a different one each time.
        chat_format: A name of a chat template; by default the file's own template.
        type_k: Element type of the keys in the KV cache: 1 for f16, 0 for f32.
        type_v: The same of the values; both are alike.
        verbose: Show progress bars on a terminal.
        device: Where products run, as for `npurt.Llama`; llama-cpp-python has no such argument.
        others: Others of llama-cpp-python; see the module.

    Raises:
        ValueError: The file cannot be opened; npurt's ModelFormatError and SettingError are that.
        UnsupportedOp: See the module.
    """

    def __init__(
        self,
        model_path: str,
        *,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_threads: int | None = None,
        seed: int = RANDOM_SEED,
        chat_format: str | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        verbose: bool = True,
        device: str | None = "auto",
        **others: Any,
    ) -> None:
        _refuse(others, MODEL_DEFAULTS, MACHINE, "Llama")
        if type_k not in KV_TYPES or type_v not in KV_TYPES or KV_TYPES[type_k] != KV_TYPES[type_v]:
            raise UnsupportedOp(
                f"type_k is {type_k!r} and type_v {type_v!r}",
                remedy="use 1 (f16) or 0 (f32) for both, or leave them out",
            )
        self.model_path = model_path
        self.chat_format = chat_format
        self.verbose = verbose
        self._llm = Model(
            model_path,
            device,
            n_ctx=n_ctx,
            n_batch=min(integer("n_batch", n_batch, 1), 512),
            n_threads=n_threads,
            seed=_seed(seed),
            kv_type=KV_TYPES[type_k],
            chat_template=None if chat_format is None else FORMATS.get(chat_format, chat_format),
            progress=bool(verbose),
        )

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None = None, **arguments: Any) -> Self:
        """Open a model of a Hugging Face hub; *filename* may be a pattern.

        Args:
            repo_id: ``user/repo``.
            filename: The file, or a pattern such as ``*q8_0.gguf``.
            arguments: Those of the class.

        Raises:
            DownloadError: The model cannot be downloaded.
            UnsupportedOp: See the module.
        """
        from npurt.models.hub import Hub, Reference

        own = dict.fromkeys(("additional_files", "cache_dir", "local_dir"))
        _refuse({name: arguments.pop(name) for name in own if name in arguments}, own, (), "")
        arguments.pop("local_dir_use_symlinks", None)
        path = Hub.usual().fetch(
            Reference.of(repo_id, filename, None), progress=arguments.get("verbose", True)
        )
        return cls(str(path), **arguments)

    # --- Tokens ---------------------------------------------------------------------------------

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Return the ids of UTF-8 *text*; *add_bos*: with BOS, if the model wants one.

        Raises:
            LayoutError: *text* is not bytes, or no UTF-8.
        """
        if not isinstance(text, bytes):
            raise LayoutError(f"text is {text!r:.60}", remedy='pass bytes: text.encode("utf-8")')
        try:
            words = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise LayoutError(f"text is no UTF-8: {error}", remedy="encode it in UTF-8") from error
        return self._llm.tokenize(words, add_bos=None if add_bos else False, special=special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of *tokens*, without the space that follows a BOS at their begin."""
        tokenizer, ids = self._llm.tokenizer, list(tokens)
        hidden = frozenset() if special else tokenizer.control
        data = b"".join(tokenizer.piece(token) for token in ids if token not in hidden)
        begins = bool(ids) and ids[0] == tokenizer.bos
        return data.removeprefix(b" ") if begins else data

    def token_bos(self) -> int:
        """Return the id of BOS; -1 if there is none."""
        return _or_minus_one(self._llm.tokenizer.bos)

    def token_eos(self) -> int:
        """Return the id of EOS; -1 if there is none."""
        return _or_minus_one(self._llm.tokenizer.eos)

    # --- The model and its state ----------------------------------------------------------------

    def n_ctx(self) -> int:
        """Return the positions of the context."""
        return self._llm.n_ctx

    def n_vocab(self) -> int:
        """Return the size of the vocabulary."""
        return self._llm.config.n_vocab

    def n_embd(self) -> int:
        """Return the width of the model."""
        return self._llm.config.width

    @property
    def n_tokens(self) -> int:
        """Tokens in the context."""
        return self._llm.n_tokens

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the file, as text, without arrays."""
        single = {k: v for k, v in self._llm.metadata.items() if isinstance(v, str | int | float)}
        return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in single.items()}

    def set_seed(self, seed: int) -> None:
        """Set the seed of later completions; -1: a different one each time."""
        self._llm.seed = _seed(seed)

    def reset(self) -> None:
        """Forget the context."""
        self._llm.reset()

    def eval(self, tokens: Sequence[int]) -> None:
        """Append *tokens* to the context."""
        self._llm.eval_last(tokens)

    def save_state(self) -> Snapshot:
        """Return a copy of the state of the context."""
        return self._llm.snapshot()

    def load_state(self, state: Snapshot) -> None:
        """Set the state to what `save_state` returned."""
        self._llm.restore(state)

    def close(self) -> None:
        """Release the model."""
        self._llm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- Completions ----------------------------------------------------------------------------

    @overload
    def create_completion(
        self, prompt: str | Sequence[int], *, stream: Literal[False] = False, **options: Any
    ) -> Result: ...

    @overload
    def create_completion(
        self, prompt: str | Sequence[int], *, stream: Literal[True], **options: Any
    ) -> Iterator[Result]: ...

    @overload
    def create_completion(
        self, prompt: str | Sequence[int], *, stream: bool, **options: Any
    ) -> Result | Iterator[Result]: ...

    def create_completion(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        echo: bool = False,
        stream: bool = False,
        model: str | None = None,
        **options: Any,
    ) -> Result | Iterator[Result]:
        """Continue *prompt*; return a completion, or an iterator of its chunks.

        Args:
            prompt: Text, or token ids.
            max_tokens: The most tokens; None, 0 or less: no limit.
            temperature: 0 takes the most likely token each time.
            echo: Begin the text with the prompt.
            stream: Return chunks.
            model: The name that the result has.
            options: top_k, top_p, min_p, repeat_penalty, seed, stop, as there.

        Raises:
            ContextFull: The prompt does not fit.
            UnsupportedOp: See the module.
        """
        pieces = self._llm.generate(
            prompt, stream=True, temperature=temperature, max_tokens=_limit(max_tokens),
            **_sampling(options, "create_completion"),
        )  # fmt: skip
        if echo:
            text = prompt if isinstance(prompt, str) else self._llm.detokenize(prompt)
            pieces = _chain(text, pieces)
        head = _head("cmpl", "text_completion", model or self.model_path)
        if stream:
            return self._chunks(head, pieces)
        with self._llm.lock:  # another thread cannot end it
            choice = _text_choice("".join(pieces)) | {"finish_reason": self._finish}
            return head | {"choices": [choice], "usage": self._usage}

    __call__ = create_completion

    @overload
    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: Literal[False] = False,
        **options: Any,
    ) -> Result: ...

    @overload
    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], **options: Any
    ) -> Iterator[Result]: ...

    @overload
    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool, **options: Any
    ) -> Result | Iterator[Result]: ...

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        temperature: float = 0.2,
        max_tokens: int | None = None,
        stream: bool = False,
        model: str | None = None,
        **options: Any,
    ) -> Result | Iterator[Result]:
        """Answer *messages*; return a chat completion, or an iterator of its chunks.

        Args:
            messages: As for `npurt.Llama.chat`.
            tools: As for `npurt.Llama.chat`: calls are part of the content, as the model writes
                them.
            response_format: None or ``{"type": "text"}``.
            temperature: 0 takes the most likely token each time.
            max_tokens: The most tokens; None, 0 or less: no limit.
            stream: Return chunks.
            model: The name that the result has.
            options: top_k, top_p, min_p, repeat_penalty, seed, stop, as there.

        Raises:
            ContextFull: The prompt does not fit.
            UnsupportedOp: See the module.
        """
        pieces = self._llm.chat(
            messages, stream=True, tools=tools, response_format=response_format,
            temperature=temperature, max_tokens=_limit(max_tokens),
            **_sampling(options, "create_chat_completion"),
        )  # fmt: skip
        name = model or self.model_path
        if stream:
            return self._chat_chunks(_head("chatcmpl", "chat.completion.chunk", name), pieces)
        with self._llm.lock:
            message = {"role": "assistant", "content": "".join(pieces)}
            choice = {"index": 0, "message": message, "logprobs": None,
                      "finish_reason": self._finish}  # fmt: skip
            head = _head("chatcmpl", "chat.completion", name)
            return head | {"choices": [choice], "usage": self._usage}

    def _chunks(self, head: Result, pieces: Iterable[str]) -> Iterator[Result]:
        for piece in pieces:
            yield head | {"choices": [_text_choice(piece)]}
        yield head | {"choices": [_text_choice("") | {"finish_reason": self._finish}]}

    def _chat_chunks(self, head: Result, pieces: Iterable[str]) -> Iterator[Result]:
        yield head | {"choices": [_delta({"role": "assistant"})]}
        for piece in pieces:
            yield head | {"choices": [_delta({"content": piece})]}
        yield head | {"choices": [_delta({}) | {"finish_reason": self._finish}]}

    @property
    def _finish(self) -> str:
        return FINISH[self._llm.timing.finish]

    @property
    def _usage(self) -> dict[str, int]:
        timing = self._llm.timing
        written = timing.generated_tokens - (timing.finish == "end")  # without the end token
        prompt = timing.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": written,
                "total_tokens": prompt + written}  # fmt: skip

    # --- What is not there yet ------------------------------------------------------------------

    def create_embedding(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse: npurt does not have embeddings yet."""
        raise _missing("create_embedding")

    def embed(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse: npurt does not have embeddings yet."""
        raise _missing("embed")

    def generate(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse: npurt does not give tokens one by one yet."""
        raise _missing("generate")

    def sample(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse: npurt does not sample single tokens yet."""
        raise _missing("sample")

    def set_cache(self, cache: Any) -> None:
        """Refuse a cache of states; the prefix that prompts share is kept anyway."""
        if cache is not None:
            raise _missing("set_cache")


def _missing(name: str) -> UnsupportedOp:
    return UnsupportedOp(
        f"npurt.compat.llama_cpp does not have {name} yet", remedy=f"do without {name}"
    )


def _refuse(
    given: Mapping[str, Any], defaults: Mapping[str, Any], idle: Iterable[str], function: str
) -> None:
    """Refuse arguments that npurt does not have, unless they have their default or are *idle*.

    Raises:
        TypeError: *function* has no such argument there either.
        UnsupportedOp: npurt does not have it.
    """
    for name, value in given.items():
        if name not in defaults and name not in idle:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        if name in defaults and value is not None and not _same(value, defaults[name]):
            raise _missing(f"{name}={value!r:.60}")


def _same(value: Any, default: Any) -> bool:
    """Return whether *value* is *default*; 0 is not False, because logprobs=0 asks for some."""
    return isinstance(value, bool) == isinstance(default, bool) and bool(value == default)


def _sampling(options: Mapping[str, Any], function: str) -> dict[str, Any]:
    """Return those of *options* that `npurt.Llama.generate` has, in its terms."""
    kept = ("min_p", "repeat_penalty", "seed", "stop", "top_k", "top_p")
    _refuse({k: v for k, v in options.items() if k not in kept}, DEFAULTS, IDLE, function)
    chosen = {name: options[name] for name in kept if name in options}
    if chosen.get("seed") is not None:
        chosen["seed"] = -1 if chosen["seed"] == RANDOM_SEED else chosen["seed"]
    if "top_k" in chosen:
        chosen["top_k"] = max(0, integer("top_k", chosen["top_k"]))
    return chosen


def _seed(seed: int) -> int:
    number = integer("seed", seed, -1)
    return -1 if number == RANDOM_SEED else number


def _limit(max_tokens: int | None) -> int | None:
    number = optional_integer("max_tokens", max_tokens)
    return None if number is None or number <= 0 else number


def _or_minus_one(token: int | None) -> int:
    return -1 if token is None else token


def _head(prefix: str, kind: str, model: str) -> Result:
    """Return what the chunks of a result share."""
    return {"id": f"{prefix}-{uuid.uuid4()}", "object": kind, "created": int(time.time()),
            "model": model}  # fmt: skip


def _text_choice(text: str) -> Result:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": None}


def _delta(delta: dict[str, str]) -> Result:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}


def _chain(text: str, pieces: Iterable[str]) -> Iterator[str]:
    yield text
    yield from pieces
