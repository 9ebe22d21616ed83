"""The interfaces of drivers in npurt and in the simulators, against Linux's own headers.

The headers are those of Linux that the compiler of the package `ziglang` brings (7.2 in 0.17.1).
npurt and the simulators each have these declarations of their own; here neither decides.
"""

import errno
import re
import subprocess
from pathlib import Path

import cffi
import pytest
import ziglang

from npurt.hexagon.doctor import elf
from npurt.hexagon.fastrpc import abi
from npurt.rknpu.driver import uapi_drm, uapi_rocket
from npurt.rknpu.driver.system import ffi
from tests.conftest import PROJECT

ZIG = Path(ziglang.__file__).parent
LINUX = ZIG / "lib/libc/include/any-linux-any"
ROCKET_SIM, FASTRPC_SIM = PROJECT / "sim/rknpu/abi.h", PROJECT / "sim/fastrpc_kernel/driver.h"

ROCKET = ("create_bo", "submit", "prep_bo", "fini_bo", "task", "job")
FASTRPC = {  # of sim/fastrpc_kernel -> of Linux
    "driver_argument": "fastrpc_invoke_args",
    "driver_invoke": "fastrpc_invoke",
    "driver_create": "fastrpc_init_create",
    "driver_map": "fastrpc_mem_map",
    "driver_unmap": "fastrpc_mem_unmap",
    "driver_mmap": "fastrpc_req_mmap",
    "driver_info": "fastrpc_ioctl_capability",
    "driver_dma": "fastrpc_alloc_dma_buf",
    "heap_allocation": "dma_heap_allocation_data",
}
DRM = {"drm_version": "drm_version", "drm_gem_close": "drm_gem_close"}
REQUESTS = {  # of sim/fastrpc_kernel -> of Linux
    "ALLOC_DMA": "ALLOC_DMA_BUFF", "INVOKE": "INVOKE", "CREATE": "INIT_CREATE",
    "ATTACH": "INIT_ATTACH", "MMAP": "MMAP", "MUNMAP": "MUNMAP", "MEM_MAP": "MEM_MAP",
    "MEM_UNMAP": "MEM_UNMAP", "DSP_INFO": "GET_DSP_INFO",
}  # fmt: skip
ERRNOS = (
    "EBUSY", "ENOMEM", "EFAULT", "EINVAL", "EIO", "ENODEV", "EACCES", "ENOSPC", "EINTR", "ENOENT",
    "EMFILE", "ETIMEDOUT", "ENOTTY", "EBADF", "ECONNRESET", "EPIPE",
)  # fmt: skip


def layout(types, name):
    """Return (offset, size) of every field of a struct, in order."""
    return [(f.offset, types.sizeof(f.type)) for _, f in types.typeof(name).fields]


def declared(text, *names):
    """Parse the named structs of a header, without its comments and macros; return cffi's types."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    text = re.sub(r"\b__([us])(8|16|32|64)\b", lambda m: f"{'u' * (m[1] == 'u')}int{m[2]}_t", text)
    text = text.replace("__kernel_size_t", "size_t")
    found = re.findall(r"(?m)^(?:struct \w+|typedef struct) \{[^{}]*\}\s*\w*;", text)
    names = {name.removeprefix("struct ") for name in names}
    types = cffi.FFI()
    types.cdef("\n".join(struct for struct in found if names & set(re.findall(r"\w+", struct))))
    return types


def of_header(header, name):
    """Return the layout of a struct of one of Linux's headers, or of a header of the simulators."""
    return layout(declared(header.read_text(), name), name)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Return the values of macros of Linux's and glibc's headers, as a program prints them."""
    macros = [
        *(f"DRM_IOCTL_ROCKET_{name.upper()}" for name in ROCKET[:4]),
        *("DRM_IOCTL_VERSION", "DRM_IOCTL_GEM_CLOSE", "DMA_BUF_IOCTL_SYNC", "DMA_HEAP_IOCTL_ALLOC"),
        *("DMA_BUF_SYNC_READ", "DMA_BUF_SYNC_WRITE", "DMA_BUF_SYNC_END"),
        *(f"FASTRPC_IOCTL_{name}" for name in REQUESTS.values()),
        *("EM_QDSP6", "ET_DYN", *ERRNOS),
        *(f"DT_{tag.name}" for tag in elf.Tag if tag.name in ELF_TAGS),
        *("PT_LOAD", "PT_DYNAMIC", "PT_TLS", "PF_X", "PF_W", "PF_R", "SHF_EXECINSTR"),
        *("STB_WEAK", "STT_TLS", "SHN_LORESERVE"),
    ]
    headers = ("drm/rocket_accel.h", "misc/fastrpc.h", "linux/dma-buf.h", "linux/dma-heap.h",
               "elf.h", "errno.h")  # fmt: skip
    folder = tmp_path_factory.mktemp("headers")
    (folder / "numbers.c").write_text(
        "".join(f"#include <{name}>\n" for name in headers)
        + "".join(f"unsigned n{i} = (unsigned) {name};\n" for i, name in enumerate(macros))
    )
    # the assembly has the numbers: no program is linked
    flags = ("-target", "x86_64-linux-gnu", "-S", "-fno-sanitize=undefined")
    command = [ZIG / "zig", "cc", *flags, "-o", folder / "numbers.s", folder / "numbers.c"]
    subprocess.run(command, check=True)
    text = (folder / "numbers.s").read_text()
    found = dict(re.findall(r"^n(\d+):\s+\.(?:long|zero)\s+(-?\w+)", text, re.M))
    zero = set(re.findall(r"^n(\d+):\s+\.zero", text, re.M))
    return {
        name: 0 if str(i) in zero else int(found[str(i)], 0) & 0xFFFFFFFF
        for i, name in enumerate(macros)
    }


ELF_TAGS = (
    "NULL", "NEEDED", "PLTRELSZ", "HASH", "STRTAB", "SYMTAB", "RELA", "RELASZ", "STRSZ", "SONAME",
    "TEXTREL", "JMPREL",
)  # fmt: skip


# --- rocket and DRM ------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ROCKET)
def test_structs_of_rocket_are_linux_s_in_npurt_and_in_the_simulator(part):
    want = of_header(LINUX / "drm/rocket_accel.h", f"struct drm_rocket_{part}")
    assert layout(ffi(), f"struct drm_rocket_{part}") == want
    assert of_header(ROCKET_SIM, f"struct rocket_{part}") == want


@pytest.mark.parametrize("name", DRM)
def test_structs_of_drm_are_linux_s_in_npurt_and_in_the_simulator(name):
    want = of_header(LINUX / "drm/drm.h", f"struct {name}")
    assert layout(ffi(), f"struct {name}") == want
    ours = of_header(ROCKET_SIM, f"struct {name}")
    padding = (12, 4)  # the simulator names the hole in drm_version
    assert [row for row in ours if name != "drm_version" or row != padding] == want


def test_requests_of_rocket_and_drm_are_linux_s(numbers):
    ours = {f"ROCKET_{r.name}": r.number for r in uapi_rocket.REQUESTS}
    ours |= {r.name: r.number for r in uapi_drm.REQUESTS}
    assert ours == {name: numbers[f"DRM_IOCTL_{name}"] for name in ours}
    simulated = re.findall(r"#define (\w+) DRM_IO\((\w+), (\w+), (struct \w+)\)",
                           ROCKET_SIM.read_text())  # fmt: skip
    types = declared(ROCKET_SIM.read_text(), *(row[3] for row in simulated))
    directions = {"IOC_IN": 1, "IOC_OUT": 2, "IOC_INOUT": 3}
    for name, direction, nr, struct in simulated:
        if name.startswith(("ROCKET_", "DRM_")):
            number = directions[direction] << 30 | types.sizeof(struct) << 16 | 0x6400 | int(nr, 16)
            assert number == ours[name.removeprefix("DRM_")], name


# --- FastRPC, dma-buf, dma-heap ------------------------------------------------------------------


@pytest.mark.parametrize("name", FASTRPC)
def test_structs_of_fastrpc_are_linux_s_in_the_replacement_of_the_driver(name):
    header = "linux/dma-heap.h" if name == "heap_allocation" else "misc/fastrpc.h"
    want = of_header(LINUX / header, f"struct {FASTRPC[name]}")
    assert of_header(FASTRPC_SIM, name) == want


def test_requests_of_fastrpc_are_linux_s_in_the_replacement_of_the_driver(numbers):
    found = dict(re.findall(r"FASTRPC_(\w+) = (\d+)", FASTRPC_SIM.read_text()))
    assert {name: int(number) for name, number in found.items()} == {
        name: numbers[f"FASTRPC_IOCTL_{theirs}"] & 0xFF for name, theirs in REQUESTS.items()
    }


def test_the_request_for_the_caches_of_a_dma_buf_is_linux_s(numbers):
    assert numbers["DMA_BUF_IOCTL_SYNC"] == abi.DMA_BUF_IOCTL_SYNC
    assert [int(flag) for flag in (abi.SyncFlag.READ, abi.SyncFlag.WRITE, abi.SyncFlag.END)] == [
        numbers[f"DMA_BUF_SYNC_{name}"] for name in ("READ", "WRITE", "END")
    ]


# --- ELF and errno -------------------------------------------------------------------------------


def test_numbers_of_elf_files_are_those_of_elf_h(numbers):
    """elf.h has no relocations of the Hexagon."""
    assert (numbers["EM_QDSP6"], numbers["ET_DYN"]) == (elf.MACHINE, elf.SHARED_OBJECT)
    tags = {tag.name: tag.value for tag in elf.Tag if tag.name in ELF_TAGS}
    assert tags == {name: numbers[f"DT_{name}"] for name in tags}
    assert len(tags) > 8
    shell = "".join(
        (PROJECT / f"sim/fastrpc/shell/{name}").read_text()
        for name in ("module.c", "elf.h", "vectors.c")
    )
    found = re.findall(r"\b((?:DT|PT|PF|EM|ET|SHF|STB|STT)_[A-Z_]+) = (\d+)", shell)
    known = {("EM_QDSP6" if n == "EM_HEXAGON" else n): int(value) for n, value in found}
    assert known == {name: numbers.get(name, value) for name, value in known.items()}
    assert {"EM_QDSP6", "DT_HASH", "PT_LOAD", "SHF_EXECINSTR"} <= set(known)


def test_errnos_are_those_of_this_python(numbers):
    assert {name: numbers[name] for name in ERRNOS} == {n: getattr(errno, n) for n in ERRNOS}
