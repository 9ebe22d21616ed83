"""`npurt chat`: talk to a model by its chat template."""

import argparse
import contextlib
import sys
from typing import Any

from npurt.cli import options
from npurt.errors import ContextFull

HELP = "/reset forgets the conversation, /report shows the ledger, /quit or Ctrl-D leaves."

Messages = list[dict[str, str]]


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("chat", help="talk to a model")
    options.add_model(parser)
    options.add_sampling(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read lines and answer them.  Ctrl-C stops an answer or drops a line, but not the program."""
    from npurt.llm.decode.model import Llama

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives input() editing and history
    start = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(start)
    with Llama(options.model_path(args), **options.model(args)) as llm:
        print(f"{llm!r}\n{HELP}", file=sys.stderr)
        while True:
            try:
                line = _line()
                if line in ("/quit", "/exit"):
                    break
                if line == "/reset":
                    messages = list(start)
                elif line == "/report":
                    print(llm.report())
                elif line:
                    messages = _answer(llm, messages, line, options.sampling(args))
            except KeyboardInterrupt:
                print()
        print(llm.report().line(), file=sys.stderr)
    return 0


def _line() -> str:
    """Return what the user types, stripped; ``/quit`` at the end of input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return "/quit"


def _answer(llm: Any, messages: Messages, line: str, sampling: dict[str, Any]) -> Messages:
    """Answer *line*; return the conversation with both, or as it was when there is no room."""
    asked = [*messages, {"role": "user", "content": line}]
    pieces = []
    try:
        for piece in llm.chat(asked, stream=True, **sampling):
            pieces.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    except ContextFull as error:
        print(f"{error}\n(or /reset)", file=sys.stderr)
        return messages
    print()
    if llm.timing.finish == "context":
        print("[the context is full; /reset, or start with a larger -c]", file=sys.stderr)
    return [*asked, {"role": "assistant", "content": "".join(pieces)}]
