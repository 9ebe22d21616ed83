"""Helpers that write checkpoint folders of the models in tests/data/models, as transformers does.

transformers wrote config.json (tests/data/checkpoints); the weights are those of the GGUF file,
converted back to the layout of the checkpoint; tokenizer.json is written by tokenizers.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from npurt.errors import NpurtError
from npurt.llm.convert.checkpoint.families import FAMILIES, TOP
from npurt.llm.convert.checkpoint.orders import permuted
from npurt.llm.convert.folder import convert
from npurt.llm.file.gguf import GGUF
from tests.llm import tiny

CONFIGS = json.loads(
    Path(__file__).parents[1].joinpath("data/checkpoints/configs.json").read_text()
)
LAYOUTS = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
FROM_FORMULA = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# The patterns in the published tokenizer.json files of Llama 3 and Qwen 2.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def gguf_path(model):
    """Return the GGUF file that the folder of *model* must be converted to."""
    return tiny.path(model, "bf16" if not tiny.path(model, "f32").exists() else "f32")


def halves(array, heads):
    """Reorder the rows of q or k from GGUF's order (pairs) to a checkpoint's (halves of a head)."""
    width = len(array) // heads
    return array.reshape(heads, width // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)


def weights(model):
    """Return the tensors of the checkpoint of *model*: name -> (dtype, array of values or bits)."""
    config = CONFIGS[model]
    family = FAMILIES[config["model_type"]]
    names = {gguf: theirs for theirs, gguf in {**TOP, **family.names}.items()}
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    found = {}
    with GGUF(gguf_path(model)) as file:
        for name in file:
            if name in FROM_FORMULA:
                continue
            match = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+)\.(weight|bias)", name)
            layer, stem, suffix = match.groups()
            tensor = file[name]
            array, dtype = np.array(tensor.blocks), LAYOUTS[tensor.dtype]
            if family.orders is permuted and stem in heads:
                array = halves(array, heads[stem])
            if stem == "shortconv.conv":
                array = array[:, None]
            if "gemma" in model and name.endswith("norm.weight"):
                array = array - np.float32(1)
            prefix = f"model.layers.{layer}." if layer else ""
            if family.fused_experts and "_exps" in stem:
                found[f"{prefix}mlp.experts.{stem}.{suffix}"] = dtype, array
            elif stem == "attn_sinks":
                found[f"{prefix}self_attn.sinks"] = dtype, array
            elif "*" in names[stem]:
                for i, expert in enumerate(array):
                    found[f"{prefix}{names[stem].replace('*', str(i))}.{suffix}"] = dtype, expert
            else:
                found[f"{prefix}{names[stem]}.{suffix}"] = dtype, array
    return fused(found) if family.fused_experts else found


def fused(tensors):
    """Return *tensors* with the experts of gpt-oss as transformers saves them: [E, K, rows].

    Rows of gate and up alternate.
    """
    found = dict(tensors)
    for name in [name for name in tensors if ".ffn_gate_exps." in name]:
        start, suffix = name.split("ffn_gate_exps.")
        dtype, gate = found.pop(name)
        _, up = found.pop(f"{start}ffn_up_exps.{suffix}")
        _, down = found.pop(f"{start}ffn_down_exps.{suffix}")
        both = np.stack((gate, up), 2).reshape(gate.shape[0], -1, *gate.shape[2:])
        if suffix == "weight":
            both, down, suffix = both.swapaxes(1, 2), down.swapaxes(1, 2), ""
        found[f"{start}gate_up_proj{suffix and '_bias'}"] = dtype, both
        found[f"{start}down_proj{suffix and '_bias'}"] = dtype, down
    return found


def encode(tensors):
    """Return the bytes of a .safetensors file."""
    table, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, array) in tensors.items():
        content = np.ascontiguousarray(array).tobytes()
        ends = [len(data), len(data) + len(content)]
        table[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": ends}
        data += content
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data


def tokenizer(model):
    """Build the tokenizer of *model* with the tokenizers library."""
    with GGUF(gguf_path(model)) as file:
        keys = file.metadata
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    llama = keys["tokenizer.ggml.pre"] == "llama-bpe"
    vocab = {token: i for i, token in enumerate(tokens) if kinds[i] == 1}
    merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=llama))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3 if llama else QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    made.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (3, 4):
            made.add_tokens([AddedToken(token, special=bool(kind == 3), normalized=False)])
    if llama:
        bos = keys["tokenizer.ggml.bos_token_id"]
        made.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
            ),
        ])  # fmt: skip
    return made


def folder_of(model, target, files=1):
    """Write the folder of *model*, with its weights in *files* files, and return its path."""
    target.mkdir(exist_ok=True)
    with GGUF(gguf_path(model)) as file:
        keys = file.metadata
    config = {k: v for k, v in CONFIGS[model].items() if not k.endswith("_token_id")}
    tokens = keys["tokenizer.ggml.tokens"]
    settings = {"chat_template": keys["tokenizer.chat_template"]}
    for role, short in (("bos", "bos"), ("eos", "eos"), ("padding", "pad")):
        if f"tokenizer.ggml.{role}_token_id" in keys:
            settings[f"{short}_token"] = tokens[keys[f"tokenizer.ggml.{role}_token_id"]]
    (target / "config.json").write_text(json.dumps(config))
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer(model).save(str(target / "tokenizer.json"))
    tensors = list(weights(model).items())
    if files == 1:
        (target / "model.safetensors").write_bytes(encode(dict(tensors)))
        return target
    index = {}
    for i in range(files):
        name = f"model-{i + 1:05}-of-{files:05}.safetensors"
        part = dict(tensors[i::files])
        (target / name).write_bytes(encode(part))
        index |= dict.fromkeys(part, name)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return target


def change(folder, name, **values):
    """Change values of a JSON file in *folder*; the value ``...`` removes its key."""
    path = folder / name
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))


def refused(folder, target, says, kind="f16"):
    """Check that a conversion writes nothing and its error matches *says*; return the error."""
    with pytest.raises(NpurtError, match=says) as caught:
        convert(folder, target, kind, progress=False)
    assert caught.value.remedy
    assert not target.exists()
    return caught.value
