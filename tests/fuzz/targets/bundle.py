"""Fuzz bundles of `npurt doctor`: changed evidence of real boards, in archives with damage."""

import contextlib
import functools
import gzip
import io
import json
import tarfile
import tempfile
from pathlib import Path

from npurt.cli import main
from npurt.doctor import bundle
from npurt.doctor.system import KINDS, Recorder
from npurt.runtime.api import doctor
from tests.doctor import boards, rockchip
from tests.fuzz import jsons, sizes

RUNS = 600
MEMBERS = [f"npurt-doctor/{name}" for name in bundle.MEMBERS]
ODD_NAMES = ("evidence.json", "npurt-doctor/x", "/npurt-doctor/evidence.json", "", "a/../b")


@functools.cache
def evidence():
    """Return the evidence that the doctor would record on each reported board."""
    found = []
    looked_for = doctor.checklists()
    for module, tree in ((boards, boards.tree), (rockchip, rockchip.Tree)):
        for name in module.REPORTS:
            with tempfile.TemporaryDirectory() as folder:
                system = Recorder(tree(name, Path(folder)))
                doctor.examine(looked_for, system)
                for kind in looked_for:
                    kind.collect(system)
                found.append(json.loads(json.dumps(system.evidence)))
    return found


def mutate(rng):
    known = dict(rng.choice(evidence()))
    for _ in range(rng.choice((1, 2, 5, 20))):
        key = rng.choice(list(known))
        known[key] = answer(rng, key, known[key])
    told = {"format": 1, "evidence": known}
    text = json.dumps(told)
    if rng.random() < 0.8:
        pass
    elif rng.random() < 0.5:
        text = json.dumps(jsons.changed(rng, told, 2))
    else:
        text = rng.choice(
            (
                jsons.deep("list", 10**5),
                jsons.deep("dict", 10**5),
                text[:-9],
                "",
                "9" * 5000,
                '{"format":1,"evidence":{"runs x":1e999}}',
                "\ufeff" + text,
            )
        )
    names = list(MEMBERS)
    if rng.random() < 0.1:
        names[rng.randrange(3)] = rng.choice((*ODD_NAMES, *MEMBERS))
    return {
        "text": text,
        "names": names,
        "tar": edits(rng) if rng.random() < 0.15 else [],
        "gzip": edits(rng) if rng.random() < 0.1 else [],
        "as": rng.choice(("json", "text", "bundle")),
    }  # fmt: skip


def answer(rng, key, now):
    """Return another answer to a question, of a type that the question allows."""
    kind = key.partition(" ")[0]
    if now is None or rng.random() < 0.1:
        return KINDS[kind][0]
    if kind in ("machine", "environment", "text"):
        return str(jsons.junk(rng, now))
    if kind in ("names", "matches", "log"):
        return list(map(str, made)) if isinstance(made := jsons.changed(rng, now), list) else []
    if kind == "node":
        name = rng.choice(list(now))
        text = isinstance(now[name], str)
        return now | {name: str(jsons.junk(rng, now[name])) if text else not now[name]}
    if kind == "runs":
        return not now
    made = jsons.changed(rng, now, rng.choice((1, 2, 5)))
    return made if isinstance(made, dict) else now


def edits(rng):
    """Return changes of bytes: (offset, value), or (offset, None) to truncate at the offset."""
    found = [[rng.random(), sizes.anything(rng) % 256] for _ in range(rng.choice((1, 1, 3)))]
    return found + [[rng.random(), None]] * (rng.random() < 0.2)


def edited(data, changes):
    data = bytearray(data)
    for where, value in changes:
        if value is None:
            del data[int(where * len(data)) :]
        elif data:
            data[int(where * where * len(data))] = (
                value  # more often in the headers, at the beginning
            )
    return bytes(data)


def run(value):
    packed = io.BytesIO()
    texts = ("about", "a report", value["text"])
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in zip(value["names"], texts, strict=True):
            data = text.encode(errors="surrogatepass")
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    data = gzip.compress(edited(packed.getvalue(), value["tar"]), 1, mtime=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle.tar.gz"
        path.write_bytes(edited(data, value["gzip"]))
        again = Path(folder) / "again.tar.gz"
        how = {"json": ["--json"], "text": [], "bundle": ["--bundle", str(again)]}[value["as"]]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()) as errors:
            status = main(["doctor", "--from", str(path), *how])
        if "is no bundle that can be read" in errors.getvalue():
            assert status == 1
            return "refused"
        assert status in (0, 1)
        assert not errors.getvalue()
        if value["as"] == "json":
            json.loads(said.getvalue())
        if value["as"] == "bundle":
            bundle.read(again)
        return "judged"
