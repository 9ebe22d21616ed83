"""Test program tails, listings, program files and the verb `npurt regcmd`."""

import io
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cli import main
from npurt.errors import LayoutError
from npurt.rknpu.isa import regcmd
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.regs import REG, REGISTERS
from tests.llm import tiny
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
    """Linux rocket computes (count + 1) / 2 - 1, and the vendor's (body + 4 + 1) / 2 - 1."""
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


def raw(words):
    return struct.pack(f"<{len(words)}Q", *words)


words_of_registers = st.builds(
    lambda register, value: register.target << 48 | value << 16 | register.offset,
    st.sampled_from([register for register in REGISTERS if register.offset]),
    st.integers(0, 2**32 - 1),
)


@given(st.lists(words_of_registers, min_size=1))
def test_programs_are_read_from_words_and_from_json(words):
    texts = [hex(word) for word in words]

    assert regcmd.parse(raw(words)) == words
    assert regcmd.parse(json.dumps(texts).encode()) == words
    assert regcmd.parse(json.dumps([text[2:].upper() for text in texts]).encode()) == words
    assert regcmd.parse(json.dumps({"words": texts, "more": 1}).encode()) == words


WORD = '"0x0201000000b11040"'


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "0 bytes"),
        ("1234567", "7 bytes"),
        (raw(MTX512)[:-3], "861 bytes .* 5 are left over at byte 856"),
        ("[", "line 1 column 2"),
        ("[" * 100_000, "nested too deeply"),
        ("\udcff[" + "7" * 6, "word 0"),
        (f"[{WORD}, \udcff]", "not JSON"),
        ("{}", "no list of words"),
        ('{"words": 3}', "no list of words"),
        ('{"words": "12"}', "no list of words"),
        ('{"words": {"12": 1}}', "no list of words"),
        ("[]", "no word"),
        ('{"words": []}', "no word"),
        (f"[{WORD}, 1]", "word 1 .* int"),
        (f"[{WORD}, {WORD}, null]", "word 2 .* NoneType"),
        (f"[{WORD}, [{WORD}]]", "word 1 .* list"),
        (f'[{WORD}, "x"]', "word 1 .* 'x'"),
        (f'[{WORD}, ""]', "word 1 .* ''"),
        (f'[{WORD}, "-1"]', "word 1 .* '-1'"),
        (f'[{WORD}, "0x1_0"]', "word 1 .* '0x1_0'"),
        (f'[{WORD}, "0x{"1" * 17}"]', "word 1 .* '0x11111111111111111'"),
        (f'["0x{"1" * 9999}"]', "word 0"),
    ],
)
def test_a_file_that_is_no_program_is_refused_and_says_where(data, said):
    content = data if isinstance(data, bytes) else data.encode(errors="surrogateescape")

    with pytest.raises(LayoutError, match=said) as caught:
        regcmd.parse(content)
    assert caught.value.remedy
    assert len(caught.value.what) < 200


STRANGER = 0x0123_4567_89AB_CDEF
UNKNOWN = [STRANGER, 0x0201_0000_0000_1FFC, 0x1234_0000_0000_1040]  # target, register, both


@given(st.lists(words_of_registers, min_size=3), st.lists(st.integers(0, 8), max_size=3))
def test_words_that_nobody_knows_are_shown_where_most_are_known(words, places):
    for stranger, place in zip(UNKNOWN, places, strict=False):
        words.insert(place, stranger)

    names = [regcmd.describe(word).name for word in regcmd.parse(raw(words))]

    assert sum(name.startswith("unknown") for name in names) == len(places)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([STRANGER], "word 0, 0x0123456789abcdef, .* 1 of 1"),
        ([0, MTX512[0], *UNKNOWN, MTX512[1]], "word 2, 0x0123456789abcdef, .* 3 of 5"),
        ([0, 0, 0], "no word"),
        ([1 << 32, 5 << 32], "word 0, 0x0000000100000000, .* 2 of 2"),  # an array of 0, 1, 0, 5
    ],
)
def test_words_of_which_most_write_no_register_are_no_program(words, said):
    """Zeros, which fill unused memory, are not counted."""
    with pytest.raises(LayoutError, match=said):
        regcmd.parse(raw(words))


def test_a_program_may_lie_in_memory_that_is_otherwise_empty():
    assert regcmd.parse(raw(MTX512) + bytes(4096)) == MTX512 + [0] * 512


@pytest.mark.parametrize("rest", [b"\xa5" * 4096, bytes(range(256)) * 16])
def test_what_memory_held_behind_a_program_is_no_part_of_it(rest):
    """A dump may have a whole buffer, with other data after the program."""
    words = regcmd.parse(raw(MTX512) + rest)

    assert words[:108] == MTX512
    assert len(words) == 108 + 512
    with pytest.raises(LayoutError, match="this is no program"):
        regcmd.parse(raw(MTX512[:-1]) + rest)  # the program has no end


@given(st.binary(min_size=64).filter(lambda data: data[:1] not in b"[{"))
def test_bytes_of_something_else_are_refused(data):
    """At random, half of the words name one of 400 registers with a chance below 2^-23 a word."""
    with pytest.raises(LayoutError):
        regcmd.parse(data)


@pytest.mark.parametrize("name", ["ids.npy", "llama3-q8_0.gguf"])
def test_files_of_other_kinds_are_refused(name):
    data = tiny.path("llama3", "q8_0").with_name(name).read_bytes()

    with pytest.raises(LayoutError, match="word 0, "):
        regcmd.parse(data[: len(data) & ~7])


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
        ("--m", "0", "M = 0 leaves nothing"),
        ("--m", "-3", "M = -3 leaves nothing"),
        ("--m", "100000", "more than 2047, the limit of one task"),
        ("--m", "2048", "split the product"),
        ("--k", "5", "pad K to 32"),
        ("--m", "1022", None),
        ("--m", "1023", "feature_grains = 1024 does not fit"),
        ("--n", "8224", "N = 8224"),
        ("--k", "11296", "CBUF"),
        ("--a", "0x1000008", "CNA_FEATURE_DATA_ADDR"),
        ("--w", "0x100000000", "CNA_DCOMP_ADDR0"),
        ("--c", "-16", "DPU_DST_BASE_ADDR"),
        ("--a", "0xffffff00", None),  # 256 bytes: 4 rows of 64
        ("--a", "0xffffff10", "A at 0xffffff10 has 256 bytes"),
        ("--w", "0xfffff010", "put it at 0xfffff000 or below"),
        ("--c", "0xfffffff0", "C at 0xfffffff0 has 1024 bytes"),
    ],
)
def test_the_verb_refuses_what_does_not_fit(option, value, says, capsys):
    """The last value of an option counts, so each case changes one option of a good command."""
    status = main([*MATMUL, f"{option}={value}"])

    assert status == (1 if says else 0)
    assert (says or "") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("c", "said"),
    [("0x1000100", ""), ("0x10000f0", "A and C"), ("0xfffc10", "A and C"), ("0xfffc00", ""),
     ("0x2000ff0", "B and C"), ("0x2001000", "")],
)  # fmt: skip
def test_matrices_that_overlap_are_warned_of(c, said, capsys):
    """A has 256 bytes from 0x1000000, B 4096 from 0x2000000, and C 1024."""
    assert main([*MATMUL, f"--c={c}", "--json"]) == 0

    out, err = capsys.readouterr()
    assert err == (f"npurt: warning: {said} overlap at these addresses\n" if said else "")
    assert len(json.loads(out)["words"]) == 126


def test_a_program_is_read_from_a_pipe(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw(MTX512))))

    assert main(["regcmd", "decode", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 108


def test_more_than_a_program_from_a_pipe_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(bytes((16 << 20) + 1))))

    assert main(["regcmd", "decode", "-"]) == 1
    assert "more than 16777216 bytes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "said"),
    [("/nowhere/at/all", "/nowhere/at/all"), ("/", "/: Is a directory"), ("/dev/zero", "more than"),
     (tiny.path("llama3", "q8_0"), "word 0"), ("/dev/null", "0 bytes")],
)  # fmt: skip
def test_a_file_that_cannot_be_read_as_a_program_is_status_1(file, said, capsys):
    assert main(["regcmd", "decode", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "remedy" in err
