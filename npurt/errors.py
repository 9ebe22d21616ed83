"""The exceptions of npurt.

    NpurtError
    +-- DeviceNotFound    (LookupError)          no such device, or its node or library is missing
    |   +-- UnknownDevice                        npurt has no device of this name
    +-- DriverError                              an ioctl, FastRPC or host-library call failed
    |   +-- DeviceTimeout                        the job did not finish in time
    |   +-- DeviceLost                           the device was reset or the DSP process died
    |   +-- DeviceFull                           the device has too little free memory
    +-- UnsupportedOp     (NotImplementedError)  no kernel for this op, shape or dtype
    +-- GraphError        (ValueError)           a graph of ops contradicts itself
    +-- NotOffloaded                             strict mode: an op would leave its planned device
    +-- VerificationFailed                       a result is wrong, also after recomputation
    +-- LayoutError       (ValueError)           a shape, dtype, stride, alignment or size is wrong
    +-- NumericsError     (ValueError)           NaN or infinity where a finite number is needed
    +-- SettingError      (ValueError)           an NPURT_* variable or an option is invalid
    +-- GrammarError      (ValueError)           a grammar or a schema is wrong, or matches no text
    +-- ModelFormatError  (ValueError)           npurt cannot run this GGUF file
    +-- StateFormatError  (ValueError)           a saved state is damaged, or is of another model
    +-- ContextFull       (ValueError)           the KV cache has no space for these tokens
    +-- OutOfPages                               too few KV pages are free for a run or a fork
    +-- DownloadError     (OSError)              a model file could not be fetched or is damaged
    +-- PackageError      (ImportError)          a package is missing, or cannot be loaded

Every error that a user can act on is an NpurtError; any other exception is a bug in npurt.
"""

from collections.abc import Iterable
from typing import Any


class NpurtError(Exception):
    """Base class: *what* describes the failure, *remedy* the action that the user can take."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  remedy: {self.remedy}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(cls: type[NpurtError], state: dict[str, Any]) -> NpurtError:
    """Unpickle an error; the default protocol fails for keyword-only arguments."""
    error = cls.__new__(cls)
    error.__dict__.update(state)
    error.args = (state["what"],)
    return error


class DeviceNotFound(NpurtError, LookupError):
    """No such device, or its node or library is missing."""


class UnknownDevice(DeviceNotFound):
    """A device string names no device that npurt supports on any machine."""


class DriverError(NpurtError):
    """A driver call failed.  *call* is the C name of the call, *code* its return value or errno."""

    def __init__(self, what: str, *, remedy: str, call: str, code: int) -> None:
        super().__init__(what, remedy=remedy)
        self.call = call
        self.code = code


class DeviceTimeout(DriverError):
    """The job did not finish in time."""


class DeviceLost(DriverError):
    """The device was reset or the process on it died."""


class DeviceFull(DriverError):
    """The device has too little free memory."""


class UnsupportedOp(NpurtError, NotImplementedError):
    """No kernel for this op, shape or dtype."""


class GraphError(NpurtError, ValueError):
    """A graph reads a tensor that no op wrote, writes a tensor twice, or has wrong shapes."""


class NotOffloaded(NpurtError):
    """In strict mode, an op would have run on another device than planned."""


class VerificationFailed(NpurtError):
    """Both a result and its recomputation on the CPU failed verification."""


class LayoutError(NpurtError, ValueError):
    """A shape, dtype, stride, alignment or size is wrong."""


class NumericsError(NpurtError, ValueError):
    """NaN or infinity where a finite number is needed."""


class SettingError(NpurtError, ValueError):
    """An NPURT_* variable or an option has an invalid value."""


class GrammarError(NpurtError, ValueError):
    """A grammar, regular expression or schema is wrong or too large, or allows no next token."""


class ModelFormatError(NpurtError, ValueError):
    """npurt cannot run this GGUF file."""


class StateFormatError(NpurtError, ValueError):
    """A file contains no saved state, or a state that this model cannot load."""


class ContextFull(NpurtError, ValueError):
    """The KV cache has no space for these tokens."""


class OutOfPages(NpurtError):
    """A run or a fork needs more KV-cache pages than are free."""


class DownloadError(NpurtError, OSError):
    """A model file could not be fetched, or the fetched file is damaged."""


class PackageError(NpurtError, ImportError):
    """A Python package that npurt uses is missing, damaged, or cannot be loaded now."""


def brief(value: object, maximum: int = 60) -> str:
    """Return *value* for an error message: the first *maximum* characters of its repr.

    If the repr fails, as for an integer of more than 4300 digits, return the type.  The rest of a
    long string, list or dict is not read.
    """
    try:
        return _beginning(value, maximum)[:maximum]
    except Exception:  # noqa: BLE001  # a class of the caller may define the repr
        digits = f" of {value.bit_length()} bits" if isinstance(value, int) else ""
        return f"<{type(value).__name__}{digits}>"


def _beginning(value: object, maximum: int) -> str:
    """Return the repr of *value*, or at least its first *maximum* characters."""
    kind = type(value)
    if isinstance(value, str | bytes) and kind in (str, bytes):
        return repr(value[:maximum])
    if isinstance(value, dict) and kind is dict:
        pairs = ((f"{_beginning(key, maximum)}: ", each) for key, each in value.items())
        return _listed("{", pairs, "}", maximum)
    if isinstance(value, list) and kind is list:
        return _listed("[", (("", each) for each in value), "]", maximum)
    return repr(value)


def _listed(begin: str, entries: Iterable[tuple[str, object]], end: str, maximum: int) -> str:
    """Return *begin*, the *entries* with commas, and *end*; stop after *maximum* characters."""
    text = begin
    for before, value in entries:
        text += f"{', ' * (text != begin)}{before}"
        if len(text) >= maximum:
            return text
        text += _beginning(value, maximum - len(text))
    return text + end
