"""Choose damage to a GGUF file, and apply it to the header."""

import copy
import math
import struct

from tests.fuzz import models, sizes
from tests.llm import gguf_files as raw

# Keys that npurt reads and that are not sizes of `models`, each with a valid value.
OTHER_KEYS = {
    "general.alignment": (raw.U32, 32), "split.count": (raw.U16, 1),
    "{}.rope.freq_base": (raw.F32, 1e4), "{}.attention.layer_norm_rms_epsilon": (raw.F32, 1e-5),
    "{}.attention.scale": (raw.F32, 0.25), "{}.rope.scaling.type": (raw.STRING, "yarn"),
    "{}.rope.scaling.factor": (raw.F32, 4.0), "{}.rope.scale_linear": (raw.F32, 2.0),
    "{}.rope.scaling.original_context_length": (raw.U32, 64),
    "{}.rope.scaling.attn_factor": (raw.F32, 1.0), "{}.rope.scaling.yarn_beta_fast": (raw.F32, 32),
    "{}.rope.scaling.yarn_beta_slow": (raw.F32, 1.0), "{}.nextn_predict_layers": (raw.U32, 1),
    "{}.attention.sliding_window": (raw.U32, 64), "{}.attention.causal": (raw.BOOL, 1),
    "{}.expert_weights_scale": (raw.F32, 2.0), "{}.expert_weights_norm": (raw.BOOL, 1),
    "{}.expert_gating_func": (raw.U32, 1), "{}.expert_group_count": (raw.U32, 1),
    "{}.attention.recurrent_layers": (raw.ARRAY, (raw.BOOL, [1, 0])),
    "{}.rope.dimension_sections": (raw.ARRAY, (raw.I32, [4, 2, 2, 0])),
    "tokenizer.ggml.bos_token_id": (raw.U32, 1), "tokenizer.ggml.eos_token_id": (raw.U32, 2),
    "tokenizer.ggml.add_bos_token": (raw.BOOL, 1), "tokenizer.ggml.unknown_token_id": (raw.U32, 0),
    "tokenizer.ggml.suppress_tokens": (raw.ARRAY, (raw.I32, [3, 4])),
    "tokenizer.chat_template": (raw.STRING, "{{ messages[0].content }}"),
}  # fmt: skip
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e-45,
    1e-38,
    1e-3,
    1e6,
    3.4e38,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
)


def edit(rng, kind, values):
    """Return a change of a file of that architecture and these sizes: a verb and its arguments."""
    what = rng.randrange(10)
    arch = models.keys(kind, {"vocabulary": 1})[0][2]
    if what < 3:
        name, (number, value) = rng.choice(list(OTHER_KEYS.items()))
        return ["key", name.format(arch), *another_value(rng, number, value)]
    if what < 5:
        name = rng.choice([n for n in models.ARCHITECTURES[kind] if n != "vocabulary"])
        return ["key", f"{arch}.{name}", *another_value(rng, raw.U32, values[name])]
    if what == 5:
        return ["drop key", rng.random()]
    if what == 6:
        how = rng.choice(("dims", "kind", "offset", "name", "n_dims", "drop", "twice", "swap"))
        return ["tensor", rng.random(), how, rng.randrange(4), sizes.anything(rng, 32)]
    if what == 7:
        return ["count", rng.choice(("n_keys", "n_tensors", "version")), sizes.anything(rng, 3)]
    if what == 8:
        return ["word", rng.random(), rng.choice(("<I", "<Q", "<B")), sizes.anything(rng, 8)]
    return ["cut", rng.random()] if rng.random() < 0.3 else ["data", rng.random(), rng.random()]


def another_value(rng, number, value):
    """Return a type of GGUF values and a value, which often equal the ones given."""
    if rng.random() < 0.2:
        number = rng.choice((*raw.PACK, raw.STRING, raw.ARRAY))
    if number == raw.ARRAY:
        element = rng.choice((raw.I32, raw.U8, raw.BOOL, raw.STRING, raw.F32, raw.U64))
        count = rng.choice((0, 1, 2, 3, 4, 100))
        return [number, [element, [a_value(rng, element) for _ in range(count)]]]
    return [number, a_value(rng, number, value)]


def a_value(rng, number, now=1):
    """Return a number, flag or string, often close to *now*."""
    if number == raw.STRING:
        return rng.choice(("", "linear", "yarn", "none", "llama", "\x00", "\u00fc" * 300))
    if number in (raw.F32, raw.F64):
        chosen = rng.choice((*FLOATS, now if isinstance(now, float) else 2.0))
        return math.inf if number == raw.F32 and chosen > 3.5e38 else chosen
    if number == raw.BOOL:
        return rng.choice((0, 1, 1))
    bits = 8 * struct.calcsize(raw.PACK[number])
    made = sizes.anything(rng, now if isinstance(now, int) else 1) % (1 << bits)
    signed = raw.PACK[number].islower()
    return made - (1 << bits) if signed and made >> (bits - 1) else made


def _key(file, name, kind, value):
    place = [i for i, key in enumerate(file.keys) if key[0] == name]
    if kind == raw.STRING:
        value = str(value)
    entry = (name, kind, tuple(value) if kind == raw.ARRAY else value)
    if place:
        file.keys[place[0]] = entry
    else:
        file.keys.append(entry)


def _drop_key(file, where):
    if file.keys:
        del file.keys[int(where * len(file.keys))]


def _tensor(file, where, what, which, value):
    if not file.tensors:
        return
    i = int(where * len(file.tensors))
    tensor = copy.copy(file.tensors[i])
    if what == "drop":
        del file.tensors[i]
    elif what == "twice":
        file.tensors.append(tensor)
    elif what == "swap":
        j = value % len(file.tensors)
        file.tensors[i], file.tensors[j] = file.tensors[j], file.tensors[i]
    else:
        changes = {
            "dims": lambda: {"dims": (*tensor.dims[:which], value, *tensor.dims[which + 1 :])},
            "kind": lambda: {"kind": (value if value > 99 else value % 42) % (1 << 32)},
            "offset": lambda: {"offset": value},
            "name": lambda: {"name": ("x" * (value % 300)) if which else file.tensors[0].name},
            "n_dims": lambda: {"n_dims": value % (1 << 32)},
        }
        file.tensors[i] = raw.Tensor(**(vars(tensor) | changes[what]()))


def _count(file, what, value):
    setattr(file, what, value % (1 << (32 if what == "version" else 64)))


EDITS = {"key": _key, "drop key": _drop_key, "tensor": _tensor, "count": _count}


def apply(edits, file):
    """Apply the changes of the header, before the header is written."""
    for word, *change in edits:
        if word in EDITS:
            EDITS[word](file, *change)
