"""The ledger: counts and time of each op on each device, with reasons of fallbacks.

A row belongs to one tensor, or an op without a tensor, on one device.  CPU programs count their own
ops, and a report reads these counts.  Other ops are added when they run.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from npurt.device.segment import Counter
from npurt.errors import NotOffloaded
from npurt.runtime.report.trace import Trace
from npurt.settings import HOSTS


@dataclass(slots=True)
class Row:
    """One row of the ledger; its counts grow as the op runs."""

    op: str  # class: "attn_qkv", "ffn_down", "norm", ...
    tensor: str  # names of the weights, "" for an op without weights
    shape: tuple[int, ...]  # (N, K) of a product
    planned: str  # device that the plan chose
    actual: str  # device that ran the op
    reason: str = ""  # why the planned device did not run the op
    calls: int = 0
    rows: int = 0  # activation rows over all calls
    macs: int = 0
    nbytes: int = 0  # bytes of weights read
    packets: int = 0  # instruction packets; 0 if the device does not count them
    device_calls: int = 0  # FastRPC calls or jobs; those of a shared call are in one row
    seconds: float = 0.0
    verified: int = 0
    failed: int = 0

    @property
    def offloaded(self) -> bool:
        """Whether the op ran on the planned device."""
        return self.planned == self.actual


def row_of(counter: Counter, planned: str, actual: str, reason: str) -> Row:
    """Return a row from the counts of a segment or a program."""
    return Row(
        counter.op, counter.tensor, counter.shape, planned, actual, reason,
        calls=counter.calls, rows=counter.rows, macs=counter.macs, nbytes=counter.nbytes,
        seconds=counter.seconds, verified=counter.verified, failed=counter.failed,
    )  # fmt: skip


COLUMNS = ("op", "device", "calls", "MACs", "bytes", "packets", "seconds", "share")


@dataclass(frozen=True, slots=True)
class Report:
    """A copy of the ledger."""

    rows: tuple[Row, ...]
    device: str  # description of the devices
    notes: tuple[str, ...] = ()
    runs: int = 0  # runs of the model; one for each token that is generated alone

    def totals(self) -> list[dict[str, Any]]:
        """Return one entry per (op class, device), longest first."""
        groups: dict[tuple[str, str], dict[str, Any]] = {}
        seconds = sum(row.seconds for row in self.rows)
        for row in self.rows:
            entry = groups.setdefault(
                (row.op, row.actual),
                {
                    "op": row.op,
                    "device": row.actual,
                    "calls": 0,
                    "macs": 0,
                    "bytes": 0,
                    "packets": 0,
                    "seconds": 0.0,
                },
            )
            entry["calls"] += row.calls
            entry["macs"] += row.macs
            entry["bytes"] += row.nbytes
            entry["packets"] += row.packets
            entry["seconds"] += row.seconds
        for entry in groups.values():
            entry["share"] = entry["seconds"] / seconds if seconds else 0.0
        return sorted(groups.values(), key=lambda entry: -entry["seconds"])

    def macs(self) -> int:
        """Return the number of multiply-adds."""
        return sum(row.macs for row in self.rows)

    def npu_macs(self) -> int:
        """Return the number of multiply-adds that NPUs computed."""
        return sum(row.macs for row in self.rows if row.actual not in HOSTS)

    def calls_line(self) -> str:
        """Return a line with the calls to each device in a run of the model; "" without any."""
        calls: dict[str, int] = {}
        for row in self.rows:
            calls[row.actual] = calls.get(row.actual, 0) + row.device_calls
        found = [f"{n / self.runs:.1f} on {name}" for name, n in calls.items() if n and self.runs]
        return f"device calls in a run of the model: {', '.join(found)}" if found else ""

    def line(self) -> str:
        """Return a one-line summary: multiply-adds by device, fallbacks, verification."""
        macs, on_npus = self.macs(), self.npu_macs()
        by_device: dict[str, int] = {}
        for row in self.rows:
            by_device[row.actual] = by_device.get(row.actual, 0) + row.macs
        shares = ", ".join(
            f"{100 * count / macs:.1f} % of MACs on {name}"
            for name, count in by_device.items()
            if count
        )
        astray = sum(map(len, self._astray().values()))
        checked = sum(row.verified for row in self.rows)
        failed = sum(row.failed for row in self.rows)
        products = sum(row.calls for row in self.rows if row.macs or row.verified)
        return (
            f"offload: {'' if on_npus or not macs else 'none, '}{shares or 'nothing ran'} "
            f"({self.device}); {astray} fallbacks; "
            f"verified {checked} of {products} products, {failed} wrong"
        )

    def fallbacks(self) -> list[str]:
        """Return one line for each reason of a fallback, with the ops that fell back."""
        return [
            f"{_which(rows)}: planned {planned}, ran on {actual}: {reason}"
            for (planned, actual, reason), rows in self._astray().items()
        ]

    def _astray(self) -> dict[tuple[str, str, str], list[Row]]:
        """Return the rows that ran on another device than planned, by devices and reason."""
        groups: dict[tuple[str, str, str], list[Row]] = {}
        for row in self.rows:
            if row.calls and not row.offloaded:
                groups.setdefault((row.planned, row.actual, row.reason), []).append(row)
        return groups

    def table(self) -> str:
        """Return the totals as aligned text, then fallbacks, notes and the summary line."""
        totals = self.totals()
        columns = [c for c in COLUMNS if c != "packets" or any(e["packets"] for e in totals)]
        cells = [
            {
                "op": entry["op"],
                "device": entry["device"],
                "calls": str(entry["calls"]),
                "MACs": f"{entry['macs'] / 1e9:.3f} G",
                "bytes": f"{entry['bytes'] / 1e6:.1f} MB",
                "packets": f"{entry['packets'] / 1e6:.2f} M",
                "seconds": f"{entry['seconds']:.4f}",
                "share": f"{100 * entry['share']:.1f} %",
            }
            for entry in totals
        ]
        lines = [columns, *([row[column] for column in columns] for row in cells)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        text = [
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        below = [*self.fallbacks(), *self.notes, self.calls_line(), self.line()]
        return "\n".join([*text, *filter(None, below)])

    def to_json(self) -> str:
        """Return device, rows, totals, notes and the summary line as one JSON object."""
        return json.dumps(
            {
                "device": self.device,
                "line": self.line(),
                "runs": self.runs,
                "notes": list(self.notes),
                "totals": self.totals(),
                "rows": [asdict(row) for row in self.rows],
            }
        )

    def __str__(self) -> str:
        return self.table()


def joined(reports: Sequence[Report]) -> Report:
    """Return one report that combines *reports*, for example of several devices."""
    return Report(
        tuple(row for each in reports for row in each.rows),
        "; ".join(dict.fromkeys(each.device for each in reports)),
        tuple(note for each in reports for note in each.notes),
        sum(each.runs for each in reports),
    )


def _which(rows: Sequence[Row]) -> str:
    """Return the name of one op, or for several ops their count and the first and last names."""
    names = ", ".join(row.tensor or row.op for row in rows)
    if len(rows) == 1:
        return names
    return f"{len(rows)} ops, {names.partition(', ')[0]} to {names.rpartition(', ')[2]}"


@dataclass(slots=True)
class Ledger:
    """Collects rows by op, tensor and device, and notes, for example about a quarantine.

    In strict mode a fallback raises NotOffloaded.
    """

    device: str
    strict: bool = False
    notes: list[str] = field(default_factory=list)
    runs: int = 0  # runs of the model
    trace: Trace | None = None  # see `watch`
    _rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    _status_notes: list[Callable[[], str]] = field(default_factory=list)
    _sources: list[Callable[[], Iterable[Row]]] = field(default_factory=list)
    _included: list[tuple[str, "Ledger"]] = field(default_factory=list)
    _last: Report | None = None  # see `freeze`

    def row(self, row: Row) -> Row:
        """Return the existing row of the same op, tensor and device, or add *row*."""
        key = (row.op, row.tensor, row.shape, row.planned, row.actual, row.reason)
        return self._rows.setdefault(key, row)

    def fallback(self, what: str) -> None:
        """Add a note about the fallback *what* to the CPU, once; call this before the fallback.

        Raises:
            NotOffloaded: In strict mode.
        """
        if self.strict:
            raise NotOffloaded(
                f"a fallback in strict mode: {what}",
                remedy="run `npurt doctor` to find the device's problem, or turn strict mode off "
                "to allow the fallback",
            )
        if what not in self.notes:
            self.notes.append(what)

    def add_status_note(self, sentence: Callable[[], str]) -> None:
        """Call *sentence* for each report, and add its result to the notes unless it is ""."""
        if sentence not in self._status_notes:
            self._status_notes.append(sentence)

    def follow(self, source: Callable[[], Iterable[Row]]) -> None:
        """Add the rows of *source* to each report."""
        self._sources.append(source)

    def include(self, prefix: str, other: "Ledger") -> None:
        """Add the rows of *other* to each report, with *prefix* before their names."""
        self._included.append((prefix, other))
        self.follow(lambda: (replace(r, op=prefix + r.op) for r in other.report().rows))

    def watch(self, trace: Trace | None) -> None:
        """Record events in *trace* from now on; None stops recording."""
        self.trace = trace
        for prefix, other in self._included:
            other.watch(trace and trace.named(prefix))

    def report(self) -> Report:
        """Return a report of all rows and notes."""
        if self._last:
            return self._last
        rows = list(self._rows.values())
        for source in self._sources:
            rows += source()
        notes = [*self.notes, *filter(None, [note() for note in self._status_notes])]
        return Report(tuple(rows), self.device, tuple(notes), self.runs)

    def freeze(self) -> None:
        """Store the current report as the final one, and release the sources of rows."""
        self._last = self.report()
        self.trace = None
        for kept in (self._rows, self._status_notes, self._sources, self._included):
            kept.clear()
