"""Run fuzz targets: each input in a worker process that may crash, hang or take too much memory.

A target is a module in `tests/fuzz/targets` with a docstring and

    RUNS             inputs that CI tries
    mutate(rng)      -> input: JSON, made from `random.Random` alone, so a seed is an input
    run(input)       tries it; returns a word that says how far it got, for the statistics.
                     NpurtError means that the input was refused, which is fine; any other
                     exception is a failure, as are a crash, a hang and too much memory

and optionally

    NATIVE           whether it runs C of the host, which sanitizers see (default: False)
    SHARES           tests of CI that share its inputs (default: `SHARES` here)
    SECONDS          CPU time that one input may take (default: `SECONDS` here)
    memory(input)    bytes that it may take beyond what the worker had (default: `MEMORY` here)
    PLANTED          name -> function that puts a known defect back, to show that it is found

Inputs that once failed are in `tests/fuzz/corpus/TARGET/NAME.json` and are tried first.
"""

import atexit
import importlib
import itertools
import json
import os
import random
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from npurt import build

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOUND = ROOT / "build/fuzz"  # where the inputs that fail are put

SHARES = 4
SECONDS = 30  # CPU time of one input
STANDSTILL = 300  # seconds by the clock, for what waits without working
MEMORY = 512 << 20  # bytes
MAX_MEMORY = 6 << 30  # bytes of a worker; beyond that it is killed at once, to save the machine
LOOK_EVERY = 0.1  # seconds between two looks at a worker that is busy
REPORT = 6000  # characters of what a worker said last

NAMES = tuple(sorted(p.stem for p in (HERE / "targets").glob("[a-z]*.py")))


def load(name):
    """Return the module of target *name*."""
    return importlib.import_module(f"tests.fuzz.targets.{name}")


def runs(name):
    """Return how many inputs of target *name* CI tries."""
    return load(name).RUNS


def native(name):
    """Say whether target *name* runs C of the host, which sanitizers see."""
    return getattr(load(name), "NATIVE", False)


def shares(name):
    """Return in how many tests they are tried."""
    return getattr(load(name), "SHARES", SHARES)


def planted(name):
    """Return the names of the defects of target *name* that can be put back."""
    return list(getattr(load(name), "PLANTED", {}))


def rebuilt(folder, file, right, wrong):
    """Return a simulator of which *right* in *file* is *wrong*, until the process ends."""
    made = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    source = Path(made, file)
    text = (ROOT / folder / file).read_text()
    assert right in text
    source.write_text(text.replace(right, wrong, 1))
    others = [path for path in sorted((ROOT / folder).glob("*.c")) if path.name != file]
    return build.build_library(
        build.host(), Path(made) / "libplanted.so", sources=[source, *others],
        includes=[ROOT / folder, ROOT / "idl"],
    )  # fmt: skip


def corpus(name):
    """Return the files of the corpus of target *name*."""
    return sorted((HERE / "corpus" / name).glob("*.json"))


def read(path):
    """Return the input in the file *path*."""
    return json.loads(path.read_text())["input"]


def input_of(name, asked):
    """Return the input that *asked*, {"seed": ...} or {"input": ...}, means."""
    if "input" in asked:
        return asked["input"]
    made = load(name).mutate(random.Random(f"{name} {asked['seed']}"))
    return json.loads(json.dumps(made))  # what a file of the corpus would hold


class Worker:
    """A process that tries inputs of one target, one after another."""

    def __init__(self, name, plant=""):
        target = load(name)
        self._seconds = getattr(target, "SECONDS", SECONDS)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", name, plant],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words,
        )  # fmt: skip
        self._left = b""

    def ask(self, asked):
        """Try one input; return a word for how far it got, and why not farther.

        After "failed" the worker is closed.
        """
        try:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return "failed", self._end("the worker ended before the input")
        clock, work = time.monotonic(), self._cpu_seconds()
        while b"\n" not in self._left:
            if select.select([self._process.stdout], [], [], LOOK_EVERY)[0]:
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    return "failed", self._end("the worker died")
                self._left += data
            elif self._cpu_seconds() - work > self._seconds:
                return "failed", self._end(f"it took more than {self._seconds} s of CPU time")
            elif time.monotonic() - clock > STANDSTILL:
                return "failed", self._end(f"it stood still for {STANDSTILL} s")
            elif self._resident() > MAX_MEMORY:
                return "failed", self._end(f"it took more than {MAX_MEMORY >> 20} MiB")
        line, _, self._left = self._left.partition(b"\n")
        word, why = json.loads(line)
        if word == "failed":
            self.close()
        return word, why

    def _cpu_seconds(self):
        fields = self._proc("stat").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0

    def _resident(self):
        return int(next(iter(self._proc("statm").split()[1:2]), 0)) * os.sysconf("SC_PAGESIZE")

    def _proc(self, name):
        try:
            return Path(f"/proc/{self._process.pid}/{name}").read_text()
        except OSError:
            return ""  # it has just ended

    def _end(self, why):
        """Close the worker, with a traceback if it still runs; return what is known."""
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # faulthandler says where it was
        code = self._process.wait()
        if code < 0:
            why += f": {signal.Signals(-code).name}"
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(0)
        said = self._words.read(size).decode(errors="replace").strip()
        shown = said if len(said) < REPORT else f"{said[:REPORT]}\n[...]"
        self.close()
        return f"{why}\n{shown}".strip()

    def close(self):
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._words.close()


@dataclass
class Failure:
    """An input that failed, and the command that tries it again."""

    name: str
    asked: dict
    why: str

    @property
    def command(self):
        if "seed" in self.asked:
            return f"python -m tests.fuzz {self.name} --seed {self.asked['seed']} --runs 1"
        return f"python -m tests.fuzz {self.name} --input {shlex.quote(str(self.path()))}"

    def path(self):
        """Write the input to a file and return its path."""
        value = input_of(self.name, self.asked)
        label = self.asked.get("seed", f"{abs(hash(json.dumps(value))) % 10**8}")
        FOUND.mkdir(parents=True, exist_ok=True)
        path = FOUND / f"{self.name}-{label}.json"
        path.write_text(json.dumps({"why": self.why.splitlines()[0], "input": value}, indent=1))
        return path


@dataclass
class Campaign:
    """What came of trying inputs of one target."""

    name: str
    words: Counter = field(default_factory=Counter)
    refusals: Counter = field(default_factory=Counter)  # messages without their numbers
    failures: list = field(default_factory=list)
    seconds: float = 0.0

    @property
    def runs(self):
        return sum(self.words.values())

    def line(self):
        """Return it in one line."""
        words = ", ".join(f"{count} {word}" for word, count in self.words.most_common())
        return f"{self.name:12} {self.runs} inputs in {self.seconds:.0f} s: {words}"


def known(name):
    """Yield the corpus of target *name*, to be tried."""
    for path in corpus(name):
        yield {"input": read(path)}


def fresh(seed=0, runs=None, seconds=None):
    """Yield seeds from *seed* on, to be tried: at most *runs*, for at most *seconds*."""
    end = None if seconds is None else time.monotonic() + seconds
    for i in itertools.count():
        if i == runs or (end is not None and time.monotonic() > end):
            return
        yield {"seed": seed + i}


def campaign(name, asked, *, jobs=1, plant="", max_failures=3):
    """Try all inputs of the iterator *asked* in *jobs* workers; return the `Campaign`."""
    result, lock, start = Campaign(name), threading.Lock(), time.monotonic()

    def work():
        worker = None
        try:
            while len(result.failures) < max_failures:
                with lock:
                    one = next(asked, None)
                if one is None:
                    return
                worker = worker or Worker(name, plant)
                word, why = worker.ask(one)
                with lock:
                    result.words[word] += 1
                    result.refusals[re.sub(r"/\S+/|[\d.]+", "#", why)] += word == "refused"
                    if word == "failed":
                        worker = None
                        result.failures.append(Failure(name, one, why))
        finally:
            if worker:
                worker.close()

    with ThreadPoolExecutor(jobs) as pool:
        for working in [pool.submit(work) for _ in range(jobs)]:
            working.result()
    result.seconds = time.monotonic() - start
    return result
