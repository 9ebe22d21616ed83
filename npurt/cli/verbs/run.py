"""`npurt run`: answer a prompt, or complete it as plain text."""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from npurt.cli.arguments import llama_cpp, options
from npurt.cli.arguments.sampling import add_sampling, sampling
from npurt.errors import LayoutError, SettingError

if TYPE_CHECKING:
    from npurt.llm.decode.llama import Llama


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "run",
        help="answer or complete a prompt",
        description="Answer a prompt through the model's chat template.  With --raw, or if the "
        "model has no chat template, complete the prompt as plain text.  Ctrl-C ends the text; "
        "the timing is printed in any case.",
    )
    options.add_text(parser, "the prompt", "read the prompt from a file, without its last line end")
    options.add_model(parser, shift=True)
    options.add_conversation(parser, raw="complete the prompt without a chat template")
    add_sampling(parser)
    options.add_unneeded(parser, "-st", "--single-turn", why="run answers once")
    options.add_unneeded(parser, "--no-display-prompt", why="the prompt is not printed")
    parser.add_argument("--report", action="store_true", help="print which device computed what")
    parser.add_argument("--trace", metavar="FILE", help="write a timeline for Perfetto to FILE")
    parser.add_argument("--json", action="store_true",
                        help="print one JSON object at the end instead of a stream")  # fmt: skip
    llama_cpp.add(parser)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Stream the text to standard output, and print timing and report to standard error."""
    from npurt.llm.decode.llama import Llama
    from npurt.llm.decode.options import GenerationRequest

    prompt, wanted = _prompt(args), sampling(args)
    GenerationRequest.of(wanted, None)  # checks the settings before the model is opened
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
    """Return the prompt from the command line, a file or standard input."""
    if args.prompt is not None:
        return str(args.prompt)
    if args.file is None and sys.stdin.isatty():
        args.usage_error("there is no prompt: give -p TEXT, -f FILE, or text on standard input")
    text = options.text_of(args.file or "-").removesuffix("\n")
    if args.file is None and not text:
        args.usage_error("there is no prompt: give -p TEXT or -f FILE; standard input is empty")
    return text


def _is_answered(llm: "Llama", args: argparse.Namespace) -> bool:
    """Return whether the prompt is a chat message; otherwise it is completed as plain text."""
    if args.conversation is None:
        return bool(args.system) or "tokenizer.chat_template" in llm.metadata
    return bool(args.conversation)


def _how(llm: "Llama", args: argparse.Namespace) -> str:
    """Return a note on how the prompt was used; "" if a flag chose it."""
    if args.conversation is not None:
        return ""
    if _is_answered(llm, args):
        return "[answered through the model's chat template; --raw completes the prompt instead]\n"
    return "[the prompt was completed as plain text: the model has no chat template]\n"


def _pieces(
    llm: "Llama", prompt: str, args: argparse.Namespace, wanted: dict[str, Any]
) -> Iterator[str]:
    """Return an iterator of the pieces of the generated text.

    Raises:
        LayoutError: The prompt is an empty chat message.
        SettingError: A system message is given for a completion without a chat template.
    """
    if not _is_answered(llm, args):
        if args.system:
            raise SettingError(
                "a system message needs a chat template, which is not used here",
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
