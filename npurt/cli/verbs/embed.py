"""`npurt embed`: print the embeddings of texts."""

import argparse
import json
import sys
from typing import Any

from npurt.cli.arguments import llama_cpp, options
from npurt.errors import LayoutError

POOLING = ("none", "mean", "cls", "last", "rank")


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "embed",
        help="print the embeddings of texts",
        description="Print the embedding of each line of text as one line of numbers.  The flags "
        "are those of llama-embedding.",
    )
    options.add_text(parser, "the texts", "read the texts from a file")
    parser.add_argument("--embd-separator", type=options.words, default="\n", metavar="TEXT",
                        help="separator between two texts (default: the line end)")  # fmt: skip
    parser.add_argument("--pooling", choices=POOLING,
                        help="method of pooling the tokens' vectors; none: print the vectors of "
                        "all tokens; rank: print the scores of a reranker (default: from the "
                        "model's metadata, else mean)")  # fmt: skip
    parser.add_argument(
        "--embd-normalize",
        type=int,
        choices=(-1, 2),
        default=2,
        help="2: scale each embedding to length 1; -1: do not scale",
    )
    parser.add_argument("--truncate", action="store_true",
                        help="truncate texts that are longer than the context")  # fmt: skip
    parser.add_argument("--json", action="store_true",
                        help="print one JSON object in the form of OpenAI's API")  # fmt: skip
    options.add_model(parser)
    llama_cpp.add(parser)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Print the embeddings."""
    from npurt.llm.decode.embed import as_openai
    from npurt.llm.decode.llama import Llama

    texts = _texts(args)
    path = options.model_path(args)
    with Llama(path, **options.model(args)) as llm:
        made = llm.embedder.each(
            texts, args.embd_normalize == 2, pooling=args.pooling, truncate=args.truncate
        )
    if args.json:
        print(json.dumps(as_openai(made, str(path))))
        return 0
    for embedding in made:
        for row in embedding.values.reshape(-1, embedding.values.shape[-1]):
            print(*(f"{value:.7g}" for value in row.tolist()))
    return 0


def _texts(args: argparse.Namespace) -> list[str]:
    """Return the texts from the command line, a file or standard input."""
    text = args.prompt
    if text is None:
        if args.file is None and sys.stdin.isatty():
            args.usage_error("there is no text: give -p TEXT, -f FILE, or lines on standard input")
        text = options.text_of(args.file or "-").removeprefix("\ufeff").removesuffix("\n")
        if not text:
            raise LayoutError(
                f"{args.file or 'standard input'} has no text", remedy="give lines of text to embed"
            )
    if not args.embd_separator:
        args.usage_error("--embd-separator is empty")
    return str(text).split(args.embd_separator)
