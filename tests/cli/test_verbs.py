"""Every command prints the result of one library call; an error names the problem and a remedy."""

import json
import re

import numpy as np
import pytest

import npurt as library
from npurt.llm.decode.text import TextGenerator
from npurt.llm.measure.perplexity import perplexity
from npurt.runtime.open.devices import devices
from tests.cli.conftest import PROJECT, assert_failed, spawn
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")
GREEDY = ("--temp", 0, "-n", 12)
RAW = ("--raw", *GREEDY)  # continues the prompt as `Llama.generate` does
TEXT = "The quick brown fox jumps over the lazy dog. " * 12
LINE = (
    r"prefill \d+ tokens, \d+\.\d tokens/s; decode \d+ tokens, \d+\.\d tokens/s; "
    r"offload: none, 100\.0 % of MACs on cpu \(cpu: \w+, \d+ threads\); 0 fallbacks; "
    r"verified \d+ of \d+ products, 0 wrong"
)


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def greedy():
    """Return the library's greedy completion of TEXT."""
    with library.Llama(MODEL) as llm:
        return llm.generate(TEXT, temperature=0, max_tokens=12)


# --- run ------------------------------------------------------------------------------------------


def test_run_streams_the_text_and_ends_with_the_account(npurt, greedy):
    result = npurt("run", "-m", MODEL, "-p", TEXT, *RAW)

    assert (result.code, result.out) == (0, greedy + "\n")
    assert re.fullmatch(LINE, result.err.splitlines()[-1])


def test_run_writes_a_trace_beside_the_same_text(npurt, greedy, tmp_path):
    path = tmp_path / "trace.json"

    result = npurt("run", "-m", MODEL, "-p", TEXT, "--trace", path, *RAW)

    assert (result.code, result.out) == (0, greedy + "\n")
    runs = [event for event in json.loads(path.read_text()) if event["name"] == "run"]
    assert [run["args"]["rows"] for run in runs[1:]] == [1] * (len(runs) - 1)
    assert_failed(npurt("run", "-m", MODEL, "-p", TEXT, "--trace", tmp_path, *RAW))


@pytest.mark.parametrize("n", [-1, 4])
def test_run_says_when_the_context_ended_the_text(npurt, n):
    result = npurt("run", "-m", MODEL, "-p", "x", "--raw", "-c", 16, "--temp", 0, "-n", n)

    assert result.code == 0
    assert ("[the context is full; " in result.err) == (n < 0)


def test_run_takes_a_prompt_from_a_file_and_reports(npurt, text_file, greedy):
    result = npurt("run", "-m", MODEL, "-f", text_file, "--report", *RAW)

    assert (result.code, result.out) == (0, greedy + "\n")
    header, *_, report, line = result.err.splitlines()
    assert header.split()[:2] == ["op", "device"]
    assert line.endswith(report)


def test_run_gives_text_timing_and_ledger_as_json(npurt, greedy):
    result = npurt("run", "-m", MODEL, "-p", TEXT, "--json", *RAW)
    held = json.loads(result.out)

    assert (result.code, result.err) == (0, "")
    assert set(held) == {"text", "timing", "report"}
    assert held["text"] == greedy
    assert held["timing"]["generated_tokens"] == 12
    assert held["timing"]["prefill_rate"] > 0
    assert held["report"]["line"].startswith("offload: none, 100.0 % of MACs on cpu")


def test_run_says_in_json_how_drafting_went(npurt):
    command = ("run", "-m", MODEL, "-p", TEXT, "--json", *RAW)
    plain, drafted = npurt(*command), npurt(*command, "-md", "lookup")

    assert json.loads(plain.out)["timing"]["speculation"] is None
    said = json.loads(drafted.out)["timing"]["speculation"]
    assert set(said) == {"drafted", "accepted", "passes", "mean_accepted", "speedup"}
    # evaluating the prompt gives the first of 12 tokens
    assert said["passes"] + said["accepted"] == 11
    assert said["mean_accepted"] == 11 / said["passes"]


@pytest.mark.parametrize("verb", ["run", "chat"])
@pytest.mark.parametrize("flag", [("--draft-max", 4), ("-devd", "cpu")])
def test_what_is_said_of_a_draft_without_one_is_refused(npurt, verb, flag):
    prompt = ("-p", "Hi") if verb == "run" else ()
    assert_failed(npurt(verb, "-m", MODEL, *prompt, *flag), "there is no draft", code=2)


def test_flags_reach_the_library(npurt, monkeypatch, tmp_path):
    """Each flag of `run` except --lora passes a value other than its default to the library."""
    said = {}

    class Recorder(library.Llama):
        def __init__(self, path, **options):
            said.update(options, path=path)
            super().__init__(path, **options)

        def generate(self, prompt, **options):
            said.update(options, prompt=prompt)
            return super().generate(prompt, **options)

    monkeypatch.setattr("npurt.llm.decode.llama.Llama", Recorder)
    flags = "-dev cpu -t 1 -c 64 -b 16 --kv-type f32 --verify always --strict --context-shift"
    draft = "-md lookup --draft-max 5 -devd cpu"
    sampling = "-n 3 --temp 0.5 --top-k 7 --top-p 0.75 --min-p 0.125 --repeat-penalty 1.5 -s 11"
    stops = "--stop x --stop yz --raw"
    others = "--typical 0.9 --top-nsigma 3 --xtc-probability 0.5 --xtc-threshold 0.25 -l 5+1"
    repeats = "--repeat-last-n 9 --presence-penalty 0.5 --frequency-penalty 0.25 --ignore-eos"
    dry = "--dry-multiplier 0.5 --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n 7"
    breaker = "--dry-sequence-breaker x --grammar-file"
    rest = f"{flags} {draft} {sampling} {stops} {others} {repeats} {dry} {breaker}"
    (tmp_path / "grammar").write_text("root ::= .*")
    result = npurt("run", "-m", MODEL, "-p", "Hi", *rest.split(), tmp_path / "grammar")

    assert result.code == 0
    assert said == {
        "path": MODEL,
        "prompt": "Hi",
        "device": "cpu",
        "n_threads": 1,
        "n_ctx": 64,
        "n_batch": 16,
        "kv_type": "f32",
        "verify": "always",
        "strict": True,
        "context_shift": True,
        "lora": None,  # tests/cli/test_lora.py
        "draft": "lookup",
        "draft_max": 5,
        "draft_device": "cpu",
        "max_tokens": 3,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.75,
        "min_p": 0.125,
        "repeat_penalty": 1.5,
        "seed": 11,
        "stop": ["x", "yz"],
        "typical_p": 0.9,
        "top_n_sigma": 3.0,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.25,
        "logit_bias": {5: 1.0},
        "repeat_last_n": 9,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "ignore_eos": True,
        "dry_multiplier": 0.5,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 7,
        "dry_sequence_breakers": ["x"],
        "grammar": library.Grammar.from_gbnf("root ::= .*"),
        "stream": True,
    }


def test_minus_one_is_no_limit_and_a_random_seed_as_in_llama_cli(npurt, monkeypatch):
    said = []

    def generate(self, prompt, **options):
        said.append((options["max_tokens"], options["seed"]))
        return iter(())

    monkeypatch.setattr(TextGenerator, "generate", generate)  # called by `chat`
    for n, seed in ((-1, -1), (0, 0)):
        assert npurt("run", "-m", MODEL, "-p", "x", "-n", n, "-s", seed).code == 0

    assert said == [(None, None), (0, 0)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-m", "/nowhere.gguf", "-p", "x"), "/nowhere.gguf: No such file or directory\n"),
        (("-m", "", "-p", "x"), "cannot open '':"),
        (("-m", PROJECT, "-p", "x"), f"{PROJECT}: it is a folder"),
        (("-m", "/dev/null", "-p", "x"), "not a regular file"),
        (("-m", __file__, "-p", "x"), "not a GGUF file"),
        (("-m", MODEL, "-f", "/nowhere.txt"), "/nowhere.txt"),
        (("-m", MODEL, "-f", MODEL), "is not UTF-8\n  remedy: give a text in UTF-8"),
        (("-m", MODEL, "-f", "/dev/zero"), "more than"),
        (("-m", MODEL, "-p", "x", "-dev", "hexagon"), "hexagon"),
        (("-m", MODEL, "-p", "x " * 600), "do not fit"),
        (("-m", MODEL, "-p", "x " * 600), "raise n_ctx (-c), or shorten the prompt\n"),
        (("-m", tiny.path("qwen2", "q8_0"), "-p", ""), "empty"),
        (("-m", MODEL, "-cnv", "-p", ""), "the prompt is empty\n  remedy: write a message\n"),
    ],
)
def test_what_cannot_be_run_is_an_error_with_a_remedy(npurt, arguments, said):
    assert_failed(npurt("run", *arguments), said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--temp", -1), "temperature"),
        (("--temp", "nan"), "temperature"),
        (("--stop", ""), "stop"),
        (("-c", -1), "-1"),
        (("-b", 0), "512"),
        (("-dev", "gpu"), "not a device name"),
        (("-dev", "hexagon:simple"), "names no Hexagon"),
        (("-dev", "rknpu:7"), "one NPU"),
    ],
)
def test_a_request_that_makes_no_sense_has_a_status_of_its_own(npurt, arguments, said):
    assert_failed(npurt("run", "-m", MODEL, "-p", "x", *arguments), said, code=2)


def test_a_request_that_makes_no_sense_opens_no_model(npurt):
    result = npurt("run", "-m", "/nowhere.gguf", "-p", "x", "--temp", -1)

    assert_failed(result, "temperature is -1.0", code=2)


def test_an_npu_that_cannot_be_opened_is_a_failure():
    command = ("run", "-m", MODEL, "-p", "x", "-dev", "rknpu:sim")

    assert_failed(spawn(*command, NPURT_SIM_RKNPU="nodes=none"), "no RK3588 NPU")


# --- perplexity -----------------------------------------------------------------------------------


def test_perplexity_is_the_librarys(npurt, text_file):
    with library.Llama(MODEL, n_ctx=64) as llm:
        wanted = perplexity(llm, TEXT)
    command = ("perplexity", "-m", MODEL, "-f", text_file, "-c", 64)

    held = json.loads(npurt(*command, "--json").out)
    text = npurt(*command).out
    first = json.loads(npurt(*command, "--chunks", 1, "--json").out)

    assert held == {
        "perplexity": wanted.value,
        "error": wanted.error,
        "tokens": wanted.tokens,
        "chunks": wanted.chunks,
    }
    assert wanted.chunks > 1
    assert text == (
        f"perplexity {wanted.value:.4f} +- {wanted.error:.4f} "
        f"({wanted.tokens} tokens in {wanted.chunks} chunks of 64)\n"
    )
    assert (first["chunks"], first["tokens"]) == (1, 31)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "fewer than one chunk of 512"),
        (("-c", 64, "-f", "/nowhere"), "/nowhere"),
        (("-c", 64, "-f", MODEL), "UTF-8"),
    ],
)
def test_perplexity_refuses_texts_that_it_cannot_measure(npurt, text_file, arguments, said):
    assert_failed(npurt("perplexity", "-m", MODEL, "-f", text_file, *arguments), said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-c", 64, "--chunks", 0), "0 chunks"),
        (("-c", 64, "--chunks", -1), "-1 chunks"),
        (("-c", 7), "7 tokens are too short"),
    ],
)
def test_perplexity_refuses_chunks_that_it_cannot_measure(npurt, text_file, arguments, said):
    command = ("perplexity", "-m", MODEL, "-f", text_file, *arguments)

    assert_failed(npurt(*command), said, code=2)


# --- embed ----------------------------------------------------------------------------------------

LINES = ["The quick brown fox", "jumps over", "the lazy dog"]


def rows(text):
    return np.array([[float(number) for number in line.split()] for line in text.splitlines()])


def test_embed_prints_a_line_for_each_line_of_text(npurt, tmp_path):
    path = tmp_path / "lines"
    path.write_text("\n".join(LINES) + "\n")
    with library.Llama(MODEL) as llm:
        wanted, as_it_is = llm.embed(LINES), llm.embed(LINES, normalize=False)
        last = llm.embed(LINES, pooling="last")

    for source, stdin in (
        (("-p", "\n".join(LINES)), b""),
        (("-f", path), b""),
        ((), path.read_bytes()),
        (("-p", "<#>".join(LINES), "--embd-separator", "<#>"), b""),
    ):
        result = npurt("embed", "-m", MODEL, *source, stdin=stdin)
        assert result.code == 0
        np.testing.assert_allclose(rows(result.out), wanted, rtol=1e-6)
    marked, empty = tmp_path / "marked.txt", tmp_path / "empty.txt"
    marked.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    plain = npurt("embed", "-m", MODEL, "-f", path).out
    assert npurt("embed", "-m", MODEL, "-f", marked).out == plain
    empty.write_bytes(b"")
    refused = npurt("embed", "-m", MODEL, "-f", empty)
    assert (refused.code, "has no text" in refused.err) == (1, True)
    out = npurt("embed", "-m", MODEL, "-f", path, "--embd-normalize", -1).out
    np.testing.assert_allclose(rows(out), as_it_is, rtol=1e-6)
    out = npurt("embed", "-m", MODEL, "-f", path, "--pooling", "last").out
    np.testing.assert_allclose(rows(out), last, rtol=1e-6)
    assert (
        len(npurt("embed", "-m", MODEL, "-p", "one two", "--pooling", "none").out.split("\n")) > 2
    )


def test_embed_prints_json_as_of_openai(npurt):
    held = json.loads(npurt("embed", "-m", MODEL, "-p", "\n".join(LINES), "--json").out)
    with library.Llama(MODEL) as llm:
        wanted = llm.embed(LINES)
        count = sum(len(llm.tokenize(line)) for line in LINES)

    assert {key: held[key] for key in ("object", "model", "usage")} == {
        "object": "list",
        "model": str(MODEL),
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
    assert [(d["object"], d["index"]) for d in held["data"]] == [("embedding", i) for i in range(3)]
    np.testing.assert_array_equal(np.float32([d["embedding"] for d in held["data"]]), wanted)


def test_embed_refuses_what_does_not_fit_or_cuts_it(npurt):
    command = ("embed", "-m", MODEL, "-c", 16, "-p", TEXT)

    assert_failed(npurt(*command), "text 0 has", "16 positions")
    assert npurt(*command, "--truncate").code == 0


# --- devices --------------------------------------------------------------------------------------


def test_devices_are_listed_for_people_and_programs(npurt):
    rows = devices()

    assert json.loads(npurt("devices", "--json").out) == [
        {"device": row.device, "found": row.found, "detail": row.detail} for row in rows
    ]
    lines = npurt("devices").out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        [row.device, "yes" if row.found else "no"] for row in rows
    ]


# --- In its own process, and the example ----------------------------------------------------------


def test_python_m_npurt_is_the_command(greedy):
    result = spawn("run", "-m", MODEL, "-p", TEXT, *RAW)

    assert (result.code, result.out) == (0, greedy + "\n")
    assert re.fullmatch(LINE, result.err.splitlines()[-1])


EXAMPLE = (str(PROJECT / "examples/generate.py"),)


def test_the_example_echoes_the_prompt_and_ends_with_rates_and_offload(greedy):
    result = spawn("-m", MODEL, "-p", TEXT, *GREEDY, program=EXAMPLE)

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(TEXT + greedy)
    assert re.fullmatch(LINE, result.out.splitlines()[-1])


def test_the_example_reports_and_says_what_went_wrong():
    report = spawn("-m", MODEL, "-n", 2, "--report", program=EXAMPLE)
    wrong = spawn("-m", "/nowhere", program=EXAMPLE)

    assert "attn_qkv" in report.out
    assert wrong.code == 1
    assert "remedy" in wrong.err
    assert "Traceback" not in wrong.err


@pytest.mark.parametrize("verb", [["devices"], ["models"], ["plan", "x.gguf"], ["sim"]])
def test_a_misspelt_variable_is_noticed_by_every_verb(npurt, monkeypatch, verb):
    monkeypatch.setenv("NPURT_DEVCE", "rknpu")
    monkeypatch.setenv("NPURT_SIM_RKNPU", "log=0")
    monkeypatch.setenv("NPURT_QEMU_HEXAGON", "")

    result = npurt(*verb)

    said = [line for line in result.err.splitlines() if "has no effect" in line]
    assert said == ["npurt: the variable NPURT_DEVCE has no effect; did you mean NPURT_DEVICE?"]
