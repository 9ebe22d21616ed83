"""Compare the predictions of quantised files with those of the file that they are made from.

    python bench/quantise_quality.py MODEL --text FILE --work FOLDER --types q4_0 q4_0+i q4_k_m

``+i`` uses an importance matrix. It is measured on the part of the text before the compared part:
mean squares of the inputs of each matrix, on device numpy, as in llama-imatrix.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import npurt
from npurt.graph import meaning, ops
from npurt.graph.state import Run
from npurt.llm.convert.requantise import requantise
from npurt.llm.file.writer import NewTensor, encoded, write
from npurt.quant.types import BY_NAME


def measured(model: Path, ids: list[int], path: Path) -> None:
    """Measure the importance matrix of *model* on the tokens *ids*, and write it to *path*."""
    sums: dict[str, Any] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    kernel = meaning.MEANING[ops.MatMul]

    def watched(op: ops.MatMul, run: Run) -> tuple[Any, ...]:
        x = run[op.x]
        sums[op.weight.name] += (x.astype(np.float64) ** 2).sum(axis=0)
        counts[op.weight.name] += len(x)
        return kernel(op, run)

    meaning.MEANING[ops.MatMul] = watched
    try:
        with npurt.Llama(model, device="numpy", n_ctx=len(ids)) as llm:
            llm.eval(ids)
    finally:
        meaning.MEANING[ops.MatMul] = kernel
    tensors = []
    for name, values in sums.items():
        for suffix, array in (("in_sum2", values[None]), ("counts", [[counts[name]]])):
            data = np.asarray(array, np.float32)
            tensors.append(NewTensor(f"{name}.{suffix}", data.shape, BY_NAME["f32"],
                                     lambda data=data: [data]))  # fmt: skip
    write(path, {"general.type": encoded("general.type", "imatrix")}, tensors, progress=False)


def log_probabilities(model: Path, ids: list[int], chunk: int) -> Any:
    """Return the log probabilities after each token of each chunk."""
    with npurt.Llama(model, n_ctx=chunk) as llm:
        found = []
        for start in range(0, len(ids) - chunk + 1, chunk):
            llm.reset()
            logits = llm.eval(ids[start : start + chunk]).astype(np.float64)
            logits -= logits.max(axis=-1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            found.append(logits.astype(np.float32))
    return np.stack(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Divergence of quantised files.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--types", nargs="+", required=True)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--chunks", type=int, default=6, help="number of compared chunks")
    parser.add_argument("--measured", type=int, default=1024, help="for the importance matrix")
    args = parser.parse_args()
    with npurt.Llama(args.model, n_ctx=64) as llm:
        ids = llm.tokenize(args.text.read_text())
    matrix = args.work / f"{args.model.stem}.imatrix.gguf"
    if any(kind.endswith("+i") for kind in args.types):
        measured(args.model, ids[: args.measured], matrix)
    rest = ids[args.measured :][: args.chunk * args.chunks]
    reference = log_probabilities(args.model, rest, args.chunk)
    targets = np.array(rest)[: reference.shape[0] * args.chunk].reshape(reference.shape[:2])[:, 1:]
    for kind in args.types:
        plain, _, with_matrix = kind.partition("+")
        path = args.work / f"{args.model.stem}-{kind}.gguf"
        requantise(args.model, path, plain, importance=matrix if with_matrix else None)
        found = log_probabilities(path, rest, args.chunk)
        p = np.exp(reference.astype(np.float64))
        kl = (p * (reference - found)).sum(axis=-1)
        scores = np.take_along_axis(found[:, :-1], targets[..., None], axis=-1)
        print(json.dumps({
            "type": kind, "MB": round(path.stat().st_size / 1e6, 1),
            "kl": float(kl.mean()), "kl_error": float(kl.std() / kl.size**0.5),
            "perplexity": float(np.exp(-scores.mean())),
            "same_best": float((reference.argmax(-1) == found.argmax(-1)).mean()),
        }), flush=True)  # fmt: skip
        path.unlink()


if __name__ == "__main__":
    main()
