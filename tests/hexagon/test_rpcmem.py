"""Shared memory: as large as asked for, alive while anybody can reach it, never given twice."""

import gc
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import DeviceFull, LayoutError
from npurt.hexagon import rpcmem
from npurt.hexagon.lib import load
from npurt.hexagon.rpcmem import ALIGN, LARGEST, Block, Filling, allocate
from tests.hexagon.fake import compile_fake


@pytest.mark.parametrize(("asked", "given"), [(1, 4096), (4096, 4096), (4097, 8192)])
def test_a_block_is_whole_pages_of_writable_bytes(fake, asked, given):
    block = allocate(fake.library, asked)

    assert (block.nbytes, block.array.nbytes, block.array.dtype) == (given, given, np.uint8)
    assert os.fstat(block.fd).st_size == given
    block.array[:] = 7
    assert os.pread(block.fd, 2, given - 2) == b"\7\7"  # the same memory by number


@pytest.mark.parametrize("nbytes", [0, -1, LARGEST + 1, 1 << 31, 3 << 30])
def test_sizes_that_the_library_garbles_are_refused(fake, nbytes):
    """From 2 GiB on it keeps a wrong size, and the address space is lost when it frees."""
    with pytest.raises(LayoutError, match=str(nbytes)):
        allocate(fake.library, nbytes)
    assert fake.count("alloc") == 0
    assert LARGEST % 4096 == 0
    assert LARGEST < 1 << 31


@pytest.mark.parametrize(("answer", "shown"), [(1, "0x0"), (2, "0xffffffffffffffff")])
def test_no_memory_is_an_error_in_either_of_the_librarys_spellings(fake, answer, shown):
    """It returns NULL, or (void *) -1 when mapping failed."""
    fake.answer("alloc", answer)

    with pytest.raises(DeviceFull, match=f"gave {shown}: ") as caught:
        allocate(fake.library, 4096)
    assert "dma_heap" in caught.value.remedy
    gc.collect()
    assert fake.count("free") == 0


def test_memory_without_a_number_is_given_back(fake):
    fake.answer("to_fd", 1)

    with pytest.raises(DeviceFull, match="rpcmem_to_fd"):
        allocate(fake.library, 4096)
    gc.collect()
    assert fake.count("free") == 1


def test_an_old_library_has_memory_too(tmp_path):
    old = load([str(compile_fake(tmp_path, defines=["OLD"], name="libold_rpc.so"))])

    assert allocate(old, 4096).nbytes == 4096


def test_a_block_lives_as_long_as_its_arrays(fake):
    block = allocate(fake.library, 8192)
    tail = block.array[4096:].view(np.float32)
    del block
    gc.collect()

    assert fake.count("free") == 0
    tail[:] = 3  # would crash
    del tail
    gc.collect()
    assert fake.count("free") == 1


def test_caches_are_synchronised_by_the_kernels_request_where_there_are_any(fake, monkeypatch):
    """DMA_BUF_IOCTL_SYNC, _IOW('b', 0, __u64): start is 0, end 4, read 1, write 2."""
    seen, answers = [], iter([None, None, InterruptedError(4, "EINTR"), None, OSError(25, "no")])

    def ioctl(fd, request, flags):
        seen.append((fd, request, int.from_bytes(flags, "little")))
        answer = next(answers)
        if answer:
            raise answer

    monkeypatch.setattr(rpcmem.fcntl, "ioctl", ioctl)
    block = Block(np.zeros(4096, np.uint8), 77)
    number = 1 << 30 | 8 << 16 | ord("b") << 8

    block.begin(write=True)
    block.end(write=True)
    block.begin(write=False)
    block.end(write=False)
    block.begin(write=True)

    assert seen == [(77, number, flags) for flags in (2, 6, 1, 1, 5)]


@given(st.lists(st.integers(1, 5000), max_size=30))
def test_parts_of_a_block_are_aligned_and_apart(sizes):
    block = Block(np.zeros(40960, np.uint8), 5)
    filling = Filling(block)
    parts = []
    for i, size in enumerate(sizes, 1):
        part = filling.take(size)
        if part is not None:
            part.array[:] = i
            parts.append((i, size, part))

    for i, size, part in parts:
        assert part.nbytes == size
        assert part.offset % ALIGN == 0
        assert (part.array == i).all()
    if sum(-(-size // ALIGN) * ALIGN for size in sizes) <= block.nbytes:
        assert len(parts) == len(sizes)
