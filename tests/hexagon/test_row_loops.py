"""Test that the hand-scheduled packets of row_loops.h compute what product.h describes."""

import random
from collections import Counter

import pytest

from tests.hexagon import row_loops

STEPS = 3


@pytest.mark.parametrize("name", row_loops.LOOPS)
def test_each_step_adds_its_product_to_each_tile(name):
    held = row_loops.run(row_loops.packets(name), STEPS)

    for tile in range(row_loops.TILES):
        terms = [row_loops.expected(name, tile, step) for step in range(STEPS)]
        assert held[tile] == Counter(terms), f"{name}: the accumulator of tile {tile} is wrong"


@pytest.mark.parametrize("name", row_loops.LOOPS)
def test_the_table_at_the_top_counts_instructions_and_packets(name):
    _, step, _ = row_loops.packets(name)

    assert row_loops.table()[name] == (sum(map(len, step)), len(step))


@pytest.mark.parametrize("name", row_loops.LOOPS)
def test_packets_in_another_order_are_noticed(name):
    """The test exchanges 50 pairs of neighbours, of which most depend on each other."""
    before, step, after = row_loops.packets(name)
    right = row_loops.run((before, step, after), STEPS)
    rng = random.Random(1)
    wrong = 0
    for _ in range(50):
        i = rng.randrange(len(step) - 1)
        swapped = [*step[:i], step[i + 1], step[i], *step[i + 2 :]]
        wrong += row_loops.run((before, swapped, after), STEPS) != right
    assert wrong > 35


def test_all_that_a_packet_reads_is_from_before_it():
    machine = row_loops.Machine()
    machine.run([("LOAD", 5, 0)])
    machine.run([("LOAD", 5, 0), ("LOW", 6, 5)])

    assert machine.v == {5: ("w", 0, 1), 6: ("low", ("w", 0, 0))}


def test_a_packet_that_writes_a_register_twice_is_refused():
    with pytest.raises(AssertionError, match="twice"):
        row_loops.Machine().run([("LOAD", 5, 0), ("CLEAR", 5)])
