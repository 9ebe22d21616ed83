"""Measure an engine's CPU time per token outside the model, and its share in Python.

    python bench/engine_overhead.py models/SmolLM2-135M-Instruct.Q4_1.gguf [--texts 8 --tokens 64]

The rest is in C functions that read all logits of a row: numpy's argmax or, with --temperature
above 0, npurt's sampling.  They wait for memory, because a step evicts the row from the caches.
"""

import argparse
import time

import npurt
from npurt.llm.decode import sampler
from npurt.llm.decode.options import GenerationRequest
from npurt.llm.decode.samplers import top_k
from npurt.llm.decode.samplers.in_c import Draw
from npurt.llm.engine.scheduler import Scheduler
from npurt.llm.engine.sequence import Sequence
from npurt.llm.spec.lookup import Lookup
from npurt.llm.spec.opening import Drafts

NOW = time.thread_time  # waits for the thread pool count little, other processes not at all


def timed(function, seconds):
    """Return *function* wrapped, so that each call appends its CPU time to *seconds*."""

    def call(*arguments):
        start = NOW()
        try:
            return function(*arguments)
        finally:
            seconds.append(NOW() - start)

    return call


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=40)
    args = parser.parse_args()
    with npurt.Llama(
        args.model, "cpu", n_ctx=512, max_sequences=args.texts + 2, progress=False, verify="off"
    ) as llm:
        scheduler = Scheduler(
            llm.model, sequences=args.texts, prefixes=0, drafts=Drafts(lambda context: Lookup(), 8)
        )
        options = {
            "temperature": args.temperature,
            "top_k": args.top_k,
            "seed": 1,
            "max_tokens": args.tokens,
            "ignore_eos": True,
        }
        for number in range(args.texts):
            prompt = llm.tokenize(f"Fact {number}:")
            scheduler.submit(
                Sequence(number, prompt, GenerationRequest.of(options, None), llm.tokenizer)
            )
        in_model, in_c = [], []
        llm.model.executor.run = timed(llm.model.executor.run, in_model)
        sampler.best_of = timed(sampler.best_of, in_c)
        top_k.best = timed(top_k.best, in_c)
        Draw.__call__ = timed(Draw.__call__, in_c)
        scheduler.step()  # prefill of the prompts
        in_model.clear()
        in_c.clear()
        before, start = scheduler.counts.generated, NOW()
        while scheduler.sequences:
            scheduler.step()
        tokens = scheduler.counts.generated - before
        seconds = NOW() - start - sum(in_model)
        print(
            f"{args.texts} texts, {tokens} tokens: {1e6 * seconds / tokens:.0f} us a token, "
            f"of which {1e6 * sum(in_c) / tokens:.0f} in C that reads {llm.config.n_vocab} logits"
        )


if __name__ == "__main__":
    main()
