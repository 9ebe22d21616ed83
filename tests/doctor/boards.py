"""Boards that people reported, as trees of files: tests/data/doctor/boards.json.

Data that a report lacks are those of the board called "working".
"""

import json
import os
from pathlib import Path

from npurt.doctor.machine import Machine
from npurt.hexagon.doctor import checks, elf, shell_names
from npurt.hexagon.fastrpc import codes
from npurt.hexagon.session import checksum, skel
from tests.hexagon.objects import shared_object

DATA = json.loads((Path(__file__).parents[1] / "data/doctor/boards.json").read_text())
WORKING, REPORTS = DATA["working"], DATA["boards"]
FOLDERS = ("/dev", "/proc", "/sys")


def board(name):
    """Return all data of a board."""
    report = REPORTS[name] if name != "working" else {"first": None, "command": ""}
    whole = {}
    for section, default in WORKING.items():
        if isinstance(default, dict):
            base = (
                {} if report.get("android") and section in ("files", "builds", "nodes") else default
            )
            changed = report.get(section, {})
            merged = {
                k: _merge(v, changed.get(k))
                for k, v in base.items()
                if k not in changed or changed[k] is not None
            }
            whole[section] = merged | {
                k: v for k, v in changed.items() if k not in base and v is not None
            }
        else:
            whole[section] = report.get(section, default)
    return whole | {key: report[key] for key in ("first", "command")}


def _merge(default, change):
    if change is None:
        return default
    if isinstance(default, dict) and "call" not in change:
        return default | change
    return change


def tree(name, root, **environment):
    """Make the files of a board under *root*; return a `Machine` that reads them."""
    known = board(name)
    known["environment"] |= environment
    return laid(known, root)


def laid(known, root):
    """Make the files of a board with the data *known* under *root*; return its `Machine`."""
    for path, text in known["files"].items():
        write(root, path, text.encode())
    for path, builds in known["builds"].items():
        strings = b"".join(b"QC_IMAGE_VERSION_STRING=" + b.encode() + b"\0" for b in builds)
        write(root, path, _library(path, known) + strings + bytes(5000))
    for i, process in enumerate(known["running"]):
        write(root, f"/proc/{i + 100}/comm", process.encode() + b"\n")
    for path in known["nodes"]:
        write(root, path, b"")
    log = "".join(f"6,{i},{i},-;{line}\n" for i, line in enumerate(known["log"]))
    write(root, "/dev/kmsg", log.encode())
    return _Tree(root, known)


def _library(path, known):
    """Return the contents of a file for the DSP: a shell with its names, or another library."""
    arch = known["trial"].get("capabilities", {}).get("arch") or 68
    if "shell" in path:
        return shared_object(arch=arch, exports=sorted(shell_names.exported(arch)))
    return shared_object(arch=arch) if ".so" in path else b"\x7fELF" + bytes(5000)


def write(root, path, data):
    here = root / path.lstrip("/")
    here.parent.mkdir(parents=True, exist_ok=True)
    here.write_bytes(data)


class _Tree(Machine):
    """A tree of files; the board's data have what files cannot show, such as owners of nodes."""

    def __init__(self, root, known):
        self._nodes = known["nodes"]
        super().__init__(
            root,
            access=os.access,
            probes={"hexagon": lambda: trial(known["trial"], known.get("domain", "cdsp"))},
            readers=checks.READERS,
            machine=known["machine"],
            environment=lambda name: known["environment"].get(name, ""),
        )

    def ask(self, kind, *words):
        if kind == "node" and words[0] in self._nodes:
            mode, owner, may = self._nodes[words[0]].split()
            user, group = owner.split(":")
            return {
                "mode": mode, "owner": user, "group": group, "read": "r" in may, "write": "w" in may
            }  # fmt: skip
        return super().ask(kind, *words)


def trial(steps, domain="cdsp"):
    """Return the result of a trial; a step with a code failed, and is the last step."""
    seen = {}
    for name, step in steps.items():
        if "call" not in step:
            seen[name] = _described(step) if name == "skel" else step
            continue
        error = codes.failed(step["call"], int(step["code"], 16), step["errno"])
        seen[name] = {"error": error.what, "remedy": error.remedy, "code": int(step["code"], 16)}
        break
    return {"domain": domain, "steps": seen, "ended": ""}


def _described(step):
    """Return the findings of the step skel with the facts of the skel that it names."""
    code = (skel.FOLDER / step["file"]).read_bytes()
    shared = elf.read(code)
    return {
        "arch": shared.arch,
        "imports": [name for name, weak in shared.imports.items() if not weak],
        "optional_imports": [name for name, weak in shared.imports.items() if weak],
        "checksum": checksum.has_section(code),
    } | step
