"""Count the cache maintenance that a model requests from the kernel (DMA_BUF_IOCTL_SYNC).

The simulator counts the requests and the whole sizes of their dma-bufs, which the kernel
synchronises whole. The output also has the bytes of activations and results that the same calls
carry.

    python bench/hexagon_sync.py models/SmolLM2-135M-Instruct.Q4_1.gguf [--prompt 128]
"""

import argparse
import ctypes
import json

import numpy as np

import npurt
from npurt.hexagon.device import batch
from npurt.hexagon.fastrpc import lib


def synchronised():
    """Return the total number of requests and of their bytes."""
    library = ctypes.CDLL(lib.simulator())
    library.npurt_sim_syncs.restype = ctypes.c_uint64
    nbytes = ctypes.c_uint64()
    return np.array([library.npurt_sim_syncs(ctypes.byref(nbytes)), nbytes.value])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    args = parser.parse_args()
    carried = np.zeros(1, np.int64)
    plain = batch.Batch.run

    def run(self, x, outs):
        carried[0] += x.nbytes + sum(out.nbytes for out in outs)
        plain(self, x, outs)

    batch.Batch.run = run
    n_ctx = args.prompt + 16
    with npurt.Llama(args.model, "hexagon:sim", n_ctx=n_ctx, progress=False) as llm:
        ids = (np.arange(args.prompt) % 1000 + 100).tolist()
        llm.eval_last([1, 2])
        for name, step in ((f"prefill of {args.prompt}", ids), ("token", [7])):
            before, carried[0] = synchronised(), 0
            llm.eval_last(step)
            calls, nbytes = synchronised() - before
            row = {"step": name, "calls": int(calls), "synchronised": int(nbytes)}
            print(json.dumps({**row, "carried": int(carried[0])}), flush=True)


if __name__ == "__main__":
    main()
