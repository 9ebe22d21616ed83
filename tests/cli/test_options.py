"""Unknown options, and numbers after options."""

import pytest

from npurt.cli import parser
from tests.cli.conftest import assert_usage


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("devices -hf a/b", "-hf a/b"),
        ("devices --js", "--js"),
        ("run -m x -p x -nglx 99", "-nglx 99"),
        ("run -m x -p x --see 1", "--see 1"),
        ("run -m x -hf a/b -p x", "not allowed with"),
        ("run -hf", "expected one argument"),
    ],
)
def test_an_option_that_is_unknown_is_not_taken_for_another(npurt, arguments, said):
    assert_usage(npurt(*arguments.split()), said)


@pytest.mark.parametrize("written", [("-n5",), ("-n", "5"), ("--n-predict=5",)])
def test_a_number_may_follow_a_letter_at_once(written):
    assert parser().parse_args(["run", "-m", "x", "-p", "x", *written]).n_predict == 5
    assert parser().parse_args(["run", "-m", "x", "-p", "x", "-n-1"]).n_predict is None
