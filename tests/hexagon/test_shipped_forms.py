"""Test that `verify` has no error for the forms of files that vendors ship and that load.

The forms are those of the 263 libraries for a CDSP in Debian's hexagon-dsp-binaries 0~20261019-1.
None of these files is here: `objects` writes files of the same forms.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.hexagon.doctor import elf, shell_names
from npurt.hexagon.doctor.loadable import RELOCATIONS, missing, verify
from npurt.hexagon.doctor.undeclared import UNDECLARED
from tests.hexagon.objects import (
    DTPMOD_32,
    NOTE,
    R_32,
    RELATIVE,
    RELRO,
    shared_object,
)

HELPERS = ("__hexagon_udivsi3", "__hexagon_divsi3", "memscpy", "pthread_create", "qurt_sem_add")
LIBRARIES = ("libc.so", "libgcc.so", "libc++.so.1", "libc++abi.so.1")


def levels(data, level="error", **asked):
    return [finding.what for finding in verify(data, **asked) if finding.level == level]


FORMS = {
    "nothing of its own": {},
    "no name": {"soname": None},
    "a name": {"soname": "libcalculator_skel.so"},
    "thread-local variables": {"tls": True},
    "read-only after relocation": {"extra": (RELRO,)},
    "a note": {"extra": (NOTE,)},
    "four segments": {"loads": 4},
    "absolute and relative words": {"relocations": (R_32, RELATIVE)},
    "helpers of the compiler": {"imports": HELPERS},
    "names that no header declares": {"imports": ("qurt_qdi_qhi3", "__qdsp_udivsi3")},
    "the C library": {"needed": ("libc.so", "libgcc.so"), "imports": ("fopen", "__moddi9")},
    "C++": {"needed": LIBRARIES[2:], "imports": ("_Znwj", "_ZSt9terminatev", "__cxa_throw")},
    "an older interface": {"exports": ("calculator_skel_invoke",)},
    "a library": {"exports": ("synx_create", "synx_wait"), "soname": "libsynx.so"},
    "no export": {"exports": ()},
    "a checksum": {"swiv": True},
    "everything": {
        "tls": True, "loads": 4, "extra": (NOTE, RELRO), "needed": LIBRARIES, "swiv": True,
        "imports": (*HELPERS, "_Znwj"), "weak": ("HAP_debug_v2",), "relocations": (R_32,),
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arch", [*shell_names.LISTED, 66])
def test_a_shipped_form_is_no_error(form, arch):
    data = shared_object(arch=arch, **FORMS[form])

    assert levels(data, arch=arch) == []
    assert levels(data) == []


@pytest.mark.parametrize("form", ["nothing of its own", "helpers of the compiler", "a checksum"])
def test_the_plain_forms_have_no_warning_either(form):
    assert verify(shared_object(**FORMS[form])) == []


@pytest.mark.parametrize("arch", shell_names.LISTED)
def test_every_listed_name_of_a_version_is_no_error_there_and_one_elsewhere(arch):
    names = sorted(shell_names.exported(arch))
    others = sorted(set(shell_names.table()) - set(names))

    assert levels(shared_object(arch=arch, imports=names), arch=arch) == []
    found = levels(shared_object(arch=arch, imports=others), arch=arch)
    assert found == [
        f"the skel imports {name}, which no known shell of a v{arch} exports (0x80000406)"
        for name in others
    ]
    assert others  # no version has all names


def test_without_the_dsps_version_the_version_of_the_file_decides():
    """A file for v68 loads on newer DSPs too, whose shells have other names."""
    only_68 = next(name for name, have in sorted(shell_names.table().items()) if have == {68})

    assert levels(shared_object(arch=68, imports=(only_68,))) == []
    assert only_68 in levels(shared_object(arch=68, imports=(only_68,)), arch=73)[0]


def test_a_library_of_c_does_not_define_names_of_cpp():
    found = levels(shared_object(needed=("libc.so",), imports=("_Znwj", "fopen")))

    assert found == ["the skel imports _Znwj, which no known shell of a v68 exports (0x80000406)"]
    (named,) = [w for w in levels(shared_object(needed=("libc.so",), imports=("fopen",)), "warning")
                if "must define" in w]  # fmt: skip
    assert named.startswith("libc.so must define fopen")


def test_a_name_that_the_old_patterns_accepted_is_an_error():
    """QuRT's headers define qurt_sem_up inline; no shell exports it."""
    assert levels(shared_object(imports=("qurt_sem_up",))) == [
        "the skel imports qurt_sem_up, which no known shell of a v68 exports (0x80000406)"
    ]


def test_no_name_is_both_declared_and_undeclared():
    assert not UNDECLARED & set(shell_names.table())


def test_thread_local_relocations_have_names():
    read = elf.read(shared_object(tls=True))

    assert read.relocations == {"DTPMOD_32": 1, "DTPREL_32": 1}
    assert set(read.relocations) <= RELOCATIONS
    assert DTPMOD_32 == 44


def test_a_shell_of_megabytes_is_read_at_once():
    """Shells export about 1700 names and import nothing."""
    names = [f"name_{i:04}" for i in range(5000)]
    data = shared_object(exports=names, tls=True, arch=85) + bytes(2 << 20)

    arch, exports = elf.exports(data)

    assert arch == 85
    assert set(exports) == {*names, "thread_local_variable"}


@given(st.dictionaries(st.sampled_from(sorted(shell_names.table())), st.booleans()))
def test_what_is_missing_is_exactly_what_the_shell_lacks(imports):
    have = set(list(imports)[::2])

    assert missing(imports, 68, have) == {
        name: weak for name, weak in imports.items() if name not in have
    }
    assert missing(imports, 68, imports) == {}
