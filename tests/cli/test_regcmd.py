"""`npurt regcmd check` and `npurt regcmd run`."""

import json

import numpy as np
import pytest

from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import pack_weights
from tests.cli.conftest import assert_failed


@pytest.fixture
def made(npurt, tmp_path):
    """Return a program, the arguments that name its buffers, and the expected result."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (4, 64), np.int8), rng.integers(-128, 128, (32, 64), np.int8)
    at = ("--a", "0x1000000", "--w", "0x2000000", "--c", "0x3000000")
    _, words, _ = npurt("regcmd", "matmul", "--m", 4, "--k", 64, "--n", 32, *at, "--json")
    (tmp_path / "p.json").write_text(words)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "w.npy", pack_weights(b, FORMATS["int8"]))
    buffers = (
        "-i", f"0x1000000={tmp_path}/a.npy", "-i", f"0x2000000={tmp_path}/w.npy",
        "-o", f"0x3000000={tmp_path}/c.npy:int32:4x32",
    )  # fmt: skip
    return tmp_path / "p.json", buffers, a.astype(np.int32) @ b.T.astype(np.int32)


@pytest.mark.parametrize("device", ["rknpu:sim", "rknpu:sim-vendor"])
def test_a_program_runs_on_files(npurt, made, device):
    file, buffers, exact = made

    code, said, _ = npurt("regcmd", "run", file, "-dev", device, *buffers)

    assert code == 0
    assert "(simulated)" in said
    assert np.array_equal(np.load(file.parent / "c.npy"), exact)


def test_scripts_get_json(npurt, made):
    file, buffers, _ = made

    _, ran, _ = npurt("regcmd", "run", file, "-dev", "rknpu:sim", "--json", *buffers)
    _, checked, _ = npurt("regcmd", "check", file, "--json", *buffers)

    writes = [{"address": "0x3000000", "bytes": 512}]
    assert json.loads(ran)["written"][0]["shape"] == [4, 32]
    assert json.loads(ran)["simulated"]
    assert json.loads(ran)["writes"] == json.loads(checked)["writes"] == writes
    assert json.loads(checked)["ok"]


def test_check_says_why_not_and_writes_nothing(npurt, made):
    file, buffers, _ = made
    short = (*buffers[:5], "0x3000000=511")

    failed = npurt("regcmd", "check", file, *short)
    code, said, _ = npurt("regcmd", "check", file, "--json", *short)

    assert_failed(failed, "DPU_DST_BASE_ADDR reaches 0x3000000 .. 0x3000200")
    assert code == 1
    assert not json.loads(said)["ok"]
    assert "the output at 0x3000000 is 0x3000000 .. 0x30001ff" in json.loads(said)["why"]
    assert not (file.parent / "c.npy").exists()


def test_a_size_is_enough_to_check(npurt, made):
    file, _, _ = made
    sizes = ("-i", "0x1000000=256", "-i", "0x2000000=2048", "-o", "0x3000000=512")

    code, said, _ = npurt("regcmd", "check", file, *sizes)

    assert code == 0
    assert "harmless; 1 task; reads 256 bytes at 0x1000000" in said


@pytest.mark.parametrize(
    ("flag", "text", "why"),
    [
        ("-i", "a.npy", "it is not ADDR=FILE.npy"),
        ("-i", "0x100000000=a.npy", "below 4 GiB"),
        ("-i", "0x1000000=nothing.npy", "cannot read nothing.npy"),
        ("-i", "0x1000000={file}", "is no .npy file"),
        ("-o", "0x3000000=c.npy", "it is not ADDR=FILE.npy:DTYPE:SHAPE"),
        ("-o", "0x3000000=c.npy:int3:4", "with a type of int8"),
        ("-o", "0x3000000=c.npy:int8:4x", "it is not"),
        ("-o", "0x3000000=c.npy:int8:0", "a buffer has 1 to"),
        ("-o", "0x3000000=c.npy:int8:9999999999x9999999999", "a buffer has 1 to"),
        ("-o", "0x3000000=512", "it is not ADDR=FILE.npy:DTYPE:SHAPE"),
        ("--timeout", "0", "is not above 0"),
        ("--timeout", "nan", "is not above 0"),
    ],
)
def test_arguments_that_make_no_sense_are_named_with_a_remedy(npurt, made, flag, text, why):
    file, _, _ = made

    failed = npurt("regcmd", "run", file, "-dev", "rknpu:sim", flag, text.format(file=file))

    assert_failed(failed, why, code=1 if "{file}" in text or "nothing" in text else 2)


@pytest.mark.parametrize(
    ("flag", "text", "why"),
    [
        ("-i", "foo", "it is not ADDR=FILE.npy"),
        ("-i", f"0x1000000={'9' * 600}", "are no buffer of 1 to"),
        ("-o", "0x3000000=0", "are no buffer of 1 to"),
        ("-o", f"0x3000000=c.npy:int8:{'1x' * 70}1", "it is not ADDR=FILE.npy:DTYPE:SHAPE"),
        ("-o", f"0x3000000=c.npy:int8:{'1x' * 32}1", "it is not ADDR=FILE.npy:DTYPE:SHAPE"),
    ],
)
def test_check_tells_wrong_usage_from_a_program_that_is_not_harmless(npurt, made, flag, text, why):
    file, _, _ = made

    assert_failed(npurt("regcmd", "check", file, flag, text), why, code=2)


def test_a_size_of_thousands_of_digits_is_no_traceback(npurt, made):
    file, _, _ = made

    assert_failed(npurt("regcmd", "check", file, "-i", f"0x1000000={'9' * 5000}"), "cannot read")


@pytest.mark.parametrize("at", ["7", "-1024", "0xffffffffffffffff"])
def test_check_refuses_a_program_where_none_can_be(npurt, made, at):
    file, buffers, _ = made

    assert_failed(npurt("regcmd", "check", file, *buffers, f"--at={at}"), "the program")


@pytest.mark.parametrize(
    ("again", "why"),
    [
        (("-i", "0x1000000={0}/w.npy"), "another -i is at 0x1000000"),
        (("-o", "0x3000000={0}/d.npy:int32:4x32"), "another -o is at 0x3000000"),
        (("-o", "0x4000000={0}/../{0.name}/c.npy:int32:1"), "another -o writes the same file"),
    ],
)
def test_run_refuses_a_buffer_that_is_given_twice(npurt, made, again, why):
    file, buffers, _ = made
    flag, text = again

    failed = npurt("regcmd", "run", file, "-dev", "rknpu:sim", *buffers, flag,
                   text.format(file.parent))  # fmt: skip

    assert_failed(failed, why, code=2)
    assert not (file.parent / "c.npy").exists()


def test_a_file_that_cannot_be_written_is_named(npurt, made):
    file, buffers, _ = made
    output = f"0x3000000={file.parent}/none/c.npy:int32:4x32"

    failed = npurt("regcmd", "run", file, "-dev", "rknpu:sim", *buffers[:5], output)

    assert_failed(failed, "cannot write", "none/c.npy")
