"""Measure the divergence of predictions on the RK3588 from exact arithmetic, by rounding scheme.

    python bench/rknpu_quality.py --models models/*.gguf --text tests/data/real/ppl_text.txt

Every product of a model is rounded, including the output matrix; the reference has float32
activations and a float32 KV cache. `npu` is npurt's scheme on the simulated NPU. `per row` has one
scale per row of activations and no rotation; `per tensor` has one scale for all rows.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from npurt.device.device import F32, Caps, Packed
from npurt.llm.measure.estimate import Divergence, Exact, divergence


class Plain(Exact):
    """int8 products with one scale per row of w, and one per row of x or one for all of x."""

    def __init__(self, *, per_row: bool) -> None:
        self.caps = Caps("plain int8", "numpy", simulated=True)
        self._axis = 1 if per_row else None

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        codes, scale = rounded(x, self._axis)
        for start in range(0, w.n, self.SLICE):
            rows = slice(start, start + self.SLICE)
            w_codes, w_scale = rounded(w.tensor[rows].dequantize(), 1)
            out[:, rows] = (codes @ w_codes.T) * scale * w_scale.T


def rounded(x: F32, axis: int | None) -> tuple[F32, F32]:
    scale = abs(x).max(axis=axis, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    return np.rint(x / scale), scale


def main() -> None:
    parser = argparse.ArgumentParser(description="Divergence of int8 schemes from exact products.")
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=350)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    text = args.text.read_text()
    rows: list[tuple[str, str, Divergence]] = []
    for model in args.models:
        for name, device in (
            ("npu", "rknpu:sim"),
            ("per row", Plain(per_row=True)),
            ("per tensor", Plain(per_row=False)),
        ):
            rows.append((model.name, name, divergence(model, device, text, tokens=args.tokens)))
            if not args.json:
                _, _, d = rows[-1]
                print(f"{model.name:45} {name:10}  KL {d.mean:.2e}, worst {d.worst:.1e}, "
                      f"same best {d.same_best:.3f}", flush=True)  # fmt: skip
    if args.json:
        print(json.dumps([{"model": m, "scheme": s, **asdict(d)} for m, s, d in rows]))


if __name__ == "__main__":
    main()
