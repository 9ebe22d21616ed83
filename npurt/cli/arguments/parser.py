"""The command-line parser, which accepts no abbreviated options and suggests similar names."""

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

CLOSE = 0.7  # minimum similarity of a suggested option; "color" and "lora" have 2/3
CLOSE_CHOICE = 0.6  # minimum similarity of a suggested verb or value; "rnu" and "run" have 2/3
OLLAMA = {"create": "convert", "stop": "ps"}  # verbs of Ollama that npurt lacks -> npurt's
MAX_LINES = 6  # upper bound on the lines of the usage before an error message


class Help(argparse.HelpFormatter):
    """A formatter that appends an option's default to its help, if it has a default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        default = action.default
        stated = "default:" in text or isinstance(action, argparse._StoreFalseAction)
        if default is None or default is False or default == [] or stated:
            return text
        return text if default is argparse.SUPPRESS else f"{text} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """A parser that accepts options by their full names only.

    argparse parses ``--fi`` as ``--file`` and ``-hf`` as ``-h`` with the value "f"; this parser
    refuses such arguments.  A number may follow a letter directly, as in ``-n5``.  The parser of
    the verb reports an unknown argument, and suggests similar names.

    Args:
        mixed: Options may stand between the positional arguments.
    """

    def __init__(self, *args: Any, mixed: bool = False, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": Help, **options})
        self._mixed = mixed

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse *args*; fail if one is unknown.

        argparse would let the top parser report an unknown argument, with the top parser's usage.
        """
        if args is not None:
            self._refuse_unknown(list(args))
            args = self._words_last(args) if self._mixed else args
        found, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}")
        return found, []

    def print_usage(self, file: Any = None) -> None:
        """Print the usage before an error message, or a reference to ``--help`` if it is long."""
        usage = self.format_usage()
        if usage.count("\n") > MAX_LINES:
            usage = f"usage: {self.prog} [OPTION ...]; {self.prog} --help lists the options\n"
        self._print_message(usage, file)

    def _words_last(self, args: Sequence[str]) -> list[str]:
        """Return *args* with the positional arguments after the options."""
        options: list[str] = []
        words: list[str] = []
        rest = iter(args)
        for written in rest:
            action = self._option_string_actions.get(written)
            if written == "--":
                words += rest
            elif action is None and not written.startswith("-"):
                words.append(written)
            else:
                options.append(written)
                if action is not None and action.nargs is None:
                    options += [value for value in (next(rest, None),) if value is not None]
        return [*options, "--", *words] if words else options

    def _refuse_unknown(self, args: list[str]) -> None:
        """Refuse an unknown option before argparse parses it as an abbreviation."""
        words, optional = iter(enumerate(args)), False
        for i, written in words:
            plain = not written.startswith("-")
            if written == "--" or (plain and self._subparsers is not None):
                return  # the following arguments belong to a program or to a verb
            if plain and not optional and not self._get_positional_actions():
                self.error(f"unrecognized arguments: {written}{self._where()}")
            action = self._option_string_actions.get(written)
            optional = action is not None and action.nargs == "?"
            for _ in range(action.nargs if action and isinstance(action.nargs, int) else 0):
                next(words, None)
            if action is not None and action.nargs is None:
                _, value = next(words, (i, ""))
                if self._is_unknown(value):
                    long = max(action.option_strings, key=lambda name: name.startswith("--"))
                    self.error(f"{written} has no value; one that begins with - is written "
                               f"{long}={value}")  # fmt: skip
            if self._is_unknown(written):
                value = args[i + 1] if i + 1 < len(args) else "-"
                shown = written if value.startswith("-") else f"{written} {value}"
                names = [
                    name
                    for name, action in self._option_string_actions.items()
                    if action.help is not argparse.SUPPRESS
                ]
                hint = like(written, names)
                if not hint and " " not in self.prog:  # no verb
                    hint = "; options of a verb come after it, as in npurt run -m FILE"
                self.error(f"unrecognized arguments: {shown}{hint}")

    def _where(self) -> str:
        """Return a hint that models and prompts need an option, if the verb has these options."""
        takes = {"model": "a model is named with -m", "prompt": "a prompt follows -p"}
        known = {action.dest for action in self._actions}
        return "".join(f"; {said}" for dest, said in takes.items() if dest in known)

    def _is_unknown(self, written: str) -> bool:
        name = written.partition("=")[0]
        return (
            len(written) > 1
            and written.startswith("-")
            and " " not in written
            and not _is_number(written)
            and name not in self._option_string_actions
            and not self._get_option_tuples(written)
        )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            question = like(str(value), map(str, action.choices or ()), CLOSE_CHOICE)
            verb = OLLAMA.get(value) if isinstance(action, argparse._SubParsersAction) else None
            error.message += f"; did you mean {verb}?" if verb else question
            raise

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found: list[Any] = super()._get_option_tuples(option_string)
        return [each for each in found if _is_number(each[-1])]


def like(written: str, names: Iterable[str], close: float = CLOSE) -> str:
    """Return "; did you mean ...?" with the *names* that begin with *written* or resemble it.

    Return "" if there is no such name.
    """
    name, known = written.partition("=")[0], list(names)
    begun = [each for each in known if name.strip("-") and each.startswith(name)]
    bare = {each.lstrip("-"): each for each in known}  # dashes would make all names alike
    near = begun or [bare[x] for x in difflib.get_close_matches(name.lstrip("-"), bare, 3, close)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _is_number(text: str | None) -> bool:
    """Return whether *text* is a number or a list of numbers, such as 5, -1 or 128,512."""
    return text is not None and re.fullmatch(r"-?\d[\d.,]*", text) is not None
