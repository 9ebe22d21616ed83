"""Test that the hand-scheduled packets of delta_loops.h compute what delta_passes.h describes."""

import copy
import re

import pytest

from tests.hexagon import delta_loops

SHAPES = [(2, 0, 1), (3, 1, 1), (4, 2, 2)]  # blocks, the first of the two, parts


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return delta_loops.packets(delta_loops.assembly(tmp_path_factory.mktemp("pass")))


def run(program, label, shape):
    """Return the rows that the packets store and the sums that they compute."""
    machine = delta_loops.Machine(*shape)
    machine.run(program, label)
    _, found = delta_loops.expected(*shape)
    return machine.stored, {name: machine.held[name] for name in found}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pass_stores_the_rows_and_finds_the_sums_of_two_blocks(program, shape):
    stored, found = run(*program, shape)
    rows, sums = delta_loops.expected(*shape)

    assert sorted(stored) == sorted(rows), "other rows are stored"
    for index, row in rows.items():
        assert stored[index] == row, f"vector {index} of the state is wrong"
    for name, value in sums.items():
        assert found[name] == value, f"{name} is wrong"


def test_pointers_end_after_the_rows_or_three_pairs_of_a_block_ahead(program):
    """The header says that pairs are loaded three ahead; words are loaded one or two ahead."""
    machine = delta_loops.Machine(3, 1, 1)
    machine.run(*program)

    pairs = delta_loops.PAIRS
    assert machine.at["to"] == 2 * (3 * pairs + 1)
    assert machine.at["from"] == 2 * (3 * (pairs + 1) + 1 + 1)
    assert (machine.at["kq"], machine.at["word"]) == (pairs + 1, pairs + 2)


def test_the_comment_at_the_top_counts_the_packets_of_four_pairs(program):
    packets, label = program
    (end,) = (i for i, packet in enumerate(packets) if packet.end == 0)
    (said,) = re.findall(r"four pairs of rows take (\d+)", delta_loops.HEADER.read_text())

    assert end + 1 - label == int(said)


def is_noticed(packets, label):
    """Return whether changed packets give other results or cannot run."""
    shape = SHAPES[1]
    rows, sums = delta_loops.expected(*shape)
    try:
        return run(packets, label, shape) != (rows, sums)
    except (AssertionError, KeyError, TypeError):
        return True


def test_packets_in_another_order_are_noticed(program):
    """The test exchanges neighbours; only those of different pairs of rows may be exchanged."""
    packets, label = program
    ends = {i for i, packet in enumerate(packets) if packet.end is not None}
    first = [i for i in range(len(packets) - 1) if not {i, i + 1} & ends and i + 1 != label]
    noticed = [
        is_noticed([*packets[:i], packets[i + 1], packets[i], *packets[i + 2 :]], label)
        for i in first
    ]
    assert sum(noticed) > len(first) / 2


def test_each_instruction_is_needed(program):
    packets, label = program
    for i, packet in enumerate(packets):
        for j, text in enumerate(packet.instructions):
            fewer = copy.copy(packet)
            fewer.instructions = [*packet.instructions[:j], *packet.instructions[j + 1 :]]
            assert is_noticed([*packets[:i], fewer, *packets[i + 1 :]], label), (i, text)


def test_all_that_a_packet_reads_is_from_before_it():
    machine = delta_loops.Machine(2, 0, 1)
    machine.step(["r10 = memw(%[word]++#4)", "r9:8 = memd(%[kq]++#8)"])
    machine.step(["v24.h = vround(v17.w,v16.w):sat", "v12 = vxor(v12,v12)"])
    machine.step(["r8 = memw(%[word]++#4)", "v12.w += vdmpy(v24.h,r8.h):sat"])

    ((_, word),) = machine.held["v12"]
    assert word == ("k now", 0)


def test_a_load_for_one_packet_is_gone_after_it():
    machine = delta_loops.Machine(2, 0, 1)
    shift = "v16.w = vasr(v28.w,%[shift0].w)"
    machine.step(["v28.tmp = vmem(%[from]++#1)", shift])
    assert machine.held["v16"] == ("asr", ("state", 0), "shift0")
    machine.step([shift])
    assert machine.held["v16"] == ("asr", delta_loops.JUNK, "shift0")


def test_a_packet_that_writes_a_register_twice_is_refused():
    with pytest.raises(AssertionError, match="twice"):
        delta_loops.Machine(2, 0, 1).step(["v12 = vxor(v12,v12)", "v12 = vxor(v12,v12)"])
