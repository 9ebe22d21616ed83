"""`npurt bench --spec`: the table, the JSON, the plot, and its errors."""

import json
import sys
import types

import pytest

from npurt.cli.output import spec_table
from npurt.errors import NpurtError
from tests.cli.conftest import assert_failed, assert_usage
from tests.llm import tiny

MODEL = tiny.path("qwen3", "q8_0")
QUICK = ("bench", "--spec", "-m", MODEL, "-md", "lookup", "--draft-n", "1,2", "-n", 4, "-r", 1)
ROW = {"model": "m.gguf", "draft": "lookup", "prompt": "p", "n": 0, "drafted": 0, "accepted": 0}
ROW |= {"accept_rate": None, "accepted_length": 1.0, "tokens_per_second": 8.4, "speedup": 1.0}
ROW |= {"total_speedup": 1.0}
ROW |= {"same_text": True}
# Q8_0 on HTP0, n = 9, in llama.cpp pull request 25166.
NINE = ROW | {"n": 9, "drafted": 108, "accepted": 85, "accept_rate": 85 / 108}
NINE |= {
    "accepted_length": 8.083,
    "tokens_per_second": 21.095,
    "speedup": 21.095 / 8.4,
    "total_speedup": 2.2,
}
AUTO = NINE | {"n": "auto", "same_text": False}


def cells(text):
    return [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]


def test_the_table_is_that_of_the_pull_request():
    head, _, plain, nine, auto = cells(spec_table.table([ROW, NINE, AUTO]))

    assert head == [
        *("prompt", "n", "drafted / accepted", "accept rate", "mean accepted", "t/s", "speedup"),
        "with prompt",
    ]
    assert plain == ["p", "plain", "", "", "", "8.40", "1.00x", "1.00x"]
    assert nine == ["p", "9", "108 / 85", "78.7 %", "8.083", "21.09", "2.51x", "2.20x"]
    assert auto[1] == "auto"
    assert auto[-2] == "2.51x, another text"


def test_it_prints_four_prompts_for_people_and_for_scripts(npurt):
    text, listed = npurt(*QUICK), npurt(*QUICK, "--json")

    assert text.code == listed.code == 0
    rows = json.loads(listed.out)
    assert [row["n"] for row in rows] == [0, 1, 2, "auto"] * 4
    assert [line[0] for line in cells(text.out)[2:]] == [row["prompt"] for row in rows]
    assert all(row["same_text"] for row in rows)


class Recorder:
    """Replaces matplotlib's Figure and records the calls that draw."""

    drawn: list
    title: str

    def __init__(self, **_):
        Recorder.drawn = []

    def subplots(self):
        return self

    def plot(self, x, y, **style):
        self.drawn.append((list(x), list(y), style.get("label")))

    def set_title(self, text, **_):
        Recorder.title = text

    def savefig(self, file, format):
        file.write(format.encode())

    def __getattr__(self, name):
        return lambda *a, **o: None


@pytest.fixture
def matplotlib(monkeypatch):
    module, figure = types.ModuleType("matplotlib"), types.ModuleType("matplotlib.figure")
    module.__spec__, figure.Figure = object(), Recorder
    monkeypatch.setitem(sys.modules, "matplotlib", module)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", figure)


def test_the_drawing_has_the_speedups_in_order(matplotlib, tmp_path):
    two = NINE | {"n": 2, "speedup": 1.5}
    spec_table.plot([ROW, NINE, two, AUTO], str(tmp_path / "a.svg"))

    assert Recorder.drawn == [
        ([2, 9], [1.5, 21.095 / 8.4], "p"),
        ([0], [21.095 / 8.4], None),
    ]
    assert Recorder.title == "m.gguf\nlookup"
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.svg", b"svg")]


def test_a_drawing_that_cannot_be_written_leaves_nothing(matplotlib, tmp_path):
    (tmp_path / "a.png").mkdir()

    with pytest.raises(NpurtError, match="cannot write"):
        spec_table.plot([ROW, NINE], str(tmp_path / "a.png"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_it_draws_what_it_measured(matplotlib, npurt, tmp_path):
    assert npurt(*QUICK, "--plot", tmp_path / "a.png").code == 0
    assert (tmp_path / "a.png").read_bytes() == b"png"


def test_a_drawing_without_matplotlib_is_refused_before_anything_is_measured(
    npurt, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert_failed(
        npurt(*QUICK, "--plot", tmp_path / "a.png"), "matplotlib", "pip install 'matplotlib"
    )


@pytest.mark.parametrize("name", ["a.txt", "a", "missing/a.png"])
def test_a_place_for_no_drawing_is_refused(matplotlib, npurt, tmp_path, name):
    assert_failed(npurt(*QUICK, "--plot", tmp_path / name), "cannot draw")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--spec",),
        ("-md", "lookup"),
        ("--plot", "a.png"),
        ("--draft-n", "2"),
        ("-devd", "cpu"),
        ("--spec", "-md", "lookup", "-m", MODEL),
        ("--spec", "-md", "lookup", "-n", "8,9"),
    ],
)
def test_what_does_not_go_together_is_refused(npurt, arguments):
    assert_usage(npurt("bench", "-m", MODEL, *arguments), "--spec needs one")


@pytest.mark.parametrize("flag", [("--compare", "a.json"), ("--report",), ("-d", 8), ("-p", 512)])
def test_a_flag_that_the_sweep_would_not_heed_is_refused(npurt, flag):
    assert_usage(npurt(*QUICK, *flag), "--spec cannot be used with")


@pytest.mark.parametrize("counts", ["4,x", "4,-1", ",", "1.5", ""])
def test_a_list_that_is_none_is_refused_in_words(npurt, counts):
    assert_usage(npurt(*QUICK, "--draft-n", counts), "not a list of counts such as 128,512")
