"""Tests of the types of tensors in files with mixed quantisation.

The oracles are the Q4_K_M files that llama.cpp made of real models, and known parts of its rule.
"""

import re

import pytest

from npurt.errors import ModelFormatError, SettingError
from npurt.llm.convert.folder import convert
from npurt.llm.convert.mixture import Override, Types
from npurt.llm.convert.requantise import requantise
from npurt.llm.file.gguf import GGUF
from tests.llm import tiny
from tests.llm.checkpoints import folder_of

LAYERS = 32
PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NAMES = [f"blk.{i}.{part}.weight" for i in range(LAYERS) for part in PARTS]
NAMES += ["token_embd.weight", "output.weight", "output_norm.weight"]
SHAPE = (64, 512)


def metadata(arch="llama", layers=LAYERS, experts=0, heads=32, kv_heads=8):
    keys = {"block_count": layers, "expert_count": experts, "attention.head_count": heads,
            "attention.head_count_kv": kv_heads}  # fmt: skip
    return {"general.architecture": arch} | {f"{arch}.{key}": v for key, v in keys.items()}


def layers_of(kind, part, wanted, **keys):
    """Return the layers whose *part* has the type *wanted*."""
    types = Types(kind, NAMES, metadata(**keys))
    return [i for i in range(LAYERS) if types.of(f"blk.{i}.{part}.weight", SHAPE).name == wanted]


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_the_types_are_those_of_files_that_llama_cpp_made(real_model, name):
    """In 2024, llama.cpp counted layers in the order of their names: 0, 1, 10, 11 and so on."""
    with GGUF(real_model(name)) as file:
        count = file.metadata["qwen2.block_count"]
        places = {layer: i for i, layer in enumerate(sorted(map(str, range(count))))}

        def renamed(tensor):
            return re.sub(r"(?<=^blk\.)\d+", lambda match: str(places[match[0]]), tensor)

        types = Types("q4_k_m", map(renamed, file.tensors), file.metadata)
        for tensor, info in file.tensors.items():
            assert types.of(renamed(tensor), info.shape) is info.format, tensor


EIGHTHS = [*range(4), *range(28, 32)]
THIRDS = [*range(6, 28, 3)]


@pytest.mark.parametrize(
    ("kind", "part", "wanted", "layers"),
    [
        ("q4_k_m", "attn_v", "q6_k", sorted(EIGHTHS + THIRDS)),
        ("q4_k_m", "ffn_down", "q6_k", sorted(EIGHTHS + THIRDS)),
        ("q5_k_m", "ffn_down", "q6_k", sorted(EIGHTHS + THIRDS)),
        ("q4_k_m", "attn_q", "q4_k", list(range(LAYERS))),
        ("q5_k_m", "ffn_up", "q5_k", list(range(LAYERS))),
        ("q4_k_s", "attn_v", "q5_k", [0, 1, 2, 3]),
        ("q4_k_s", "ffn_down", "q5_k", [0, 1, 2, 3]),
        ("q4_k_s", "attn_output", "q4_k", list(range(LAYERS))),
        ("q5_k_s", "attn_v", "q5_k", list(range(LAYERS))),
        ("q5_k_s", "ffn_down", "q5_k", list(range(LAYERS))),
    ],
)
def test_layers_with_more_bits(kind, part, wanted, layers):
    assert layers_of(kind, part, wanted) == layers


def test_what_few_experts_share_gets_more_bits():
    every = list(range(LAYERS))
    for part, wanted in (("attn_v", "q8_0"), ("attn_k", "q8_0"), ("attn_output", "q5_k")):
        assert layers_of("q4_k_m", part, wanted, experts=8) == every
    assert layers_of("q5_k_m", "attn_output", "q5_k", experts=8) == every
    assert layers_of("q4_k_m", "attn_k", "q4_k", experts=64) == every


def test_the_70b_has_more_bits_for_shared_heads():
    types = Types("q4_k_m", [f"blk.{i}.attn_v.weight" for i in range(80)], metadata(layers=80))
    assert types.of("blk.11.attn_v.weight", SHAPE).name == "q5_k"
    types = Types("q4_k_m", [f"blk.{i}.attn_v.weight" for i in range(80)],
                  metadata(layers=80, kv_heads=32))  # fmt: skip
    assert types.of("blk.11.attn_v.weight", SHAPE).name == "q4_k"


def test_values_are_counted_where_only_some_layers_have_them():
    names = [f"blk.{i}.attn_v.weight" for i in range(3, LAYERS, 4)]  # 8 of 32 layers
    types = Types("q4_k_m", names, metadata())
    more = [i for i, name in enumerate(names) if types.of(name, SHAPE).name == "q6_k"]
    assert more == [0, 3, 6, 7]


def test_the_output_matrix_and_small_rows():
    types = Types("q4_k_m", NAMES, metadata())
    assert types.of("output.weight", SHAPE).name == "q6_k"
    assert types.of("output.weight", (64, 288)).name == "q8_0"
    assert types.of("token_embd.weight", SHAPE).name == "q4_k"
    assert types.of("blk.0.attn_v.weight", (64, 288)).name == "q8_0"
    assert types.of("blk.9.attn_q.weight", (64, 288)).name == "q5_0"
    assert types.of("blk.9.attn_q.weight", (64, 40)).name == "f16"
    assert types.of("output_norm.weight", (512,)).name == "f32"
    tied = Types("q4_k_m", [name for name in NAMES if name != "output.weight"], metadata())
    assert tied.of("token_embd.weight", SHAPE).name == "q6_k"


def test_mxfp4_is_for_experts():
    types = Types("mxfp4_moe", NAMES, metadata(experts=4))
    assert types.of("blk.0.ffn_down_exps.weight", (4, 64, 512)).name == "mxfp4"
    assert types.of("blk.0.attn_q.weight", SHAPE).name == "q8_0"
    assert types.of("output.weight", SHAPE).name == "q8_0"
    assert types.of("blk.0.ffn_gate_inp.weight", (4, 512)).name == "f32"
    assert Types("mxfp4", NAMES, metadata()).of("blk.0.attn_q.weight", SHAPE).name == "mxfp4"


def test_the_first_override_that_fits_counts():
    overrides = [Override.parse(text) for text in (r"blk\.[01]\.attn=q8_0", "attn_v=F16")]
    types = Types("q4_k_m", NAMES, metadata(), overrides)
    assert types.of("blk.1.attn_v.weight", SHAPE).name == "q8_0"
    assert types.of("blk.2.attn_v.weight", SHAPE).name == "f16"
    assert types.of("blk.2.attn_q.weight", SHAPE).name == "q4_k"
    # 40 columns are no multiple of a block.
    assert types.of("blk.1.attn_v.weight", (64, 40)).name == "f16"
    assert types.of("blk.1.attn_q.bias", (64,)).name == "f32"
    plain = Types("q4_0", NAMES, metadata(), overrides)
    assert plain.of("blk.1.attn_k.weight", SHAPE).name == "q8_0"
    assert plain.of("blk.2.attn_k.weight", SHAPE).name == "q4_0"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("attn_v", "'attn_v' is no PATTERN=TYPE"),
        ("=q8_0", "'=q8_0' is no PATTERN=TYPE"),
        ("", "'' is no PATTERN=TYPE"),
        ("attn_v=q9", "type 'q9'"),
        ("attn_v=q2_k", "type 'q2_k'"),
        ("(=q8_0", "no regular expression"),
    ],
)
def test_what_is_no_override_is_refused(text, says):
    with pytest.raises(SettingError, match=says) as caught:
        Override.parse(text)
    assert caught.value.remedy


def test_an_override_for_nothing_is_refused(tmp_path):
    with pytest.raises(SettingError, match="atn_v"):
        requantise(tiny.path("llama3", "f32"), tmp_path / "a.gguf", "q8_0",
                   overrides=[Override.parse("atn_v=f16")])  # fmt: skip
    assert not (tmp_path / "a.gguf").exists()


def test_a_mixed_file_needs_the_sizes_of_the_model():
    with pytest.raises(ModelFormatError, match="block_count"):
        Types("q4_k_m", NAMES, {"general.architecture": "llama"})


@pytest.mark.filterwarnings("ignore:.* quantised already")
def test_whole_files_have_the_types(tmp_path):
    source = tiny.path("llama3-256", "q8_0")
    requantise(source, tmp_path / "a.gguf", "Q4_K_M", progress=False,
               overrides=[Override.parse("ffn_gate=q5_1")])  # fmt: skip
    convert(folder_of("gpt-oss", tmp_path / "m"), tmp_path / "b.gguf", "mxfp4_moe", progress=False)
    with GGUF(tmp_path / "a.gguf") as file:
        assert file.metadata["general.file_type"] == 15
        assert file["blk.1.attn_v.weight"].dtype == "q6_k"  # the last of two layers
        assert file["blk.0.attn_q.weight"].dtype == "q4_k"
        assert file["blk.0.ffn_gate.weight"].dtype == "q5_1"
    with GGUF(tmp_path / "b.gguf") as file:
        assert file["blk.0.ffn_up_exps.weight"].dtype == "mxfp4"
        assert file["blk.0.attn_q.weight"].dtype == "q8_0"
