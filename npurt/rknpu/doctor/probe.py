"""Run small products on the NPU, as the first test of a board.

Most faults appear first in these products.  Each product is computed twice and compared with
numpy; all sums are exact.  The trials are ordered from simple to complex, so the first failure
usually explains the later failures.  Sources: reports of mtx512/rk3588-npu,
happyme531/rknpu2_matmul_open, gregordinary/rockchip-npu-notes, ork-driver.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.backend.probe import DeviceProbe, Outcome
from npurt.errors import DeviceLost, DriverError, NpurtError
from npurt.rknpu.driver.base import CoreTasks, Driver, Job
from npurt.rknpu.driver.execute import TIMEOUT_S
from npurt.rknpu.driver.memory import Buffer
from npurt.rknpu.driver.names import connection
from npurt.rknpu.isa.formats import number_format
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.plan import images
from npurt.rknpu.plan.cost import CLOCKS, npu_seconds
from npurt.rknpu.plan.proof import Role
from npurt.rknpu.plan.tiling import ProductPlan, plan, plan_weights

RUNS = 2  # runs of each product; both results must be correct
LOST_IN_A_ROW = 3  # consecutive errors after which the remaining trials are left out
GARBAGE = 0x5A  # byte that fills the result buffers before a run
PATTERN_BYTES = 65536  # bytes of the memory test


@dataclass(frozen=True, slots=True)
class Trial:
    """One product ``[M, K] @ [N, K].T``."""

    name: str
    m: int
    k: int
    n: int
    about: str  # the probable cause if this trial is the first to fail
    format: str = "int8"
    layout: Layout = Layout.ROW
    cores: int = 1
    max_n: int = 4096  # columns of a task
    profile: Profile = Profile.FULL
    identity: bool = False  # whether B is an identity matrix

    @property
    def shape(self) -> str:
        """The sizes, as "MxKxN"."""
        return f"{self.m}x{self.k}x{self.n}"


_ROWS = tuple(
    Trial(f"rows, {layout.value}", m, 64, 64, about, layout=layout)
    for layout, about in (
        (Layout.ROW, "strides of rows: CNA_DMA_CON1, DPU_DATA_CUBE_NOTCH_ADDR"),
        (Layout.NATIVE_W, "strides of surfaces: CNA_DMA_CON2 (-3 M), DPU_DST_SURF_STRIDE"),
    )
    for m in range(1, 10)
)
TRIALS = (
    Trial("identity", 1, 32, 32, "the layout of weights, or caches that are not maintained",
          identity=True),
    Trial("4 x 64 x 64", 4, 64, 64, "the layout of weights: groups of 32 by 32"),
    *_ROWS,
    Trial("three groups", 4, 64, 96, "DPU_BS_OW_CFG SIZE_E: only the first surfaces are written"),
    Trial("half an entry", 126, 2080, 64, "CBUF: K = 32 mod 64 needs more banks than its bytes"),
    Trial("half an entry", 144, 672, 64, "CBUF: K = 32 mod 64 needs more banks than its bytes"),
    Trial("long sums", 1, 11008, 64, "CBUF: banks for one group of kernels"),
    Trial("long sums", 2, 11008, 64, "CBUF: banks for one group of kernels"),
    Trial("three tasks", 12, 64, 192, "tasks that follow one another: chain, or sums left over",
          max_n=64),
    Trial("all cores", 4, 64, 192, "a core that is off, its address space, or its slot", cores=3),
    Trial("all cores", 128, 1024, 1024, "as before; or memory that is too slow", cores=3),
    Trial("float16", 4, 64, 64, "precision: CNA_CONV_CON1, DPU_DATA_FORMAT", format="fp16"),
    Trial("float16", 1, 4096, 64, "precision of long sums", format="fp16"),
    *(Trial("rows, native-h", m, 64, 64, "M not a multiple of 4: derived, nobody ran it [?]",
            layout=Layout.NATIVE_H) for m in (2, 3, 5)),
)  # fmt: skip
UNSAFE = (  # trials that hung some NPUs until the driver was loaded again
    Trial("without DPU_RDMA", 4, 64, 64, "a list of 108 words: works with the vendor's driver [?]",
          profile=Profile.SHORT),
)  # fmt: skip


def trials(device: str, *, unsafe: bool) -> DeviceProbe:
    """Return the trials of `probe` on the NPU with this device string.

    Raises:
        UnknownDevice: *device* is not a device string of this backend.
    """
    system, connect = connection(device)
    clocks = ", ".join(f"{name} {hz / 1e6:.0f} MHz" for name, hz in CLOCKS.items())
    times = (
        "driver and model: both the cost model's estimate, because the NPU is simulated"
        if system.simulated
        else "driver: the driver's measurement; model: the cost model's estimate at the clock that "
        f"the driver sets ({clocks})"
    )
    return DeviceProbe(system.simulated, times, probe(connect, unsafe=unsafe))


def probe(connect: Callable[[], Driver], *, unsafe: bool = False) -> Iterator[Outcome]:
    """Run every trial, and yield its outcome; after an error, open the driver again.

    Args:
        connect: Opens the driver.
        unsafe: At the end, also try programs that may hang the NPU until its driver is reloaded.

    Raises:
        NpurtError: The driver cannot be opened for the first time.
    """
    opened = connect()
    driver: Driver | None = opened
    lost = 0
    try:
        yield Outcome("open", "", "ok", opened.detail)
        yield _memory(opened)
        for trial in (*TRIALS, *(UNSAFE if unsafe else ())):
            if driver is None or lost == LOST_IN_A_ROW:
                yield Outcome(trial.name, trial.shape, "left out", "the NPU does not come back")
                continue
            outcome = _tried(driver, trial)
            yield outcome
            lost = lost + 1 if outcome.state == "error" else 0
            if outcome.state == "error":
                driver.close()
                driver = _again(connect)
    finally:
        if driver:
            driver.close()


def _again(connect: Callable[[], Driver]) -> Driver | None:
    try:
        return connect()
    except NpurtError:
        return None


def _memory(driver: Driver) -> Outcome:
    """Check that memory keeps its contents, in each address space."""
    pattern = np.random.default_rng(0).integers(0, 256, PATTERN_BYTES, np.uint8)
    try:
        for space in dict.fromkeys(driver.spaces):
            buffer = space.alloc(PATTERN_BYTES, Role.INPUT, "pattern")
            with buffer.cpu_access(write=True) as memory:
                memory[:] = pattern
            with buffer.cpu_access(write=False) as memory:
                same = np.array_equal(memory, pattern)
            buffer.free()
            if not same:
                return Outcome("memory", "", "wrong", "the bytes read differ from those written")
    except DriverError as error:
        return Outcome("memory", "", "error", error.what)
    return Outcome("memory", "", "ok", f"{PATTERN_BYTES} bytes written, cleaned and read")


def _tried(driver: Driver, trial: Trial) -> Outcome:
    try:
        return _make(driver, trial)
    except DriverError as error:
        cause = error.__cause__ if isinstance(error, DeviceLost) else None
        what = cause.what if isinstance(cause, NpurtError) else error.what
        return Outcome(trial.name, trial.shape, "error", f"{what}; looks at {trial.about}")


def _make(driver: Driver, trial: Trial) -> Outcome:
    """Compute a product on the NPU and with numpy, and compare the results.

    Raises:
        DriverError: A call of the driver failed.
    """
    a, b = operands(trial)
    weights = plan_weights(
        number_format(trial.format),
        *b.shape,
        cores=min(trial.cores, len(driver.spaces)),
        rows=trial.m,
    )
    tiles = plan(weights, trial.m, trial.layout, max_n=trial.max_n)
    usual, driver.profile = driver.profile, trial.profile
    try:
        product = _TrialProduct(driver, tiles, a, b)
    finally:
        driver.profile = usual
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    for _ in range(RUNS):
        seconds, result = product.run()
        if not np.array_equal(result, exact):
            break
    elapsed = driver.elapsed_ns(product.job)
    expected = npu_seconds([tiles], driver.name).expected
    times = seconds, None if elapsed is None else elapsed / 1e9, expected
    product.free()
    state, what = _verdict(result, exact, product.job.repeated)
    about = f"{what}; looks at {trial.about}" if state == "wrong" else what
    return Outcome(trial.name, trial.shape, state, about, *times)


def _verdict(result: npt.NDArray[Any], exact: npt.NDArray[Any], repeated: str) -> tuple[str, str]:
    """Return a state and an explanation; *repeated* is the reason for a repeated job, or ""."""
    wrong = np.argwhere(result != exact)
    if len(wrong):
        row, column = map(int, wrong[0])
        return "wrong", (
            f"{len(wrong)} of {exact.size} wrong, first at row {row}, column {column}: "
            f"{result[row, column]:g}, not {exact[row, column]:g}"
        )
    return ("flaky", f"right only when run again: {repeated}") if repeated else ("ok", "")


def operands(trial: Trial) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return A ``[M, K]`` and B ``[N, K]``: integers whose sums are exact in every format."""
    rng = np.random.default_rng([trial.m, trial.k, trial.n])
    maximum, kind = (127, np.int8) if trial.format == "int8" else (8, np.float16)
    a = rng.integers(-maximum, maximum + 1, (trial.m, trial.k)).astype(kind)
    if trial.identity:
        return a, np.eye(trial.n, trial.k).astype(kind)
    return a, rng.integers(-maximum, maximum + 1, (trial.n, trial.k)).astype(kind)


class _TrialProduct:
    """The buffers and the job of one trial."""

    def __init__(self, driver: Driver, tiles: ProductPlan, a: Any, b: Any) -> None:
        self._driver, self._plan = driver, tiles
        self._buffers: list[tuple[Buffer, Buffer, Buffer]] = []
        cores = []
        for core in range(len(tiles.tiles)):
            weights = images.weights_image(b, tiles.weights, core)
            group = (
                self._filled(core, images.features_image(a, tiles), Role.INPUT),
                self._filled(core, weights, Role.INPUT),
                self._filled(core, np.empty(tiles.c_bytes[core], np.uint8), Role.OUTPUT),
            )
            self._buffers.append(group)
            cores.append(_core_tasks(tiles, core, *(buffer.address for buffer in group)))
        self.job: Job = driver.prepare(cores)

    def _filled(self, core: int, image: npt.NDArray[np.uint8], role: Role) -> Buffer:
        buffer = self._driver.spaces[core].alloc(image.nbytes, role, role.name)
        with buffer.cpu_access(write=True) as memory:
            memory[: image.nbytes] = image
        return buffer

    def run(self) -> tuple[float, npt.NDArray[Any]]:
        """Run the product; return the seconds and C."""
        for _, _, result in self._buffers:
            with result.cpu_access(write=True) as memory:
                memory[:] = GARBAGE
        start = time.perf_counter()
        self._driver.run(self.job, TIMEOUT_S)
        seconds = time.perf_counter() - start
        copies = []
        for (_, _, result), nbytes in zip(self._buffers, self._plan.c_bytes, strict=True):
            with result.cpu_access(write=False, nbytes=nbytes) as memory:
                copies.append(memory.copy())
        return seconds, images.results_matrix(copies, self._plan)

    def free(self) -> None:
        """Free the job and the buffers."""
        self.job.free()
        for group in self._buffers:
            for buffer in group:
                buffer.free()


def _core_tasks(tiles: ProductPlan, core: int, a: int, b: int, c: int) -> CoreTasks:
    mine = tiles.tiles[core]
    return CoreTasks([t.task for t in mine], [(a + t.a, b + t.b, c + t.c) for t in mine])
