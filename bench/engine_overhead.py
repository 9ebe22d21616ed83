"""CPU time that an engine takes in Python for each token, without the model: eight texts, greedy.

python bench/engine_overhead.py models/SmolLM2-135M-Instruct.Q4_1.gguf [--texts 8 --tokens 64]
"""

import argparse
import time

import npurt
from npurt.llm.batch.scheduler import Scheduler
from npurt.llm.batch.sequence import Sequence
from npurt.llm.decode.options import Request
from npurt.llm.spec.lookup import Lookup
from npurt.llm.spec.opening import Drafts

NOW = time.thread_time  # waiting for the pool's threads counts little, other processes nothing


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    with npurt.Llama(
        args.model, "cpu", n_ctx=512, max_sequences=args.texts + 2, progress=False, verify="off"
    ) as llm:
        scheduler = Scheduler(
            llm.model, sequences=args.texts, prefixes=0, drafts=Drafts(lambda context: Lookup(), 8)
        )
        options = {"temperature": 0, "max_tokens": args.tokens, "ignore_eos": True}
        for number in range(args.texts):
            prompt = llm.tokenize(f"Fact {number}:")
            scheduler.submit(Sequence(number, prompt, Request.of(options, None), llm.tokenizer))
        run, spent = llm.model.executor.run, []

        def timed(*arguments):
            start = NOW()
            try:
                return run(*arguments)
            finally:
                spent.append(NOW() - start)

        llm.model.executor.run = timed
        scheduler.step()  # the prompts
        spent.clear()
        before, start = scheduler.counts.generated, NOW()
        while scheduler.texts:
            scheduler.step()
        tokens = scheduler.counts.generated - before
        python = NOW() - start - sum(spent)
        print(f"{args.texts} texts, {tokens} tokens: {1e6 * python / tokens:.0f} us a token")


if __name__ == "__main__":
    main()
