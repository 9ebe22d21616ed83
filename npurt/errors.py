"""Every error npurt raises on purpose.

    NpurtError
    +-- DeviceNotFound    (LookupError)          no such device, or its node or library is missing
    |   +-- UnknownDevice                        a name that no device has on any machine
    +-- DriverError                              an ioctl, FastRPC or host-library call failed
    |   +-- DeviceTimeout                        the job did not finish in time
    |   +-- DeviceLost                           the device was reset or the DSP process died
    |   +-- DeviceFull                           no memory left that the device could use
    +-- UnsupportedOp     (NotImplementedError)  no kernel for this op, shape or dtype
    +-- GraphError        (ValueError)           a graph of ops contradicts itself
    +-- NotOffloaded                             strict mode: an op would leave its planned device
    +-- VerificationFailed                       a result is wrong, and so was its recomputation
    +-- LayoutError       (ValueError)           a shape, dtype, stride, alignment or size is wrong
    +-- NumericsError     (ValueError)           NaN or infinity where a finite number is needed
    +-- SettingError      (ValueError)           an NPURT_* variable or an option holds nonsense
    +-- GrammarError      (ValueError)           a grammar or a schema is wrong, or matches no text
    +-- ModelFormatError  (ValueError)           the GGUF file is not one npurt can run
    +-- StateFormatError  (ValueError)           a saved state is damaged or another model's
    +-- ContextFull       (ValueError)           the KV cache has no room for these tokens
    +-- OutOfPages                               other sequences have the pages that a run needs
    +-- DownloadError     (OSError)              a model file could not be fetched or is damaged

Catching NpurtError catches everything a user can act on; anything else is a bug in npurt.
"""

from typing import Any


class NpurtError(Exception):
    """Base class: *what* says what happened, *remedy* what the reader can do about it."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  remedy: {self.remedy}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(cls: type[NpurtError], state: dict[str, Any]) -> NpurtError:
    """Unpickle an error: keyword-only arguments break the default protocol."""
    error = cls.__new__(cls)
    error.__dict__.update(state)
    error.args = (state["what"],)
    return error


class DeviceNotFound(NpurtError, LookupError):
    """No such device, or its node or library is missing."""


class UnknownDevice(DeviceNotFound):
    """A device string is misspelt: no machine has a device of this name."""


class DriverError(NpurtError):
    """A driver call failed.  *call* is its C name, *code* the raw return value or errno."""

    def __init__(self, what: str, *, remedy: str, call: str, code: int) -> None:
        super().__init__(what, remedy=remedy)
        self.call = call
        self.code = code


class DeviceTimeout(DriverError):
    """The job did not finish in time."""


class DeviceLost(DriverError):
    """The device was reset or the process on it died."""


class DeviceFull(DriverError):
    """There is no memory left that the device could use."""


class UnsupportedOp(NpurtError, NotImplementedError):
    """No kernel for this op, shape or dtype."""


class GraphError(NpurtError, ValueError):
    """A graph of ops reads what nothing wrote, writes a tensor twice, or has wrong shapes."""


class NotOffloaded(NpurtError):
    """Strict mode: an op would have run elsewhere than planned."""


class VerificationFailed(NpurtError):
    """A result did not verify, and neither did its recomputation on the CPU."""


class LayoutError(NpurtError, ValueError):
    """A shape, dtype, stride, alignment or size is wrong."""


class NumericsError(NpurtError, ValueError):
    """NaN or infinity where a finite number is needed."""


class SettingError(NpurtError, ValueError):
    """An NPURT_* variable or an option holds nonsense."""


class GrammarError(NpurtError, ValueError):
    """A grammar, regular expression or schema is wrong or too large, or lets no token follow."""


class ModelFormatError(NpurtError, ValueError):
    """The GGUF file is not one npurt can run."""


class StateFormatError(NpurtError, ValueError):
    """A file does not hold a saved state that this model can take."""


class ContextFull(NpurtError, ValueError):
    """The KV cache has no room for these tokens."""


class OutOfPages(NpurtError):
    """Other sequences have the pages of keys and values that a run or a fork needs."""


class DownloadError(NpurtError, OSError):
    """A model file could not be fetched, or what arrived is damaged."""


def brief(value: object, most: int = 60) -> str:
    """Return *value* as a message shows it: the first *most* characters of its repr.

    For a value without a repr, such as an integer of more than 4300 digits, it is the type.
    """
    try:
        return f"{value!r:.{most}}"
    except Exception:  # noqa: BLE001  # the repr may be a caller's own
        digits = f" of {value.bit_length()} bits" if isinstance(value, int) else ""
        return f"<{type(value).__name__}{digits}>"
