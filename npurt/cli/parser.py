"""The parser of the command line: an option is what was written, whole."""

import argparse
import re
from typing import Any


class Parser(argparse.ArgumentParser):
    """A parser that never takes an option for the beginning, or the end, of another.

    argparse reads ``--fi`` as ``--file`` and ``-hf`` as ``-h`` with the value "f"; here both are
    unknown.  A number may follow a letter at once, as in ``-n5``.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found: list[Any] = super()._get_option_tuples(option_string)
        return [each for each in found if _is_number(each[-1])]


def _is_number(text: str | None) -> bool:
    """Return whether *text* is what may follow a letter, such as 5, -1 or 128,512."""
    return text is not None and re.fullmatch(r"-?\d[\d.,]*", text) is not None
