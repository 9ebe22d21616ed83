"""Quantised matrix products, and small language models, on edge NPUs from Python.

    import npurt
    y = npurt.matmul(a, b)
    w = npurt.pack(b, "q8_0")
    llm = npurt.Llama("qwen.gguf")

Importing npurt opens nothing and reads no environment.
"""

import importlib
from typing import TYPE_CHECKING, Any

from npurt.base import late
from npurt.errors import (
    ContextFull,
    DeviceFull,
    DeviceLost,
    DeviceNotFound,
    DeviceTimeout,
    DownloadError,
    DriverError,
    GrammarError,
    GraphError,
    LayoutError,
    ModelFormatError,
    NotOffloaded,
    NpurtError,
    NumericsError,
    OutOfPages,
    PackageError,
    SettingError,
    StateFormatError,
    UnknownDevice,
    UnsupportedOp,
    VerificationFailed,
)
from npurt.version import __version__

if TYPE_CHECKING:
    from npurt import models
    from npurt.llm.decode.grammar.grammar import Grammar
    from npurt.llm.decode.llama import Llama
    from npurt.llm.engine.engine import Engine
    from npurt.llm.file.gguf import GGUF
    from npurt.quant.tensor import QTensor
    from npurt.runtime.api.matmul import matmul
    from npurt.runtime.api.packed_weight import PackedWeight, pack, report
    from npurt.runtime.open.devices import devices, open_device

__all__ = [
    "GGUF",
    "ContextFull",
    "DeviceFull",
    "DeviceLost",
    "DeviceNotFound",
    "DeviceTimeout",
    "DownloadError",
    "DriverError",
    "Engine",
    "Grammar",
    "GrammarError",
    "GraphError",
    "LayoutError",
    "Llama",
    "ModelFormatError",
    "NotOffloaded",
    "NpurtError",
    "NumericsError",
    "OutOfPages",
    "PackageError",
    "PackedWeight",
    "QTensor",
    "SettingError",
    "StateFormatError",
    "UnknownDevice",
    "UnsupportedOp",
    "VerificationFailed",
    "__version__",
    "devices",
    "matmul",
    "models",
    "open_device",
    "pack",
    "report",
]

_HOMES = {
    "Engine": "npurt.llm.engine.engine",
    "GGUF": "npurt.llm.file.gguf",
    "Grammar": "npurt.llm.decode.grammar.grammar",
    "Llama": "npurt.llm.decode.llama",
    "PackedWeight": "npurt.runtime.api.packed_weight",
    "QTensor": "npurt.quant.tensor",
    "devices": "npurt.runtime.open.devices",
    "matmul": "npurt.runtime.api.matmul",
    "open_device": "npurt.runtime.open.devices",
    "pack": "npurt.runtime.api.packed_weight",
    "report": "npurt.runtime.api.packed_weight",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used, so `import npurt` is fast."""
    if name == "models":
        with late.imports():
            return importlib.import_module("npurt.models")  # which sets the attribute
    if name not in _HOMES:
        raise AttributeError(f"module 'npurt' has no attribute {name!r}")
    with late.imports():
        value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
