"""Convert matrices to the buffer images of a plan (weights, features), and results back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.rknpu.isa.formats import NumberFormat
from npurt.rknpu.isa.layout import (
    Bytes,
    arrange,
    pack_weights,
    pad,
    restore,
    to_bytes,
    unpack_weights,
)
from npurt.rknpu.plan.tiling import ProductPlan, WeightPlan


def weights_image(b: npt.NDArray[Any], plan: WeightPlan, core: int) -> Bytes:
    """Return a core's image of B ``[N, K]``: a flat array of `WeightPlan.image_bytes`.

    Raises:
        LayoutError: The elements are not of the plan's format.
    """
    rows = plan.cores[core]
    mine = pad(b[rows.start : rows.end], rows.size, plan.k_padded)
    slices = [pack_weights(mine[:, cut.start : cut.end], plan.format) for cut in plan.slices]
    return np.concatenate([packed.ravel() for packed in slices])


def _tile(format: NumberFormat) -> tuple[int, int]:
    return format.group, format.in_bytes(format.k_step)


def features_image(a: npt.NDArray[Any], plan: ProductPlan) -> Bytes:
    """Return the flat image of A ``[M, K]``, of `ProductPlan.a_bytes` bytes.

    Raises:
        LayoutError: The elements are not of the plan's format.
    """
    data = to_bytes(pad(a, plan.rows, plan.weights.k_padded), plan.weights.format)
    return arrange(data, plan.layout).ravel()


def results_matrix(images: Sequence[Bytes], plan: ProductPlan) -> npt.NDArray[Any]:
    """Return C ``[M, N]``, int32 or float32: the sum over K slices of the cores' results."""
    format = plan.weights.format
    total = np.int32 if format.out.startswith("int") else np.float32
    parts = []
    for image, blocks in zip(images, plan.blocks, strict=True):
        for columns, offset in blocks:
            size = plan.rows * columns.size * format.out_bytes
            slices = [
                restore(image[start : start + size], plan.layout, plan.rows).view(format.out)
                for start in range(offset, offset + size * len(plan.weights.slices), size)
            ]
            parts.append(np.sum(slices, axis=0, dtype=total))
    return np.concatenate(parts, axis=1)[: plan.m, : plan.weights.n]


def weights_rows(images: Sequence[Bytes], plan: WeightPlan, rows: slice) -> npt.NDArray[Any]:
    """Return *rows* ``[n, K]`` of B, with padded K, from the weight images of all cores."""
    format = plan.format
    start, stop, _ = rows.indices(plan.n)
    found = []
    for core, image in zip(plan.cores, images, strict=True):
        first, last = max(start, core.start), min(stop, core.end)
        if first >= last:
            continue
        groups = slice(
            (first - core.start) // format.group, -(-(last - core.start) // format.group)
        )
        edges = [core.size * format.in_bytes(cut.end) for cut in plan.slices[:-1]]
        tiled = [
            unpack_weights(
                part.reshape(core.size // format.group, -1, *_tile(format))[groups], format
            )
            for part in np.split(image, edges)
        ]
        skip = first - core.start - groups.start * format.group
        found.append(np.concatenate(tiled, axis=1)[skip : skip + last - first])
    return np.concatenate(found)
