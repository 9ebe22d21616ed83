"""Test batches and replies: equal structs in C and Python, and the checks of a reply."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from npurt.errors import DeviceFull, DeviceLost, DriverError, NumericsError
from npurt.hexagon.session import messages
from tests.hexagon.dsp import check_of
from tools import build

HEADER = Path(__file__).parents[2] / "idl/npurt_msg.h"
STRUCTS = {
    "npurt_ref": messages.REF,
    "npurt_op": messages.OP,
    "npurt_batch": messages.BATCH,
    "npurt_reply": messages.REPLY,
}
NUMBERS = {
    "NPURT_PROTOCOL": messages.PROTOCOL,
    "NPURT_BATCH_MAGIC": messages.BATCH_MAGIC,
    "NPURT_REPLY_MAGIC": messages.REPLY_MAGIC,
    "NPURT_CHECK_FACTOR": messages.CHECK_FACTOR,
    "NPURT_MAX_OPS": messages.MAX_OPS,
    "NPURT_MAX_M": messages.MAX_M,
    "NPURT_MAX_N": messages.MAX_N,
    "NPURT_MAX_K": messages.MAX_K,
    "NPURT_MAX_HEADS": messages.MAX_HEADS,
    "NPURT_MAX_WIDTH": messages.MAX_WIDTH,
    **{f"NPURT_OP_{kind.name}": kind for kind in messages.OpKind},
    **{f"NPURT_{flag.name}": flag for flag in messages.OpFlag},
    **{f"NPURT_E_{status.name}": status for status in messages.Status},
}


def answer(**fields):
    """Return a reply with the given fields; other fields are those of a first batch's reply."""
    data = messages.reply()
    read = data.view(messages.REPLY)[0]
    read["magic"] = messages.REPLY_MAGIC
    for name, value in fields.items():
        read[name] = value
    return data


def test_both_languages_lay_out_the_structs_alike(tmp_path):
    """The compiler compares them, for the Hexagon; the skel includes the same header."""
    lines = ['#include "npurt_msg.h"', "#include <stddef.h>"]
    for name, dtype in STRUCTS.items():
        lines.append(f'_Static_assert(sizeof({name}) == {dtype.itemsize}, "");')
        for field, (_, offset) in dtype.fields.items():
            lines.append(f'_Static_assert(offsetof({name}, {field}) == {offset}, "");')
    lines += [f'_Static_assert({name} == {int(n)}u, "");' for name, n in NUMBERS.items()]
    source = tmp_path / "layout.c"
    source.write_text("\n".join([*lines, "void _start(void);", "void _start(void) {}"]))

    build.compile_program([source], tmp_path / "layout")


def test_neither_language_has_a_field_or_a_number_that_the_other_has_not():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    structs = re.findall(r"typedef struct \{(.*?)\} (\w+);", text, flags=re.S)
    fields = {
        name: re.findall(r"\b(\w+)(?=[,;])", body) for body, name in structs
    }  # fmt: skip
    numbers = re.findall(r"^#define (NPURT_\w+) ", text, flags=re.M)
    numbers += re.findall(r"\b(NPURT_\w+) =", text)

    assert fields == {name: list(dtype.names) for name, dtype in STRUCTS.items()}
    assert sorted(numbers) == sorted(NUMBERS)


def test_a_request_is_its_parts_one_after_another():
    """A request has 16 bytes of head and 80 bytes per op, little-endian."""
    request = messages.BatchMessage(2)
    request.head["sequence"] = 7
    request.ops[1]["m"] = 0x01020304
    request.ops[1]["y"]["stride"] = 5

    sent = request.data.tobytes()

    assert len(sent) == 16 + 2 * 80
    assert sent[:16].hex() == "4e505442030000000700000002000000"
    assert sent[96:108].hex() == "010000000000000004030201"
    assert sent[172:].hex() == "05000000"


def test_numbers_of_requests_go_on_and_start_again():
    request = messages.BatchMessage(1)
    request.head["sequence"] = 2**32 - 2

    numbers = []
    for _ in range(3):
        request.next()
        numbers.append(int(request.head["sequence"]))

    assert numbers == [2**32 - 1, 0, 1]


def test_a_good_reply_says_what_it_cost():
    assert messages.check(messages.BatchMessage(1), answer(done=1, pcycles=2**40)) == 2**40


@pytest.mark.parametrize("wrong", [{"magic": 0}, {"sequence": 1}])
def test_a_reply_to_another_batch_is_no_reply(wrong):
    with pytest.raises(DeviceLost, match="the reply to batch 0 has"):
        messages.check(messages.BatchMessage(1), answer(**wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"done": 3},
        {"done": 2 | 1 << 30},
        {"done": 1},
        {"status": messages.Status.VALUE, "done": 2},
        {"status": messages.Status.VALUE, "done": 1 << 30},
        {"status": 99, "done": 1},
        {"status": 2**32 - 1, "done": 1},
    ],
)
def test_a_reply_that_no_dsp_gives_did_not_arrive_whole(wrong):
    with pytest.raises(DeviceLost, match="damaged"):
        messages.check(messages.BatchMessage(2), answer(**wrong))


def test_results_are_there_when_their_last_words_are_those_that_the_dsp_wrote():
    """Other words are detected, also if all change alike, as in the results of -x or x / 2."""
    words = np.array([0x3F800000, 0xDEADBEEF, 0x3F800000, 7], np.uint32)
    good = answer(check=check_of(words))

    messages.check(messages.BatchMessage(0), good, words)
    messages.check(messages.BatchMessage(0), answer(check=0), [])
    for changed, bit in itertools.product((1, 2, 8, 3, 6, 12, 15), (0, 23, 31)):
        others = [word ^ np.uint32((changed >> i & 1) << bit) for i, word in enumerate(words)]
        with pytest.raises(DeviceLost, match="results did not"):
            messages.check(messages.BatchMessage(0), good, others)


def test_room_for_a_reply_is_no_reply():
    with pytest.raises(DeviceLost):
        messages.check(messages.BatchMessage(1), messages.reply())


@pytest.mark.parametrize("status", messages.Status)
def test_a_refusal_names_the_op_and_the_reason(status):
    error = {
        messages.Status.VALUE: NumericsError,
        messages.Status.MEMORY: DeviceFull,
        messages.Status.THREADS: DeviceFull,
    }.get(status, DriverError)

    with pytest.raises(error, match=r"op 3 of 4") as caught:
        messages.check(messages.BatchMessage(4), answer(status=status, done=2))

    assert getattr(caught.value, "code", status) == status


def test_every_refusal_has_its_own_words():
    said = set()
    for status in messages.Status:
        with pytest.raises((DriverError, NumericsError)) as caught:
            messages.check(messages.BatchMessage(1), answer(status=status))
        said.add(caught.value.what)

    assert len(said) == len(messages.Status)


def test_fields_are_views_of_what_is_sent():
    request = messages.BatchMessage(1)

    assert np.shares_memory(request.ops, request.data)
    request.ops["n"] = 9
    assert request.data[16 + 16] == 9
