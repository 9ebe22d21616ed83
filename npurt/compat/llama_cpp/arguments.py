"""Convert the arguments of llama-cpp-python to npurt's, and refuse unsupported arguments."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypedDict

from npurt.errors import UnsupportedOp, brief
from npurt.llm.decode.options import asks_for_nothing
from npurt.llm.decode.stops import stop_texts
from npurt.llm.file.pooling import NUMBERS, Pooling
from npurt.runtime.open.arguments import integer, optional_integer

RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED; like -1, it requests a random seed

# llama-cpp-python's name of a chat format -> npurt's name, if they differ.
FORMATS = {"llama-2": "llama2", "llama-3": "llama3", "mistral-instruct": "mistral"}
# Chat format -> stop text of an answer, for files that do not list it as an end token.
STOPS = {
    "chatml": "<|im_end|>", "chatml-function-calling": "<|im_end|>", "gemma": "<end_of_turn>\n",
    "llama-3": "<|eot_id|>", "mistral-instruct": "</s>", "zephyr": "</s>",
}  # fmt: skip
# Unsupported arguments of the constructor -> the values that have no effect and are accepted.
MODEL_DEFAULTS: dict[str, Any] = {
    "attention_type": -1, "kv_overrides": None,
    "lora_base": None, "rope_freq_base": 0.0, "rope_freq_scale": 0.0, "rope_scaling_type": -1,
    "tokenizer": None, "yarn_attn_factor": 1.0, "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0, "yarn_ext_factor": -1.0, "yarn_orig_ctx": 0,
}  # fmt: skip
# Unsupported arguments of completions -> accepted values.  While mirostat_mode is 0, Mirostat's
# constants have no effect.
DEFAULTS: dict[str, Any] = {"mirostat_mode": 0, "tfs_z": 1.0}
# Arguments of completions that `Llama` passes on to the sampler.
SAMPLING = (
    "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "frequency_penalty",
    "presence_penalty", "logits_processor", "stopping_criteria", "logit_bias",
    "grammar", "response_format",
)  # fmt: skip
KV_TYPES: dict[Any, str] = {None: "f16", 0: "f32", 1: "f16"}  # ggml type number -> npurt's name


class SharedArguments(TypedDict, total=False):
    """The arguments that completions and chats share."""

    temperature: float
    top_p: float
    min_p: float
    typical_p: float
    stop: str | Sequence[str] | None
    frequency_penalty: float
    presence_penalty: float
    repeat_penalty: float
    top_k: int
    seed: int | None
    max_tokens: int | None
    tfs_z: float
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    model: str | None
    logits_processor: Any
    grammar: Any
    logit_bias: dict[int, float] | None


class TextOptions(SharedArguments, total=False):
    """The arguments of a completion."""

    suffix: str | None
    logprobs: int | None
    echo: bool
    stopping_criteria: Any


class ChatOptions(SharedArguments, total=False):
    """The arguments of a chat."""

    functions: Any
    function_call: Any
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: Any
    response_format: Mapping[str, Any] | None
    logprobs: bool | None
    top_logprobs: int | None


def missing(name: str, remedy: str = "") -> UnsupportedOp:
    """Return the error for the unsupported argument, value or attribute *name*."""
    return UnsupportedOp(
        f"npurt.compat.llama_cpp does not have {name} yet", remedy=remedy or f"do without {name}"
    )


def refuse(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise an error unless all arguments named in *defaults* are None, missing or the default.

    Raises:
        UnsupportedOp: An argument in *given* has another value.
    """
    for name, default in defaults.items():
        if not asks_for_nothing(given.get(name), default):
            raise missing(f"{name}={brief(given[name])}")


def sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in *given* that are named in `SAMPLING`.

    Raises:
        UnsupportedOp: An argument in *given* is unsupported.
    """
    refuse(given, DEFAULTS)
    return {name: given[name] for name in SAMPLING if name in given}


def seed_of(seed: int) -> int | None:
    """Return *seed*, or None if it requests a random seed."""
    number = integer("seed", seed, -1)
    return None if number in (-1, RANDOM_SEED) else number


def pooling(pooling_type: int) -> Pooling | None:
    """Return the pooling of a number, or None for -1, which selects the file's pooling.

    Raises:
        SettingError: No pooling has this number.
    """
    number = integer("pooling_type", pooling_type, -1, max(NUMBERS))
    return NUMBERS.get(number)


def limit(max_tokens: int | None) -> int | None:
    """Return *max_tokens*, or None for no limit."""
    number = optional_integer("max_tokens", max_tokens)
    return None if number is None or number <= 0 else number


def kv_type(type_k: int | None, type_v: int | None) -> str:
    """Return npurt's name of the element type of the KV cache.

    Raises:
        UnsupportedOp: npurt does not support the type, or keys and values have different types.
    """
    kinds = (type_k, type_v)
    names = [KV_TYPES.get(kind) if isinstance(kind, Real | None) else None for kind in kinds]
    if names[0] is None or names[0] != names[1]:
        raise UnsupportedOp(
            f"type_k is {brief(type_k)} and type_v {brief(type_v)}",
            remedy="use 1 (f16) or 0 (f32) for both, or omit both",
        )
    return names[0]


def all_stops(stop: Any, chat_format: str | None) -> list[str]:
    """Return the stop texts of a chat: *stop* and the stop text of *chat_format*."""
    return list(stop_texts(stop)) + ([STOPS[chat_format]] if chat_format in STOPS else [])
