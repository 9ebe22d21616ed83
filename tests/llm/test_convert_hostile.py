"""Tests of `npurt convert` on folders whose sizes would take all memory or all time.

A process whose address space is limited converts all folders.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.limits import HANG_SECONDS
from tests.llm import checkpoints
from tests.llm.checkpoints import change, folder_of

MEMORY = 400 << 20  # bytes that refusing any of these folders may take in addition to npurt itself
SECONDS = 20  # of CPU time
BIG = 2**31 - 1

CONVERTER = f"""
import json, resource, sys
from pathlib import Path
from npurt.errors import NpurtError
from npurt.llm.convert.folder import convert

def used():
    return resource.getrusage(resource.RUSAGE_SELF)

before = used().ru_maxrss
with open("/proc/self/statm") as file:
    pages = int(file.read().split()[0])
limit = pages * resource.getpagesize() + {4 * MEMORY}  # far less than the folders ask for
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for line in sys.stdin:
    seconds = int(used().ru_utime + used().ru_stime) + {SECONDS}
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    said = ""
    try:
        convert(*map(Path, json.loads(line)), progress=False)
    except NpurtError as error:
        said = error.what
    print(json.dumps([said, used().ru_maxrss - before]), flush=True)
"""


@pytest.fixture(scope="module")
def converter():
    """Return a process that converts the folders on its standard input."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CONVERTER], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        yield process
        process.stdin.close()
        process.wait(HANG_SECONDS)


@pytest.fixture
def outcome(converter):
    """Return a function that converts a folder and returns the refusal, or "" without one."""

    def convert(folder):
        target = folder.parent / "made.gguf"
        print(json.dumps([str(folder), str(target)]), file=converter.stdin, flush=True)
        answer = converter.stdout.readline()
        assert answer, "the process ended: it took too much time, or it failed"
        said, kilobytes = json.loads(answer)
        assert kilobytes << 10 < MEMORY
        assert target.exists() == (not said)
        return said

    return convert


def table(folder):
    """Return the header of model.safetensors and the bytes after it."""
    data = (folder / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def write_table(folder, text, data):
    head = text.encode() + b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)


def changed_table(folder, edit):
    """Change the header of model.safetensors with the function *edit*."""
    entries, data = table(folder)
    edit(entries)
    write_table(folder, json.dumps(entries), data)


# --- config.json ----------------------------------------------------------------------------------

NO_ROPE = {"rope_parameters": ..., "rope_scaling": ...}
DELTA = {
    "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "layer_types": ...,
    "rope_scaling": ..., "rope_parameters": ..., "head_dim": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("llama3", {"head_dim": BIG}),
        ("llama3", {"head_dim": 2**29}),
        ("llama3", {"head_dim": 2**29} | NO_ROPE),
        ("llama3", {"num_attention_heads": BIG, "head_dim": 2**20} | NO_ROPE),
        ("llama3", {"num_attention_heads": 64, "head_dim": 2**24} | NO_ROPE),
        ("llama3", {"num_attention_heads": 2**26, "num_key_value_heads": 2**26} | NO_ROPE),
        ("llama3", {"num_hidden_layers": BIG}),
        ("llama3", {"hidden_size": BIG, "intermediate_size": BIG, "head_dim": ...} | NO_ROPE),
        ("llama3", {"max_position_embeddings": 2**200}),
        ("smollm3", {"num_hidden_layers": BIG}),
        ("exaone4", {"num_hidden_layers": BIG}),
        ("lfm2", {"num_hidden_layers": BIG, "layer_types": ...}),
        ("lfm2", {"conv_L_cache": BIG}),
        ("gemma2", {"num_hidden_layers": BIG, "layer_types": ...}),
        ("gemma3", {"num_hidden_layers": BIG, "layer_types": ...}),
        ("gpt-oss", {"num_hidden_layers": BIG, "layer_types": ...}),
        ("gpt-oss", {"num_local_experts": BIG}),
        ("qwen3moe", {"num_experts": BIG, "num_experts_per_tok": BIG}),
        ("qwen3moe", DELTA | {"num_hidden_layers": 2**30}),
        ("qwen3moe", DELTA | {"linear_num_value_heads": 2**30, "linear_num_key_heads": 2**15}),
        ("qwen3moe", DELTA | {"linear_key_head_dim": BIG, "linear_value_head_dim": BIG}),
        ("qwen3moe", DELTA | {"linear_conv_kernel_dim": BIG}),
        ("phi3-longrope", {"head_dim": 2**29}),
        ("llama3", {"architectures": ["A" * (3 << 20)]}),
    ],
)  # fmt: skip
def test_sizes_of_a_config_are_checked_before_they_are_used(outcome, tmp_path, model, values):
    folder = folder_of(model, tmp_path / "m")
    change(folder, "config.json", **values)
    assert outcome(folder)


def test_the_same_limit_holds_for_the_file(outcome, tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    change(folder, "config.json", num_hidden_layers=1025)
    assert "num_hidden_layers is 1025, not an integer of 1 to 1024" in outcome(folder)
    change(folder, "config.json", num_hidden_layers=3, head_dim=512)
    assert "heads are 512 wide; npurt needs a multiple of 16, at most 256" in outcome(folder)


# --- Weights --------------------------------------------------------------------------------------


def test_a_shape_of_many_axes_is_refused(outcome, tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    entries, data = table(folder)
    next(each for name, each in entries.items() if "norm" in name)["shape"] = ["@"] * 4000
    write_table(folder, json.dumps(entries).replace('"@"', "9" * 4000), data)
    assert "4000 axes" in outcome(folder)


def test_a_long_axis_is_refused(outcome, tmp_path):
    folder = folder_of("llama3", tmp_path / "m")

    def edit(entries):
        entries["model.norm.weight"]["shape"] = [0, 10**4000]

    changed_table(folder, edit)
    assert "impossible shape" in outcome(folder)


def test_a_long_name_is_refused_and_cut(outcome, tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    changed_table(folder, lambda e: e.update({"x" * (1 << 20): e.pop("model.norm.weight")}))
    said = outcome(folder)
    assert "1048576 characters" in said
    assert len(said) < 200


def test_many_experts_without_bytes_are_refused(outcome, tmp_path):
    folder = folder_of("qwen3moe", tmp_path / "m")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    entry = {"dtype": "I8", "shape": [2**50, 2, 1], "data_offsets": [0, 0]}
    changed_table(folder, lambda entries: entries.update({name: entry}))
    assert f"{name} has {2**50} experts, above 4096" in outcome(folder)


def test_many_tensors_are_refused(outcome, tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    _, data = table(folder)
    entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    entries = ",".join(f'"{i}":{entry}' for i in range(400_000))
    write_table(folder, f"{{{entries}}}", data)
    assert outcome(folder)


def test_an_embedding_of_a_type_that_has_no_size_is_refused(outcome, tmp_path):
    folder = folder_of("qwen2", tmp_path / "m")

    def edit(entries):
        entries["model.embed_tokens.weight"] |= {"dtype": "I4", "shape": [2**60, 128]}

    changed_table(folder, edit)
    assert "type I4" in outcome(folder)


# --- JSON files and tokenizers --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
     "added_tokens.json", "chat_template.jinja", "model.safetensors.index.json",
     "tokenizer.model"],
)  # fmt: skip
def test_a_large_file_is_not_read(outcome, tmp_path, name):
    folder = folder_of("llama3", tmp_path / "m")
    if name in ("added_tokens.json", "tokenizer.model"):  # only pieces have these
        pieces(folder, ["a"])
    with open(folder / name, "wb") as file:
        file.truncate(1 << 40)  # a sparse file
    assert "has more than" in outcome(folder)


def pieces(folder, texts):
    """Write a tokenizer.json of pieces, with no merges, for an embedding of 608 rows."""
    vocab = {"<unk>": 0} | {text: i for i, text in enumerate(texts, 1)}
    model = {
        "type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "vocab": vocab, "merges": [],
        "dropout": None, "fuse_unk": True,
    }  # fmt: skip
    steps = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor"))
    change(folder, "tokenizer.json", model=model, added_tokens=[], **steps)


def test_a_long_piece_is_refused(outcome, tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    pieces(folder, [*(chr(0x4E00 + i) for i in range(200)), "a" * 400_000])
    assert "token 201 has 400000 characters, above 128" in outcome(folder)


def test_added_tokens_do_not_grow_the_vocabulary_without_bound(outcome, tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    pieces(folder, ["a"])
    ids = {str(i): {"content": f"<{i}>", "special": True} for i in range(0, 1 << 27, 1 << 15)}
    change(folder, "tokenizer_config.json", added_tokens_decoder=ids)
    assert "has the id" in outcome(folder)


def test_the_folders_are_sound_without_the_changes(outcome, tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    assert outcome(folder) == ""
    assert checkpoints.CONFIGS["llama3"]["head_dim"] == 32
