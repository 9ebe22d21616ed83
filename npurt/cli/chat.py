"""`npurt chat`: talk to a model by its chat template."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from npurt.cli import options
from npurt.errors import ContextFull

HELP = "/reset forgets the conversation, /report shows the ledger, /quit or Ctrl-D leaves."


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("chat", help="talk to a model")
    options.add_model(parser)
    options.add_sampling(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.set_defaults(run=run)


def lines() -> Iterator[str]:
    """Yield what the user types; Ctrl-C drops the line, Ctrl-D ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives input() editing and history
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            yield input(prompt)
        except KeyboardInterrupt:
            print()
        except EOFError:
            return


def run(args: argparse.Namespace) -> int:
    """Read, answer, remember; Ctrl-C stops the answer and not the program."""
    from npurt.llm.model import Llama

    start = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(start)
    with Llama(args.model, **options.model(args)) as llm:
        print(f"{llm!r}\n{HELP}", file=sys.stderr)
        for line in lines():
            if line.strip() in ("/quit", "/exit"):
                break
            if line.strip() == "/reset":
                messages = list(start)
            elif line.strip() == "/report":
                print(llm.report())
            elif line.strip():
                _answer(llm, messages, line, options.sampling(args))
        print(llm.report().line(), file=sys.stderr)
    return 0


def _answer(llm: Any, messages: list[dict[str, str]], line: str, sampling: dict[str, Any]) -> None:
    messages.append({"role": "user", "content": line})
    pieces = []
    try:
        for piece in llm.chat(messages, stream=True, **sampling):
            pieces.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    except ContextFull as error:
        messages.pop()
        print(f"{error}\n(or /reset)", file=sys.stderr)
        return
    print()
    if llm.timing.finish == "context":
        print("[the context is full; /reset, or start with a larger -c]", file=sys.stderr)
    messages.append({"role": "assistant", "content": "".join(pieces)})
