"""`npurt embed`: the embeddings of texts."""

import argparse
import json
import sys
from typing import Any

from npurt.cli.arguments import options
from npurt.errors import LayoutError

POOLING = ("none", "mean", "cls", "last", "rank")


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "embed",
        help="print the embeddings of texts",
        description="Prints the embedding of each line of text, a line of numbers each.  Flags are "
        "those of llama-embedding.",
    )
    options.add_text(parser, "the texts", "read the texts from a file")
    parser.add_argument("--embd-separator", type=options.words, default="\n", metavar="TEXT",
                        help="separator of two texts (default: the end of a line)")  # fmt: skip
    parser.add_argument("--pooling", choices=POOLING,
                        help="how the vectors of tokens become one; none: all of them; rank: the "
                        "scores of a reranker (default: as the file says, else mean)")  # fmt: skip
    parser.add_argument(
        "--embd-normalize",
        type=int,
        choices=(-1, 2),
        default=2,
        help="2: scale each embedding to length 1; -1: leave it as it is",
    )
    parser.add_argument("--truncate", action="store_true",
                        help="cut texts that are longer than the context")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object, as of OpenAI's API")
    options.add_model(parser)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Print the embeddings."""
    from npurt.llm.decode.embed import as_openai
    from npurt.llm.decode.model import Llama

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
    """Return the texts of the command line, of a file or of standard input."""
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
