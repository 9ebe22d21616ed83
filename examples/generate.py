"""Complete a prompt.

    python examples/generate.py -m qwen.gguf -p "def quicksort(" -n 64

The flags are those of llama-cli: -m -p -n -c -t --temp --top-k --top-p --min-p --seed -dev.
"""

import argparse
import sys

import npurt
from npurt.cli.arguments import options, sampling


def main() -> int:
    parser = argparse.ArgumentParser(description="Complete a prompt.")
    parser.add_argument(
        "-p", "--prompt", default="The capital of France is", help="text to complete"
    )
    parser.add_argument("--report", action="store_true", help="print which device computed what")
    options.add_model(parser)
    sampling.add_sampling(parser)
    args = parser.parse_args()

    with npurt.Llama(args.model, **options.model(args)) as llm:
        print(args.prompt, end="", flush=True)
        for piece in llm.generate(args.prompt, stream=True, **sampling.sampling(args)):
            print(piece, end="", flush=True)
        report = llm.report()
        print(f"\n\n{report.table()}" if args.report else "\n")
        print(f"{llm.timing.line()}; {report.line()}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except npurt.NpurtError as error:
        sys.exit(f"generate.py: {error}")
