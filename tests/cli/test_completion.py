"""`npurt completion`: what bash offers, and that fish is told of every verb."""

import re
import shutil
import subprocess

import pytest

from npurt.cli import VERBS
from tests.limits import HANG_SECONDS

ASK = """
source "$0"; complete -p npurt >&2
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _npurt
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offered(npurt, tmp_path):
    """Return a function that says what bash offers for the last of some words."""
    if not shutil.which("bash"):
        pytest.skip("there is no bash")
    script = tmp_path / "npurt.bash"
    script.write_text(npurt("completion", "bash").out)

    def ask(*words):
        result = subprocess.run(
            ["bash", "-uc", ASK, script, "npurt", *words],
            capture_output=True, text=True, timeout=HANG_SECONDS,
        )  # fmt: skip
        assert result.returncode == 0, result
        assert "complete -o default -F _npurt npurt" in result.stderr
        return result.stdout.split()

    return ask


def test_bash_offers_verbs(offered):
    assert offered("") == [*VERBS]
    assert offered("ch") == ["chat"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run", "--verify", ""], ["off", "sample", "always"]),
        (["run", "--verify", "a"], ["always"]),
        (["chat", "-ctk", "f"], ["f16", "f32"]),
        (["run", "--temp"], ["--temp", "--temperature"]),
        (["chat", "-m", "x", "--system"], ["--system-prompt", "--system"]),
        (["models", "f"], ["fetch"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["run", "-m", ""], []),  # then bash completes names of files
        (["bench", "-m", ""], []),
        (["models", "--folder", ""], []),
        (["bench", "matmul", "--ty"], ["--type"]),
        (["bench", "mat"], ["matmul"]),
        (["regcmd", ""], ["decode", "matmul", "check", "run"]),
        (["probe", "--ris"], []),  # an old name
        (["nothing", "-"], []),
    ],
)
def test_bash_offers_options_and_values(offered, words, wanted):
    assert offered(*words) == wanted


def test_bash_offers_every_option_of_the_usage(offered, npurt):
    for verb in VERBS:
        usage = npurt(verb, "--help").out.partition("\n\n")[0]
        assert set(re.findall(r"[\[(| ](--?[a-z][\w-]*)", usage)) <= set(offered(verb, "-")), verb


def test_zsh_and_fish_are_told_of_every_verb(npurt):
    zsh, fish = npurt("completion", "zsh").out, npurt("completion", "fish").out

    assert zsh.endswith(npurt("completion", "bash").out)
    assert "bashcompinit" in zsh
    for verb in VERBS:
        assert re.search(f"__fish_use_subcommand -a {verb} -d '", fish)
    assert re.search(r"from run' -s n -l n-predict -r -d 'most tokens", fish)
    assert re.search(r"from run' -l verify -x -a 'off sample always'", fish)
    assert re.search(r"from run' -o hf -l hf-repo -r", fish)
