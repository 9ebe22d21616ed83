"""Fuzz saved states: fields at limits with a right checksum; the model loads them and generates."""

import hashlib
import itertools
import struct
import tempfile
from pathlib import Path

import numpy as np

import npurt
from npurt.errors import NumericsError, VerificationFailed
from npurt.llm.state.state_file import DIGEST, HEADER
from tests.fuzz import sizes
from tests.llm import tiny

NATIVE = True
RUNS = 600
MODELS = (("qwen35", "q8_0"), ("qwen3moe", "q8_0"), ("llama3", "f32"))
FIELDS = ("magic", "version", "form", "length", "own", "model")
NUMBERS = (0.0, -0.0, 1e-45, 1e-38, 1.0, 1e4, 65504.0, 3.4e38, -3.4e38, np.inf, np.nan)
opened = {}


def mutate(rng):
    changes = [change(rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return {
        "model": rng.randrange(len(MODELS)),
        "kv_type": rng.choice(("f16", "f32")),
        "tokens": rng.choice((0, 1, 2, 15, 16, 17, 40)),
        "changes": changes,
        "digest": rng.random() < 0.95,  # the checksum is computed again
        "then": [rng.choice(STEPS) for _ in range(rng.choice((1, 2, 4)))],
        "seed": rng.randrange(1 << 30),
    }


def change(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return ["field", rng.choice(FIELDS), sizes.anything(rng, 40)]
    if kind == 1:
        return ["token", rng.random(), rng.choice((-1, 0, 1, 1 << 30, -(1 << 31), 511, 512))]
    if kind == 2:
        return ["numbers", rng.random(), rng.choice((1, 4, 1000)), rng.randrange(len(NUMBERS))]
    if kind == 3:
        return ["byte", rng.random(), rng.randrange(256)]
    if kind == 4:
        return ["cut", rng.random()]
    return ["more", rng.choice((1, 4, 100, 1 << 20))]


def model(number, kv_type):
    """Return a separate model for each type of cache, opened once."""
    if (number, kv_type) not in opened:
        opened[number, kv_type] = npurt.Llama(
            tiny.path(*MODELS[number]), "cpu", n_ctx=64, n_batch=16, n_threads=2, progress=False,
            kv_type=kv_type, seed=1, context_shift=True,
        )  # fmt: skip
    return opened[number, kv_type]


def run(value):
    llm = model(value["model"], value["kv_type"])
    llm.reset()
    rng = np.random.default_rng(value["seed"])
    ids = rng.integers(0, llm.config.n_vocab, value["tokens"] + 1).tolist()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        if ids[1:]:
            llm.eval_last(ids[1:])
        llm.save_state(path)
        llm.eval_last(ids[:1])
        here, before = llm.history, llm.eval_last(ids[:1]).copy()
        llm.rollback(1)
        assert llm.history == here
        spoil(path, value)
        try:
            llm.load_state(path)
        except npurt.NpurtError:
            assert llm.history == here, "a state that was refused changed the context"
            again = llm.eval_last(ids[:1])
            assert np.array_equal(again, before), "a state that was refused changed the model"
            raise
        assert len(llm.history) <= llm.n_ctx
        assert all(0 <= token < llm.config.n_vocab for token in llm.history)
        try:
            for step in value["then"]:
                go_on(llm, step)
        except NumericsError:
            return "not finite"
        except VerificationFailed:
            return "alarm"
        finally:
            llm.reset()
    return "went on"


def spoil(path, value):
    """Change the file."""
    data = bytearray(path.read_bytes())
    fields, n = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True)), value["tokens"]
    body, end = HEADER.size + 4 * n, len(data) - DIGEST
    for kind, *change in value["changes"]:
        if kind == "field" and len(data) >= HEADER.size:
            name, number = change
            limits = {"version": 1 << 32, "form": 1 << 32, "length": 1 << 64, "own": 1 << 64}
            fields[name] = number % limits[name] if name in limits else b"other" * 9
            HEADER.pack_into(data, 0, *fields.values())
        elif kind == "token" and n:
            struct.pack_into("<i", data, HEADER.size + 4 * int(change[0] * n), change[1])
        elif kind == "numbers":
            where, count, which = change
            numbers = np.full(count, NUMBERS[which], "<f4").tobytes()
            with np.errstate(over="ignore"):
                halves = np.full(count, NUMBERS[which]).astype("<f2").tobytes()
            made = halves if value["kv_type"] == "f16" and value["model"] else numbers
            at = body + int(where * max(0, end - body - len(made))) // 4 * 4
            data[at : min(end, at + len(made))] = made[: max(0, end - at)]
        elif kind == "byte":
            data[int(change[0] * len(data))] = change[1]
        elif kind == "cut":
            del data[int(change[0] * len(data)) :]
        elif kind == "more":
            data[end:end] = bytes(change[0])
        end = max(0, len(data) - DIGEST)
        if not data:
            break
    if value["digest"]:
        data[end:] = hashlib.sha256(data[:end]).digest()
    path.write_bytes(data)


STEPS = ("token", "batch", "generate", "rollback", "full", "snapshot", "reset")


def go_on(llm, step):
    """Generate with a model whose state may have any finite numbers."""
    if step == "token":
        llm.eval_last([3])
    elif step == "batch":
        llm.eval_last([5] * min(20, llm.n_ctx // 2))
    elif step == "generate":
        llm.generate([7, 8], max_tokens=3)
    elif step == "rollback":
        llm.rollback(min(3, llm.n_tokens))
    elif step == "full":
        for token in itertools.islice(itertools.count(), 70):
            llm.eval_last([token % 100])
    elif step == "snapshot":
        llm.restore(llm.snapshot())
    else:
        llm.reset()


def unchecked_tokens():
    """Omit the check of token ids."""
    from npurt.llm.state import state_file

    read = state_file._read
    state_file._read = lambda file, state, identity, n_vocab, path: read(
        file, state, identity, 1 << 40, path
    )


PLANTED = {"unchecked tokens": unchecked_tokens}
