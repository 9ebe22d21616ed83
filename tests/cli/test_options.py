"""Flags that have been renamed."""

import pytest

from npurt.cli import parser


@pytest.mark.parametrize(
    ("flag", "said"), [("--unsafe", ""), ("--risky", "npurt: --risky is now called --unsafe\n")]
)
def test_a_flag_keeps_its_old_name_which_says_the_new_one(flag, said, capsys):
    assert parser().parse_args(["probe", flag]).unsafe
    assert capsys.readouterr().err == said
