"""Flags shared with llama-cli: their effect here, and the errors where they do not apply."""

import json
import re
from pathlib import Path

import pytest

import npurt as library
from npurt.cli import parser
from npurt.llm.measure import speculation
from tests.cli.conftest import assert_failed, assert_usage, spawn
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")
SHORT = ("-m", MODEL, "--temp", 0, "-n", 8)


def given(written, verb="run"):
    return parser().parse_args([verb, "-m", "x", *written.split()])


def opened_with(npurt, monkeypatch, *flags):
    """Return the arguments with which `npurt run` and *flags* open `Llama`."""
    said = {}

    class Recorder(library.Llama):
        def __init__(self, path, **options):
            said.update(options)
            super().__init__(path, **options)

    monkeypatch.setattr("npurt.llm.decode.llama.Llama", Recorder)
    assert npurt("run", *SHORT, "-p", "x", *flags).code == 0
    return said


@pytest.mark.parametrize(
    ("flags", "device"),
    [
        ((), None),
        (("-ngl", 0), "cpu"),
        (("-ngl", 0, "-dev", "auto"), "cpu"),
        (("-ngl", 0, "-dev", "numpy"), "numpy"),
        (("-ngl", 99), None),
        (("--n-gpu-layers", "all", "-dev", "cpu"), "cpu"),
    ],
)
def test_layers_of_a_gpu_choose_the_device(npurt, monkeypatch, flags, device):
    assert opened_with(npurt, monkeypatch, *flags)["device"] == device


def test_no_layers_on_a_device_that_is_named_is_a_contradiction(npurt):
    command = ("run", "-m", "/nowhere", "-p", "x")

    assert_failed(npurt(*command, "-ngl", 0, "-dev", "rknpu:sim"), "rknpu:sim", code=2)
    assert_usage(npurt(*command, "-ngl", "many"), "-ngl", "many")


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ((), "f16"),
        (("-ctk", "f32"), "f32"),
        (("-ctv", "f32"), "f32"),
        (("-ctk", "f32", "-ctv", "f32"), "f32"),
        (("--cache-type-k", "f16", "--cache-type-v", "f16"), "f16"),
    ],
)
def test_the_kv_cache_has_one_type(npurt, monkeypatch, flags, kind):
    assert opened_with(npurt, monkeypatch, *flags)["kv_type"] == kind


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-ctk q8_0", "npurt has no KV cache of q8_0; use f16 or f32"),
        ("-ctk f32 -ctv f16", "keys and values have one type in npurt, and f32 was given before"),
        ("--kv-type f16 -ctv f32", "and f16 was given before"),
    ],
)
def test_types_of_the_kv_cache_that_npurt_lacks_are_refused(npurt, flags, said):
    assert_usage(npurt("run", "-m", "x", "-p", "x", *flags.split()), said)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-fa", "-fa changes nothing: flash attention is always on"),
        ("-fa on", "always on"),
        ("-fa 1", "always on"),
        ("--flash-attn off", "--flash-attn changes nothing: flash attention is always on"),
        ("--no-mmap", "--no-mmap changes nothing: weights are copied"),
        ("--mlock", "--mlock changes nothing"),
        ("--no-warmup", "--no-warmup changes nothing"),
        ("--jinja", "--jinja changes nothing"),
        ("-st", "-st changes nothing: run answers once"),
        ("--no-display-prompt", "--no-display-prompt changes nothing"),
    ],
)
def test_flags_for_what_is_so_anyway_are_accepted_and_change_nothing(flags, said, capsys):
    with_flag, without = (vars(given(written)) for written in (flags, ""))
    for held in (with_flag, without):
        del held["usage_error"]  # a method of the parser created for this command line

    assert with_flag == without
    assert said in capsys.readouterr().err


def test_flags_have_both_names():
    assert given("--temperature 0.25").temperature == given("--temp 0.25").temperature == 0.25
    for name in ("-sys", "--system-prompt", "--system"):
        assert given(f"{name} Hi").system == given(f"{name} Hi", "chat").system == "Hi"


def test_the_version_is_the_packages(npurt):
    assert npurt("--version") == (0, f"npurt {library.__version__}\n", "")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("run -m x -p x --fi y", "unrecognized arguments: --fi y; did you mean --file?"),
        ("run --modle x", "did you mean --model"),
        ("chat -m x --temprature=0", "did you mean --temperature?"),
        ("devices --jsno", "did you mean --json?"),
        ("bench matmul --m 1 --k 32 --n 8 --repetition 3", "did you mean --repetitions?"),
        ("chta -m x", "did you mean chat?"),
        ("rnu -m x", "did you mean run?"),
        ("-hf a/b", "-hf a/b; options of a verb come after it, as in npurt run -m FILE"),
        ("models fetc", "did you mean fetch?"),
        ("run -m x -p x -ctk f61", "use f16 or f32"),
        ("stop", "did you mean ps?"),
        ("create smollm2-135m", "did you mean convert?"),
        ("run smollm2-135m hi", "arguments: smollm2-135m; a model is named with -m; a prompt"),
        ("run -m x -fa on hi", "arguments: hi; a model is named with -m; a prompt follows -p"),
        ("chat x", "arguments: x; a model is named with -m\n"),
        ("run -m x -p caf\udce9", "-p/--prompt: byte 3 is not UTF-8"),
        ("chat -m x -sys \udcff", "byte 0 is not UTF-8"),
    ],
)
def test_an_unknown_option_is_answered_with_one_that_is_like_it(npurt, written, said):
    result = npurt(*written.split())

    assert_usage(result, said)
    verb = " ".join(word for word in written.split()[:2] if word in ("run", "bench", "matmul"))
    assert result.err.startswith(f"usage: npurt {verb}".rstrip())


def test_an_error_is_not_hidden_below_a_long_usage(npurt):
    said = npurt("run", "-m", "x", "--tempp", 3).err.splitlines()

    assert len(said) == 2
    assert said[0] == "usage: npurt run [OPTION ...]; npurt run --help lists the options"
    assert said[1].endswith("--tempp 3; did you mean --temp?")


@pytest.mark.parametrize("written", ["--frobnicate", "--zzz"])
def test_an_error_shows_the_usage_of_its_verb_and_invents_no_option(npurt, written):
    result = npurt("chat", "-m", "x", written)

    said = f"npurt chat: error: unrecognized arguments: {written}\n"
    assert_usage(result, "usage: npurt chat ", said)
    assert "did you mean" not in result.err
    assert_usage(npurt("devices", "here"), "usage: npurt devices ", "here")


def test_what_follows_two_dashes_is_nobodys_option():
    assert parser().parse_args(["sim", "--", "ls", "--zzz"]).command == ["ls", "--zzz"]


def test_help_says_the_defaults(npurt):
    text = re.sub(r"\s+", " ", npurt("run", "--help").out)

    defaults = vars(given("-p x"))
    for name, option in (("temperature", "always the most likely token"), ("top_k", "0: all")):
        assert f"{option} (default: {defaults[name]})" in text
    assert "(default: None)" not in text
    assert "(default: False)" not in text
    assert "(default: 0)" in npurt("bench", "--help").out


# --- Prompts --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts():
    """Return the library's completion of "Hello" and answers to it, one with a system message."""
    user = {"role": "user", "content": "Hello"}
    with library.Llama(MODEL) as llm:
        options = {"temperature": 0, "max_tokens": 8}
        return {
            "continued": llm.generate("Hello", **options),
            "answer": llm.chat([user], **options),
            "brief": llm.chat([{"role": "system", "content": "Be brief."}, user], **options),
        }


@pytest.mark.parametrize(
    ("flags", "kind", "said"),
    [
        ((), "answer", "[answered through the model's chat template; "),
        (("-cnv",), "answer", ""),
        (("--raw",), "continued", ""),
        (("-no-cnv",), "continued", ""),
        (("-sys", "Be brief."), "brief", "[answered through "),
    ],
)
def test_run_answers_by_the_template_unless_told_otherwise(npurt, texts, flags, kind, said):
    assert len(set(texts.values())) == 3
    result = npurt("run", *SHORT, "-p", "Hello", *flags)

    assert (result.code, result.out) == (0, texts[kind] + "\n")
    assert said in result.err
    assert ("[" in result.err) == bool(said)


def test_run_continues_where_the_model_has_no_template(npurt, texts, tmp_path):
    bare = tiny.write(tiny.without_key(tiny.read(MODEL), "tokenizer.chat_template"), tmp_path)
    result = npurt("run", "-m", bare, "--temp", 0, "-n", 8, "-p", "Hello")

    assert (result.code, result.out) == (0, texts["continued"] + "\n")
    assert "the model has no chat template" in result.err
    for flags in (("-cnv",), ("-sys", "Be brief.")):
        assert_failed(npurt("run", "-m", bare, "-p", "Hello", *flags), "has no chat template")


def test_a_system_message_goes_with_no_raw_prompt(npurt):
    assert_failed(npurt("run", *SHORT, "-p", "x", "--raw", "-sys", "y"), "system", code=2)


@pytest.mark.parametrize("flags", [(), ("-f", "-")])
@pytest.mark.parametrize("typed", ["Hello", "Hello\n"])
def test_standard_input_is_a_prompt(npurt, texts, flags, typed):
    result = npurt("run", *SHORT, "--raw", *flags, stdin=typed.encode())

    assert (result.code, result.out) == (0, texts["continued"] + "\n")


def test_one_line_end_of_a_file_is_no_part_of_the_prompt(npurt, tmp_path, monkeypatch):
    prompts = []

    def generate(self, prompt, **options):
        prompts.append(prompt)
        return iter(())

    monkeypatch.setattr(library.Llama, "generate", generate)
    path = tmp_path / "prompt"
    for text in ("a", "a\n", "a\n\n", "a\r\n", "a \n b\n"):
        path.write_bytes(text.encode())
        assert npurt("run", *SHORT, "--raw", "-f", path).code == 0
    assert npurt("run", *SHORT, "--raw", "-p", "a\n").code == 0

    assert prompts == ["a", "a", "a\n", "a", "a \n b", "a\n"]


def test_a_prompt_that_nobody_gives_is_wrong_usage(npurt):
    assert_usage(npurt("run", "-m", MODEL), "usage: npurt run", "standard input is empty")
    assert_failed(npurt("run", "-m", MODEL, stdin=b"\xff"), "UTF-8")


def test_standard_input_of_a_process_is_a_prompt(texts):
    assert spawn("run", *SHORT, "--raw", stdin=b"Hello\n").out == texts["continued"] + "\n"


# --- Ctrl-C ---------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(monkeypatch):
    """Press Ctrl-C after the third piece of each completion."""
    generate = library.Llama.generate

    def stopped(self, prompt, **options):
        pieces = generate(self, prompt, **options)
        for _ in range(3):
            yield next(pieces)
        raise KeyboardInterrupt

    monkeypatch.setattr(library.Llama, "generate", stopped)


def test_control_c_ends_the_text_and_the_account_follows(npurt, interrupted, texts):
    result = npurt("run", *SHORT, "--raw", "-p", "Hello", "--report")

    assert result.code == 130
    text = result.out.removesuffix("\n")
    assert "[stopped]\n" in result.err
    assert text
    assert texts["continued"].startswith(text)
    assert "attn_qkv" in result.err
    assert re.search(r"decode \d+ tokens.*; offload: none, 100\.0 %", result.err.splitlines()[-1])


def test_control_c_leaves_json_that_says_so(npurt, interrupted, texts):
    result = npurt("run", *SHORT, "--raw", "-p", "Hello", "--json")
    held = json.loads(result.out)

    assert (result.code, held["interrupted"]) == (130, True)
    assert held["text"]
    assert texts["continued"].startswith(held["text"])
    assert held["report"]["line"].startswith("offload: none, 100.0 % of MACs")


def press_control_c(monkeypatch, name, after):
    """Press Ctrl-C in a method of `Llama`, after *after* calls."""
    real, calls = getattr(library.Llama, name), []

    def counted(self, *arguments):
        calls.append(1)
        if len(calls) > after:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(library.Llama, name, counted)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_control_c_leaves_the_tests_that_bench_has_finished(npurt, monkeypatch, flags):
    press_control_c(monkeypatch, "eval_last", 2)  # a warm-up and a run of the first test
    result = npurt("bench", "-m", MODEL, "-p", "8,16", "-n", 0, "-r", 1, *flags)

    assert result.code == 130
    assert "[stopped; finished rows: 1]" in result.err
    if flags:
        held = json.loads(result.out)
        assert held["interrupted"] is True
        assert [row["test"] for row in held["rows"]] == ["pp8"]
    else:
        assert "pp8" in result.out
        assert "pp16" not in result.out


def test_control_c_leaves_the_perplexity_of_the_chunks_so_far(npurt, monkeypatch, tmp_path):
    path = tmp_path / "text"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 12)
    command = ("perplexity", "-m", MODEL, "-f", path, "-c", 64)
    first = json.loads(npurt(*command, "--chunks", 1, "--json").out)

    press_control_c(monkeypatch, "eval_last", 1)
    held = npurt(*command, "--json")
    press_control_c(monkeypatch, "eval_last", 0)
    nothing = npurt(*command)

    assert (held.code, json.loads(held.out)) == (130, first | {"interrupted": True})
    assert (nothing.code, nothing.out) == (130, "")


def test_control_c_leaves_the_prompts_that_a_sweep_has_finished(npurt, monkeypatch):
    sweep, names = speculation._sweep, []

    def interrupted(llm, name, *rest):
        names.append(name)
        if len(names) == 2:
            raise KeyboardInterrupt
        return sweep(llm, name, *rest)

    monkeypatch.setattr(speculation, "_sweep", interrupted)
    flags = ("--spec", "-md", "lookup", "--draft-n", 1, "-n", 4, "-r", 1, "--json")
    result = npurt("bench", "-m", MODEL, *flags)
    held = json.loads(result.out)

    assert (result.code, held["interrupted"]) == (130, True)
    assert {row["prompt"] for row in held["rows"]} == {names[0]}


def test_control_c_in_a_download_says_how_to_go_on(npurt, monkeypatch, tmp_path):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("npurt.models.catalogue.fetch", interrupted)
    monkeypatch.setattr("npurt.models.location.locate", interrupted)
    monkeypatch.setattr("npurt.models.location.look_up", interrupted)
    model = "hf:some/model"
    spec = ("bench", "--spec", "-n", 4, "-md", "lookup")
    for command in (("run", "-p", "x", "-m", model), ("chat", "-m", model), ("plan", model),
                    ("quantize", model, tmp_path / "out.gguf", "q4_0"), ("bench", "-m", model),
                    (*spec, "-m", model)):  # fmt: skip
        other = npurt(*command)
        assert (other.code, other.out) == (130, "")
        assert "hf:some/model is not complete; run the same command again" in other.err
    result = npurt("models", "fetch", "smollm2-135m", "--folder", tmp_path, "--json")

    assert result.code == 130
    assert json.loads(result.out) == {"interrupted": True, "paths": []}
    assert "smollm2-135m is not complete; run the same command again" in result.err


def test_control_c_in_the_download_of_a_draft_names_the_draft(npurt, monkeypatch):
    def locate(name, **options):
        if str(name).startswith("hf:"):
            raise KeyboardInterrupt
        return Path(name)

    monkeypatch.setattr("npurt.models.location.locate", locate)
    result = npurt("run", "-m", MODEL, "-md", "hf:some/draft", "-p", "x")

    assert (result.code, result.out) == (130, "")
    assert "hf:some/draft is not complete; run the same command again" in result.err


def test_perplexity_interrupted_before_the_first_chunk_says_so(npurt, monkeypatch, tmp_path):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("npurt.llm.measure.perplexity.perplexity", interrupted)
    (tmp_path / "text").write_text("Hello")
    command = ("perplexity", "-m", MODEL, "-f", tmp_path / "text")

    held = npurt(*command, "--json")
    assert held.code == 130
    assert json.loads(held.out) == {
        "perplexity": None, "error": None, "tokens": 0, "chunks": 0, "interrupted": True
    }  # fmt: skip
    said = npurt(*command)
    assert (said.code, said.out) == (130, "")
    assert "stopped before the first chunk" in said.err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("run", "-m", "https://", "-p", "x"), "names no host"),
        (("run", "-m", MODEL, "-p", "-x"), "--prompt=-x"),
        (("run", "-m", MODEL, "-sys", "--brief", "-p", "x"), "--system-prompt=--brief"),
        (("run", "-m", MODEL, "-p", "x", "-ngl", "1e3"), "'1e3' is no number of layers"),
        (("run", "-m", MODEL, "-p", "x", "-n", "1e3"), "'1e3' is no whole number"),
        (("run", "-m", MODEL, "-p", "x", "-t", "-2"), "-2 is below -1"),
    ],
)
def test_a_value_that_is_misread_is_explained(npurt, command, said):
    result = npurt(*command)

    assert (result.code, result.out) == (2, "")
    assert said in result.err


@pytest.mark.parametrize("name", ["NPURT_DEVICE", "NPURT_VERIFY"])
def test_an_error_of_a_variable_names_it(npurt, monkeypatch, name):
    monkeypatch.setenv(name, "zz")
    result = npurt("run", "-m", MODEL, "-p", "x")

    assert result.code == 2
    assert f"{name}='zz'" in result.err


def test_minus_one_thread_is_the_usual_number(npurt):
    assert npurt("run", "-m", MODEL, "-p", "x", "-n", 1, "-t", -1).code == 0
