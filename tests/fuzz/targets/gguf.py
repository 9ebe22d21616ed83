"""Fuzz GGUF files: sizes at limits with matching tensors, then damage; load and evaluate the files.

An input is a recipe: the architecture, its unusual sizes, the edits that follow, and the use of the
model.
"""

import contextlib
import functools
import itertools
import math
import struct
import tempfile
import warnings
from pathlib import Path

import numpy as np

import npurt
from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels import abi
from npurt.errors import NumericsError, VerificationFailed
from tests.fuzz import frame, models, sizes
from tests.fuzz import gguf_edits as edits
from tests.llm import gguf_files as raw

NATIVE = True
RUNS = 90
SHARES = 20
SECONDS = 60
MAX_BYTES = 40 << 20  # of a file
MAX_MACS = 4e10  # multiply-adds of a run with the best kernels; a twentieth with other kernels
ROWS = 512  # largest number of rows of a run
MAX_EXPERTS = 4096  # largest number of experts of a token

# Sizes that are derived from other sizes, unless the recipe has them.
DERIVED = {
    "attention.value_length": lambda s: s["attention.key_length"],
    "rope.dimension_count": lambda s: s["attention.key_length"],
    "ssm.inner_size": lambda s: s["ssm.time_step_rank"] * s["ssm.state_size"],
}
# The smaller values of sizes, which are set in this order if a file is too large.
SMALLER = {
    "block_count": 1, "embedding_length": 32, "vocabulary": 32, "feed_forward_length": 32,
    "expert_count": 1, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32,
    "attention.head_count": 1, "attention.head_count_kv": 1, "attention.key_length": 16,
    "ssm.time_step_rank": 1, "ssm.group_count": 1, "ssm.state_size": 16,
}  # fmt: skip
VARIANTS = ("output", "freqs", "bias", "fused_qkv", "gated", "fused_experts")


# --- Making recipes -----------------------------------------------------------------------------


def mutate(rng):
    known = frame.corpus("gguf")
    again = known and rng.random() < 0.1
    recipe = frame.read(rng.choice(known)) if again else fresh(rng)
    if rng.random() < 0.9:
        resize(rng, recipe)
    if rng.random() < 0.9:
        mend(recipe)
    if rng.random() < 0.4:
        recipe["edits"] += [
            edits.edit(rng, recipe["kind"], all_sizes(recipe))
            for _ in range(rng.choice((1, 1, 2, 5)))
        ]
    afford(recipe)
    return recipe


def fresh(rng):
    """Return a recipe of a valid file, usually for a run with the largest number of rows."""
    known = list(models.ARCHITECTURES)
    whole = rng.random() < 0.8
    return {
        "kind": rng.choices(known, [len(models.ARCHITECTURES[kind]) for kind in known])[0],
        "sizes": {},
        "have": [v for v in VARIANTS if rng.random() < 0.3],
        "type": rng.choice((2, 2, 8, rng.choice(models.TYPES), rng.choice(models.TYPES))),
        "float": rng.choice((0, 0, 0, 1, 30)),
        "edits": [],
        "seed": rng.randrange(1 << 30),
        "n_ctx": ROWS if whole else rng.choice((1, 16, 64, ROWS + 1, sizes.limit(rng, 12) or 1)),
        "n_batch": ROWS if whole else rng.choice((1, 16, 33, ROWS)),
        "tokens": ROWS if whole else rng.choice((1, 2, 3, 17, 33, ROWS)),
        "alike": rng.random() < 0.5,  # all tokens are equal
        "threads": rng.choice((1, 2, 2, 3)),
        "isa": rng.choice(range(8)) if rng.random() < 0.25 else None,
        "kv_type": rng.choice(("f16", "f32")),
        "verify": rng.choice(("off", "sample", "always")),
        "steps": [step for step in STEPS if rng.random() < 0.2],
    }


@functools.cache
def parts(kind):
    """Return for each matrix of an architecture the names of the sizes in its shape."""
    usual, found = models.ARCHITECTURES[kind], {}
    shapes = dict(models.tensors(kind, usual, VARIANTS[:1]))
    for name in usual:
        others = dict(models.tensors(kind, usual | {name: usual[name] + 1}, VARIANTS[:1]))
        for tensor, shape in shapes.items():
            if len(shape) > 1 and tensor in others and others[tensor] != shape:
                found.setdefault(tensor, []).append(name)
    return sorted({tuple(names) for names in found.values()})


def resize(rng, recipe):
    """Change some sizes: to any values, or so that a matrix or one of its sides is at a limit."""
    changed, known = recipe["sizes"], models.ARCHITECTURES[recipe["kind"]]
    shapes = parts(recipe["kind"])
    for _ in range(rng.choice((1, 1, 1, 2))):
        kind = rng.randrange(6)
        sides = rng.choices(shapes, list(map(len, shapes)))[0]
        if kind < 2:
            fill(rng, recipe, sides)
        elif kind == 2:
            changed[rng.choice(sides)] = sizes.large(rng)
        elif kind == 3:
            few, many = sizes.factors(rng)
            first, second = rng.sample(sides, 2)
            changed[first], changed[second] = few, -(-many // 32) * 32
        elif kind == 4:
            name = rng.choice(list(known))
            changed[name] = sizes.anything(rng, known[name])
        else:
            changed[rng.choice(list(known))] = sizes.multiple(rng)
    derive(recipe, keep=[name for name in changed if name in DERIVED and rng.random() < 0.1])


def fill(rng, recipe, sides):
    """Make one or two sides of a matrix so large that it fills the file, and the rest small."""
    changed, usual = recipe["sizes"], models.ARCHITECTURES[recipe["kind"]]
    changed |= {name: small for name, small in SMALLER.items() if name in usual}
    chosen = [name for name in sides if name != "embedding_length" or rng.random() < 0.2]
    chosen = rng.sample(chosen, min(len(chosen), rng.choice((1, 2))))
    recipe["type"] = 2 if recipe["type"] in models.FLOATS else recipe["type"]
    for name in chosen[1:]:
        changed[name] = SMALLER.get(name, 1) * int(2 ** rng.uniform(0, 10))
    for name in chosen[:1]:
        target, step = rng.uniform(0.3, 0.9) * MAX_BYTES, SMALLER.get(name, 1)
        for bit in reversed(range(16)):  # the largest number that fits
            changed[name] = changed.get(name, 0) + (step << bit)
            changed[name] -= (step << bit) if file_bytes(recipe) > target else 0


def derive(recipe, keep=()):
    """Compute the sizes that are derived from other sizes."""
    for name, rule in DERIVED.items():
        if name in models.ARCHITECTURES[recipe["kind"]] and name not in keep:
            recipe["sizes"][name] = rule(all_sizes(recipe))


def mend(recipe):
    """Make sizes consistent, as in a real file, and small enough."""
    fit(recipe)
    values, changed = all_sizes(recipe), recipe["sizes"]
    heads, experts = values["attention.head_count"], values.get("expert_count", 0)
    changed["attention.head_count_kv"] = math.gcd(heads, values["attention.head_count_kv"])
    changed["attention.key_length"] = -(-values["attention.key_length"] // 16) * 16
    if experts:
        changed["expert_used_count"] = min(experts, values["expert_used_count"])
    if "ssm.group_count" in values:
        shared = math.gcd(values["ssm.time_step_rank"], values["ssm.group_count"])
        changed["ssm.group_count"] = shared
        changed["ssm.state_size"] = -(-values["ssm.state_size"] // 16) * 16
    for name in "embedding_length", "feed_forward_length", *models.SHARED:
        if values.get(name, 0) > 32 and "length" in name:
            changed[name] = values[name] // 32 * 32
    derive(recipe)


def all_sizes(recipe):
    return models.ARCHITECTURES[recipe["kind"]] | recipe["sizes"]


def shapes(recipe, layers=None):
    """Yield (name, shape, type) of the tensors, by default of all layers."""
    values = all_sizes(recipe)
    if layers is not None:
        values = values | {"block_count": layers}
    for name, shape in models.tensors(recipe["kind"], values, recipe["have"]):
        wanted = recipe["type"] if len(shape) > 1 else recipe["float"]
        yield name, shape, models.type_for(name, shape, wanted)


def total(recipe, cost):
    """Return the approximate sum of *cost*(shape, type) over all tensors."""
    found = [sum(cost(*tensor) for _, *tensor in shapes(recipe, n)) for n in (0, 2)]
    return found[0] + (found[1] - found[0]) * all_sizes(recipe)["block_count"] // 2


def file_bytes(recipe):
    return 24 * min(all_sizes(recipe)["vocabulary"], 1 << 19) + total(recipe, models.nbytes)


def macs(recipe):
    """Return the approximate number of multiply-adds of a token."""
    values = all_sizes(recipe)
    used = values.get("expert_used_count", 1)

    def products(shape, _):
        return math.prod(shape[-2:]) * (used if len(shape) == 3 else 1)

    width = values["attention.head_count"] * values["attention.key_length"]
    attended = values["block_count"] * width * min(recipe["n_ctx"], recipe["tokens"])
    return total(recipe, products) + attended


def fit(recipe):
    """Reduce sizes until the file is small enough, first those with usual values."""
    usual, changed = models.ARCHITECTURES[recipe["kind"]], recipe["sizes"]
    for name, small in SMALLER.items():
        as_usual = name in usual and changed.get(name, usual[name]) == usual[name]
        if as_usual and file_bytes(recipe) > MAX_BYTES:
            changed[name] = small
            derive(recipe)
    if file_bytes(recipe) > MAX_BYTES and recipe["type"] in models.FLOATS:
        recipe["type"] = 2
    while file_bytes(recipe) > MAX_BYTES:
        largest = max((name for name in usual if name not in DERIVED), key=all_sizes(recipe).get)
        changed[largest] = all_sizes(recipe)[largest] // 32 * 16
        derive(recipe)


def afford(recipe):
    """Reduce the number of tokens to the time of one input."""
    maximum = MAX_MACS * (1 if recipe["isa"] is None else 0.05)
    recipe["tokens"] = int(max(1, min(recipe["tokens"], maximum // max(1, macs(recipe)))))


# --- Files --------------------------------------------------------------------------------------


def build(recipe):
    """Return the header, and the tensors after it as (offset, name, shape, type)."""
    file = raw.File(keys=models.keys(recipe["kind"], all_sizes(recipe)), tensors=[], data=b"")
    placed, at = [], 0
    for name, shape, kind in itertools.islice(shapes(recipe), 1 << 15):
        dims = tuple(size % (1 << 64) for size in shape[::-1])
        file.tensors.append(raw.Tensor(name, dims, kind, at % (1 << 64)))
        placed.append((at, name, shape, kind))
        at += -(-models.nbytes(shape, kind) // models.ALIGNMENT) * models.ALIGNMENT
    edits.apply(recipe["edits"], file)
    return file, placed


def write(recipe, path):
    """Write the file, at most `MAX_BYTES` of data."""
    file, placed = build(recipe)
    rng, header = np.random.default_rng(recipe["seed"]), bytearray(file.header())
    for kind, *change in recipe["edits"]:
        if kind == "word":
            where, form, value = change
            size = struct.calcsize(form)
            at = int(where * (len(header) - size))
            struct.pack_into(form, header, at, value % (1 << 8 * size))
    header += bytes(-len(header) % models.ALIGNMENT)
    with path.open("wb") as out:
        out.write(header)
        for at, name, shape, kind in placed:
            if at + models.nbytes(shape, kind) > 2 * MAX_BYTES:
                break
            out.seek(len(header) + at)
            out.write(models.content(rng, name, shape, kind))
        end = out.seek(0, 2)
        end += -end % models.ALIGNMENT
        out.truncate(end)
        for kind, *change in recipe["edits"]:
            if kind == "cut":
                out.truncate(int(change[0] * end))
            elif kind == "data":
                out.seek(int(len(header) + change[0] * (end - len(header))))
                out.write(rng.integers(0, 256, int(64 * change[1]), np.uint8))


# --- Running ------------------------------------------------------------------------------------


def memory(recipe):
    """Return the memory limit: several times the weights, the activations, and the cache."""
    values = all_sizes(recipe)
    columns = 0
    for _, shape, _ in shapes(recipe, 2):
        experts = len(shape) == 3
        used = min(values.get("expert_used_count", 1), MAX_EXPERTS) if experts else 1
        columns += used * min(sum(shape[-2:]), 1 << 20)
    return (256 << 20) + 8 * min(file_bytes(recipe), 2 * MAX_BYTES) + 3 * 4 * ROWS * columns


def run(recipe):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "model.gguf"
        write(recipe, path)
        names = list(abi.isas())
        isa = "" if recipe["isa"] is None else names[recipe["isa"] % len(names)]
        device = CpuDevice(recipe["threads"], isa)
        stack.callback(device.close)
        options = {name: recipe[name] for name in ("n_ctx", "n_batch", "kv_type", "verify")}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "a context of .* exceeds")
            llm = npurt.Llama(path, device, progress=False, context_shift=True, seed=1, **options)
        stack.enter_context(llm)
        return evaluate(llm, recipe)


def evaluate(llm, recipe):
    """Evaluate tokens, and use the model in other ways."""
    rng = np.random.default_rng(recipe["seed"])
    count = min(recipe["tokens"], llm.n_ctx)
    ids = rng.integers(0, llm.config.n_vocab, count).tolist()
    if recipe["alike"]:
        ids = ids[:1] * count
    try:
        logits = llm.eval_last(ids).copy()
        for step in recipe["steps"]:
            STEPS[step](llm, ids, logits)
    except NumericsError:  # damaged data or an unusual key can cause any number
        return "not finite"
    except VerificationFailed:
        if odd(recipe):
            return "not finite"
        raise AssertionError("a false alarm") from None
    failed = [row for row in llm.report().rows if row.failed]
    assert odd(recipe) or not failed, f"a false alarm: {failed}"
    return "evaluated" if not recipe["edits"] else "edited and evaluated"


def odd(recipe):
    """Return whether the file can have numbers that no trained model has."""
    return any(kind in ("data", "word", "key") for kind, *_ in recipe["edits"])


def one_by_one(llm, ids, logits):
    """Check that the logits of a token do not depend on its batch."""
    if len(ids) <= 40:
        llm.reset()
        for token in ids:
            last = llm.eval_last([token])
        assert np.array_equal(last, logits, equal_nan=True), "a batch differs from its tokens"


def generate(llm, ids, logits):
    llm.generate(ids[:3], max_tokens=4, temperature=1.0)


def rollback(llm, ids, logits):
    llm.rewind(0)
    llm.eval_last(ids)
    taken = min(len(ids), 7)
    llm.rollback(taken)
    again = llm.eval_last(ids[len(ids) - taken :])
    assert np.array_equal(again, logits, equal_nan=True), "taking tokens back is not exact"


def snapshot(llm, ids, logits):
    kept = llm.snapshot()
    llm.reset()
    llm.restore(kept)
    assert llm.history == kept.tokens
    llm.eval_last(ids[:1])  # the context may shift


def full(llm, ids, logits):
    """Fill the context until it shifts."""
    if llm.n_ctx <= 64:
        for token in range(llm.n_ctx + 2):
            llm.eval_last([token % llm.config.n_vocab])


STEPS = {
    "one by one": one_by_one,
    "generate": generate,
    "rollback": rollback,
    "snapshot": snapshot,
    "full": full,
}
