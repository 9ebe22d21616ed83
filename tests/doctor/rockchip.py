"""Boards with Rockchip chips, as trees of files: tests/data/doctor/rockchip.json.

Data that a report lacks are those of the board that its "base" names.
"""

import gzip
import json
import os
from pathlib import Path

from npurt.doctor.machine import Machine

DATA = json.loads((Path(__file__).parents[1] / "data/doctor/rockchip.json").read_text())
REPORTS = DATA["boards"]
WORKING = ("mainline", "vendor")


def board(name):
    """Return all data of a board."""
    report = REPORTS.get(name, {})
    known = dict(DATA[report.get("base", name)])
    for section in ("files", "nodes"):
        merged = known[section] | report.get(section, {})
        known[section] = {key: value for key, value in merged.items() if value is not None}
    return known | {key: report[key] for key in ("log", "trial") if key in report}


class Tree(Machine):
    """The files of a board under *root*; its data have what files cannot show, such as owners."""

    def __init__(self, name, root):
        known = board(name)
        self._nodes = known["nodes"]
        for path, text in known["files"].items():
            self.write(root, path, text)
        for path in self._nodes:
            self.write(root, path, "")
        log = "".join(f"6,{i},{i},-;{line}\n" for i, line in enumerate(known["log"]))
        self.write(root, "/dev/kmsg", log)
        super().__init__(
            root,
            access=os.access,
            probes={"rknpu": lambda: known["trial"]},
            machine=known["machine"],
            environment=lambda name: "",
        )

    @staticmethod
    def write(root, path, text):
        here = root / path.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        here.write_bytes(gzip.compress(data) if here.suffix == ".gz" else data)

    def ask(self, kind, *words):
        if kind != "node" or words[0] not in self._nodes:
            return super().ask(kind, *words)
        mode, owner, may = self._nodes[words[0]].split()
        user, group = owner.split(":")
        return {
            "mode": mode, "owner": user, "group": group, "read": "r" in may, "write": "w" in may
        }  # fmt: skip
