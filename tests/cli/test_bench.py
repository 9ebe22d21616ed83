"""`npurt bench` and `npurt bench matmul`: tables, JSON, and comparisons of results."""

import json
import re

import gguf
import pytest

from npurt.llm.engine.controller import BatchController
from npurt.llm.spec.controller import Thresholds
from tests.cli.conftest import assert_failed
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")
QUICK = ("-p", "8,16", "-n", 4, "-r", 2)


def test_bench_gives_a_row_a_test_as_json(npurt):
    result = npurt("bench", "-m", MODEL, *QUICK, "-d", 3, "-t", 1, "--json")
    rows = json.loads(result.out)

    assert result.code == 0
    assert [row["test"] for row in rows] == ["pp8@d3", "pp16@d3", "tg4@d3"]
    for row in rows:
        assert row["model"] == MODEL.name
        assert row["device"] == "cpu"
        assert row["threads"] == 1
        assert row["size"] == sum(t.n_bytes for t in tensors(MODEL))
        assert row["parameters"] == sum(t.n_elements for t in tensors(MODEL))
        assert len(row["samples"]) == 2
        assert min(row["samples"]) <= row["tokens_per_second"] <= max(row["samples"])
        assert row["deviation"] >= 0


def tensors(path):
    return gguf.GGUFReader(path).tensors


def test_bench_prints_a_table_of_every_model(npurt):
    result = npurt(
        "bench", "-m", MODEL, "-m", tiny.path("qwen2", "q8_0"), "-p", 8, "-n", 0, "-r", 1
    )
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.out.splitlines()]

    assert result.code == 0
    assert lines[0] == ["model", "size", "params", "device", "threads", "test", "t/s", "+-"]
    assert [(line[0], line[5]) for line in lines[2:]] == [
        ("llama3-q8_0.gguf", "pp8"),
        ("qwen2-q8_0.gguf", "pp8"),
    ]
    assert len({len(line) for line in result.out.splitlines()}) == 1


def test_bench_reports_on_request(npurt):
    result = npurt(
        "bench", "-m", MODEL, "-p", 4, "-n", 0, "-r", 1, "--report", "--verify", "always"
    )

    assert "offload: none, 100.0 % of MACs on cpu" in result.err
    assert "ffn_down" in result.err


def test_bench_compares_with_an_earlier_run(npurt, tmp_path):
    before = tmp_path / "before.json"
    rows = [
        {"model": MODEL.name, "test": "pp8", "tokens_per_second": 1.0},
        {"model": MODEL.name, "test": "tg4", "tokens_per_second": 0.0},
    ]
    before.write_text(json.dumps(rows))

    result = npurt("bench", "-m", MODEL, *QUICK, "--compare", before)

    *_, pp8, pp16, tg4 = result.out.splitlines()
    ratio = re.fullmatch(rf"{MODEL.name} pp8: 1\.00 -> (\d+\.\d\d), ratio (\d+\.\d\d\d)", pp8)
    assert abs(float(ratio[1]) - float(ratio[2])) <= 0.01
    assert pp16 == f"{MODEL.name} pp16: not in the file"
    assert tg4 == f"{MODEL.name} tg4: not in the file"


def test_bench_json_can_be_compared_with_itself(npurt, tmp_path):
    before = tmp_path / "before.json"
    before.write_text(npurt("bench", "-m", MODEL, *QUICK, "--json").out)

    result = npurt("bench", "-m", MODEL, *QUICK, "--json", "--compare", before)

    assert result.code == 0
    assert len(json.loads(result.out)) == 3
    assert result.err.count("ratio") == 3


@pytest.mark.parametrize(
    "content",
    ["", "{", "{}", "null", "3", '["a"]', "[[]]", '[{"model": "x"}]', "\udcff",
     '[{"model": "x", "test": "pp8", "tokens_per_second": "fast"}]',
     '[{"model": [], "test": "pp8", "tokens_per_second": 1}]'],
)  # fmt: skip
def test_bench_refuses_to_compare_with_anything_else(npurt, tmp_path, content):
    path = tmp_path / "rows.json"
    path.write_text(content, errors="surrogateescape")
    command = ("bench", "-m", MODEL, "-p", 4, "-n", 0, "-r", 1, "--json", "--compare")
    if content == "{}":  # an object without rows is valid, but has nothing to compare with
        assert npurt(*command, path).code == 0
        return

    result = npurt(*command, path)

    assert_failed(result, str(path))  # the error comes before any measurement or output
    assert_failed(npurt(*command, tmp_path / "nothing"), "nothing")


@pytest.mark.parametrize("arguments", [("-p", 0, "-n", 0), ("-r", 0), ("-d", -1), ("-b", 0)])
def test_bench_refuses_what_it_cannot_measure(npurt, arguments):
    assert_failed(npurt("bench", "-m", MODEL, *QUICK, *arguments), code=2)


def test_bench_fails_without_its_model(npurt):
    assert_failed(npurt("bench", "-m", MODEL, *QUICK, "-m", "/nowhere"), "/nowhere")


# --- Products -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["q4_0", "q4_1", "q8_0", "iq4_nl", "mxfp4", "q4_k", "q5_k", "q6_k", "i8"]
)
def test_bench_matmul_keeps_its_contract(npurt, kind):
    """Scripts rely on these JSON keys; packets are null if the device does not count them."""
    sizes = ("--m", 2, "--k", 512, "--n", 48)
    result = npurt("bench", "matmul", *sizes, "--type", kind, "-dev", "cpu", "-r", 2, "--json")
    row = json.loads(result.out)

    assert result.code == 0
    assert row["macs"] == 2 * 512 * 48
    assert row["packets"] is None
    assert row["seconds"] > 0
    assert row["bytes"] >= 512 * 48 * 4.25 / 8
    assert 0 <= row["nmse"] < 3.5e-5  # see test_devices
    assert (row["nmse"] == 0) == (kind == "i8")


@pytest.mark.parametrize("threads", [1, -1])  # -1: the number of threads chosen for this machine
def test_bench_matmul_prints_the_same_for_people(npurt, threads):
    result = npurt("bench", "matmul", "--m", 1, "--k", 32, "--n", 8, "-r", 1, "-t", threads)
    lines = dict(line.split(None, 1) for line in result.out.splitlines())

    assert (lines["macs"], lines["type"], lines["packets"]) == ("256", "q4_0", "None")


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (1, ("--m", 1, "--k", 33, "--n", 8)),
        (2, ("--m", 0, "--k", 32, "--n", 8)),
        (1, ("--m", 1, "--k", 256, "--n", 8, "--type", "q2_k")),
        (2, ("--m", 1, "--k", 32, "--n", 8, "-dev", "hexagon:simple")),
        (1, ("--m", 1, "--k", 131072, "--n", 1, "--type", "i8")),
    ],
)
def test_bench_matmul_refuses_what_it_cannot_measure(npurt, code, arguments):
    assert_failed(npurt("bench", "matmul", *arguments, "--json"), code=code)


# --- Several sequences at once --------------------------------------------------------------------

PARALLEL = ("--parallel", "1,3", "--prompt", 12, "--gen", 4, "-r", 2)


def test_bench_measures_several_texts_at_once(npurt):
    result = npurt("bench", "-m", MODEL, *PARALLEL, "--shared-prefix", 5, "--json")
    rows = json.loads(result.out)

    assert result.code == 0
    assert [row["parallel"] for row in rows] == [1, 3]
    for row in rows:
        assert (row["prompt"], row["generated"], row["shared_prefix"]) == (12, 4, 5)
        assert len(row["samples"]) == 2
        for reading, writing, spread in row["samples"]:
            assert reading > 0
            assert writing > 0
            assert spread >= 1
        assert row["tokens_per_s"] < row["pp_tokens_per_s"] + row["tg_tokens_per_s"]


def test_bench_prints_a_table_of_several_texts(npurt):
    result = npurt("bench", "-m", MODEL, *PARALLEL)
    about, _, *lines = result.out.splitlines()

    assert re.search(r"pages of 64 positions for keys and values, \d+ bytes", result.err)
    assert about.startswith("llama3-q8_0.gguf, cpu, ")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0][:3] == ["PP", "TG", "B"]
    assert [line[:3] for line in cells[2:]] == [["12", "4", "1"], ["12", "4", "3"]]


def drafting(draft):
    folder = tiny.MODELS / "spec"
    path = draft if draft == "lookup" else folder / f"spec-{draft}-qwen3-q8_0.gguf"
    return ("bench", "-m", folder / "spec-target-qwen3-q8_0.gguf", "-dev", "cpu", "-md", path)


@pytest.mark.parametrize("draft", ["lookup", "draft", "dflash"])
def test_bench_measures_several_texts_with_a_draft(npurt, draft):
    result = npurt(*drafting(draft), "--parallel", "1,2", "-p", 24, "-n", 16, "-r", 2, "--json")
    rows = json.loads(result.out)

    assert result.code == 0
    for row in rows:
        assert row["draft"].startswith("lookup" if draft == "lookup" else f"spec-{draft}-")
        assert 0 <= row["accepted"] <= row["drafted"]
        assert row["accept_rate"] == (row["accepted"] / row["drafted"] if row["drafted"] else None)
        tokens = 2 * 16 * row["parallel"]
        assert row["accepted_length"] == tokens / (tokens - row["accepted"])


def test_right_drafts_of_several_texts_are_counted(npurt, monkeypatch):
    """The drafts are always right if the draft model is the model itself."""
    monkeypatch.setattr(BatchController, "choose", lambda self, behind=0: 2)
    monkeypatch.setattr(BatchController, "thresholds", Thresholds())
    monkeypatch.setattr(BatchController, "reading", lambda self, behind: behind)
    _, flag, model, *_ = drafting("lookup")
    command = ("bench", flag, model, "-dev", "cpu", "-md", model, "--draft-n", 2)
    result = npurt(*command, "--parallel", "2", "-p", 24, "-n", 16, "-r", 2, "--json")
    (row,) = json.loads(result.out)

    assert row["drafted"] > 0
    assert row["accept_rate"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--parallel", "2", "-p", "4,5"), ("--shared-prefix", 3), ("--parallel", "2", "-d", 4),
        ("--parallel", "2", "--spec", "-md", "lookup"),
        ("--parallel", "2", "-md", "lookup", "--plot", "a.png"),
        ("--parallel", "2", "-md", "lookup", "--draft-n", "2,3"),
        ("--parallel", "2", "-md", "lookup", "--draft-n", "0"), ("--parallel", "1,0"),
        ("--parallel", "2", "--draft-n", "2"), ("--parallel", "2", "-devd", "cpu"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_usage_of_several_texts_is_refused(npurt, arguments):
    assert npurt("bench", "-m", MODEL, *arguments).code == 2


def test_as_many_shared_tokens_as_a_prompt_has_are_refused(npurt):
    result = npurt("bench", "-m", MODEL, *PARALLEL, "--shared-prefix", 12)
    assert_failed(result, "12 of them shared", code=2)
