"""Read and check the settings of a checkpoint, its config.json."""

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npurt.base.files import opened, parsed
from npurt.errors import ModelFormatError, NpurtError
from npurt.llm.file.config import MAX_LAYERS

# SEVERAL: types of models with several parts.  COMMON: settings that apply to all parts.  DEFAULTS:
# the defaults of a text part, which transformers omits from config.json.
# Source: transformers 5.23 models/gemma3, ministral3, qwen3_next, qwen3_5 and qwen3_5_moe,
# configuration_*.py, Apache-2.0.
SEVERAL = ("gemma3", "mistral3", "qwen3_5", "qwen3_5_moe")
COMMON = ("tie_word_embeddings", "quantization_config")
_QWEN3_NEXT: dict[str, Any] = {
    "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 1e6,
    },
    "ministral3": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0,
            "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        },
    },
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": {
        **_QWEN3_NEXT, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    },
    "qwen3_5_moe_text": {
        **_QWEN3_NEXT, "num_hidden_layers": 40, "num_experts_per_tok": 8, "num_experts": 256,
    },
}  # fmt: skip

# The config.json of nomic's code has other names: its name -> the usual name.
OTHER_NAMES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps", "activation_function": "hidden_act",
}  # fmt: skip

MAX_BYTES = 1 << 26  # maximum bytes of a JSON file; Gemma's tokenizer.json has 33 MB
MAX_INTEGER = (1 << 31) - 1


def content_of(path: Path, maximum: int = MAX_BYTES) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: As `files.opened`.
        ValueError: The file has more than *maximum* bytes.
    """
    with opened(path) as file:
        data = file.read(maximum + 1)
    if len(data) > maximum:
        raise ValueError(f"the file has more than {maximum} bytes")
    return data


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file, or {} if the file does not exist.

    Raises:
        ModelFormatError: The file is damaged.
    """
    try:
        if not path.exists():
            return {}
        found = parsed(content_of(path))
    except (OSError, ValueError) as error:
        raise bad(f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise bad(f"{path.name} holds no object")
    return found


@contextlib.contextmanager
def meaning(name: str) -> Iterator[None]:
    """Turn exceptions that wrong values in the file *name* cause into `ModelFormatError`.

    The callers need not check the type of each value.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
            struct.error) as e:  # fmt: skip
        if isinstance(e, NpurtError):
            raise
        raise bad(f"{name} has a missing or wrong value ({e!r:.80})") from e


class CheckpointSettings:
    """The settings in config.json; for a model of several parts, those of the text model.

    Raises:
        ModelFormatError: ``num_hidden_layers`` is missing or wrong.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self.layers = 0
        self.layers = self.integer("num_hidden_layers", maximum=MAX_LAYERS)

    @classmethod
    def read(cls, folder: Path) -> "CheckpointSettings":
        """Read the config.json of *folder*; raise ModelFormatError if it is missing or damaged."""
        path = folder / "config.json"
        if not path.exists():
            raise ModelFormatError(
                f"{folder} has no config.json",
                remedy="pass the folder of a checkpoint, with config.json, tokenizer.json and "
                "*.safetensors",
            )
        values = read_json(path)
        text = values.get("text_config")
        if values.get("model_type") == "nomic_bert":
            values = {OTHER_NAMES.get(key, key): value for key, value in values.items()}
        if values.get("model_type") in SEVERAL and isinstance(text, dict):
            values = {key: values[key] for key in COMMON if key in values} | text
        return cls(DEFAULTS.get(str(values.get("model_type")), {}) | values)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of *name*, or *default* if it is missing or null."""
        value = self._values.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None, *, maximum: int = MAX_INTEGER) -> int:
        """Return the integer *name*; raise ModelFormatError unless it is 1 to *maximum*.

        A list with the same number for each layer counts as this number.
        """
        value = self.get(name, default)
        if isinstance(value, list) and self._is_for_each_layer(value):
            value = value[0]
        if type(value) is not int or not 0 < value <= maximum:
            raise bad(f"config.json: {name} is {value!r:.40}, not an integer of 1 to {maximum}")
        return int(value)

    def _is_for_each_layer(self, values: list[Any]) -> bool:
        return len(values) == self.layers > 0 and all(value == values[0] for value in values)

    @property
    def heads(self) -> int:
        """The number of attention heads."""
        return self.integer("num_attention_heads")

    @property
    def kv_heads(self) -> int:
        """The number of key and value heads."""
        return self.integer("num_key_value_heads", self.heads)

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.integer("head_dim", max(1, self.integer("hidden_size") // self.heads))

    def number(self, name: str, default: float | None = None) -> float:
        """Return the number *name*; raise ModelFormatError unless it is positive."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not 0 < value < 1e30:
            raise bad(f"config.json: {name} is {value!r:.40}, not a positive number")
        return float(value)

    def require(self, name: str, *allowed: Any) -> None:
        """Raise an error unless *name* has one of the *allowed* values; None means missing.

        Raises:
            ModelFormatError: *name* has another value.
        """
        value = self.get(name)
        if value not in allowed:
            raise ModelFormatError(
                f"config.json: {name} is {value!r:.80}, which GGUF cannot express for this "
                "architecture",
                remedy="use a model without this setting; npurt would ignore it, and the output "
                "would be wrong",
            )


def bad(what: str) -> ModelFormatError:
    """Return the error *what* of a damaged checkpoint."""
    return ModelFormatError(what, remedy="download the folder again; it is damaged")
