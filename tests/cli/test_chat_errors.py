"""`npurt chat` after an error: it prints the error, keeps the conversation, and continues.

Input that is not from a terminal then ends with exit status 1.
"""

import json

import pytest

from tests.cli.conftest import spawn
from tests.cli.test_chat import MODEL, QUICK, answers
from tests.llm import tiny

NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}"
    "{% endif %}{{ m.content }}{% endfor %}"
)
PLAIN_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_refused_message_leaves_the_conversation_as_it_was(npurt, tmp_path):
    file = tiny.read(MODEL).with_key("tokenizer.chat_template", 8, NO_SYSTEM)
    kept = tmp_path / "keep.json"
    typed = f'Hello\n/system Be brief.\nAgain\n/save {kept}\n/system ""\nAnd now?\n'
    result = npurt("chat", "-m", tiny.write(file, tmp_path), *QUICK[2:], stdin=typed.encode())

    assert result.code == 1
    assert result.err.count("no system here") == 1
    first, second = result.out.split("\n")[:2]
    assert first
    assert second
    assert json.loads(kept.read_text()) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first},
    ]


def test_a_lack_of_memory_ends_the_answer_only(npurt, monkeypatch):
    def chat(self, messages, **options):
        raise MemoryError("3 GB")

    monkeypatch.setattr("npurt.llm.decode.llama.Llama.chat", chat)
    result = npurt("chat", *QUICK, stdin=b"Hello\n/system\n")

    assert (result.code, result.out) == (1, "there is no system message\n")
    assert "no memory left: 3 GB" in result.err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("/save ~nouser/x.json", "cannot write ~nouser/x.json"),
        ("/load ~nouser/x.json", "cannot read ~nouser/x.json"),
        ("/save -", "/save needs the name of a file"),
        ("/load -", "/load needs the name of a file"),
        ("/save a\0b", "cannot write a\0b"),
        ("/load a\0b", "cannot read a\0b"),
    ],
)
def test_a_file_that_cannot_be_used_is_said(npurt, tmp_path, monkeypatch, typed, said):
    monkeypatch.chdir(tmp_path)
    result = npurt("chat", *QUICK, stdin=f"{typed}\nHello\n".encode())

    assert (result.code, result.out) == (1, answers("Hello")[0] + "\n")
    assert said in result.err
    assert "remedy: " in result.err
    assert not list(tmp_path.iterdir())


def test_half_of_a_surrogate_pair_is_no_text_of_a_conversation(npurt, tmp_path):
    path = tmp_path / "said.json"
    path.write_text('[{"role": "user", "content": "\\ud800"}]')
    again = tmp_path / "again.json"
    result = npurt("chat", *QUICK, stdin=f"/load {path}\n/save {again}\n".encode())

    assert result.code == 1
    assert f"{path} contains no conversation" in result.err
    assert json.loads(again.read_text()) == []


@pytest.mark.parametrize(("verb", "said"), [("save", "cannot write"), ("load", "cannot read")])
def test_a_name_that_the_locale_cannot_write_is_said(verb, said):
    result = spawn("chat", *QUICK, stdin=f"/{verb} é.json\n".encode(), **PLAIN_LOCALE)

    assert result.code == 1
    assert said in result.err
    assert "remedy: " in result.err
    assert "Traceback" not in result.err
