"""The trials of `npurt probe`: small products on an NPU, compared with numpy."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a trial.

    *state* is ``ok``, ``flaky`` (correct only after the job was repeated), ``wrong``, ``error`` or
    ``left out``.
    """

    name: str
    shape: str
    state: str
    what: str
    seconds: float | None = None  # time of the last run, from submit to results
    driver_seconds: float | None = None  # time of the last run that the driver measured
    model_seconds: float | None = None  # time that the cost model predicts, with one submit


@dataclass(frozen=True, slots=True)
class DeviceProbe:
    """The trials of a device, which run while *outcomes* is read.

    Attributes:
        simulated: Whether the device is simulated.
        times: What the times "driver" and "model" of an outcome are, for the report.
        outcomes: An outcome of each trial.
    """

    simulated: bool
    times: str
    outcomes: Iterator[Outcome]
