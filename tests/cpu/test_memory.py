"""Tests of memory for weights and activations: refusals, and memory without huge pages."""

import errno
import mmap
from types import SimpleNamespace

import numpy as np
import pytest

from npurt.cpu.device import CpuDevice
from npurt.cpu.pool import memory
from npurt.cpu.pool.memory import SMALL, allocate
from npurt.errors import NpurtError
from npurt.quant.tensor import QTensor


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOMEM, errno.EAGAIN])
def test_a_kernel_without_huge_pages_gives_others(monkeypatch, code):
    class Mapping(mmap.mmap):
        def madvise(self, *arguments):
            raise OSError(code, "no")

    names = vars(mmap) | {"mmap": Mapping}
    monkeypatch.setattr(memory, "mmap", SimpleNamespace(**names))
    array = allocate(SMALL, huge=True)

    assert array.nbytes == SMALL
    assert not array.any()
    with CpuDevice(1) as device:
        packed = device.pack(QTensor.quantize(np.ones((1024, 1024), np.float32), "q8_0"))
        y = np.empty((1, 1024), np.float32)
        device.matmul(np.ones((1, 1024), np.float32), packed, y)
    assert abs(y - 1024).max() < 1024 / 127


@pytest.mark.parametrize("nbytes", [1 << 50, 1 << 63, 1 << 80])
def test_more_than_there_is_is_refused_with_a_remedy(nbytes):
    with pytest.raises(NpurtError, match=f"no memory for {nbytes} bytes") as caught:
        allocate(nbytes)
    assert "-c" in caught.value.remedy
