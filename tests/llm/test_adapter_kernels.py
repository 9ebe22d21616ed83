"""Tests of LoRA adapters in kernels: one verified program, equal bits in batches of any size."""

import numpy as np
import pytest

import npurt
from npurt.cpu.lowering.outside_steps import NumpyStep
from npurt.errors import SettingError, StateFormatError
from npurt.graph.ops import MatMul
from npurt.llm.arch.reading import describe
from npurt.llm.file.adapter import Adapter
from npurt.llm.file.gguf import GGUF
from tests.llm import tiny
from tests.llm.test_adapters import EVERY, logits, pairs_of, path_of, write

IDS = tiny.ids("llama3", 40)
MODELS = (
    "exaone4", "gemma2", "gemma3", "glm4", "gpt-oss", "granite", "lfm2", "llama3", "mistral3",
    "olmo2", "phi3", "qwen2", "qwen3", "qwen35", "qwen3moe", "smollm3",
)  # fmt: skip
DEVICES = ("cpu", "hexagon:sim", "rknpu:sim")


def path():
    return tiny.path("llama3", "q8_0")


def adapter_of(tmp_path, model=None, parts=EVERY, rank=16, name="lora.gguf"):
    model = model or path()
    with GGUF(model) as file:
        arch = file.architecture
    return write(tmp_path / name, pairs_of(model, parts, rank), arch)


def steps_of(llm):
    return [step for part in llm.model.executor.parts for step in part.segment._program.steps]


# --- Bits -----------------------------------------------------------------------------------------


def in_batches(model, device, adapter, n_batch, n_threads=2):
    """Return the logits of all ids, *n_batch* at a time."""
    options = {"n_ctx": 64, "n_batch": n_batch, "n_threads": n_threads, "progress": False}
    with npurt.Llama(model, device, lora=adapter, **options) as llm:
        return np.concatenate([llm.eval(IDS[i : i + n_batch]) for i in range(0, 40, n_batch)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rank", [3, 64])
def test_logits_do_not_depend_on_the_batch(tmp_path, device, rank):
    adapter = adapter_of(tmp_path, rank=rank)
    whole = in_batches(path(), device, adapter, 40)
    for n_batch, n_threads in ((1, 2), (7, 1)):
        assert np.array_equal(in_batches(path(), device, adapter, n_batch, n_threads), whole)


@pytest.mark.parametrize("parts", [("attn_q",), ("attn_v", "ffn_up"), ("attn_output", "ffn_down")])
def test_no_choice_of_matrices_makes_logits_depend_on_the_batch(tmp_path, parts):
    adapter = adapter_of(tmp_path, parts=parts)
    whole = in_batches(path(), "cpu", adapter, 40)
    assert np.array_equal(in_batches(path(), "cpu", adapter, 1), whole)


@pytest.mark.parametrize("draft", ["lookup", "model"])
def test_drafts_change_no_text(tmp_path, draft):
    adapter = adapter_of(tmp_path, rank=64)
    options = {"n_ctx": 128, "lora": adapter, "progress": False}
    with npurt.Llama(path(), "cpu", **options) as llm:
        text = llm.generate("hello hello hello", max_tokens=40, temperature=0)
    chosen = "lookup" if draft == "lookup" else tiny.path("llama3", "f32")
    with npurt.Llama(path(), "cpu", draft=chosen, **options) as llm:
        assert llm.generate("hello hello hello", max_tokens=40, temperature=0) == text


# --- Programs -------------------------------------------------------------------------------------


def of_every_matrix(target, model, rank):
    """Write an adapter of all matrices of *model* that npurt adapts; return its path."""
    rng, pairs = np.random.default_rng(rank), {}
    with GGUF(model) as file:
        graph = describe(file).graph(64)
        for op in graph.graph.ops:
            if isinstance(op, MatMul) and op.role != "output" and op.weight.name not in graph.parts:
                n, k = (dim.size for dim in op.weight.shape)
                a = rng.standard_normal((rank, k), dtype=np.float32) / np.sqrt(k)
                b = rng.standard_normal((n, rank), dtype=np.float32) / np.sqrt(rank)
                pairs[op.weight.name] = a.astype(np.float32), b.astype(np.float32)
        return write(target, pairs, file.architecture)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_of_any_architecture_is_the_programs_without_adapters(tmp_path, model):
    chosen = path_of(model)
    first, second = (of_every_matrix(tmp_path / f"{rank}", chosen, rank) for rank in (5, 16))
    options = {"n_ctx": 64, "progress": False}
    with npurt.Llama(chosen, "cpu", **options) as llm:
        plain = len(steps_of(llm))
    made = []
    for n_batch in (20, 1):
        lora = [first, (second, -0.5)]
        with npurt.Llama(chosen, "cpu", lora=lora, n_batch=n_batch, **options) as llm:
            parts = [llm.eval(IDS[i : i + n_batch]) for i in range(0, 20, n_batch)]
            made.append(np.concatenate(parts))
            steps = steps_of(llm)
        assert len(steps) == plain
        assert not [step for step in steps if isinstance(step, NumpyStep)]
    assert np.array_equal(*made)


@pytest.mark.parametrize("parts", [("attn_q",), ("attn_k", "attn_v"), ("ffn_gate",), ("ffn_up",)])
def test_a_run_is_one_program_whichever_matrices_are_adapted(tmp_path, parts):
    adapter = adapter_of(tmp_path, parts=parts)
    with npurt.Llama(path(), "cpu", n_ctx=64, lora=adapter, progress=False) as llm:
        assert len(steps_of(llm)) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_all_products_of_adapters_are_verified(tmp_path, device):
    options = {"n_ctx": 64, "verify": "always", "progress": False}
    with npurt.Llama(path(), device, lora=adapter_of(tmp_path), **options) as llm:
        llm.eval([1, 2, 3])
        llm.eval([4])
        rows = [row for row in llm.report().rows if row.op in ("lora_a", "lora_b")]
    assert len(rows) == 2 * 3 * 7  # A and B of each matrix of each layer
    assert {(row.calls, row.verified, row.failed) for row in rows} == {(2, 2, 0)}


# --- Scales ---------------------------------------------------------------------------------------


def test_an_adapter_of_scale_zero_adds_nothing_however_large_it_is(tmp_path):
    large = {
        name: (a * np.float32(1e25), b * np.float32(1e25))
        for name, (a, b) in pairs_of(path()).items()
    }
    adapter = write(tmp_path / "large.gguf", large)
    plain = logits(path(), IDS, "cpu")
    for scale in (0.0, 1e-60):  # 1e-60 rounds to 0 in float32
        with npurt.Llama(path(), "cpu", n_ctx=64, kv_type="f32", lora=(adapter, scale)) as llm:
            assert np.array_equal(llm.eval(IDS), plain)
            assert not [row for row in llm.report().rows if "lora" in row.op]


def test_factors_that_float32_cannot_hold_are_refused(tmp_path):
    pairs = pairs_of(path(), ("attn_q",))
    adapter = write(tmp_path / "a.gguf", pairs)
    small = {name: (a * np.float32(1e-20), b) for name, (a, b) in pairs.items()}
    strong = write(tmp_path / "b.gguf", small, alpha=1e38)
    assert Adapter.read(strong, 1.0).parts
    for file, scale in ((adapter, 1e39), (adapter, -1e39), (adapter, 10**400), (strong, 100)):
        with pytest.raises(SettingError, match=rf"scale of .*{file.name}") as caught:
            Adapter.read(file, scale)
        assert caught.value.remedy


@pytest.mark.parametrize("scale", [np.float32(0.5), np.float64(0.5), np.float16(0.5)])
def test_a_scale_may_be_a_number_of_numpy(tmp_path, scale):
    adapter = adapter_of(tmp_path, parts=("attn_q",))
    expected = logits(path(), IDS[:3], "cpu", lora=(adapter, 0.5))
    assert np.array_equal(logits(path(), IDS[:3], "cpu", lora=(adapter, scale)), expected)


@pytest.mark.parametrize("scale", [1, np.int64(1), np.float32(1)])
def test_a_saved_state_knows_the_value_of_a_scale_not_its_type(tmp_path, scale):
    adapter = adapter_of(tmp_path, parts=("attn_q",))
    with npurt.Llama(path(), "cpu", n_ctx=64, lora=adapter) as llm:
        llm.eval(IDS)
        llm.save_state(tmp_path / "state")
    with npurt.Llama(path(), "cpu", n_ctx=64, lora=(adapter, scale)) as llm:
        llm.load_state(tmp_path / "state")
    other = npurt.Llama(path(), "cpu", n_ctx=64, lora=(adapter, 2))
    with other as llm, pytest.raises(StateFormatError):
        llm.load_state(tmp_path / "state")
