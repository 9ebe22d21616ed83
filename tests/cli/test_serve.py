"""`npurt serve`: its flags, and the server that it starts."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from npurt.cli import main, parser
from npurt.cli.verbs import serve
from tests.cli.conftest import spawn
from tests.limits import HANG_SECONDS, eventually
from tests.llm import tiny
from tests.serve.several import fill

MODEL = str(tiny.path("llama3", "q8_0"))
DRAFT = tiny.path("llama3", "f32")


def test_it_serves_until_a_signal(tmp_path):
    log = tmp_path / "log.txt"
    command = [sys.executable, "-m", "npurt", "serve", "-m", MODEL, "--port", "0", "-np", "2",
               "-c", "128", "-a", "small", "--temp", "0", "-n", "4"]  # fmt: skip
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        assert eventually(lambda: "ready: cpu, context of 128" in log.read_text())
        url = re.search(r"small at (http://127\.0\.0\.1:\d+)", log.read_text())[1]
        body = json.dumps({"prompt": "Once", "ignore_eos": True}).encode()
        texts = set()
        for _ in range(2):
            request = urllib.request.Request(f"{url}/v1/completions", body)
            with urllib.request.urlopen(request, timeout=HANG_SECONDS) as reply:
                answer = json.load(reply)
            texts.add(answer["choices"][0]["text"])
        assert answer["usage"]["completion_tokens"] == 4
        assert len(texts) == 1  # the temperature set on the command line
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_SECONDS) == 128 + signal.SIGTERM
    lines = log.read_text().splitlines()
    asked = [line for line in lines if line.startswith("npurt: POST ")]
    assert len(asked) == 2
    pattern = r"npurt: POST /v1/completions 200, \d+\.\d\d s; 4 tokens of prompt.*, 4 generated"
    assert all(re.fullmatch(pattern, line) for line in asked), asked
    assert re.fullmatch(
        r"npurt: 2 requests: \d tokens of prompts evaluated, 8 generated; work: \d+\.\d G "
        r"multiply-adds, all on the CPU, no NPU in use; 0 fallbacks, 0 wrong products", lines[-1]
    )  # fmt: skip
    assert not [pid for pid in os.listdir("/proc") if pid == str(process.pid)]


@pytest.mark.parametrize(
    "flags",
    [["-c", "2000000000"], ["-b", "2", "-np", "3"], ["--kv-bytes", "1"], ["-dev", "rknpu:9"],
     ["-ctk", "q8_0"], ["--temp", "nan"], ["--top-p", "5"], ["-n", "-9"],
     ["--logit-bias", "1000000+1"], ["--lora", MODEL], ["-md", str(tiny.path("qwen3", "q8_0"))]],
)  # fmt: skip
def test_a_setting_that_the_model_refuses_is_refused_before_there_is_an_address(flags):
    result = spawn("serve", "-m", MODEL, "--port", "0", *flags)

    assert result.code in (1, 2)
    assert "remedy" in result.err or "error: " in result.err
    assert " at http://" not in result.err


def test_a_server_on_an_npu_says_its_share_of_the_work(tmp_path):
    log = tmp_path / "log.txt"
    command = [sys.executable, "-m", "npurt", "serve", "-m", MODEL, "--port", "0", "-np", "2",
               "-c", "128", "-dev", "rknpu:sim", "--quiet"]  # fmt: skip
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        assert eventually(lambda: "ready: rknpu" in log.read_text())
        url = re.search(r"at (http://127\.0\.0\.1:\d+)", log.read_text())[1]
        body = json.dumps({"prompt": "Once", "max_tokens": 2}).encode()
        with urllib.request.urlopen(f"{url}/v1/completions", body, timeout=HANG_SECONDS) as reply:
            json.load(reply)
        with urllib.request.urlopen(f"{url}/metrics", timeout=HANG_SECONDS) as reply:
            lines = reply.read().decode().splitlines()
        found = dict(line.split() for line in lines if line.startswith("npurt:"))
        with urllib.request.urlopen(f"{url}/page/state", timeout=HANG_SECONDS) as reply:
            state = json.load(reply)
    finally:
        process.send_signal(signal.SIGTERM)
    process.wait(HANG_SECONDS)
    share = float(found["npurt:npu_share"])
    assert 0 < share <= 1
    assert share == float(found["npurt:npu_macs_total"]) / float(found["npurt:macs_total"])
    assert 0 < float(found["npurt:npu_seconds_total"]) < float(found["npurt:op_seconds_total"])
    assert (state["npu"], state["npu_share"]) == (True, share)
    *_, last = log.read_text().splitlines()
    assert f"{100 * share:.1f} % on an NPU" in last
    assert "POST" not in log.read_text()  # --quiet


def test_a_server_without_a_key_warns_once():
    result = spawn("serve", "-m", MODEL, "--host", "192.0.2.1", "--insecure")

    assert result.code == 1  # the system refuses the address
    assert result.err.count("there is no key") == 1
    assert "cannot listen on 192.0.2.1" in result.err


def test_a_folder_of_models_is_served_until_a_signal(tmp_path):
    fill(tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    log = tmp_path / "log.txt"
    command = [sys.executable, "-m", "npurt", "serve", "--models-dir", str(tmp_path), "--port", "0",
               "-c", "128", "-t", "1", "--idle-seconds", "0.2"]  # fmt: skip
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        assert eventually(lambda: "2 models at http" in log.read_text())
        assert "broken.gguf is left out" in log.read_text()
        assert "serving a, b" in log.read_text()
        url = re.search(r"models at (http://127\.0\.0\.1:\d+)", log.read_text())[1]
        for name in "ab":
            body = json.dumps({"model": name, "prompt": "Once", "max_tokens": 3}).encode()
            request = urllib.request.Request(f"{url}/v1/completions", body)
            with urllib.request.urlopen(request, timeout=HANG_SECONDS) as reply:
                assert json.load(reply)["model"] == name
        assert eventually(lambda: "a is unloaded" in log.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_SECONDS) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "flags",
    [["-a", "x"], ["--chat-template", "chatml"], ["--lora", "x.gguf"], ["-m", MODEL],
     ["--idle-seconds", "-1"], ["--models-max", "-1"], ["--models-bytes", "0"]],
)  # fmt: skip
def test_what_is_for_one_model_is_refused(tmp_path, flags):
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--models-dir", str(tmp_path), *flags])


def test_a_folder_without_models_ends_the_server(tmp_path, capfd):
    assert main(["serve", "--models-dir", str(tmp_path)]) == 2
    assert "no model that npurt runs" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "--api-key-file"),
        (["--port", "99999"], "port is 99999"),
        (["--chat-template", "{{ broken"], "chat_template does not work"),
    ],
)
def test_what_makes_no_sense_is_refused(flags, said, capfd):
    assert main(["serve", "-m", MODEL, "--port", "0", *flags]) == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--stop", "x"], ["--ignore-eos"], ["--timeout", "0"], ["--timeout", "nan"], ["-np", "0"]],
)
def test_what_is_for_one_text_is_refused(flags, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "-m", MODEL, *flags])


def test_what_the_system_refuses_is_a_failure(capfd):
    assert main(["serve", "-m", MODEL, "--port", "0", "--api-key-file", "missing.txt"]) == 1
    assert "cannot read missing.txt" in capfd.readouterr().err
    assert main(["serve", "--models-dir", "missing"]) == 1


def test_what_the_engine_refuses_ends_the_server(capfd):
    assert main(["serve", "-m", MODEL, "--port", "0", "-c", "1000000000"]) == 1
    assert "use an n_ctx (-c) of" in capfd.readouterr().err


def test_a_file_that_is_no_model_is_an_error(tmp_path, capfd):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"no model")
    assert main(["serve", "-m", str(path)]) == 1


def test_without_its_packages_it_says_what_to_install(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )
    assert main(["serve", "-m", MODEL]) == 1
    assert "pip install 'llguidance" in capsys.readouterr().err


def test_the_engine_gets_the_flags_of_the_model():
    args = parser().parse_args(
        [
            "serve",
            "-m",
            "x",
            "-dev",
            "cpu",
            "-t",
            "1",
            "-c",
            "64",
            "--kv-bytes",
            "1000000",
            "-np",
            "3",
            "-md",
            str(DRAFT),
            "--draft-max",
            "3",
        ]
    )
    given = serve.engine_options(args)

    assert {
        "device": "cpu",
        "n_threads": 1,
        "n_ctx": 64,
        "kv_bytes": 1000000,
        "max_sequences": 3,
    }.items() <= given.items()
    assert (given["draft"], given["draft_max"]) == (str(DRAFT), 3)
    assert "context_shift" not in given


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-b", 0), "-b must be 1 or more"),
        (("-c", -1), "-c 0 or more"),
        (("-np", 0), "0 is below 1"),
        (("-np", 513), "a run has 512 rows (-b)"),
        (("-np", 9, "-b", 8), "a run has 8 rows (-b)"),
        (("--kv-bytes", 0), "0 is below 1"),
        (("-dev", "gpu"), "'gpu' is not a device name"),
        (("-md", "/nowhere.gguf"), "/nowhere.gguf"),
        (("-md", __file__), "not a GGUF file"),
        (("-devd", "gpu", "-md", DRAFT), "'gpu' is not a device name"),
        (("--lora", "/nowhere.gguf"), "/nowhere.gguf"),
        (("--context-shift",), "use a larger -c"),
    ],
)
def test_an_option_that_is_refused_is_refused_before_the_address_is_printed(npurt, flags, said):
    result = npurt("serve", "-m", MODEL, "--port", 0, *flags)

    assert result.code != 0
    assert said in result.err
    assert "http://" not in result.err
