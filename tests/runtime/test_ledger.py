"""Tests of the ledger: its sums, the ops that ran elsewhere, and its output as text and JSON."""

import functools
import json

import pytest

from npurt.runtime.report.ledger import Ledger, Report, Row


def row(op="ffn_down", tensor="w", planned="fake", actual="fake", **counts):
    return Row(op, tensor, (8, 4), planned, actual, **counts)


ROWS = (
    row("ffn_down", "blk.0.ffn_down", calls=2, rows=3, macs=600, nbytes=50, seconds=0.25,
        verified=2),
    row("ffn_down", "blk.1.ffn_down", calls=2, rows=3, macs=200, nbytes=50, seconds=0.25,
        verified=1, failed=1),
    row("ffn_down", "blk.2.ffn_down", actual="cpu", reason="no kernel for q2_k", calls=1, macs=200,
        nbytes=10, seconds=0.5),
    row("norm", "", planned="cpu", actual="cpu", calls=6, seconds=1.0),
    row("output", "head", actual="cpu", reason="never ran"),
)  # fmt: skip


def test_totals_are_sums_by_op_and_device_longest_first():
    totals = Report(ROWS, "fake: x").totals()

    assert [(t["op"], t["device"]) for t in totals] == [
        ("norm", "cpu"),
        ("ffn_down", "fake"),
        ("ffn_down", "cpu"),
        ("output", "cpu"),
    ]
    assert totals[1] == {
        "op": "ffn_down",
        "device": "fake",
        "calls": 4,
        "macs": 800,
        "bytes": 100,
        "packets": 0,
        "seconds": 0.5,
        "share": 0.25,
    }
    assert sum(t["share"] for t in totals) == 1


def test_the_line_has_shares_fallbacks_and_checks():
    assert Report(ROWS, "fake: x").line() == (
        "offload: 80.0 % of MACs on fake, 20.0 % of MACs on cpu (fake: x); 1 fallbacks; "
        "verified 3 of 5 products, 1 wrong"
    )


def test_the_line_of_nothing_says_so():
    report = Report((), "cpu: y")

    assert report.line() == (
        "offload: nothing ran (cpu: y); 0 fallbacks; verified 0 of 0 products, 0 wrong"
    )
    assert report.totals() == []


def test_the_table_has_totals_then_fallbacks_with_reasons_then_notes_then_the_line():
    report = Report(ROWS, "fake: x", notes=("quarantined: something",))

    header, *lines = report.table().splitlines()

    assert header.split() == ["op", "device", "calls", "MACs", "bytes", "seconds", "share"]
    assert lines[0].split() == [
        "norm",
        "cpu",
        "6",
        "0.000",
        "G",
        "0.0",
        "MB",
        "1.0000",
        "50.0",
        "%",
    ]
    assert len({line.index("%") for line in lines[:4]}) == 1  # columns are aligned
    assert lines[4:] == [
        "blk.2.ffn_down: planned fake, ran on cpu: no kernel for q2_k",
        "quarantined: something",
        report.line(),
    ]
    assert str(report) == report.table()


def test_json_holds_everything():
    report = Report(ROWS, "fake: x", notes=("a note",))

    held = json.loads(report.to_json())

    assert set(held) == {"device", "line", "notes", "runs", "totals", "rows"}
    assert (held["device"], held["line"], held["notes"]) == ("fake: x", report.line(), ["a note"])
    assert held["totals"] == report.totals()
    assert held["rows"][2] == {
        "op": "ffn_down",
        "tensor": "blk.2.ffn_down",
        "shape": [8, 4],
        "planned": "fake",
        "actual": "cpu",
        "reason": "no kernel for q2_k",
        "calls": 1,
        "rows": 0,
        "macs": 200,
        "nbytes": 10,
        "packets": 0,
        "device_calls": 0,
        "seconds": 0.5,
        "verified": 0,
        "failed": 0,
    }


def test_an_op_without_a_tensor_that_went_elsewhere_is_named_by_its_class():
    astray = Row("delta net", "", (), "fake", "cpu", "no kernel", calls=1)

    assert "\ndelta net: planned fake, ran on cpu: no kernel\n" in Report((astray,), "x").table()


def test_ops_that_went_astray_for_one_reason_share_a_line():
    """Ops with the same reason share a line: a lost device gives one long reason for every op."""
    lost = [row("ffn_gate_up", f"blk.{i}.gate, blk.{i}.up", actual="cpu", calls=1) for i in (0, 1)]
    other = row("output", "head", actual="cpu", reason="no kernel", calls=1)
    for one in lost:
        one.reason = "it is gone"
    idle = row("ffn_down", "blk.9.ffn_down", actual="cpu", reason="it is gone")
    report = Report((lost[0], other, lost[1], idle), "fake: x")

    assert report.fallbacks() == [
        "2 ops, blk.0.gate to blk.1.up: planned fake, ran on cpu: it is gone",
        "head: planned fake, ran on cpu: no kernel",
    ]
    assert report.table().splitlines()[-3:] == [*report.fallbacks(), report.line()]
    assert "; 3 fallbacks; " in report.line()
    assert len(json.loads(report.to_json())["rows"]) == 4


def test_a_row_is_kept_by_what_it_describes():
    ledger = Ledger("fake: x")
    first = ledger.row(row(tensor="a"))
    first.calls += 1

    assert ledger.row(row(tensor="a")) is first
    assert ledger.row(row(tensor="b")) is not first
    assert ledger.row(row(tensor="a", actual="cpu", reason="broken")) is not first
    assert [r.calls for r in ledger.report().rows] == [1, 0, 0]


def test_sources_are_asked_at_each_report():
    ledger = Ledger("fake: x")
    counted = row(calls=1)
    ledger.follow(lambda: [counted])
    ledger.notes.append("before")
    early = ledger.report()
    counted.calls = 7
    ledger.notes.append("after")

    assert ledger.report().rows[0].calls == 7
    assert early.notes == ("before",)
    assert ledger.report().notes == ("before", "after")


def test_a_remark_is_made_at_each_report_once_unless_it_is_empty():
    ledger = Ledger("fake: x")
    said = {"device": ""}
    remark = functools.partial(said.get, "device")
    for _ in range(2):
        ledger.add_status_note(remark)
    assert ledger.report().notes == ()
    for sentence in ("once", "twice"):
        said["device"] = sentence
        assert ledger.report().notes == (sentence,)


@pytest.mark.parametrize("actual", ["fake", "cpu"])
def test_a_row_is_offloaded_where_it_was_planned(actual):
    assert row(actual=actual).offloaded == (actual == "fake")


def test_no_more_is_verified_than_was_computed():
    """Delta nets count as verified too, though the ledger has no multiply-adds of them."""
    product = Row("ffn_down", "a", (4, 4), "npu", "npu", calls=5, macs=80, verified=2)
    net = Row("delta net", "", (), "npu", "npu", calls=3, verified=3)
    norm = Row("norm", "", (), "cpu", "cpu", calls=9)

    assert "verified 5 of 8 products" in Report((product, net, norm), "npu").line()
