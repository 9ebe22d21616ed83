"""Test a C program that only uses libcdsprpc's public interface, and the exported symbols."""

import ctypes
import os
import subprocess

import pytest

from tests import elf
from tests.limits import HANG_SECONDS
from tests.sim_fastrpc.conftest import HERE
from tools import build

SAID = """\
info 0: v68
unsigned 0
open 0
open 0
copied 0: 254 253 252 251
shared 0: 254
mmap 0
mapped 0: 9204, first 254
munmap 0
queue 0
import 0
write 0
read 0: IBM flags 0x11
close queue 0
close 0 0
"""

# The public functions of libcdsprpc, qualcomm/fastrpc 1.0.5, as `nm -D` shows them.
_PUBLIC_TEXT = """
    remote_handle_open remote_handle_invoke remote_handle_close remote_handle_control
    remote_handle64_open remote_handle64_invoke remote_handle64_close remote_handle64_control
    remote_session_control remote_set_mode fastrpc_mmap fastrpc_munmap
    remote_mmap remote_munmap remote_mmap64 remote_munmap64 remote_mem_map remote_mem_unmap
    remote_register_buf remote_register_buf_attr remote_register_buf_attr2
    remote_register_fd remote_register_fd2
    remote_register_dma_handle remote_register_dma_handle_attr
    rpcmem_init rpcmem_deinit rpcmem_alloc rpcmem_alloc2 rpcmem_free rpcmem_to_fd
    fastrpc_async_get_status fastrpc_release_async_job
    dspqueue_create dspqueue_close dspqueue_export dspqueue_request dspqueue_get_stat
    dspqueue_write dspqueue_write_noblock dspqueue_write_early_wakeup_noblock
    dspqueue_read dspqueue_read_noblock dspqueue_peek dspqueue_peek_noblock
    HAP_debug_v2 HAP_debug_runtime
"""
PUBLIC = _PUBLIC_TEXT.split()
DECLARED_ONLY = ("remote_handle_invoke_async", "remote_handle64_invoke_async", "dspqueue_import")


def test_a_c_program_runs_on_it(simulator, skels, tmp_path):
    """The program finds the simulator by the name of the real library, through a link."""
    program = tmp_path / "client"
    build.compile_executable([HERE / "client.c"], build.host(), program, static=False, includes=())
    (tmp_path / "libcdsprpc.so.1").symlink_to(simulator)
    folders = {"LD_LIBRARY_PATH": str(tmp_path), "DSP_LIBRARY_PATH": str(skels)}

    done = subprocess.run(
        [program, "libcdsprpc.so.1"],
        env={**os.environ, **folders},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )

    assert done.stdout == SAID, done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_the_47_public_functions_are_there(simulator):
    library = ctypes.CDLL(str(simulator))

    assert len(set(PUBLIC)) == 47
    assert [name for name in PUBLIC if not hasattr(library, name)] == []


@pytest.mark.parametrize("name", DECLARED_ONLY)
def test_what_the_real_library_only_declares_is_not_there(simulator, name):
    assert not hasattr(ctypes.CDLL(str(simulator)), name)


def test_nothing_but_the_public_functions_and_its_own_is_exported(simulator):
    names = set(elf.read(simulator).exports)

    theirs = {name for name in names if not name.startswith("npurt_sim_")}
    assert theirs == {*PUBLIC, "ioctl"}  # functions that a board's library takes from libc
