"""Fuzz programs of the RK3588: list any words; run programs that pass the proof on the simulator.

An input is either words to read as a file, or tasks with changed words: a field at a limit, one
bit, or other bits.  Changed programs run even if the proof refuses them.
"""

import json

import numpy as np

from npurt.errors import LayoutError
from npurt.rknpu.isa import regcmd
from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import link, stride
from npurt.rknpu.isa.regs import REG
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan.proof import BufferSpan, Role, prove
from tests.fuzz import sizes
from tests.rknpu.test_proof import atoms_read, atoms_written
from tests.sim_rknpu import client

NATIVE = True
RUNS = 1500
SETTINGS = "reload=1 hang_ms=0.01 log=0"
KNOWN = [register for register in REG.values() if register.fields]


def mutate(rng):
    if rng.random() < 0.3:
        return {"kind": "file", "form": rng.choice(("raw", "list", "dict")), "words": file(rng),
                "cut": rng.randrange(8) if rng.random() < 0.1 else 0}  # fmt: skip
    count = rng.choice((1, 1, 2, 3))
    return {
        "kind": "tasks",
        "driver": rng.choice(("Rocket", "Rknpu")),
        "task": task(rng),
        "count": count,
        "changes": [change(rng, count) for _ in range(rng.choice((0, 1, 1, 1, 2, 4)))],
        "fill": rng.randrange(1 << 30),
    }


def file(rng):
    """Return words, usually of registers, as text."""
    words = []
    for _ in range(rng.choice((0, 1, 2, 130))):
        register = rng.choice(KNOWN)
        word = register.target << 48 | rng.getrandbits(32) << 16 | register.offset
        words.append(f"{rng.choice((word, word, word, rng.getrandbits(64))):#018x}")
    if rng.random() < 0.1:
        words.append(rng.choice(("", "x", "0x", "1" * 20, 7, None, [], "0x１")))
    return words


def task(rng):
    """Return the format, layout and sizes of a task, which are usually possible."""
    format, layout = FORMATS[rng.choice(list(FORMATS))], rng.choice(list(Layout))
    panel = {Layout.PANEL8: 8, Layout.PANEL16: 16}.get(layout, 1)
    m = panel * rng.choice((1, 2, 4, 5, 64 // panel, rng.randrange(1, 64)))
    k = format.k_step * rng.choice((1, 2, 3, 4, 12, rng.randrange(1, 64)))
    n = format.group * rng.choice((1, 2, 5))
    rows = m if layout is Layout.NATIVE_H else m + panel * rng.choice((0, 0, 1, 3))
    more = format.k_step * rng.choice((0, 0, 1, 2))
    return [format.name, layout.value, m, k, n, rows, k + more]


def change(rng, count):
    """Return (task, index of the word, part of the word, kind of change, number)."""
    place = rng.randrange(count), rng.randrange(1 << 16)
    if rng.random() < 0.5:
        part = rng.choice(([rng.randrange(64), 1], [0, 16], [16, 32], [48, 16]))
        return [*place, part, rng.choice(("set", "flip")), sizes.anything(rng)]
    field = rng.randrange(16)
    if rng.random() < 0.5:
        return [*place, field, "add", rng.choice((-1, 1, -2, 2, 16, -16, 32, 64, 256, -256))]
    return [*place, field, "set", sizes.anything(rng, 16)]


def changed(words, changes, profile):
    """Return *words* ``[T, stride]`` with the changes."""
    words = words.copy()
    for task, which, part, how, value in changes:
        row = words[task % len(words)]
        if isinstance(part, list):  # first bit, bits
            (first, bits), column = part, which % len(row)
        else:  # number of a field
            column = which % len(profile.order)
            fields = list(profile.order[column].fields.values()) or [None]
            field = fields[part % len(fields)]
            first, bits = (field.lo + 16, field.width) if field else (0, 0)
        word, mask = int(row[column]), (1 << bits) - 1 << first
        made = {"set": value << first, "add": word + (value << first), "flip": ~word}[how]
        row[column] = word & ~mask | made & mask
    return words


def run(value):
    if value["kind"] == "file":
        return read_file(value)
    return run_tasks(value)


def read_file(value):
    words = value["words"]
    if value["form"] == "raw":
        numbers = [
            int(w, 16) for w in words if isinstance(w, str) and w[2:].isalnum() and len(w) == 18
        ]
        data = np.array(numbers, np.uint64).tobytes()
    else:
        data = json.dumps(words if value["form"] == "list" else {"words": words}).encode()
    for word in regcmd.parse(data[: len(data) - value["cut"]]):
        line = regcmd.describe(word)
        assert str(line).startswith(f"{word:016x}")
        write = regcmd.decode(word)
        try:
            assert regcmd.encode(write) == word
        except LayoutError:
            assert line.reserved
        else:
            assert not line.reserved
    return "listed"


def run_tasks(value):
    format, layout, *numbers = value["task"]
    one, count = Task(FORMATS[format], Layout(layout), *numbers), value["count"]
    profile, rocket = Profile.FULL, value["driver"] == "Rocket"
    client.configure(SETTINGS)
    rng = np.random.default_rng(value["fill"])
    with getattr(client, value["driver"])() as driver:
        low = -16 * min(atoms_read(one)), -16 * min(atoms_written(one))
        a = driver.buffer(noise(rng, low[0] + 16 * max(atoms_read(one)) + 16))
        b = driver.buffer(noise(rng, one.weight_bytes))
        c = driver.buffer(noise(rng, low[1] + 16 * max(atoms_written(one)) + 16))
        nbytes = count * stride(profile) * 8
        listed = driver.create(nbytes) if rocket else driver.create(nbytes, client.LISTS)
        places = [[a.iova + low[0], b.iova, c.iova + low[1]]] * count
        chain = None if rocket else listed.iova
        good = link([one] * count, places, profile=profile, chain_at=chain)
        words = changed(good, value["changes"], profile)
        listed.bytes[:] = words.view(np.uint8).reshape(-1)
        listed.fini()
        spans = [
            BufferSpan(x.iova, x.iova + len(x.bytes), role, role.name)
            for x, role in zip((listed, a, b, c), Role, strict=False)
        ]
        spans[1] = spans[1]._replace(role=Role.INPUT)
        spans[2] = spans[2]._replace(role=Role.INPUT)
        spans[3] = spans[3]._replace(role=Role.OUTPUT)
        proof = proven(words, sorted(spans), listed.iova, chain is not None, profile)
        before = [bytes(x.bytes) for x in (a, b, listed, c)]
        works = works_on(driver, one, words, listed, (a, b), c, profile)
        assert works or proof is None, "the simulator refuses what the proof lets pass"
        assert [bytes(x.bytes) for x in (a, b, listed)] == before[:3], "an input was written to"
        if proof is not None:
            check_written(proof, c, before[3])
        return {(True, True): "proven and run", (True, False): "run without a proof"}.get(
            (works, proof is not None), "refused by both"
        )


def noise(rng, nbytes):
    return rng.integers(0, 256, nbytes, np.uint8)


def proven(words, spans, at, chained, profile):
    try:
        return prove(words, spans, at=at, chained=chained, profile=profile)
    except LayoutError:
        return None


def works_on(driver, one, words, listed, inputs, output, profile):
    """Run the program; return whether the NPU ran it without a hang."""
    refused = client.report()["refused"]
    step = stride(profile) * 8
    try:
        if isinstance(driver, client.Rocket):
            lists = [(listed.iova + i * step, profile.words) for i in range(len(words))]
            driver.run(lists, [listed, *inputs], [output])
        else:
            entries = driver.create(40 * len(words), client.TASKS)
            made = [client.entry(listed.iova + i * step, profile.words) for i in range(len(words))]
            entries.bytes[:] = np.frombuffer(b"".join(made), np.uint8)
            driver.submit(entries, len(words))
            output.prep()
    except OSError:
        return False
    return client.report()["refused"] == refused


def check_written(proof, c, before):
    """Check that the program wrote only to the addresses in the proof."""
    allowed = np.zeros(len(before), bool)
    for first, last in proof.results.tolist():
        allowed[first - c.iova : last - c.iova] = True
    same = c.bytes == np.frombuffer(before, np.uint8)
    assert (same | allowed).all(), "the NPU wrote where the proof does not say"


def without_banks():
    """Make the proof ignore that CBUF is too small for a task's features."""
    from npurt.rknpu.plan import proof

    proof._Program.check_banks = lambda self: None


PLANTED = {"no check of banks": without_banks}
