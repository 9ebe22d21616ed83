"""Use npurt in many ways and report the resources not released; `test_leaks.py` runs this.

    python -m tests.holding uses DEVICE [NAME ...]    # resources left after each use, as JSON
    python -m tests.holding steps DEVICE    # resources left if a step of a constructor fails

The garbage collector is off: an object that its last reference does not release is a leak.
"""

import contextlib
import gc
import json
import os
import sys
from pathlib import Path

import numpy as np

import npurt
from tests.limits import eventually

ROOT = str(Path(npurt.__file__).parent)
DATA = Path(__file__).parent / "data/models"
MODEL = DATA / "llama3/llama3-q8_0.gguf"
HYBRID = DATA / "qwen35/qwen35-q8_0.gguf"
EXPERTS = DATA / "qwen3moe/qwen3moe-q8_0.gguf"
TARGET, DRAFT, BLOCKS = (
    DATA / f"spec/spec-{name}-qwen3-q8_0.gguf" for name in ("target", "draft", "dflash")
)
OPTIONS = {"n_ctx": 64, "n_threads": 2, "progress": False}
WIDE = 2048  # rows and columns: a weight takes 4 MiB or more
ROUNDS = 2
# bytes that the C library may keep: thread stacks, and allocations below MALLOC_MMAP_...
NOISE_MIB = 12
GONE_SECONDS = 20  # seconds within which the kernel removes ended threads and processes

kept = []  # closed models whose objects stay referenced


# --- What a process holds -------------------------------------------------------------------------


def held():
    """Return the amount of each system resource that this process holds."""
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    ends = [line[0].split("-") for line in maps if "w" in line[1]]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "children": children(),
        "mapped files": sum(len(line) > 5 and line[5].startswith("/") for line in maps),
        "MiB": sum(int(end, 16) - int(start, 16) for start, end in ends) >> 20,
    }


def children():
    """Return how many children this process has."""
    count = 0
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            count += len((thread / "children").read_text().split())
    return count


def beyond(before):
    """Return the resources held in addition to *before*, without noise."""
    now = held()
    noise = {"MiB": NOISE_MIB}
    return {n: now[n] - before[n] for n in now if now[n] - before[n] > noise.get(n, 0)}


def left(before):
    """Return the resources held in addition to *before*, once ended threads are gone."""
    eventually(lambda: not beyond(before), GONE_SECONDS)
    return beyond(before)


# --- Ways to use a device -------------------------------------------------------------------------


class Uses:
    """Each method is a way to use *device*."""

    def __init__(self, device):
        self.device = device

    def _model(self, path=MODEL, **options):
        return npurt.Llama(path, self.device, **OPTIONS | options)

    def a_model_that_is_dropped(self):
        use(self._model())

    def a_hybrid_that_is_dropped(self):
        use(self._model(HYBRID))

    def experts_that_are_dropped(self):
        use(self._model(EXPERTS))

    def a_draft_from_the_text(self):
        use(self._model(TARGET, draft="lookup"))

    def a_draft_model(self):
        use(self._model(TARGET, draft=DRAFT))

    def a_draft_model_on_the_device(self):
        use(self._model(TARGET, draft=DRAFT, draft_device=self.device))

    def a_block_draft(self):
        use(self._model(TARGET, draft=BLOCKS))

    def an_engine_that_is_dropped(self):
        engine = npurt.Engine(MODEL, self.device, max_sequences=2, kv_bytes=1 << 20, **OPTIONS)
        for i in range(5):
            engine.submit([1, 2, i], max_tokens=2).result()
        engine.submit([1, 2], max_tokens=40).cancel()

    def an_engine_of_a_model_that_stays(self):
        with self._model(HYBRID, max_sequences=6) as llm:
            with npurt.Engine(llm, max_sequences=2) as engine:
                request = engine.submit([1, 2, 3])
                engine.submit([1, 2, 4], max_tokens=2).result()
            assert request.result().finish
            use(llm)

    def models_that_are_closed_and_stay(self):
        for options in ({}, {"path": HYBRID}, {"path": TARGET, "draft": DRAFT}):
            with self._model(**options) as llm:
                use(llm)
            kept.append(llm)

    def models_that_are_refused(self):
        for options in (
            {"n_threads": 999},
            {"kv_type": "f8"},
            {"path": TARGET, "draft": MODEL},
            {"path": TARGET, "draft": DRAFT, "draft_device": "x"},
            {"path": TARGET, "draft": DRAFT, "draft_max": 999},
        ):
            refused(lambda options=options: self._model(**options))

    def a_device_that_is_dropped(self):
        own = npurt.open_device(self.device)
        x, y = np.ones((2, 2, WIDE), np.float32)
        own.matmul(x, own.pack(weight()), y)
        refused(lambda: own.matmul(x[:, 1:], own.pack(weight()), y))

    def a_device_that_is_given_to_a_model_that_is_refused(self):
        with npurt.open_device(self.device) as own:
            refused(lambda: npurt.Llama(MODEL, own, **OPTIONS | {"kv_type": "f8"}))
            refused(lambda: npurt.Llama(TARGET, own, **OPTIONS, draft=MODEL))
            own.pack(weight())

    def weights_that_are_dropped(self):
        w = npurt.pack(weight().T, device=self.device)
        npurt.matmul(np.ones((2, WIDE), np.float32), w, device=self.device)

    def a_file_that_is_dropped(self):
        npurt.GGUF(MODEL)["token_embd.weight"].dequantize()
        refused(lambda: npurt.GGUF(__file__))

    def devices_that_are_looked_for(self):
        npurt.devices()


def use(llm):
    """Evaluate, rewind, and abandon a generation halfway."""
    llm.eval([1, 2, 3])
    refused(lambda: llm.eval([10**6]))
    llm.restore(llm.snapshot())
    next(llm.generate([1, 2, 3, 4, 5], max_tokens=8, stream=True, temperature=0))
    str(llm.report())


def refused(call):
    """Make a call that npurt refuses."""
    try:
        call()
    except npurt.NpurtError:
        return
    raise AssertionError("it was not refused")


def weight():
    """Return a new weight on each call."""
    return npurt.QTensor.quantize(np.ones((WIDE, WIDE), np.float32), "q8_0")


def uses(device, *names):
    """Return the resources left by repeated uses, after a first round that may fill caches.

    Args:
        names: Names of methods of `Uses`; by default all.
    """
    ways, told = Uses(device), {}
    for name in names or [n for n, way in vars(Uses).items() if callable(way) and n[0] != "_"]:
        getattr(ways, name)()
        before = held()
        for _ in range(ROUNDS):
            getattr(ways, name)()
        told[name] = left(before)
    return told


# --- Steps that fail ------------------------------------------------------------------------------


class FailedError(BaseException):
    """An error that npurt never catches by its class."""


MAKING = ("open_device", "Llama.__init__")
# Calls that release resources: these must not fail.
RELEASING = {"close", "free", "release", "forget", "_destroy", "_close", "__exit__", "_discard"}


class Failing:
    """Makes the first call in npurt fail whose pair of caller and callee has not failed before.

    Args:
        depth: Depth of calls, counted from the call of one of `MAKING`.
    """

    def __init__(self, depth):
        self._depth = depth
        self._failed = set()
        self.last = ""

    def fails(self, make):
        """Return whether a step failed; if none did, drop the object that *make* returned."""
        sys.settrace(self._call)
        try:
            make()
        except FailedError:
            return True
        finally:
            sys.settrace(None)
        return False

    def _call(self, frame, event, _):
        names = [code.co_qualname for code in codes_of(frame)]
        if not 2 <= len(names) <= self._depth or names[-1] not in MAKING or names[0][-1] == ">":
            return
        if RELEASING.isdisjoint(name.rpartition(".")[2] for name in names):
            step = " < ".join(names[:2])
            if step not in self._failed:
                self._failed.add(step)
                self.last = step
                raise FailedError


def codes_of(frame):
    """Yield the running code objects, innermost first, as long as they belong to npurt."""
    while frame and frame.f_code.co_filename.startswith(ROOT):
        yield frame.f_code
        frame = frame.f_back


def steps(device):
    """Return the resources left after each step of a constructor fails in turn."""
    told = {}
    makes = [
        (lambda: npurt.open_device(device), 99),
        (lambda: npurt.Llama(TARGET, device, draft=DRAFT, **OPTIONS), 4),
    ]
    if device == "cpu":
        makes.append((lambda: npurt.Llama(HYBRID, device, **OPTIONS), 4))
        makes.append((lambda: npurt.Llama(TARGET, device, draft=BLOCKS, **OPTIONS), 4))
    for make, depth in makes:
        make().close()
        before = held()
        failing = Failing(depth)
        while failing.fails(make):
            told[failing.last] = left(before)
    return told


def main(what, device, *names):
    """Print the resources left, as JSON."""
    gc.disable()
    told = {"uses": uses, "steps": steps}[what](device, *names)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
