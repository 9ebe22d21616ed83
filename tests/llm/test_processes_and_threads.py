"""Forked processes, small stacks and refused threads: an error, never a hang or a crash."""

import subprocess
import sys
import threading

import pytest

import npurt
from npurt.errors import NpurtError, SettingError
from tests.limits import HANG_SECONDS
from tests.llm import tiny

FORK = """
import os, sys, npurt
from npurt.errors import SettingError
engine = npurt.Engine(sys.argv[1], "cpu", n_ctx=128, progress=False)
earlier = engine.submit("hello", max_tokens=100)
if os.fork() == 0:
    for call in (lambda: engine.submit("hi", max_tokens=3), engine.stats, earlier.text):
        try:
            call()
        except SettingError as error:
            assert "forked" in error.what
        else:
            os._exit(1)
    engine.close()
    with npurt.Engine(sys.argv[1], "cpu", n_ctx=128, progress=False) as own:
        own.submit("hi", max_tokens=3).text()
    sys.exit(0)  # with the finalizers of the parent's engine
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
earlier.text()
engine.close()
"""


def test_an_engine_is_refused_in_a_forked_process():
    path = tiny.path("llama3", "q8_0")
    subprocess.run([sys.executable, "-c", FORK, path], check=True, timeout=HANG_SECONDS)


SMALL_STACK = """
import sys, threading, npurt
llm = npurt.Llama(sys.argv[1], device="cpu", n_ctx=128, progress=False)
threading.stack_size(64 << 10)
done = []
def run():
    for top_k in (0, 40):
        llm.generate("hello", max_tokens=5, temperature=1.0, top_k=top_k, top_p=0.9)
    done.append(True)
thread = threading.Thread(target=run)
thread.start()
thread.join()
llm.close()
assert done
"""


def test_a_thread_with_a_small_stack_samples():
    path = tiny.path("llama3", "q8_0")
    subprocess.run([sys.executable, "-c", SMALL_STACK, path], check=True, timeout=HANG_SECONDS)


@pytest.mark.parametrize("opened", [npurt.Llama, npurt.Engine])
def test_too_small_a_stack_to_open_a_model_is_an_error(opened):
    old = threading.stack_size(64 << 10)
    try:
        with pytest.raises(SettingError, match="64 KiB") as caught:
            opened(tiny.path("llama3", "q8_0"), "cpu", n_ctx=128, progress=False)
        assert "threading.stack_size" in caught.value.remedy
    finally:
        threading.stack_size(old)


@pytest.mark.parametrize("name", ["npurt engine", "npurt vocabulary"])
def test_a_refused_thread_is_an_error_of_npurt(monkeypatch, name):
    start = threading.Thread.start

    def refused(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(NpurtError, match="can't start new thread") as caught:
        npurt.Engine(tiny.path("llama3", "q8_0"), "cpu", n_ctx=128, progress=False)
    assert "ulimit -u" in caught.value.remedy
    assert not isinstance(caught.value, SettingError)
