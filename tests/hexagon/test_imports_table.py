"""The table of the skel's imports in docs/hexagon.md is that of the shipped skels and headers."""

import re

import pytest

from npurt.hexagon.doctor import elf, shell_names
from npurt.hexagon.session import skel
from tests.conftest import PROJECT
from tests.hexagon import test_refused_calls as refused
from tools.build import ARCHS, hexagon

PAGE = (PROJECT / "docs/hexagon.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## What the skel calls", 1)[1].split("\n## ")[0]
ROWS = {
    row[0]: row[1:]
    for row in re.findall(r"(?m)^\| `(\w+)` \| `(.+?)` \| `(.+?)` \| (.+?) \| (.+?) \|$", SECTION)
}
PROTOTYPE = re.compile(r"^(?:HAP_WEAK |DSPQUEUE_API )?((?:\w+ )\*?(\w+)\([^;{]*\));", re.M)


def declared():
    """Return our prototypes by the name of the import."""
    found = {}
    for name in ("qurt.h", "hap.h", "dspqueue.h"):
        text = (PROJECT / "dsp" / name).read_text(encoding="utf-8")
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        for prototype, plain in PROTOTYPE.findall(text):
            wrapped = plain in hexagon.WRAPPED  # the linker changes these names
            found[f"__wrap_{plain}" if wrapped else plain] = " ".join(prototype.split())
    return found


def parts(signature, name=""):
    """Return the types of a signature in a form that both columns share."""
    text = signature.replace(f"{name}(", "(", 1) if name else signature
    text = re.sub(r"\bAEEResult\b", "int", text)
    text = re.sub(
        r"\bunsigned (short|char)\b", lambda m: f"uint{8 * (1 + (m[1] == 'short'))}_t", text
    )
    result, _, rest = text.partition("(")
    return result.replace(" ", ""), rest.count(",")


@pytest.mark.parametrize("arch", ARCHS)
def test_the_table_has_the_imports_of_the_skels(arch):
    imports = elf.read(skel.choose(int(arch.removeprefix("v"))).read_bytes()).imports
    assert set(ROWS) == set(imports)
    weak = {name for name in imports if imports[name]}
    in_headers = {n for n in ROWS if n.startswith(("HAP_power", "compute_resource", "dspqueue"))}
    assert weak == in_headers


def test_the_column_ours_is_what_our_headers_declare():
    assert {name: ours for name, (_, ours, *_) in ROWS.items()} == {
        name: prototype for name, prototype in declared().items() if name in ROWS
    }


@pytest.mark.parametrize("name", ROWS)
def test_both_signatures_have_the_same_result_and_number_of_arguments(name):
    public, ours, *_ = ROWS[name]
    plain = name.removeprefix("__wrap_")
    assert parts(public) == parts(ours, plain)


def test_a_row_says_what_can_fail_for_exactly_the_calls_that_can():
    cannot = {name for name, (*_, fails, _) in ROWS.items() if fails.startswith("nothing")}
    assert cannot == refused.CANNOT_FAIL


def test_every_import_is_in_the_list_of_names():
    assert set(ROWS) <= shell_names.exported(68)
