"""Error messages and warnings of the command line and the library."""

import platform

import pytest

import npurt as library
from npurt.hexagon.fastrpc import lib
from npurt.rknpu.driver import detect
from npurt.runtime.open.devices import Found
from tests.cli.conftest import assert_failed, spawn
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")


def test_devices_gives_one_short_reason_a_line_and_says_where_to_read_on(npurt, monkeypatch):
    rows = [
        Found("cpu", True, "neon; 4 threads"),
        Found(
            "hexagon", False, "device 'hexagon' cannot be used: no library; tried; a.so: b; c.so: d"
        ),
    ]
    monkeypatch.setattr("npurt.runtime.open.devices.devices", lambda: rows)
    result = npurt("devices")

    assert result.out == "cpu       yes  neon; 4 threads\nhexagon   no   no library\n"
    assert "hexagon:sim, rknpu:sim, rknpu:sim-vendor" in result.err
    assert "npurt doctor" in result.err
    monkeypatch.setattr("npurt.runtime.open.devices.devices", lambda: rows[:1])
    assert "doctor" not in npurt("devices").err


def test_probe_of_something_else_names_it(npurt):
    assert_failed(npurt("probe", "-dev", "cpu"), "npurt has no trials for device 'cpu'", code=2)


@pytest.mark.parametrize(
    ("machine", "said"),
    [("aarch64", "on RadxaOS: libcdsprpc1"), ("x86_64", "an x86_64 processor has no Hexagon DSP")],
)
def test_a_package_is_named_only_where_it_helps(monkeypatch, machine, said):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(library.DeviceNotFound) as caught:
        lib.load(["libnowhere.so"])

    assert said in caught.value.remedy
    assert ("apt install" in caught.value.remedy) == (machine == "aarch64")


def test_nobody_is_told_to_join_the_group_root():
    assert "usermod -aG video" in detect._permit("/dev/dri/card1", "video")
    said = detect._permit("/dev/dri/card1", "root")

    assert "usermod -aG root" not in said
    assert "sudo chgrp render /dev/dri/card1" in said
    assert "usermod -aG render" in said


@pytest.mark.parametrize("messages", ["hello", {"role": "user", "content": "hello"}, None, 7])
def test_messages_that_are_no_list_are_shown(messages):
    with library.Llama(MODEL) as llm, pytest.raises(library.LayoutError) as caught:
        llm.chat(messages)

    assert f"messages are {messages!r}" in caught.value.what
    assert "pass a list such as" in caught.value.remedy


def test_a_context_is_named_as_in_python_and_on_the_command_line(npurt):
    assert_failed(npurt("run", "-m", MODEL, "-p", "x", "-c", -1), "use an n_ctx (-c) of 1", code=2)


def test_a_locale_without_utf_8_reads_prompts_as_any_other():
    command = ("run", "-m", MODEL, "--temp", 0, "-n", 4, "--json", "--raw", "-p", "Grüße")
    usual = spawn(*command)
    plain = spawn(*command, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")

    assert (usual.code, plain.code) == (0, 0), plain
    assert plain.out.partition('"timing"')[0] == usual.out.partition('"timing"')[0]


@pytest.mark.parametrize(
    "key",
    ["general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.tokens", "llama.block_count",
     "llama.attention.head_count"],
)  # fmt: skip
def test_what_is_wrong_with_a_model_names_its_file(npurt, tmp_path, key):
    path = tiny.write(tiny.without_key(tiny.read(MODEL), key), tmp_path)
    result = npurt("run", "-m", path, "-p", "x")

    assert_failed(result)
    assert result.err.count(path.name) == 1


def test_a_context_beyond_the_training_is_one_line(npurt):
    result = npurt("run", "-m", tiny.path("qwen3", "q8_0"), "-p", "x", "-n", 1, "-c", 600, "--raw")

    assert result.code == 0
    assert result.err.count("a context of 600 tokens exceeds the 512 tokens") == 1
    assert "UserWarning" not in result.err
