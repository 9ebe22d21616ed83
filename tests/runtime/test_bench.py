"""Tests of bench_matmul: sizes and formats that it cannot measure are refused."""

import pytest

from npurt.errors import SettingError, UnsupportedOp
from npurt.runtime.api.bench import bench_matmul


@pytest.mark.parametrize(
    "sizes",
    [(1, 10**9, 10**9), (10**23, 32, 32), (10**9, 32, 10**9), (10**12, 32, 1)],
    ids=str,
)
@pytest.mark.parametrize("kind", ["q4_0", "i8"])
def test_a_product_that_no_memory_holds_is_refused_with_its_size(sizes, kind):
    with pytest.raises(SettingError, match=" x ".join(map(str, sizes))) as caught:
        bench_matmul(*sizes, kind, device="cpu")
    assert "GB" in caught.value.what


@pytest.mark.parametrize("size", [0, -1, 1.5, "3", None])
@pytest.mark.parametrize("at", range(3))
def test_a_size_is_a_whole_number(at, size):
    sizes: list = [1, 32, 8]
    sizes[at] = size
    with pytest.raises(SettingError, match=f"{'mkn'[at]} is {size!r}"):
        bench_matmul(*sizes, "q4_0", device="cpu")


@pytest.mark.parametrize("kind", ["q9_0", "q2_k", "", None, 5])
def test_the_remedy_names_what_can_be_measured(kind):
    with pytest.raises(UnsupportedOp) as caught:
        bench_matmul(1, 256, 8, kind, device="cpu", repetitions=1)

    named = caught.value.remedy.removeprefix("use one of ").split(", ")
    assert "i8" in named
    for name in named:
        assert bench_matmul(1, 256, 8, name, device="cpu", repetitions=1)["type"] == name
