"""Compare facts that C and Python both need and that cannot be defined in one place.

See also tests/rknpu/test_one_home.py, and tests/hexagon/test_messages.py for batches and replies.
"""

import argparse
import dataclasses
import re
from pathlib import Path

import pytest

from npurt import cli, settings
from npurt.cpu.kernels import abi, layout
from npurt.cpu.pool import operands
from npurt.device import device
from npurt.device.segment import KV_DTYPES
from npurt.device.verify import Mode
from npurt.hexagon.fastrpc import rpcmem
from npurt.hexagon.layout import images, quantise
from npurt.hexagon.session import messages
from npurt.llm.file.pooling import Pooling
from npurt.quant import activations, canonical, types

ROOT = Path(__file__).parents[1]


def source(name):
    """Return a file of C without comments."""
    return re.sub(r"/\*.*?\*/", "", (ROOT / name).read_text(), flags=re.S)


def numbers(name):
    """Return the named numbers of a C file."""
    text = source(name)
    found = re.findall(r"#define (\w+) (\d+)u?\s*$", text, flags=re.M)
    found += re.findall(r"(\w+) = (0x[0-9a-fA-F]+|\d+)\s*[,}]", text)
    return {key: int(value, 0) for key, value in found}


def test_images_of_the_cpu_have_the_same_panels_in_both_languages():
    c = numbers("npurt/cpu/kernels/layout.h")

    assert (c["ROWS"], c["BLOCK"]) == (layout.ROWS, layout.BLOCK)
    assert c["BLOCK"] * c["RECORD_BLOCKS"] == layout.RECORD


def test_activations_share_a_scale_by_32_columns_everywhere():
    c = numbers("npurt/cpu/kernels/layout.h")

    assert c["BLOCK"] == activations.GROUP == quantise.BLOCK == 32


def books():
    """Return the codebooks of the CPU's kernels."""
    text = source("npurt/cpu/kernels/kernels.c")
    (table,) = re.findall(r"npurt_books\[3\]\[16\] = \{(.*?)\};", text, flags=re.S)
    return [[int(cell) for cell in row.split(",")] for row in re.findall(r"\{([^{}]*)\}", table)]


W4 = [name for name, (form, _, _) in canonical._LAYOUTS.items() if form == "w4"]


@pytest.mark.parametrize("name", W4)
def test_codes_of_4_bits_mean_the_same_in_kernels_and_in_the_canonical_form(name):
    """`canonical` has to do without compiled code, so the codebooks are there twice."""
    row = layout.table()[types.BY_NAME[name].number]
    bias = 1 << row.shift if row.shift >= 0 else 0
    linear = [code - bias for code in range(16)]

    assert row.bits == 4
    meant = books()[row.book] if row.book else linear
    assert meant == canonical._LAYOUTS[name][1].tolist()


def test_groups_of_experts_are_the_struct_of_the_header():
    struct = abi.ffi().typeof("npurt_group")
    fields = {name: (field.offset, field.type.cname) for name, field in struct.fields}
    in_c = {"<i4": "int32_t", "<i8": "int64_t"}

    assert operands.GROUP.itemsize == abi.ffi().sizeof(struct)
    assert fields == {
        name: (offset, in_c[of.str]) for name, (of, offset) in operands.GROUP.fields.items()
    }


def test_limits_are_those_that_c_reads_in_the_header():
    found = abi.ffi().typeof("enum npurt_limit").relements
    names = {re.sub("^NPURT_(MOST_)?", "", name).lower(): value for name, value in found.items()}

    assert dataclasses.asdict(abi.limits()) == names


def test_devices_multiply_as_many_rows_at_once_as_the_kernels_of_the_cpu():
    assert device.MAX_ROWS == abi.limits().rows == 512


def test_exact_products_stay_within_the_limit_of_the_kernels():
    """The kernels pad K to a multiple of 4."""
    assert abi.limits().exact >= -(-device.MAX_EXACT_K // 4) * 4


def test_images_of_the_hexagon_have_the_same_tiles_in_both_languages():
    c = numbers("dsp/kernels/kernels.h")

    assert (c["NPURT_TILE"], c["NPURT_STEP"]) == (images.TILE, images.STEP)
    assert images.VECTOR == messages.ALIGNMENT == rpcmem.ALIGN == c["NPURT_VECTOR"]
    assert numbers("dsp/kernels/epilogue.h")["BIAS"] == images.BIAS


def test_rounding_of_activations_has_the_same_constants_in_both_languages():
    c = numbers("dsp/kernels/quantise_row.h")

    for name in ("ROUND_UP", "LEAST_TOP", "ROW_EXPONENT", "LIFT"):
        assert getattr(quantise, name) == c[name], name
    assert numbers("dsp/kernels/delta_prepare.h")["LEAST_TOP"] == c["LEAST_TOP"]


def test_the_dsp_takes_activations_of_the_groupings_that_python_makes():
    body = source("dsp/kernels/multiply.c").partition("int npurt_takes_group(")[2].partition("}")[0]

    assert {int(n) for n in re.findall(r"group == (\d+)", body)} == set(quantise.GROUPS)


@pytest.mark.parametrize("simulator", ["fastrpc", "rknpu"])
def test_a_simulator_reads_the_variable_that_python_names(simulator):
    named = {"fastrpc": settings.SIM_FASTRPC, "rknpu": settings.SIM_RKNPU}[simulator]

    assert re.findall(r'getenv\("(\w+)"\)', source(f"sim/{simulator}/settings.c")) == [named]
    assert named in (ROOT / "docs/simulators.md").read_text()


def test_python_names_the_variables_of_simulators_in_one_file():
    written = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "npurt").rglob("*.py")
        if re.search(r"""["']NPURT_SIM_""", path.read_text())
    }

    assert written == {"npurt/settings.py"}


def options_of(verb):
    """Return the options of a verb of the command line, by their long names."""
    (verbs,) = (a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {a.option_strings[-1]: a for a in verbs.choices[verb]._actions if a.option_strings}


@pytest.mark.parametrize("verb", ["run", "chat", "bench", "embed", "perplexity"])
def test_the_command_line_offers_what_the_library_takes(verb):
    """The command line repeats the names, because importing the library takes too long for help."""
    options = options_of(verb)

    assert list(options["--verify"].choices) == [mode.value for mode in Mode]
    if "--kv-type" in options:
        assert list(options["--kv-type"].choices) == list(KV_DTYPES)
    if verb == "embed":
        assert list(options["--pooling"].choices) == [pooling.value for pooling in Pooling]
    if verb == "run":
        assert f"at most {device.MAX_ROWS}" in options["--batch-size"].help
