"""Build Qualcomm's libcdsprpc (BSD-3-Clause) as its makefile does, and a kernel to run it on.

The library that boards have runs on sim/fastrpc_kernel, which is preloaded.  npurt loads the
library by its name, as on a board, and is never linked to it.
"""

import re
import shutil
from pathlib import Path

from npurt.build import PACKAGE, ROOT, build_library, host, make
from npurt.build_zig import Arg, Job, Stamp, objects, whole, zig
from tests.foreign.sources import Program, unpacked

PROGRAM = Program(
    "fastrpc",
    "https://github.com/qualcomm/fastrpc",
    "29851fde11d4e2a4ce221536485d0f7d46ffca30",
)
HERE = Path(__file__).parent

# The flags of src/Makefile.am without PARSE_YAML: libyaml would read settings of other machines.
# strl.h has the two functions that the library takes from libbsd.
FLAGS = [
    *("-g0", "-O2", "-w", "-fPIC", "-D_GNU_SOURCE", "-fno-short-enums", "-fno-sanitize=all"),
    *("-DARM_ARCH_7A", "-DLE_ENABLE", "-DENABLE_UPSTREAM_DRIVER_INTERFACE", "-DUSE_SYSLOG"),
    *("-DDEFAULT_DOMAIN_ID=3", '-DCONFIG_BASE_DIR="/usr/share/qcom/"'),
    '-DMACHINE_NAME_PATH="/sys/firmware/devicetree/base/model"',
    '-DDEFAULT_DSP_SEARCH_PATHS=";/usr/lib/rfsa/adsp;/usr/lib/dsp;"',
]


def sources(source: Path) -> list[Path]:
    """Return the source files of the library, from its makefile."""
    text = (source / "src/Makefile.am").read_text()
    listed = re.search(r"^LIBDSPRPC_SOURCES = ((?:.*\\\n)*.*)", text, re.MULTILINE)
    assert listed
    return [source / "src" / name for name in re.findall(r"\S+\.c\b", listed[1])]


def build() -> Path:
    """Build the library if it is not up to date; return its path.

    Raises:
        MissingError: The sources are not available here.
        BuildError: They do not compile.
    """
    source = unpacked(PROGRAM)
    library = source.with_name(f"{source.name}.built") / "libcdsprpc.so.1"
    flags: list[Arg] = [*FLAGS, f"-I{source / 'inc'}", "-include", HERE / "strl.h"]
    flags += ["-target", f"{host()}-linux-gnu.2.34"]
    inputs = [*source.rglob("*.[ch]"), HERE / "strl.h", Path(__file__)]
    stamp = Stamp(f"{source.name}-{host()}", inputs, "")
    if stamp.made() is None:
        folder = library.with_name("objects")
        folder.mkdir(parents=True, exist_ok=True)
        made = objects([Job(path, tuple(flags)) for path in sources(source)], folder)
        with whole(library) as partial:
            link = ["-shared", "-Wl,-soname,libcdsprpc.so.1", "-ldl", "-lm", "-lpthread"]
            zig("cc", *flags[-2:], *made, *link, "-o", partial)
        stamp.record([library])
    return library


def kernel(folder: Path) -> Path:
    """Build the kernel into *folder*, with npurt's simulator as the DSP; return the kernel's path.

    Raises:
        BuildError: It does not compile.
    """
    code = ROOT / "sim/fastrpc_kernel"
    simulator, shell = make(PACKAGE, host(), ("fastrpc", "shell"))
    shutil.copy(simulator, folder / "dsp_side.so")
    shutil.copy(shell, folder / "shell")
    sources = sorted(code.glob("*.c"))
    return build_library(host(), folder / "fastrpc_kernel.so", sources=sources, includes=[code])
