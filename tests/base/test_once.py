"""Test that an object that a process has once is made once: by one thread, while others wait."""

import ast
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from npurt.base.once import once
from tests.limits import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2] / "npurt"

# Functions that may use `functools.cache`: their results are plain values, so duplicates are safe.
VALUES = {
    ("cpu/kernels/layout.py", "table"),
    ("graph/rows.py", "_constants"),
    ("hexagon/doctor/packages.py", "boards"),
    ("hexagon/doctor/shell_names.py", "_rows"),
    ("hexagon/doctor/shell_names.py", "exported"),
    ("hexagon/doctor/shell_names.py", "headers"),
    ("hexagon/doctor/shell_names.py", "objects"),
    ("hexagon/doctor/shell_names.py", "table"),
    ("hexagon/layout/formats.py", "_formats"),
    ("hexagon/layout/formats.py", "_kernels"),
    ("hexagon/layout/quantise.py", "_reciprocals"),
    ("hexagon/session/messages.py", "_number"),
    ("rknpu/device/multiply.py", "rows_prepared"),
    ("rknpu/plan/tiling.py", "plan"),
    ("rknpu/plan/tiling.py", "plan_weights"),
    ("rknpu/device/needs.py", "rows_within"),
    ("rknpu/isa/program.py", "address_words"),
    ("rknpu/isa/program.py", "template"),
    ("rknpu/plan/proof.py", "_fixed"),
    ("rknpu/plan/proof.py", "_format_of"),
    ("rknpu/plan/proof.py", "_index"),
}


def test_threads_that_ask_while_it_is_made_wait_and_get_the_same():
    begun, go = threading.Event(), threading.Event()
    made = []

    @once
    def thing():
        begun.set()
        assert go.wait(HANG_SECONDS)
        made.append(object())
        return made[-1]

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(thing)
        assert begun.wait(HANG_SECONDS)
        others = [threads.submit(thing) for _ in range(3)]
        go.set()
        got = [first.result(HANG_SECONDS), *[other.result(HANG_SECONDS) for other in others]]

    assert len(made) == 1
    assert all(one is made[0] for one in got)
    assert thing() is made[0]


def test_it_is_made_once_for_each_argument_and_one_does_not_wait_for_another():
    go = threading.Event()

    @once
    def thing(name):
        if name == "slow":
            assert go.wait(HANG_SECONDS)
        return [name]

    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(thing, "slow")
        fast = thing("fast")  # would wait forever
        go.set()

        assert slow.result(HANG_SECONDS) is thing("slow")
    assert fast == ["fast"]
    assert thing("fast") is fast


def test_a_failure_is_not_kept():
    answers = iter([OSError("not now"), "there"])

    @once
    def thing():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(OSError, match="not now"):
        thing()
    assert thing() == "there"
    assert thing() == "there"


def test_a_signal_handler_that_asks_while_it_is_made_gets_it_and_so_does_everybody_else(request):
    seen = []

    @once
    def thing():
        if not seen:
            seen.append("asked")
            signal.raise_signal(signal.SIGUSR1)
        return object()

    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(thing()))
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, before))

    assert [thing(), thing()] == [seen[1]] * 2


def test_a_fork_does_not_wait_for_a_thread_that_it_does_not_have():
    begun, go = threading.Event(), threading.Event()
    parent = os.getpid()

    @once
    def thing():
        begun.set()
        assert os.getpid() != parent or go.wait(HANG_SECONDS)
        return os.getpid()

    thread = threading.Thread(target=thing)
    thread.start()
    assert begun.wait(HANG_SECONDS)
    child = os.fork()
    if not child:
        signal.alarm(HANG_SECONDS)
        os._exit(thing() != os.getpid())
    _, status = os.waitpid(child, 0)
    go.set()
    thread.join()

    assert status == 0
    assert thing() == parent


def cached(path):
    """Yield the names of functions in a file that `functools` caches."""
    for node in ast.walk(ast.parse(path.read_text())):
        for decorator in getattr(node, "decorator_list", []):
            name = ast.unparse(decorator)
            if "cache" in name and not name.endswith("cached_property"):
                yield str(path.relative_to(ROOT)), node.name


def test_functools_caches_nothing_that_must_be_one():
    found = {each for path in ROOT.rglob("*.py") for each in cached(path)}

    assert found == VALUES, "use npurt.base.once.once for what has an identity or a state"
