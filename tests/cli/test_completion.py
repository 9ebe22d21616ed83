"""`npurt completion`: the completions that bash, fish and zsh offer."""

import re
import shlex
import shutil
import subprocess

import pytest

from npurt.cli import VERBS
from tests.limits import HANG_SECONDS

ASK = """
source "$0"; [ "$(complete -p npurt)" = "complete -o default -F _npurt npurt" ] || exit
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _npurt
printf '%s\\n' "${COMPREPLY[@]}"
"""


ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "source $1; show() print -r -- @@\\$BUFFER@@; zle -N show; bindkey '^X' show"
zpty -w shell "bindkey '^I' complete-word; print loa''ded"
zpty -r -m shell said '*loaded*'
zpty -w -n shell $2$'\\t\\C-x'
zpty -r -m shell said '*@@npurt*@@*'
print -r -- ${${said##*@@npurt}%%@@*}
"""
# Words of a command line, and the completions of the last one; none means file names.
WORDS = [
    (["ch"], ["chat"]),
    (["run", "--verify", ""], ["off", "sample", "always"]),
    (["run", "--verify", "a"], ["always"]),
    (["run", "-p", "chat", "--verify", "a"], ["always"]),
    (["chat", "-ctk", "f"], ["f16", "f32"]),
    (["run", "--temp"], ["--temp", "--temperature"]),
    (["chat", "-m", "x", "--system"], ["--system-prompt", "--system"]),
    (["models", "f"], ["fetch"]),
    (["completion", ""], ["bash", "zsh", "fish"]),
    (["run", "-m", ""], []),
    (["bench", "-m", ""], []),
    (["models", "--folder", ""], []),
    (["bench", "matmul", "--ty"], ["--type"]),
    (["bench", "mat"], ["matmul"]),
    (["regcmd", ""], ["decode", "matmul", "check", "run"]),
    (["regcmd", "decode", ""], []),
    (["probe", "--ris"], []),  # an old name
    (["nothing", "-"], []),
]


@pytest.fixture
def script(npurt, tmp_path):
    """Return a function that writes the script of a shell and returns its path."""

    def write(shell):
        if not shutil.which(shell):
            pytest.fail(f"there is no {shell}: run .ci/programs")
        path = tmp_path / f"npurt.{shell}"
        path.write_text(npurt("completion", shell).out)
        return path

    return write


def output(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, **options)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.fixture
def bash(script):
    """Return a function that returns bash's completions of the last word."""
    path = script("bash")
    return lambda *words: output("bash", "-uc", ASK, path, "npurt", *words).split()


@pytest.fixture
def fish(script, tmp_path, monkeypatch):
    """Return a function that returns fish's completions of the last word."""
    path = script("fish")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))

    def ask(*words):
        line = shlex.quote(" ".join(("npurt", *words)))
        said = output("fish", "-c", f"source {path}; complete -C {line}", cwd=tmp_path / "empty")
        return [each.partition("\t")[0] for each in said.splitlines()]

    return ask


@pytest.fixture
def zsh(script, tmp_path, monkeypatch):
    """Return a function that types a line and a tab into zsh and returns the completed line."""
    path = script("zsh")
    (tmp_path / "model.gguf").touch()
    monkeypatch.setenv("TERM", "dumb")
    ask = ("zsh", "-fc", ZSH, "zsh", path)
    return lambda line: output(*ask, f"npurt {line}", cwd=tmp_path).strip("\n")


def test_bash_offers_verbs(bash):
    assert bash("") == [*VERBS]


@pytest.mark.parametrize(("words", "wanted"), WORDS)
def test_bash_offers_options_and_values(bash, words, wanted):
    assert bash(*words) == wanted


@pytest.mark.parametrize(("words", "wanted"), WORDS)
def test_fish_offers_options_and_values(fish, words, wanted):
    assert sorted(fish(*words)) == sorted(wanted)


def test_fish_offers_names_of_files(fish, tmp_path):
    (tmp_path / "empty/model.gguf").touch()

    for words in (["run", "-m", ""], ["run", "--model", "m"], ["regcmd", "decode", ""]):
        assert fish(*words) == ["model.gguf"]


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("ch", " chat "),
        ("run --verify al", " run --verify always "),
        ("run --temper", " run --temperature "),
        ("bench matmul --ty", " bench matmul --type "),
        ("regcmd dec", " regcmd decode "),
        ("run -m mod", " run -m model.gguf "),
        ("probe --ris", " probe --ris"),
    ],
)
def test_zsh_completes(zsh, line, made):
    assert zsh(line) == made


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_every_option_of_the_usage_is_offered(shell, request, npurt):
    offered = request.getfixturevalue(shell)
    for verb in VERBS:
        usage = npurt(verb, "--help").out.partition("\n\n")[0]
        assert set(re.findall(r"[\[(| ](--?[a-z][\w-]*)", usage)) <= set(offered(verb, "-")), verb


def test_fish_is_told_what_verbs_and_options_do(npurt):
    said = npurt("completion", "fish").out

    for verb in VERBS:
        assert re.search(f"__npurt_verb -a {verb} -d '", said)
    assert re.search(r"verb run' -o n -l n-predict -r -d 'maximum number of tokens", said)
