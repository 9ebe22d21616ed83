"""Run fuzz targets: each input in a worker process that may crash, hang or take too much memory.

A target is a module in `tests/fuzz/targets` with a docstring and

    RUNS             inputs that CI tries
    mutate(rng)      returns an input, as JSON.  `random.Random` determines it, so a seed stands
                     for an input
    run(input)       tries the input; returns a word for the stage that it reached, for the
                     statistics.  NpurtError means that the input was refused, as it may be.  Any
                     other exception is a failure, as are a crash, a hang and too much memory

and optionally

    NATIVE           whether the target runs C of the host, which sanitizers check (default: False)
    SHARES           number of CI's tests that divide the inputs (default: `SHARES` here)
    SECONDS          CPU time that one input may take (default: `SECONDS` here)
    memory(input)    bytes that an input may allocate in a worker (default: `MEMORY` here)
    PLANTED          name -> function that restores a known defect; fuzzing must find it

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

from tools import build

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOUND = ROOT / "build/fuzz"  # folder of inputs that failed

SHARES = 4
SECONDS = 30  # CPU time of one input
SANITIZED = 6  # how many times as long code under AddressSanitizer may take
STANDSTILL = 300  # elapsed seconds, for an input that waits without using the CPU
MEMORY = 512 << 20  # bytes
MAX_MEMORY = 6 << 30  # bytes of a worker, above which it is killed to protect the machine
LOOK_EVERY = 0.1  # seconds between two checks of a busy worker
REPORT = 6000  # characters of a worker's last output

NAMES = tuple(sorted(p.stem for p in (HERE / "targets").glob("[a-z]*.py")))


def load(name):
    """Return the module of target *name*."""
    return importlib.import_module(f"tests.fuzz.targets.{name}")


def runs(name):
    """Return the number of inputs of target *name* that CI tries."""
    return load(name).RUNS


def native(name):
    """Return whether target *name* runs C of the host, which sanitizers check."""
    return getattr(load(name), "NATIVE", False)


def shares(name):
    """Return the number of tests that divide the inputs of target *name*."""
    return getattr(load(name), "SHARES", SHARES)


def planted(name):
    """Return the names of the known defects that target *name* can restore."""
    return list(getattr(load(name), "PLANTED", {}))


def rebuilt(folder, file, right, wrong):
    """Compile a simulator with *wrong* in place of *right* in *file*, until the process ends."""
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
    """Return the input of *asked*: {"seed": ...} or {"input": ...}."""
    if "input" in asked:
        return asked["input"]
    made = load(name).mutate(random.Random(f"{name} {asked['seed']}"))
    return json.loads(json.dumps(made))  # with the types that a file of the corpus has


class Worker:
    """A process that tries inputs of one target, one after another."""

    def __init__(self, name, plant=""):
        target = load(name)
        slower = SANITIZED if "NPURT_SANITIZE" in os.environ else 1
        self._seconds = slower * getattr(target, "SECONDS", SECONDS)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", name, plant],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words,
        )  # fmt: skip
        self._left = b""

    def ask(self, asked):
        """Try one input; return a word for the stage that it reached, and the reason of its end.

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
            return ""  # the process has just ended

    def _end(self, why):
        """Close the worker, with a traceback if it still runs; return the cause of its end."""
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # faulthandler prints the traceback
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
    """The results of the inputs of one target."""

    name: str
    words: Counter = field(default_factory=Counter)
    refusals: Counter = field(default_factory=Counter)  # messages without their numbers
    failures: list = field(default_factory=list)
    seconds: float = 0.0

    @property
    def runs(self):
        return sum(self.words.values())

    def line(self):
        """Return the results in one line."""
        words = ", ".join(f"{count} {word}" for word, count in self.words.most_common())
        return f"{self.name:12} {self.runs} inputs in {self.seconds:.0f} s: {words}"


def known(name):
    """Yield the inputs of the corpus of target *name*."""
    for path in corpus(name):
        yield {"input": read(path)}


def fresh(seed=0, runs=None, seconds=None):
    """Yield seeds from *seed* on: at most *runs*, for at most *seconds*."""
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
