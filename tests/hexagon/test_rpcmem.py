"""Test shared memory: its size, its lifetime while it has users, and no double allocation."""

import errno
import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import DeviceFull, DriverError, LayoutError
from npurt.hexagon.fastrpc.lib import load
from npurt.hexagon.fastrpc.rpcmem import (
    ALIGN,
    LARGEST,
    Block,
    BlockAllocator,
    Synchroniser,
    allocate,
)
from tests.hexagon.fake import compile_fake
from tests.limits import HANG_SECONDS


@pytest.mark.parametrize(("asked", "given"), [(1, 4096), (4096, 4096), (4097, 8192)])
def test_a_block_is_whole_pages_of_writable_bytes(fake, asked, given):
    block = allocate(fake.library, asked)

    assert (block.nbytes, block.array.nbytes, block.array.dtype) == (given, given, np.uint8)
    assert os.fstat(block.fd).st_size == given
    block.array[:] = 7
    assert os.pread(block.fd, 2, given - 2) == b"\7\7"  # the memory is found by its number


@pytest.mark.parametrize("nbytes", [0, -1, LARGEST + 1, 1 << 31, 3 << 30])
def test_sizes_that_the_library_garbles_are_refused(fake, nbytes):
    """From 2 GiB on, the library stores a wrong size and does not free the address space."""
    with pytest.raises(LayoutError, match=str(nbytes)):
        allocate(fake.library, nbytes)
    assert fake.count("alloc") == 0
    assert LARGEST % 4096 == 0
    assert LARGEST < 1 << 31


@pytest.mark.parametrize(("answer", "shown"), [(1, "0x0"), (2, "0xffffffffffffffff")])
def test_no_memory_is_an_error_in_either_of_the_librarys_spellings(fake, answer, shown):
    """The library returns NULL, or (void *) -1 if the mapping failed."""
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
    tail[:] = 3  # another call would crash
    del tail
    gc.collect()
    assert fake.count("free") == 1


def test_other_libraries_view_a_block_by_dlpack_and_keep_it(fake):
    block = allocate(fake.library, 8192)
    block.array[:] = 5
    assert block.__dlpack_device__() == (1, 0)  # kDLCPU

    view = np.from_dlpack(block)
    assert np.shares_memory(view, block.array)
    del block
    gc.collect()

    assert (fake.count("free"), view.sum()) == (0, 5 * 8192)
    del view
    gc.collect()
    assert fake.count("free") == 1


_OUTLIVES = """
import gc, sys
from npurt.hexagon.fastrpc import abi, lib, rpcmem

array = rpcmem.allocate(lib.load([sys.argv[1]]), 4096).array
del lib._library, abi.ffi  # as the end of the interpreter does, in an order of its own
gc.collect()
array[:] = 1
del array
print("freed")
"""


def test_memory_can_be_freed_when_nobody_holds_the_library_any_more(compiled_fake):
    """Arrays in cycles are freed last; if the library were unloaded, the process would crash."""
    command = [sys.executable, "-c", _OUTLIVES, str(compiled_fake.path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )

    assert (ended.returncode, ended.stdout) == (0, "freed\n"), ended.stderr


def test_the_kernel_is_asked_to_synchronise_and_asked_again_when_it_is_interrupted(fake):
    """The fake library accepts only the request DMA_BUF_IOCTL_SYNC, _IOW('b', 0, __u64)."""
    block = allocate(fake.library, 4096)
    fake.answer("sync", 1, errno.EINTR, times=2)

    Synchroniser(fake.library).for_device(block.fd)
    Synchroniser(fake.library).for_cpu(block.fd)

    counts = {flags: fake.count(f"sync{flags}") for flags in range(1, 8)}
    assert {flags: count for flags, count in counts.items() if count} == {6: 3, 1: 1}


def test_a_kernel_that_does_not_synchronise_is_an_error(fake):
    """Without the error, the caller would compute with arbitrary data."""
    block = allocate(fake.library, 4096)
    fake.answer("sync", 1, errno.EPERM)

    with pytest.raises(DriverError, match="not permitted") as caught:
        Synchroniser(fake.library).for_cpu(block.fd)
    assert caught.value.code == errno.EPERM
    assert caught.value.remedy


def test_what_is_no_dma_buf_needs_no_synchronising(fake):
    """A memfd, which another replacement of the library may return, answers ENOTTY."""
    Synchroniser(fake.library).for_device(-1)
    Synchroniser(fake.library).for_cpu(-1)

    assert fake.count("sync") == 0


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=40))
def test_parts_of_a_block_are_aligned_and_apart_and_can_be_had_again(steps):
    """Each step allocates a part, and may then free the oldest."""
    allocator = BlockAllocator(Block(np.zeros(40960, np.uint8), 5))
    held = []
    for number, (size, give) in enumerate(steps, 1):
        part = allocator.allocate(size)
        if part is not None:
            assert (part.nbytes, part.offset % ALIGN) == (size, 0)
            part.array[:] = number
            held.append((number, part))
        if give and held:
            allocator.free(held.pop(0)[1])
        assert all((part.array == number).all() for number, part in held)
    for _, part in held:
        allocator.free(part)

    whole = allocator.allocate(40960)
    assert whole is not None
    assert whole.array.nbytes == 40960
    assert allocator.allocate(1) is None


def test_what_fits_is_found():
    allocator = BlockAllocator(Block(np.zeros(512, np.uint8), 5))
    first, second, third = (allocator.allocate(size) for size in (1, 128, 129))

    assert [part.offset for part in (first, second, third)] == [0, 128, 256]
    assert allocator.allocate(1) is None
    allocator.free(second)
    allocator.free(first)
    assert allocator.allocate(256).offset == 0
