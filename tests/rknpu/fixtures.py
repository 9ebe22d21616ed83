"""Fixtures of the RK3588 tests, and the Hypothesis strategy for tasks."""

import json
from pathlib import Path

from hypothesis import strategies as st

from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.task import Task

DATA = Path(__file__).resolve().parents[1] / "data/rknpu"

A, B, C = 0x100_0000, 0x200_0000, 0x300_0000  # addresses in the programs of other projects


def load(name):
    return json.loads((DATA / name).read_text())


def whole(format, layout, m, k, n):
    """Return a task that is a whole product: A and C are no larger than the task."""
    return Task(FORMATS[format], Layout(layout), m, k, n, rows=m, columns=k)


@st.composite
def tasks(draw, forms=tuple(FORMATS), layouts=tuple(Layout)):
    """Draw tasks that fit, in all formats and layouts; some are parts of larger matrices."""
    format = FORMATS[draw(st.sampled_from(forms))]
    layout = draw(st.sampled_from(layouts))
    panel = {Layout.PANEL8: 8, Layout.PANEL16: 16}.get(layout, 1)
    m = panel * draw(st.integers(1, 64 // panel))
    k = format.k_step * draw(st.integers(1, 12))
    n = format.group * draw(st.integers(1, 5))
    rows = m if layout is Layout.NATIVE_H else m + panel * draw(st.integers(0, 3))
    return Task(format, layout, m, k, n, rows, k + format.k_step * draw(st.integers(0, 2)))
