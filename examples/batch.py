"""Generate several completions at once: they share each read of the weights, and a prompt prefix.

python examples/batch.py models/SmolLM2-135M-Instruct.Q4_1.gguf
python examples/batch.py MODEL -dev hexagon:sim -n 8
"""

import argparse
import time

import npurt

BEGINNING = "A short dictionary of animals.\n\nDog: an animal that barks.\n"
ANIMALS = ("Cat", "Horse", "Whale", "Spider", "Owl", "Frog")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("-dev", "--device", default="cpu")
    parser.add_argument("-n", "--tokens", type=int, default=24)
    args = parser.parse_args()

    with npurt.Engine(args.model, args.device, n_ctx=512, max_sequences=4) as engine:
        start = time.perf_counter()
        requests = {
            name: engine.submit(
                f"{BEGINNING}{name}:", max_tokens=args.tokens, stop="\n", temperature=0
            )
            for name in ANIMALS
        }
        for name, request in requests.items():
            print(f"{name}:", end="")
            for event in request:  # one event for each step with new tokens of the request
                print(event.text, end="", flush=True)
            print()
        counts = engine.stats().counts
        rate = counts.generated / (time.perf_counter() - start)
        print(f"\n{len(requests)} texts, {counts.steps} steps, {rate:.0f} tokens/s")
        print(f"{counts.cached} of {counts.prompt} prompt tokens were in the prefix cache")


if __name__ == "__main__":
    main()
