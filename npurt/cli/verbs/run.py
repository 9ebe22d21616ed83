"""`npurt run`: answer a prompt, or continue it."""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from npurt.cli.arguments import options
from npurt.cli.arguments.sampling import add_sampling, sampling
from npurt.errors import LayoutError, SettingError

if TYPE_CHECKING:
    from npurt.llm.decode.model import Llama


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "run",
        help="answer a prompt, or continue it",
        description="Answers a prompt by the model's chat template; continues it where the model "
        "has none, and with --raw.  Ctrl-C ends the text, and the account of it follows.",
    )
    options.add_text(parser, "the prompt", "read the prompt from a file, without its last line end")
    options.add_model(parser)
    options.add_conversation(parser, raw="continue the prompt as it is")
    add_sampling(parser)
    options.add_unneeded(parser, "-st", "--single-turn", why="run answers once")
    options.add_unneeded(parser, "--no-display-prompt", why="the prompt is not printed")
    parser.add_argument("--report", action="store_true", help="print the ledger at the end")
    parser.add_argument("--trace", metavar="FILE", help="write a timeline to FILE, for Perfetto")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end, no stream")
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Stream the text to stdout and the account to stderr."""
    from npurt.llm.decode.model import Llama
    from npurt.llm.decode.options import Request

    prompt, wanted = _prompt(args), sampling(args)
    Request.of(wanted, None)  # refuses what makes no sense before the model is opened
    path = options.model_path(args)
    if args.trace:
        options.require_apart(args.trace, *options.models_of(args, path), args.file)
    with Llama(path, **options.model(args)) as llm:
        pieces = []
        said, interrupted = _how(llm, args), False
        try:
            with llm.trace(args.trace) if args.trace else contextlib.nullcontext():
                for piece in _pieces(llm, prompt, args, wanted):
                    pieces.append(piece)
                    if not args.json:
                        print(piece, end="", flush=True)
        except KeyboardInterrupt:
            interrupted = True
        if args.json:
            _print_json(llm, "".join(pieces), interrupted=interrupted)
            print(said, end="", file=sys.stderr)
        else:
            print()
            if interrupted:
                print("[stopped]", file=sys.stderr)
            print(said, end="", file=sys.stderr)
            _print_account(llm, args)
    return options.INTERRUPTED if interrupted else 0


def _prompt(args: argparse.Namespace) -> str:
    """Return the prompt of the command line, of a file or of standard input."""
    if args.prompt is not None:
        return str(args.prompt)
    if args.file is None and sys.stdin.isatty():
        args.usage_error("there is no prompt: give -p TEXT, -f FILE, or text on standard input")
    text = options.text_of(args.file or "-").removesuffix("\n")
    if args.file is None and not text:
        args.usage_error("there is no prompt: give -p TEXT or -f FILE; standard input is empty")
    return text


def _is_answered(llm: "Llama", args: argparse.Namespace) -> bool:
    """Return whether the prompt is a message, and not a text to continue."""
    if args.conversation is None:
        return bool(args.system) or "tokenizer.chat_template" in llm.metadata
    return bool(args.conversation)


def _how(llm: "Llama", args: argparse.Namespace) -> str:
    """Return a line that says how the prompt was used, unless the user chose."""
    if args.conversation is not None:
        return ""
    if _is_answered(llm, args):
        return "[answered by the model's chat template; --raw continues the prompt instead]\n"
    return "[the prompt was continued as it is: the model has no chat template]\n"


def _pieces(
    llm: "Llama", prompt: str, args: argparse.Namespace, wanted: dict[str, Any]
) -> Iterator[str]:
    """Return the text to print, piece by piece.

    Raises:
        LayoutError: The prompt is a message, and empty.
        SettingError: There is a system message, and no conversation.
    """
    if not _is_answered(llm, args):
        if args.system:
            raise SettingError(
                "a prompt that is continued as it is has no system message",
                remedy="leave out --raw (-no-cnv), or -sys and write its text into the prompt",
            )
        continued: Iterator[str] = llm.generate(prompt, stream=True, **wanted)
        return continued
    if not prompt:
        raise LayoutError("the prompt is empty", remedy="write a message")
    messages = [{"role": "user", "content": prompt}]
    if args.system:
        messages.insert(0, {"role": "system", "content": args.system})
    answer: Iterator[str] = llm.chat(messages, stream=True, **wanted)
    return answer


def _print_json(llm: "Llama", text: str, *, interrupted: bool) -> None:
    said = llm.timing.speculation
    timing = dataclasses.asdict(llm.timing) | {
        "prefill_rate": llm.timing.prefill_rate,
        "decode_rate": llm.timing.decode_rate,
        "speculation": said.figures() if said else None,
    }
    held = {"text": text, "timing": timing, "report": json.loads(llm.report().to_json())}
    print(json.dumps(held | ({"interrupted": True} if interrupted else {})))


def _print_account(llm: "Llama", args: argparse.Namespace) -> None:
    report = llm.report()
    if llm.timing.finish == "context":
        print("[the context is full; use a larger -c, or --context-shift]", file=sys.stderr)
    if args.report:
        print(report.table(), file=sys.stderr)
    print(f"{llm.timing.line()}; {report.line()}", file=sys.stderr)
