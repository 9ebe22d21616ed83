"""Test the packaged skel on the simulator: the answers of its methods, and invalid calls."""

import hashlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.hexagon.doctor import elf, shell_names
from npurt.hexagon.doctor.loadable import verify
from npurt.hexagon.fastrpc import abi
from npurt.hexagon.fastrpc.control import session_pool
from npurt.hexagon.fastrpc.handle import Handle, Invocation
from npurt.hexagon.fastrpc.rpcmem import allocate
from npurt.hexagon.idl.interface import interface
from npurt.hexagon.session import skel
from tests.hexagon.dsp import call_of, code_of, simulated
from tools import build

MANIFEST = json.loads((skel.FOLDER / "manifest.json").read_text())
ARCHS = [int(name.removeprefix("v")) for name in MANIFEST["skels"]]

# All functions of the DSP that the skel uses; True: the skel also works without it.
IMPORTS = {
    **dict.fromkeys(("__wrap_malloc", "__wrap_free", "HAP_mmap", "HAP_munmap"), False),
    **dict.fromkeys(("qurt_thread_create", "qurt_thread_join", "qurt_thread_exit"), False),
    **dict.fromkeys(("qurt_thread_get_id", "qurt_thread_get_priority"), False),
    **dict.fromkeys(("qurt_futex_wait", "qurt_futex_wake", "qurt_mem_cache_clean"), False),
    **dict.fromkeys(("qurt_sem_init_val", "qurt_sem_add", "qurt_sem_down"), False),
    **dict.fromkeys(("qurt_sem_destroy", "qurt_hvx_get_units"), False),
    **dict.fromkeys(("HAP_power_set", "compute_resource_attr_init"), True),
    **dict.fromkeys(("compute_resource_attr_set_vtcm_param", "compute_resource_acquire"), True),
    **dict.fromkeys(("compute_resource_attr_get_vtcm_ptr", "compute_resource_release"), True),
    **dict.fromkeys(("dspqueue_import", "dspqueue_close", "dspqueue_read_noblock"), True),
    **dict.fromkeys(("dspqueue_write",), True),
}


# --- the files -----------------------------------------------------------------------------------


def file_of(arch):
    return skel.FOLDER / MANIFEST["skels"][f"v{arch}"]["file"]


def test_there_is_a_skel_for_every_version_that_npurt_names():
    assert [f"v{arch}" for arch in ARCHS] == list(build.ARCHS)
    assert ARCHS == [68, 69, 73, 75, 79, 81]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_manifest_tells_the_truth(arch):
    row = MANIFEST["skels"][f"v{arch}"]
    data = file_of(arch).read_bytes()

    assert row["sha256"] == hashlib.sha256(data).hexdigest()
    assert row["bytes"] == len(data)
    assert verify(data, arch=arch, entry=MANIFEST["symbol"]) == []


@pytest.mark.parametrize("arch", ARCHS)
def test_a_skel_has_the_shape_that_loads_and_asks_for_no_more_than_it_may(arch):
    read = elf.read(file_of(arch).read_bytes())

    assert read.arch == arch
    assert (read.soname, read.needed) == (file_of(arch).name, ())
    assert read.exports == (skel.ENTRY,)
    assert read.imports == IMPORTS
    assert [(s.kind, str(s.access), s.align) for s in read.segments] == [
        (1, "RX", 4096),
        (1, "RW", 4096),
        (2, "RW", 4096),
    ]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_skel_imports_only_names_that_the_shells_of_its_version_export(arch):
    assert set(elf.read(file_of(arch).read_bytes()).imports) <= shell_names.exported(arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_skel_has_the_dynamic_entries_of_shipped_ones(arch):
    """All 263 shipped objects have DT_HEXAGON_VER = 3; half have DT_SYMBOLIC, none DT_FLAGS."""
    data = file_of(arch).read_bytes()
    (segment,) = (s for s in elf.read(data).segments if s.kind == elf.SegmentType.DYNAMIC)
    table = data[segment.offset : segment.offset + segment.file_bytes]
    entries = dict(struct.iter_unpack("<II", table))

    assert entries[0x70000001] == 3
    assert entries[16] == 0
    assert 30 not in entries


# --- the methods ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_info_says_what_it_is_and_what_the_dsp_grants(arch):
    with simulated(f"arch=v{arch} hvx=3 power={int(arch == 79)}") as session:
        info = session.info

    assert (info.protocol, info.arch, info.threads, info.hvx_units) == (3, arch, 3, 3)
    assert info.vtcm_bytes == 3 * 512 << 10
    assert info.power == int(arch == 79)
    assert f"{info.build:016x}" == MANIFEST["build"]
    assert info.max_maps >= 64


@pytest.mark.parametrize(
    ("vtcm", "granted"), [("2M", 2048), ("1M", 1024), ("640K", 512), ("255K", 0), (0, 0)]
)
def test_a_dsp_with_less_vtcm_grants_a_part_and_perhaps_none(vtcm, granted):
    """Four threads request 2 MiB; the parameters are in KiB."""
    with simulated(f"vtcm={vtcm}") as session:
        assert session.info.vtcm_bytes == granted << 10


@pytest.mark.parametrize(("hvx", "threads"), [(0, 1), (1, 1), (8, 8), (16, 8)])
def test_there_is_a_thread_for_each_hvx_context_one_at_least_and_eight_at_most(hvx, threads):
    with simulated(f"hvx={hvx}") as session:
        assert session.info.threads == threads


@given(nonce=st.integers(0, 2**64 - 1))
def test_an_echo_is_changed_by_the_dsp(dsp, nonce):
    """The values are those of the interface's comment."""
    assert dsp.session.call("echo", nonce) == (nonce ^ 0x9E3779B97F4A7C15,)


def test_a_block_is_mapped_once_and_only_what_is_mapped_is_unmapped(dsp):
    block = dsp.session.allocate(4096)

    assert code_of(dsp.session.call, "map", block.fd, 4096) == 0x8000041A
    assert code_of(dsp.session.call, "unmap", block.fd) == 0
    assert code_of(dsp.session.call, "unmap", block.fd) == 0x80000448
    assert code_of(dsp.session.call, "map", block.fd, 4096) == 0


@pytest.mark.parametrize(("fd", "nbytes"), [(-1, 4096), (3, 0), (3, 2**31), (3, 2**32 - 1)])
def test_what_cannot_be_mapped_is_refused(dsp, fd, nbytes):
    assert code_of(dsp.session.call, "map", fd, nbytes) == 0x8000040E


def test_what_the_host_does_not_share_is_not_mapped(dsp):
    assert code_of(dsp.session.call, "map", 999, 4096) == 0x80000465
    assert code_of(dsp.session.call, "map", dsp.session.allocate(4096).fd, 4096) == 0x8000041A


def test_as_many_blocks_are_mapped_as_info_says_and_again_when_some_are_free():
    with simulated() as session:
        blocks = [session.allocate(4096) for _ in range(session.info.max_maps)]
        with pytest.raises(Exception, match="cannot map"):
            session.allocate(4096)

        session.free(blocks[3])

        assert session.allocate(4096)


@given(data=st.data())
def test_a_checksum_is_the_sum_of_both_parts(dsp, data):
    passed = data.draw(st.binary(max_size=100))
    offset = data.draw(st.integers(0, 5000))
    nbytes = data.draw(st.integers(0, 5000))
    dsp.block.array[:10000] = data.draw(st.randoms(use_true_random=False)).randbytes(1)[0]
    dsp.block.array[5000:5001] += 1
    dsp.session.sync_for_device(dsp.block)

    (total,) = dsp.session.call("checksum", passed, dsp.block.fd, offset, nbytes)

    assert total == sum(passed) + int(dsp.block.array[offset : offset + nbytes].sum())


def test_a_checksum_of_memory_that_is_not_mapped_is_refused(dsp):
    end = dsp.block.nbytes
    for fd, offset, nbytes in [
        (999, 0, 1),
        (dsp.block.fd, end, 1),
        (dsp.block.fd, 2**32 - 1, 2),
        (dsp.block.fd, 1, end),
    ]:
        assert code_of(dsp.session.call, "checksum", b"", fd, offset, nbytes) == 0x80000448


def test_a_reply_that_does_not_fit_is_refused(dsp):
    request = dsp.request()

    assert code_of(dsp.session.call, "execute", request.data, 23) == 0x8000040E


def test_a_handle_that_is_closed_gives_back_address_space():
    """The test maps a quarter of the address space ten times."""
    with simulated("space=64M") as session:
        library, slot = session.library, session.slot
        uri = session_pool(library).uri(slot, skel.module(skel.choose(68)))
        for _ in range(10):
            block = allocate(library, 16 << 20)
            area = slot.effective, block.fd, abi.ffi().cast("void *", block.array.ctypes.data)
            library.check("fastrpc_mmap", *area, 0, block.nbytes, abi.MapFlag.FD_DELAYED)
            handle = Handle(library, uri)
            handle.open()
            handle.invoke(Invocation(interface().method("map").pack(block.fd, block.nbytes)))
            handle.close()
            library.check("fastrpc_munmap", *area, block.nbytes)


def test_a_handle_that_is_closed_gives_back_vtcm():
    """The session's handle has one half of VTCM; each of the other handles gets the other half."""
    with simulated("hvx=1 vtcm=1M") as session:
        uri = session_pool(session.library).uri(session.slot, skel.module(skel.choose(68)))
        granted = [session.info.vtcm_bytes]
        for _ in range(3):
            handle = Handle(session.library, uri)
            handle.open()
            call = call_of("info")
            handle.invoke(Invocation(call))
            granted.append(call.unpack()[0]["vtcm_bytes"])
            handle.close()

    assert granted == [512 << 10] * 4
