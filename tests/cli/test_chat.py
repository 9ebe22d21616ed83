"""`npurt chat`: a conversation through a pipe, and on a terminal with key presses."""

import json
import re

import pytest

import npurt as library
from npurt.cli.output.terminal import harmless
from tests.cli.conftest import assert_usage, spawn
from tests.cli.pseudo_terminal import Terminal
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")
QUICK = ("-m", MODEL, "--temp", 0, "-n", 8)


def answers(*questions, system=None):
    """Return what the library answers to *questions*, one after another."""
    messages = [{"role": "system", "content": system}] if system else []
    with library.Llama(MODEL) as llm:
        given = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            given.append(llm.chat(messages, temperature=0, max_tokens=8))
            messages.append({"role": "assistant", "content": given[-1]})
    return given


# --- Through a pipe -------------------------------------------------------------------------------


def test_each_line_is_answered_in_the_light_of_those_before():
    result = spawn("chat", *QUICK, stdin=b"Hello\nAnd now?\n")

    assert result.code == 0
    assert result.out == "".join(f"{answer}\n" for answer in answers("Hello", "And now?"))
    first, *_, last = result.err.splitlines()
    assert first.startswith("Llama(llama3-q8_0.gguf, llama, cpu: ")
    assert last.startswith("offload: none, 100.0 % of MACs on cpu")


def test_a_system_message_comes_first_and_survives_a_reset(npurt):
    result = npurt("chat", *QUICK, "--system", "Be brief.", stdin=b"Hello\n/reset\nHello\n")

    (answer,) = answers("Hello", system="Be brief.")
    assert result.out == f"{answer}\n{answer}\n"
    assert answer != answers("Hello")[0]


def test_report_prints_the_ledger_and_quit_leaves(npurt):
    result = npurt("chat", *QUICK, stdin=b"Hello\n\n   \n/report\n/quit\nnever read\n")

    answer, *table = result.out.split("\n")
    assert (result.code, answer) == (0, answers("Hello")[0])
    assert table[0].split()[:2] == ["op", "device"]
    assert table[-2].startswith("offload:")


def test_nothing_to_say_is_no_error(npurt):
    result = npurt("chat", *QUICK)

    assert (result.code, result.out) == (0, "")
    assert "nothing ran" in result.err


def test_bytes_that_are_no_text_are_replaced(npurt):
    result = npurt("chat", *QUICK, stdin=b"Hello \xff\n")

    assert (result.code, result.out) == (0, answers("Hello \ufffd")[0] + "\n")


def test_a_conversation_that_outgrows_the_context_says_so_and_goes_on(npurt):
    """A message that does not fit in the context is not added to the conversation."""
    lines = b"Hello\n" + 100 * b"word " + b"\nHi\n/reset\nHello\n"
    result = npurt("chat", *QUICK, "-c", 256, stdin=lines)

    hello, hi = answers("Hello", "Hi")
    assert (result.code, result.out) == (1, f"{hello}\n{hi}\n{hello}\n")
    assert "do not fit" in result.err
    assert "remedy: /clear, or start again with a larger -c\n" in result.err


def test_a_long_conversation_goes_on_without_its_oldest_turns(npurt, tmp_path):
    """What the model is told is left out; the file of /save still has it."""
    kept = tmp_path / "chat.json"
    lines = "".join(f"question number {i}\n" for i in range(14)) + f"/save {kept}\n"
    result = npurt("chat", *QUICK, "-c", 256, "--system", "Be brief.", stdin=lines.encode())

    assert result.code == 0
    assert result.err.count("its oldest turns are left out") == 1
    assert "remedy" not in result.err
    saved = json.loads(kept.read_text())
    assert len(saved) == 1 + 2 * 14
    assert all(each["content"] for each in saved)


def test_an_answer_that_fills_the_context_says_so(npurt):
    result = npurt("chat", "-m", MODEL, "--temp", 2, "-s", 3, "-c", 100, stdin=b"Hello\n")

    assert result.code == 0
    assert "the context is full" in result.err


def test_an_answer_that_was_stopped_is_remembered_as_far_as_it_went(npurt, monkeypatch):
    asked = []

    class Interrupted(library.Llama):
        def chat(self, messages, **options):
            asked.append(list(messages))
            yield "one "
            yield "two"
            raise KeyboardInterrupt

    monkeypatch.setattr("npurt.llm.decode.llama.Llama", Interrupted)
    result = npurt("chat", *QUICK, stdin=b"Hello\nAnd now?\n")

    assert (result.code, result.out) == (0, "one two [stopped]\n" * 2)
    assert asked[1] == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "one two"},
        {"role": "user", "content": "And now?"},
    ]


@pytest.mark.parametrize(
    ("template", "said"),
    [("{{ raise_exception('only poems') }}", "only poems"), ("{{ messages[", "chat template")],
)
def test_what_the_template_refuses_is_an_error(npurt, tmp_path, template, said):
    file = tiny.read(MODEL).with_key("tokenizer.chat_template", 8, template)
    result = npurt("chat", "-m", tiny.write(file, tmp_path), stdin=b"Hello\n")

    assert result.code == 1
    assert said in result.err
    assert "remedy" in result.err


# --- Commands -------------------------------------------------------------------------------------


def test_each_answer_is_followed_by_its_rate(npurt):
    result = npurt("chat", *QUICK, stdin=b"Hello\nAnd now?\n")

    rates = re.findall(r"^\[(\d+) tokens, (\d+\.\d) tokens/s\]$", result.err, re.MULTILINE)
    assert [count for count, _ in rates] == ["8", "8"]
    assert all(float(rate) > 0 for _, rate in rates)


def test_help_lists_every_command_and_all_of_them_exist(npurt):
    listed = npurt("chat", *QUICK, stdin=b"/help\n").out
    names = re.findall(r"^(/\w+)", listed, re.MULTILINE)

    assert set(names) == {"/help", "/clear", "/regen", "/system", "/set", "/save", "/load",
                          "/model", "/report", "/quit"}  # fmt: skip
    assert "no command" not in npurt("chat", *QUICK, stdin="\n".join(names).encode()).err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("/sav x", "there is no command /sav; did you mean /save?"),
        ("/frobnicate", "there is no command /frobnicate\n"),
        ("/", "there is no command /"),
        ("/save", "/save needs the name of a file"),
        ("/load", "/load needs the name of a file"),
        ("/load /nowhere", "cannot read /nowhere"),
        ("/save /nowhere/x", "cannot write /nowhere/x"),
        ("/regen", "there is no answer to replace"),
        ("/set temp hot", "hot"),
        ("/set temp -1", "temperature is -1.0"),
        ("/set tmep 1", "there is no setting tmep; did you mean temp?"),
        ("/set zzz 1", "there is no setting zzz\n  remedy: /set alone lists"),
        ("/set stop", "a stop text is empty"),
        ("/set n -7", "is below -1"),
    ],
)
def test_a_command_that_cannot_be_done_is_said_and_changes_nothing(npurt, typed, said):
    result = npurt("chat", *QUICK, stdin=f"{typed}\nHello\n".encode())

    assert (result.code, result.out) == (1, answers("Hello")[0] + "\n")
    assert said in result.err
    assert "remedy: " in result.err


def test_a_path_is_no_command(npurt):
    result = npurt("chat", *QUICK, stdin=b"/etc/hosts is what?\n")

    assert result.out == answers("/etc/hosts is what?")[0] + "\n"


def test_a_conversation_is_saved_and_goes_on_elsewhere(npurt, tmp_path):
    path = tmp_path / "said.json"
    hello, now = answers("Hello", "And now?")
    saved = npurt("chat", *QUICK, stdin=f"Hello\n/save {path}\n".encode())

    assert f"[2 messages are in {path}]" in saved.err
    assert json.loads(path.read_text()) == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": hello},
    ]
    loaded = npurt("chat", *QUICK, stdin=f"/load {path}\nAnd now?\n".encode())
    assert loaded.out == now + "\n"
    assert "[the conversation has 2 messages]" in loaded.err


@pytest.mark.parametrize("text", ["", "7", "{}x", '["a"]', '[{"role": "user"}]',
                                  '[{"role": "user", "content": 1}]'])  # fmt: skip
def test_a_file_that_holds_no_conversation_is_refused(npurt, tmp_path, text):
    path = tmp_path / "said.json"
    path.write_text(text)
    result = npurt("chat", *QUICK, stdin=f"/load {path}\nHello\n".encode())

    assert result.out == answers("Hello")[0] + "\n"
    assert f"{path} contains no conversation" in result.err


def test_an_answer_is_replaced_by_another(npurt):
    typed = b"Hello\n/set n 3\n/regen\n/set n 8\n/regen\nAnd now?\n"
    result = npurt("chat", *QUICK, stdin=typed)

    hello, now = answers("Hello", "And now?")
    assert result.out.startswith(f"{hello}\n")
    assert result.out.endswith(f"\n{hello}\n{now}\n")
    short = result.out.removeprefix(f"{hello}\n").removesuffix(f"\n{hello}\n{now}\n")
    assert short != hello
    assert hello.startswith(short.rstrip("\ufffd"))


def test_the_system_message_is_shown_and_replaced(npurt):
    typed = b"/system\n/system Be brief.\n/system\nHello\n/clear\nHello\n"
    result = npurt("chat", *QUICK, stdin=typed)

    (answer,) = answers("Hello", system="Be brief.")
    assert result.out == f"there is no system message\nBe brief.\n{answer}\n{answer}\n"


def test_settings_are_shown_and_set_by_the_names_of_the_command_line(npurt, monkeypatch):
    asked = []

    def chat(self, messages, **options):
        asked.append(options)
        return iter(())

    monkeypatch.setattr(library.Llama, "chat", chat)
    typed = b"/set top_k 7\n/set min-p 0.5\n/set seed -1\n/set n 5\n/set stop end of it\n/set\nHi\n"
    result = npurt("chat", *QUICK, stdin=typed)

    wanted = {"max_tokens": 5, "temperature": 0.0, "top_k": 7, "top_p": 0.95, "min_p": 0.5,
              "repeat_penalty": 1.0, "seed": None, "stop": ["end of it"], "stream": True,
              "grammar": None, "logit_bias": {}}  # fmt: skip
    assert len(asked) == 1
    assert asked[0].items() >= wanted.items()
    shown = dict(line.split(None, 1) for line in result.out.splitlines() if line)
    assert (shown["top_k"], shown["min_p"], shown["seed"]) == ("7", "0.5", "-1")
    assert (shown["temp"], shown["n_predict"], shown["grammar"]) == ("0.0", "5", "default")
    assert shown["dry_sequence_breaker"] == shown["logit_bias"] == "default"


def test_a_grammar_is_set_and_taken_back(npurt):
    typed = b"/set grammar root ::= (\nHello\n/set json-schema {\"const\": 7}\nHello\n" \
        b"/set grammar root ::= [x]{2}\nHello\n/set grammar \"\"\nHello\n"  # fmt: skip
    result = npurt("chat", *QUICK, stdin=typed)

    plain, seven, letters, again, _ = result.out.split("\n")
    assert (seven, letters) == ("7", "xx")
    assert plain == answers("Hello")[0]
    assert again not in ("7", "xx")
    assert "the grammar is not GBNF" in result.err


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("one\\\ntwo\\\nthree", "one\ntwo\nthree"),
        ("one\\", "one"),
        ('"""one\n\n  two\n"""', "one\n\n  two"),
        ('"""\none"""', "one"),
        ('"""one"""', "one"),
        ('"""one\ntwo', "one\ntwo"),
        ('say """', 'say """'),
    ],
)
def test_a_message_may_have_many_lines(npurt, monkeypatch, typed, message):
    asked = []

    def chat(self, messages, **options):
        asked.append(messages[-1]["content"])
        return iter(())

    monkeypatch.setattr(library.Llama, "chat", chat)
    assert npurt("chat", *QUICK, stdin=f"{typed}\n".encode()).code == 0
    assert asked == [message]


def test_a_chat_without_a_conversation_is_wrong_usage(npurt):
    assert_usage(npurt("chat", *QUICK, "-no-cnv"), "npurt run --raw")
    assert npurt("chat", *QUICK, "-cnv", stdin=b"Hello\n").out == answers("Hello")[0] + "\n"


# --- On a terminal --------------------------------------------------------------------------------


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def open_terminal(*arguments):
        opened.append(Terminal(*arguments, XDG_STATE_HOME=str(tmp_path)))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


# This model's greedy output repeats itself for more tokens than a test could wait for.
CIRCLE = tiny.path("llama3-256", "q8_0")
ENDLESS = ("-m", CIRCLE, "--temp", 0, "--context-shift", "-c", 256)
PROMPT = r"> "
RATE = r"\[\d+ tokens, \d+\.\d tokens/s\]\r\n"  # after each answer


def test_control_c_stops_the_answer_and_not_the_program(terminal):
    chat = terminal("chat", *ENDLESS)
    chat.wait_for(PROMPT)
    for _ in range(2):
        chat.type("Hello\n")
        chat.wait_for(r"Hello\r\n.{40}")  # the answer has begun and would never end
        chat.type("\x03")
        chat.wait_for(r"\[stopped\]\r\n" + RATE + PROMPT)
        chat.type("/reset\n")  # the output so far may be longer than the context
        chat.wait_for(PROMPT)
    chat.type("/quit\n")

    assert chat.end() == 0
    assert "offload: none, 100.0 % of MACs on cpu" in chat.screen
    assert "Traceback" not in chat.screen


def test_control_c_at_the_prompt_drops_the_line_and_control_d_leaves(terminal):
    chat = terminal("chat", *QUICK)
    chat.wait_for(PROMPT)
    chat.type("a line that nobody will answer")
    chat.wait_for("nobody will answer")
    chat.press_until("\x03", PROMPT)
    chat.type("Hello\n")
    chat.wait_for(re.escape(harmless(answers("Hello")[0])) + r"\r\n" + RATE + PROMPT)
    chat.type("\x04")

    assert chat.end() == 0
    assert "Traceback" not in chat.screen


UP = "\x1b[A"


def test_the_history_is_of_earlier_chats_too(terminal, tmp_path):
    for typed, asked in (("/foo\n", "/foo"), (UP + UP + "\n", "/foo"), ("/bar\n", "/bar")):
        chat = terminal("chat", *QUICK)
        chat.wait_for(PROMPT)
        chat.type(typed)
        chat.wait_for(f"there is no command {asked}")
        chat.type("/quit\n")
        assert chat.end() == 0

    (path,) = tmp_path.rglob("*history")
    assert path.read_text().splitlines() == ["/foo", "/quit", "/foo", "/quit", "/bar", "/quit"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_history_is_not_kept_if_nobody_wants_it(terminal, tmp_path):
    chat = terminal("chat", *QUICK, "--no-history")
    chat.wait_for(PROMPT)
    chat.type("/quit\n")

    assert chat.end() == 0
    assert list(tmp_path.iterdir()) == []


def test_control_c_ends_other_verbs_quietly(terminal):
    run = terminal("run", "-p", "Hello", *ENDLESS)
    run.wait_for(r".{40}")
    run.type("\x03")

    assert run.end() == 130
    assert "Traceback" not in run.screen


# --- Another model --------------------------------------------------------------------------------


def test_a_conversation_continues_with_another_model(npurt):
    other = tiny.path("qwen2", "q8_0")
    lines = f"Hello\n/model {other}\n/model\nHello\n".encode()
    result = npurt("chat", *QUICK, stdin=lines)

    assert result.code == 0
    first, rest = result.out.split(f"\nLlama({other.name}, qwen2, ")
    assert first == answers("Hello")[0]
    assert rest.partition("\n")[2].strip()


def test_the_model_stays_if_another_cannot_be_opened(npurt):
    lines = b"Hello\n/model /nowhere.gguf\n/regen\n"
    result = npurt("chat", *QUICK, stdin=lines)

    (answer,) = answers("Hello")
    assert result.out == f"{answer}\n{answer}\n"
    assert "/nowhere.gguf" in result.err
