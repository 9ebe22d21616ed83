"""Tests of block drafts (DFlash): torch's logits, unchanged text, refusal of unsuitable files."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.errors import ModelFormatError
from npurt.llm.file.gguf import GGUF
from npurt.llm.spec.controller import Controller
from npurt.llm.state.hidden_states import HiddenStates
from tests.llm import gguf_files as raw
from tests.llm import tiny
from tests.llm.conftest import drafted
from tests.llm.reference import nmse
from tests.llm.test_logits import FLOAT_NMSE

FOLDER = tiny.MODELS / "spec"
TARGET = FOLDER / "spec-target-qwen3-f32.gguf"
SMALL_TARGET = FOLDER / "spec-target-qwen3-q8_0.gguf"
DRAFT = FOLDER / "spec-dflash-qwen3-f32.gguf"
SMALL_DRAFT = FOLDER / "spec-dflash-qwen3-q8_0.gguf"
HYBRID = tiny.path("qwen35", "q8_0")  # has the width and vocabulary of TARGET
ORACLE = dict(np.load(FOLDER / "dflash_qwen3_oracle.npz"))
PROMPT = ORACLE["prompt"].tolist()  # the last token begins the block, the others are context
OPTIONS = {"n_threads": 2, "progress": False, "draft_max": 7}


def open_pair(target=TARGET, draft=DRAFT, n_ctx=160, **options):
    return npurt.Llama(target, draft=draft, n_ctx=n_ctx, **(OPTIONS | options))


@pytest.fixture(scope="module")
def pair():
    with open_pair(kv_type="f32") as llm:
        yield llm


@pytest.fixture(scope="module")
def hybrid():
    """Yield a target with delta nets, and a draft model that was not trained for the target."""
    with open_pair(HYBRID) as llm:
        yield llm


def text(llm, count=40, *, maximum=None, prompt=PROMPT, **options):
    """Return the ids of prompt and text, with *maximum* draft tokens at once; None: no drafts."""
    speculator = llm.speculator
    speculator.controller = Controller(maximum or 1, fixed=True, at_once=True)
    llm.reset()
    llm.speculator = speculator if maximum else None
    try:
        llm.generate(prompt, max_tokens=count, **({"temperature": 0} | options))
    finally:
        llm.speculator = speculator
    return llm.history


# --- Torch's logits ---------------------------------------------------------------------------


def block_logits(llm):
    """Return the draft's logits for the oracle's block after the context of *llm*."""
    network = llm.speculator.drafter._network
    eps = network.shape.config.eps
    head = llm.model.head("draft_output", llm.config.n_vocab, network.output_norm, eps)
    llm.context.hidden_states.flush()
    return head(network.fill_in(llm.token_embeddings(ORACLE["block_tokens"]), llm.n_tokens))


def test_the_targets_stream_is_torchs(pair):
    seen = []
    states = pair.context.hidden_states
    reader, states.reader = states.reader, lambda values, at: seen.append((at, values.copy()))
    pair.reset()
    pair.eval(PROMPT[:-1])
    pair.context.hidden_states.flush()
    pair.context.hidden_states.reader = reader

    [(at, values)] = seen
    assert pair.context.hidden_states.layers == tuple(ORACLE["target_layers_gguf"]) == (1, 3)
    assert at == 0
    assert nmse(values, ORACLE["features"]) < FLOAT_NMSE


def test_the_logits_of_a_block_are_torchs(pair):
    pair.reset()
    pair.eval(PROMPT[:-1])

    logits = block_logits(pair)

    assert nmse(logits, ORACLE["draft_logits_torch"]) < FLOAT_NMSE
    expected = ORACLE["draft_logits_torch"][1:].argmax(axis=1).tolist()
    assert drafted(pair.speculator.drafter, PROMPT, 7) == expected
    assert drafted(pair.speculator.drafter, PROMPT, 3)[:1] == expected[:1]


@settings(max_examples=20)
@given(
    cuts=st.lists(st.integers(1, 53), max_size=4),
    wrong=st.lists(st.tuples(st.integers(0, 599), st.integers(1, 5)), max_size=4),
)
def test_they_are_the_same_whatever_was_drafted_and_taken_back_before(pair, cuts, wrong):
    pair.reset()
    for end in sorted({*cuts, 54}):
        pair.eval(PROMPT[pair.n_tokens : end])
        for token, count in wrong:
            pair.eval([token] * count)
            drafted(pair.speculator.drafter, [*pair.history, token], 3)
            pair.rollback(count)

    assert nmse(block_logits(pair), ORACLE["draft_logits_torch"]) < FLOAT_NMSE


# --- Equal texts ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}])
@pytest.mark.parametrize("maximum", [1, 4, 7])
@pytest.mark.parametrize("name", ["pair", "hybrid"])
def test_the_text_is_that_of_plain_decoding(request, name, maximum, options):
    llm = request.getfixturevalue(name)

    assert text(llm, maximum=maximum, **options) == text(llm, **options)


@pytest.mark.parametrize("prompt", [tiny.ids("qwen3", 3), tiny.ids("qwen3", 90)])
def test_other_prompts_give_the_text_of_plain_decoding(pair, prompt):
    assert text(pair, maximum=7, prompt=prompt) == text(pair, prompt=prompt)


def test_a_draft_that_was_trained_for_the_target_drafts_right(pair):
    """The prompt is training text, after which llama.cpp accepts 62 of 65 draft tokens."""
    text(pair, maximum=7, count=41)

    said = pair.speculator.controller.speculation
    assert said.accepted >= 0.9 * said.drafted
    assert said.mean_accepted > 5


@pytest.mark.parametrize("device", ["cpu", "hexagon:sim", "rknpu:sim"])
@pytest.mark.parametrize("target", [SMALL_TARGET, HYBRID])
def test_quantised_pairs_write_the_same_on_every_device(device, target):
    with open_pair(target, SMALL_DRAFT, device=device, verify="always") as llm:
        assert text(llm, 12, maximum=7) == text(llm, 12)
        labels = {row.op: row for row in llm.report().rows}

    assert labels["draft_output"].actual == device
    assert labels["draft_output"].verified > 0
    assert labels["draft_output"].failed == 0
    assert labels["draft_layers"].actual == "cpu"


def test_what_the_network_computes_is_in_the_report():
    """Tokens of a block use all matrices of the layers, tokens of the context only fc, K and V."""
    with open_pair() as llm:
        llm.eval(PROMPT[:-1])
        drafted(llm.speculator.drafter, PROMPT, 3)
        [row] = (row for row in llm.report().rows if row.op == "draft_layers")
        sizes = {t.name: int(np.prod(t.shape)) for t in GGUF(DRAFT).tensors.values()}

    layers = sum(n for name, n in sizes.items() if name.startswith("blk.") and n > 128)
    read = sizes["fc.weight"]
    read += sum(n for name, n in sizes.items() if name.endswith(("attn_k.weight", "attn_v.weight")))
    assert row.macs == (len(PROMPT) - 1) * read + 4 * layers
    assert row.nbytes == 4 * (read + layers)
    assert (row.calls, row.rows) == (2, len(PROMPT) + 3)
    assert row.seconds > 0


def test_a_text_that_fills_the_context_is_that_of_plain_decoding():
    with open_pair(n_ctx=70) as llm:
        assert text(llm, None, maximum=7) == text(llm, None)
        assert llm.n_tokens == 70


@pytest.mark.parametrize(("device", "rows"), [("cpu", 160), ("hexagon:sim", 608)])
def test_a_draft_costs_its_layers_and_what_is_left_of_the_output_matrix(device, rows):
    """A quarter of 608 rows, in panels of 16, is read; a device that cannot truncate reads all."""
    sizes = {t.name: int(np.prod(t.shape)) for t in GGUF(DRAFT).tensors.values()}
    layers = 4 * sum(size for name, size in sizes.items() if "blk" in name and "norm" not in name)
    with npurt.Llama(TARGET, device, draft=DRAFT, n_ctx=160, **OPTIONS) as llm:
        output = llm.model.output_matrix(608).nbytes * rows / 608

        assert llm.speculator.drafter.share == pytest.approx(
            (layers + output) / llm.model.weight_bytes
        )


def test_nothing_is_drafted_after_a_state_that_it_has_not_seen(pair):
    pair.reset()
    pair.eval(PROMPT[:-1])
    snapshot = pair.snapshot()
    drafter = pair.speculator.drafter
    before = drafted(drafter, PROMPT, 7)
    pair.reset()
    pair.eval([1, 2, 3])
    pair.restore(snapshot)

    assert drafted(drafter, PROMPT, 7) == []
    pair.eval(PROMPT[-1:])
    assert drafted(drafter, [*PROMPT, 1], 7) == []
    pair.reset()
    pair.eval(PROMPT[:-1])
    assert drafted(drafter, PROMPT, 7) == before


def test_nothing_is_drafted_after_a_state_of_other_tokens(pair):
    pair.reset()
    pair.eval(PROMPT[:-1])
    snapshot = pair.snapshot()
    pair.reset()
    pair.eval([5] * (len(PROMPT) - 1))
    pair.restore(snapshot)

    assert drafted(pair.speculator.drafter, PROMPT, 7) == []


def test_without_such_a_draft_nothing_is_kept():
    with npurt.Llama(TARGET, n_ctx=160, progress=False, draft="lookup") as llm:
        assert llm.context.hidden_states is None


# --- Hidden states --------------------------------------------------------------------------------


@given(data=st.data())
def test_what_is_read_last_of_a_position_is_what_came_last(data):
    """The last row read for a position is the last one computed, after any runs and rewinds."""
    hidden_states = HiddenStates((5, 2), 8, 1)
    read = {}

    def reader(values, at):
        read.update({at + i: tuple(row) for i, row in enumerate(values)})

    hidden_states.reader = reader
    context = []
    for serial in range(data.draw(st.integers(1, 20))):
        del context[data.draw(st.integers(0, len(context))) :]
        ids = [100 * serial + i for i in range(data.draw(st.integers(1, 8)))]
        hidden_states.begin(len(context), len(ids))
        first = data.draw(st.integers(0, 3))
        rows = np.float32([*[-1] * first, *ids, -1])[:, None]
        if data.draw(st.booleans()):
            values = {f"hidden.{layer}": 10_000 * layer + rows for layer in (2, 5)}
            hidden_states.end(ids, values, first)
            context += ids
        if data.draw(st.booleans()):
            hidden_states.flush()
    hidden_states.flush()

    assert hidden_states.tokens[: len(context)] == context
    wanted = {i: (50_000 + token, 20_000 + token) for i, token in enumerate(hidden_states.tokens)}
    assert {i: read[i] for i in wanted} == wanted


# --- Files that are not for the model -----------------------------------------------------------


def key(name, kind, content):
    return lambda file: file.with_key(name, kind, content)


def missing_key(name):
    return lambda file: tiny.without_key(file, name)


def missing_tensor(name):
    return lambda file: tiny.without_tensors(file, lambda other: other == name)


def tensor(name, *shape, fill=0.0):
    return lambda file: tiny.with_tensor(file, name, np.full(shape, fill, np.float32))


def other_token(file):
    _, _, (kind, tokens) = next(k for k in file.keys if k[0] == "tokenizer.ggml.tokens")
    changed = [*tokens[:9], "other", *tokens[10:]]
    return file.with_key("tokenizer.ggml.tokens", raw.ARRAY, (kind, changed))


LAYERS = "dflash.target_layers"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_token, "token 9 differs: 'other'"),
        (missing_key("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens"),
        (key("dflash.embedding_length", raw.U32, 64), "64 wide, but the model is 128"),
        (missing_key(LAYERS), LAYERS),
        (key(LAYERS, raw.ARRAY, (raw.I32, [])), r"layers \[\]"),
        (key(LAYERS, raw.ARRAY, (raw.I32, [1, 4])), "that has 4"),
        (key(LAYERS, raw.ARRAY, (raw.I32, [-1, 3])), "that has 4"),
        (key(LAYERS, raw.ARRAY, (raw.I32, [1, 2, 3])), "fc.weight has shape"),
        (key(LAYERS, raw.U32, 1), LAYERS),
        (missing_key("dflash.block_size"), "block_size"),
        (key("dflash.block_size", raw.U32, 1), "block size, 1,"),
        (missing_key("tokenizer.ggml.mask_token_id"), "mask_token_id"),
        (key("tokenizer.ggml.mask_token_id", raw.U32, 608), "mask token, 608"),
        (key("dflash.conv_kernel_size", raw.U32, 4), "conv_kernel_size: npurt does not run"),
        (key("dflash.markov_rank", raw.U32, 4), "markov_rank: npurt does not run"),
        (key("dflash.attention.sliding_window", raw.U32, 32), "sliding_window"),
        (missing_tensor("fc.weight"), "lacks fc.weight"),
        (missing_tensor("enc.output_norm.weight"), "lacks enc.output_norm"),
        (missing_tensor("blk.1.attn_k_norm.weight"), "lacks blk.1.attn_k_norm"),
        (key("dflash.block_count", raw.U32, 3), "lacks blk.2"),
        (key("dflash.block_count", raw.U32, 1), "has blk.1"),
        (tensor("selector_hidden.weight", 4, 4), "has selector_hidden"),
        (tensor("output.weight", 608, 128), "has output.weight"),
        (tensor("blk.0.attn_q.bias", 128), "has blk.0.attn_q.bias"),
        (tensor("blk.0.ffn_up.weight", 64, 128), "ffn_up.weight has shape"),
        (tensor("output_norm.weight", 128, fill=np.nan), "NaN"),
    ],
)
def test_a_draft_that_is_not_for_the_model_is_refused(tmp_path, change, said):
    wrong = tiny.write(change(tiny.read(DRAFT)), tmp_path)

    with pytest.raises(ModelFormatError, match=said) as refused:
        open_pair(draft=wrong)
    assert refused.value.remedy


def test_a_draft_that_says_it_is_not_causal_is_taken(tmp_path):
    file = tiny.read(DRAFT).with_key("dflash.attention.causal", raw.BOOL, 0)

    with open_pair(draft=tiny.write(file, tmp_path)) as llm:
        assert text(llm, 8, maximum=4) == text(llm, 8)


@settings(max_examples=40, deadline=None)
@given(end=st.integers(0, DRAFT.stat().st_size - 1))
def test_a_truncated_draft_is_refused(tmp_path_factory, end):
    path = tmp_path_factory.mktemp("cut") / "draft.gguf"
    path.write_bytes(DRAFT.read_bytes()[:end])

    with pytest.raises(ModelFormatError):
        open_pair(draft=path)


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 16_000), value=st.integers(0, 255))
def test_a_draft_with_a_changed_byte_is_refused_or_changes_nothing(tmp_path_factory, at, value):
    """The first 16 000 bytes are the metadata and the names and shapes of the tensors."""
    data = bytearray(DRAFT.read_bytes())
    data[at] = value
    path = tmp_path_factory.mktemp("changed") / "draft.gguf"
    path.write_bytes(data)

    try:
        llm = open_pair(draft=path)
    except ModelFormatError:
        return
    with llm:
        assert text(llm, 6, maximum=4) == text(llm, 6)


def test_features_that_are_not_finite_give_no_draft(tmp_path):
    file = tensor("enc.output_norm.weight", 128, fill=1e38)(tiny.read(DRAFT))

    with open_pair(draft=tiny.write(file, tmp_path)) as llm:
        assert text(llm, 8, maximum=4) == text(llm, 8)
        assert drafted(llm.speculator.drafter, [*llm.history, 1], 4) == []
