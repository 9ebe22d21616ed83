"""`npurt perplexity`: measure a model's perplexity on a text."""

import argparse
import json
import sys
from typing import Any

from npurt.cli.arguments import llama_cpp, options


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser("perplexity", help="measure perplexity on a text")
    parser.add_argument("-f", "--file", required=True, metavar="FILE", help="UTF-8 text")
    parser.add_argument("--chunks", type=int, metavar="N", help="use only the first N chunks")
    options.add_model(parser, context="512")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    llama_cpp.add(parser)
    parser.set_defaults(run=run, ctx_size=512)


def run(args: argparse.Namespace) -> int:
    """Print the perplexity and its standard error."""
    from npurt.llm.decode.llama import Llama
    from npurt.llm.measure.perplexity import Perplexity, perplexity

    text = options.text_of(args.file)
    so_far: list[Perplexity] = []
    interrupted = False
    with Llama(options.model_path(args), **options.model(args)) as llm:
        try:
            perplexity(llm, text, chunks=args.chunks, on_chunk=so_far.append)
        except KeyboardInterrupt:
            interrupted = True
        size = llm.n_ctx
    status = options.INTERRUPTED if interrupted else 0
    result = so_far[-1] if so_far else None
    if args.json:
        held = {"perplexity": result and result.value, "error": result and result.error,
                "tokens": result.tokens if result else 0,
                "chunks": result.chunks if result else 0}  # fmt: skip
        print(json.dumps(held | ({"interrupted": True} if interrupted else {})))
    elif result is None:
        print("[stopped before the first chunk was finished]", file=sys.stderr)
    else:
        end = ", interrupted" if interrupted else ""
        print(f"perplexity {result.value:.4f} +- {result.error:.4f} "
              f"({result.tokens} tokens in {result.chunks} chunks of {size}{end})")  # fmt: skip
    return status
