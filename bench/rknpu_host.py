"""Measure the host's time for a decoded token on the RK3588: rounding, submitting, scaling.

    python bench/rknpu_host.py --models models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf

The time is CPU time of the decoding thread, less the time in the driver's ioctls and in the CPU
device between the products. rknpu_clock.c, compiled with the `ziglang` package, wraps the ioctls
and measures them. `beside` is measured while the simulated NPU works on the same cores and evicts
their caches; `alone` repeats the products of a token without the driver's requests. `accounts` is
the time that the runtime adds, for example for the ledger, with verification off. `proof` is the
check of a token's programs when they are prepared; `check` is the short check that each token
repeats.

`--threads` compares one thread per core of rocket with one thread for all cores; tokens alternate
between the two. `--rates` measures the cost model's constants of the host with prompts of 128
tokens, in CPU time of all threads: ns per rounded element, ns per scaled sum, and ns per unit of
all work besides products.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI

import npurt
import npurt.rknpu.device.device as device_module
import npurt.rknpu.driver.base as driver_module
from npurt.rknpu.device.quantise import signs_of
from npurt.rknpu.driver.native import host
from npurt.rknpu.driver.native.host import round_rows
from npurt.rknpu.plan import cost
from npurt.runtime.execute.remote import RemoteStep
from npurt.runtime.execute.shortlist import Shortlist
from npurt.settings import ROCKET_THREADS

REPETITIONS = 40
SOURCE = Path(__file__).with_name("rknpu_clock.c")


class Clock:
    """Sums of time by name; CPU time of this thread, unless wrap() gets another clock."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def wrap(
        self, name: str, function: Callable[..., Any], now: Callable[[], float] = time.thread_time
    ) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            start = now()
            try:
                return function(*args, **options)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + now() - start

        return timed

    def take(self, name: str) -> float:
        """Return the time spent under *name* in milliseconds, and reset it."""
        return 1e3 * self.spent.pop(name, 0.0)


class Requests:
    """The driver's ioctl, wrapped by a clock."""

    def __init__(self, llm: npurt.Llama, folder: str) -> None:
        path = Path(folder) / "rknpu_clock.so"
        zig = [sys.executable, "-m", "ziglang", "cc", "-O3", "-shared", "-fPIC"]
        subprocess.run([*zig, "-o", path, SOURCE], check=True)
        self._ffi = FFI()
        self._ffi.cdef("""
            extern void *driver;
            void clocked_ioctl(void);
            int64_t take_spent(int64_t *made);
            double added(void);
        """)
        self._library = self._ffi.dlopen(str(path))
        device: Any = llm.device
        system = device._driver.spaces[0].system
        self._library.driver = self._ffi.cast("void *", system._ioctl)
        clocked = self._ffi.addressof(self._library, "clocked_ioctl")
        system._ioctl = host.ffi().cast("npurt_rk_ioctl *", clocked)
        self._prepared = device._weights.calls.made
        self._added = self._library.added()

    def take(self) -> float:
        """Return this thread's milliseconds in the driver and in the clock, and reset them."""
        made = self._ffi.new("int64_t *")
        spent = self._library.take_spent(made)
        return 1e-6 * float(spent + made[0] * self._added)

    def jobs(self) -> list[Any]:
        """Return the jobs of a token."""
        prepared = self._prepared.items()
        return [product._job for (_, rows), made in prepared if rows == 1 for product, _ in made]

    def leave_out(self) -> None:
        """Skip all further requests to the driver: they succeed without effect."""
        self._library.driver = self._ffi.NULL
        for made in self._prepared.values():
            for product, _ in made:
                product._job.run.table.sentinel_count = 0  # no NPU overwrites the sentinels

    def sums(self, rows: int) -> tuple[int, int]:
        """Return the numbers of rounded elements and of scaled sums in all jobs of *rows* rows."""
        elements, sums = 0, 0
        for (_, prepared), made in self._prepared.items():
            for product, _ in made if prepared == rows else ():
                elements += rows * sum(part.kp for part in product._parts[0])
                counts = [cost.count(region.plan) for region in product._regions]
                sums += sum(each.result_bytes // 4 for each in counts)
        return elements, sums


def beside(llm: npurt.Llama, clock: Clock, requests: Requests, tokens: int) -> list[float]:
    """Return the host's milliseconds for each token, beside the running simulator."""
    samples = []
    for token in range(tokens):
        clock.spent.clear()
        requests.take()
        llm.eval_last([10 + token])
        samples.append(clock.take("matmuls") - requests.take())
    return samples


def alone(llm: npurt.Llama, clock: Clock) -> tuple[float, float]:
    """Return the least milliseconds of a token's products and accounts, without a driver."""
    products, accounts = [], []
    for token in range(REPETITIONS):
        clock.spent.clear()
        llm.eval_last([10 + token])
        products.append(clock.take("matmuls"))
        accounts.append(clock.take("step") - products[-1] - clock.take("rescore"))
    return min(products), min(accounts)


def check(jobs: list[Any]) -> float:
    """Return the least milliseconds to check that a token's programs are as proven."""
    samples = []
    for _ in range(REPETITIONS):
        start = time.thread_time()
        for job in jobs:
            job.check()
        samples.append(1e3 * (time.thread_time() - start))
    return min(samples)


def measure(path: Path, device: str, tokens: int) -> dict[str, Any]:
    clock = Clock()
    for owner, name, kind in (
        (device_module.RkDevice, "matmuls", "matmuls"),
        (driver_module, "prove", "proof"),
        (RemoteStep, "run", "step"),
        (Shortlist, "rescore", "rescore"),
    ):
        function = getattr(owner, name)
        setattr(owner, name, clock.wrap(kind, getattr(function, "__wrapped__", function)))
        getattr(owner, name).__wrapped__ = getattr(function, "__wrapped__", function)
    with (
        tempfile.TemporaryDirectory() as folder,
        npurt.Llama(path, device, n_ctx=256, verify="off") as llm,
    ):
        requests = Requests(llm, folder)
        llm.eval_last([1, 2, 3])
        clock.spent.clear()
        llm.eval_last([4])  # prepares products with one row
        proof = clock.take("proof")
        samples = beside(llm, clock, requests, tokens)
        jobs = requests.jobs()
        checked = check(jobs)
        requests.leave_out()
        minimum, accounts = alone(llm, clock)
    return {
        "model": path.name,
        "device": device,
        "jobs": len(jobs),
        "beside_ms": {"median": statistics.median(samples), "least": min(samples)},
        "alone_ms": minimum,
        "accounts_ms": accounts,
        "proof_ms": proof,
        "check_ms": checked,
    }


def threads(path: Path, tokens: int) -> dict[str, Any]:
    """Compare one thread for all cores of rocket with one per core: median milliseconds per token.

    `host` is CPU time as in measure(). `products` is the elapsed time of the products, and
    `process` the CPU time of all threads; both include the simulator.
    """
    os.environ[ROCKET_THREADS.name] = "1"
    clock = Clock()
    matmuls = device_module.RkDevice.matmuls
    wrapped = clock.wrap("products", clock.wrap("matmuls", matmuls), time.perf_counter)
    device_module.RkDevice.matmuls = wrapped  # type: ignore[method-assign]
    samples: dict[str, list[tuple[float, ...]]] = {"one": [], "each": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        npurt.Llama(path, "rknpu:sim", n_ctx=4 * tokens + 8, verify="off") as llm,
    ):
        requests = Requests(llm, folder)
        llm.eval_last([4])
        pools = {"one": host.ffi().NULL, "each": requests.jobs()[0].run.table.pool}
        for token in range(2 * tokens):
            mode = ("one", "each")[token % 2]
            for job in requests.jobs():
                job.run.table.pool = pools[mode]
            llm.eval_last([10 + token])
            clock.spent.clear()
            requests.take()
            start = time.process_time()
            llm.eval_last([10 + token])
            process = 1e3 * (time.process_time() - start)
            own = clock.take("matmuls") - requests.take()
            samples[mode].append((own, clock.take("products"), process))
    device_module.RkDevice.matmuls = matmuls  # type: ignore[method-assign]
    return {
        "model": path.name,
        **{
            mode: {
                name: statistics.median(column)
                for name, column in zip(
                    ("host", "products", "process"), zip(*taken, strict=True), strict=True
                )
            }
            for mode, taken in samples.items()
        },
    }


def rates(path: Path, rows: int = 128) -> dict[str, Any]:
    """Return the host's rates, from rounding alone and a prompt of *rows* without a driver."""
    x = np.random.default_rng(0).standard_normal((rows, 4096), np.float32)
    codes, scales = np.empty((2 * rows, 4096), np.int8), np.empty(rows, np.float32)
    rounding, products, others = [], [], []
    for _ in range(REPETITIONS):
        start = time.thread_time()
        round_rows(x, codes, scales, signs=signs_of(4096), block=64, passes=2)
        rounding.append(time.thread_time() - start)
    clock = Clock()
    matmuls = device_module.RkDevice.matmuls
    device_module.RkDevice.matmuls = clock.wrap("matmuls", matmuls)  # type: ignore[method-assign]
    with (
        tempfile.TemporaryDirectory() as folder,
        npurt.Llama(path, "rknpu:sim-vendor", n_ctx=16 * rows, verify="off") as llm,
    ):
        requests = Requests(llm, folder)
        llm.eval_last(range(10, 10 + rows))
        requests.leave_out()
        for _ in range(8):
            clock.spent.clear()
            start = time.process_time()
            llm.eval_last(range(10, 10 + rows))
            others.append(time.process_time() - start)
            products.append(clock.take("matmuls") / 1e3)
            others[-1] -= products[-1]
        elements, sums = requests.sums(rows)
        units = rows * llm.config.n_layers * (llm.config.width + llm.config.n_ff)
    device_module.RkDevice.matmuls = matmuls  # type: ignore[method-assign]
    element = min(rounding) / x.size
    return {
        "model": path.name,
        "ns_an_element": 1e9 * element,
        "ns_a_sum": 1e9 * (min(products) - elements * element) / sums,
        "ns_a_unit": 1e9 * min(others) / units,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Host time of a decoded token.")
    parser.add_argument("--threads", action="store_true", help="compare threads of rocket")
    parser.add_argument("--rates", action="store_true", help="the host's rates, from prompts")
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--device", nargs="+", default=["rknpu:sim", "rknpu:sim-vendor"])
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads or args.rates:
        for model in args.models:
            print(json.dumps(rates(model) if args.rates else threads(model, args.tokens)))
        return
    rows = [measure(model, name, args.tokens) for model in args.models for name in args.device]
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['model']} on {row['device']}: {row['jobs']} jobs a token; "
            f"alone {row['alone_ms']:.2f} ms, beside the simulator {row['beside_ms']['least']:.2f} "
            f"(median {row['beside_ms']['median']:.2f}); accounts {row['accounts_ms']:.2f}; "
            f"proof {row['proof_ms']:.1f} once, then {row['check_ms']:.3f} a token"
        )


if __name__ == "__main__":
    main()
