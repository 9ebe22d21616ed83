"""Tails, listings, program files and the verb `npurt regcmd`."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cli import main
from npurt.errors import LayoutError
from npurt.rknpu import regcmd
from npurt.rknpu.lower import Profile
from npurt.rknpu.regs import REG, REGISTERS
from tests.rknpu.fixtures import load

ARGUMENTS = {"m": "4", "k": "64", "n": "64", "a": "0x1000000", "w": "0x2000000", "c": "0x3000000"}
MATMUL = ["regcmd", "matmul", *(f"--{name}={value}" for name, value in ARGUMENTS.items())]
PROGRAMS = load("foreign_words.json")["programs"]
MTX512 = [int(word, 16) for word in PROGRAMS[0][4]]


@pytest.mark.parametrize(
    ("body", "beats"),
    [(65, 34), (122, 62), (104, 53)],  # happyme531, rocket-userspace, mtx512
)
def test_the_amount_is_that_of_both_kernels(body, beats):
    """Linux rocket: (count + 1) / 2 - 1; vendor: (body + 4 + 1) / 2 - 1; and known values."""
    words = body + regcmd.TAIL

    assert regcmd.amount(words) == beats == (body + 4 + 2 - 1) // 2 - 1


def test_a_lone_tail_is_that_of_published_programs():
    short = [regcmd.encode(write) for write in regcmd.tail(Profile.SHORT.enable)]
    full = [regcmd.encode(write) for write in regcmd.tail(Profile.FULL.enable)]

    assert short == MTX512[-4:]
    assert full == [int(word, 16) for word in PROGRAMS[5][4][-4:]]


def test_a_chained_tail_points_at_the_next_task():
    words = [regcmd.encode(w) for w in regcmd.tail(Profile.FULL.enable, 0xABCD_EF40, 126)]

    assert words[0] == 0x0101_ABCD_EF40_0010
    assert words[1] == 0x0101_0000_003E_0014  # 62
    assert words[2:] == [0x0041_0000_0000_0000, 0x0081_0000_001D_0008]


def test_a_chain_to_an_odd_place_is_refused():
    with pytest.raises(LayoutError, match="0x1008"):
        regcmd.tail(REG["ENABLE"](), 0x1008, 126)


offsets = st.sampled_from([register.offset for register in REGISTERS])
words_of_registers = st.builds(
    lambda high, low: high << 16 | low, st.integers(0, 2**48 - 1), offsets
)


@given(st.lists(words_of_registers, min_size=1))
def test_programs_are_read_from_words_and_from_json(words):
    texts = [hex(word) for word in words]

    assert regcmd.parse(struct.pack(f"<{len(words)}Q", *words)) == words
    assert regcmd.parse(json.dumps(texts).encode()) == words
    assert regcmd.parse(json.dumps({"words": texts, "more": 1}).encode()) == words


@pytest.mark.parametrize(
    "data",
    [b"", b"1234567", b"[", b"{}", b"[1]", b'["x"]', b'["0x1ffffffffffffffff"]', b'{"words": 3}',
     b"[" * 100_000, b'["-1"]', b"\xff[", b'[null]', b'{"words": "0x12"}'],
)  # fmt: skip
def test_a_file_that_is_no_program_is_refused_with_a_remedy(data):
    with pytest.raises(LayoutError, match="remedy"):
        regcmd.parse(data)


def test_the_verb_names_every_field_of_a_foreign_program(tmp_path, capsys):
    file = tmp_path / "program.bin"
    file.write_bytes(struct.pack("<108Q", *MTX512))

    assert main(["regcmd", "decode", str(file)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 108
    assert lines[1].split()[:2] == ["1", "020100000000100c"]
    assert lines[11].split()[2:] == ["CNA_CBUF_CON0", "0x000000b1", "data_bank=1", "weight_bank=11"]
    assert "feature_base_addr=0x1000000" in lines[21]
    assert "unknown" not in " ".join(lines)
    assert "RESERVED" not in " ".join(lines)


def test_the_verb_prints_what_the_library_makes(tmp_path, capsys):
    assert main([*MATMUL, "--layout", "native-h", "--profile", "short", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)

    assert [int(word, 16) for word in printed["words"]] == MTX512
    assert all(len(word) == 18 and word.startswith("0x") for word in printed["words"])
    assert printed["listing"][11]["fields"]["weight_bank"] == 11

    file = tmp_path / "program.json"
    file.write_text(json.dumps(printed))
    assert main(["regcmd", "decode", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["words"] == printed["words"]


@pytest.mark.parametrize("layout", ["row", "native-w", "native-h"])
@pytest.mark.parametrize("dtype", ["int8", "fp16"])
@pytest.mark.parametrize(("profile", "words"), [("full", 126), ("short", 108)])
def test_every_choice_of_the_verb_gives_a_program(layout, dtype, profile, words, capsys):
    options = ["--layout", layout, "--dtype", dtype, "--profile", profile]

    assert main([*MATMUL, *options, "--json"]) == 0

    assert len(json.loads(capsys.readouterr().out)["words"]) == words


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--k", "65", "pad K to 96"),
        ("--n", "33", "pad N to 64"),
        ("--m", "0", "M = 0"),
        ("--m", "1022", None),
        ("--m", "1023", "feature_grains = 1024 does not fit"),
        ("--n", "8224", "N = 8224"),
        ("--k", "11296", "CBUF"),
        ("--a", "0x1000008", "CNA_FEATURE_DATA_ADDR"),
        ("--w", "0x100000000", "CNA_DCOMP_ADDR0"),
        ("--c", "-16", "DPU_DST_BASE_ADDR"),
    ],
)
def test_the_verb_refuses_what_does_not_fit(option, value, says, capsys):
    """The last value given counts, so each case spoils one option of a good command."""
    status = main([*MATMUL, f"{option}={value}"])

    assert status == (1 if says else 0)
    assert (says or "") in capsys.readouterr().err


def test_a_missing_file_is_an_error_with_its_name(capsys):
    assert main(["regcmd", "decode", "/nowhere/at/all"]) == 1
    assert "/nowhere/at/all" in capsys.readouterr().err
