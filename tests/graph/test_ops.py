"""Tests of each op of the interpreter against its equation in another form."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError
from npurt.graph.builder import Builder
from npurt.graph.interpreter import Interpreter
from npurt.graph.ops import Activation, Gating, Pairing
from npurt.graph.rows import Rows
from npurt.graph.state import States
from npurt.graph.tensor import Dim
from tests.llm import reference

RNG = np.random.default_rng(0)
seeds = st.integers(0, 2**32 - 1)


def run(build, inputs, weights=None, rows=None, states=None):
    """Return the output of the graph ``build(builder, {input: tensor}, weight)`` for *inputs*."""
    b = Builder("one")
    given_ = {name: b.input(name, Dim("N", x.shape[1])) for name, x in inputs.items()}

    def weight(name):
        return b.constant(name, *(Dim("N", n) for n in weights[name].shape))

    made = build(b, given_, weight)
    b.output(b.scale("same", made, 1.0), "out")
    graph = b.build()
    count = len(next(iter(inputs.values())))
    states = States(graph, np.float64) if states is None else states(graph)
    rows = Rows.of(count) if rows is None else rows
    return Interpreter(graph, (weights or {}).__getitem__).run(inputs, rows, states)["out"]


def normal(*shape):
    return RNG.standard_normal(shape)


def attend(q, k, v, heads, kv_heads, **conventions):
    def build(b, given_, weight):
        if conventions.get("sinks") is not None:
            conventions["sinks"] = weight("sinks")
        return b.attention(
            "a", given_["q"], given_["k"], given_["v"], heads, kv_heads, 0.5, **conventions
        )

    weights = {"sinks": conventions["sinks"]} if "sinks" in conventions else None
    return run(build, {"q": q, "k": k, "v": v}, weights)


def slow_attention(q, k, v, heads, kv_heads, *, window=0, softcap=0.0, sinks=None, slope=None):
    """Return the attention, computed by loops over rows, heads and positions."""
    width, out = q.shape[1] // heads, np.zeros_like(q)
    for t in range(len(q)):
        for h in range(heads):
            g = h * kv_heads // heads
            query = q[t, h * width : (h + 1) * width]
            if slope:
                query = query * (1 + slope[0] * math.log(1 + t // slope[1]))
            first = max(0, t - window + 1) if window else 0
            scores = [0.5 * query @ k[p, g * width : (g + 1) * width] for p in range(first, t + 1)]
            if softcap:
                scores = [softcap * math.tanh(s / softcap) for s in scores]
            powers = [math.exp(s) for s in scores]
            total = sum(powers) + (math.exp(sinks[h]) if sinks is not None else 0)
            for p, power in zip(range(first, t + 1), powers, strict=True):
                value = v[p, g * width : (g + 1) * width]
                out[t, h * width : (h + 1) * width] += power / total * value
    return out


@pytest.mark.parametrize(
    "conventions",
    [
        {},
        {"window": 3},
        {"window": 1},
        {"softcap": 2.0},
        {"sinks": np.array([0.3, -1.0, 2.0, 0.0])},
        {"window": 4, "softcap": 1.5, "sinks": np.array([1.0, 0.0, -2.0, 5.0])},
    ],
    ids=lambda c: "+".join(c) or "plain",
)
def test_attention_follows_its_equation(conventions):
    q, k, v = normal(9, 32), normal(9, 16), normal(9, 16)
    want = slow_attention(q, k, v, 4, 2, **conventions)

    np.testing.assert_allclose(attend(q, k, v, 4, 2, **dict(conventions)), want, rtol=1e-12)


def test_attention_may_grow_warmer_with_the_position():
    q, k, v = normal(9, 8), normal(9, 8), normal(9, 8)

    y = attend(q, k, v, 1, 1, temperature=(0.1, 4))

    np.testing.assert_allclose(y, slow_attention(q, k, v, 1, 1, slope=(0.1, 4)), rtol=1e-12)


def test_rows_must_continue_their_sequence():
    x = normal(2, 8)

    with pytest.raises(LayoutError, match="has 0 positions, not 5"):
        run(lambda b, i, w: b.attention("a", i["q"], i["q"], i["q"], 1, 1, 1.0), {"q": x},
            rows=Rows.of(2, 5))  # fmt: skip
    gap = Rows(np.zeros(2, int), np.array([0, 2]), np.ones(2, bool))
    with pytest.raises(LayoutError, match=r"at positions \[0, 2\]"):
        run(lambda b, i, w: b.attention("a", i["q"], i["q"], i["q"], 1, 1, 1.0), {"q": x},
            rows=gap)  # fmt: skip


@given(seeds, st.sampled_from(list(Pairing)), st.sampled_from([2, 4, 8]))
def test_rope_keeps_lengths_and_depends_on_distance_alone(seed, pairing, rotated):
    """The product of q at m and k at n depends only on m - n (Su et al. 2021)."""
    q, k = np.random.default_rng(seed).standard_normal((2, 1, 8))
    rate = 10.0 ** -np.arange(rotated // 2)

    def rotate(x, position):
        return run(
            lambda b, i, w: b.rope("r", i["x"], w("rate"), 1, pairing),
            {"x": x}, {"rate": rate}, Rows.of(1, position),
        )  # fmt: skip

    near = (rotate(q, 5) * rotate(k, 3)).sum()
    far = (rotate(q, 1005) * rotate(k, 1003)).sum()

    np.testing.assert_allclose(near, far, atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(rotate(q, 7)), np.linalg.norm(q))
    np.testing.assert_array_equal(rotate(q, 0), q)
    np.testing.assert_array_equal(rotate(q, 9)[:, rotated:], q[:, rotated:])


def test_rope_turns_a_right_angle_as_written():
    x = np.array([[1.0, 2.0, 3.0, 4.0]])
    rate = np.array([math.pi / 2, 0.0])
    at_one = Rows.of(1, 1)

    halves, adjacent = (
        run(lambda b, i, w, p=p: b.rope("r", i["x"], w("rate"), 1, p), {"x": x}, {"rate": rate},
            at_one)
        for p in (Pairing.HALVES, Pairing.ADJACENT)
    )  # fmt: skip

    np.testing.assert_allclose(halves, [[-3, 2, 1, 4]], atol=1e-12)
    np.testing.assert_allclose(adjacent, [[-2, 1, 3, 4]], atol=1e-12)


@pytest.mark.parametrize(
    ("activation", "at_one"),
    [
        (Activation.SILU, 0.7310585786300049),  # 1 / (1 + e^-1)
        (Activation.GELU, 0.8411919906082768),  # PyTorch gelu(1., approximate="tanh")
        (Activation.GELU_ERF, 0.8413447460685429),  # the normal distribution at 1
        (Activation.RELU_SQUARED, 1.0),
        (Activation.NONE, 1.0),
    ],
)
def test_activations_have_their_published_values(activation, at_one):
    x = np.array([[1.0, 0.0, -30.0]])

    y = run(lambda b, i, w: b.gated_unit("u", i["x"], None, activation), {"x": x})

    np.testing.assert_allclose(y[0, :2], [at_one, 0], rtol=1e-12)
    assert abs(y[0, 2]) < 1e-10 or activation is Activation.NONE


def test_gpt_oss_clamps_and_shifts():
    """With g = min(gate, 7) and u = clip(up, -7, 7), the unit is g sigmoid(1.702 g) (u + 1)."""
    gate, up = np.array([[9.0, -9.0, 1.0]]), np.array([[9.0, -9.0, 0.5]])

    y = run(
        lambda b, i, w: b.gated_unit(
            "u", i["gate"], i["up"], limit=7.0, alpha=1.702, up_offset=1.0
        ),
        {"gate": gate, "up": up},
    )

    want = [7 / (1 + math.exp(-1.702 * 7)) * 8, -9 / (1 + math.exp(1.702 * 9)) * -6,
            1 / (1 + math.exp(-1.702)) * 1.5]  # fmt: skip
    np.testing.assert_allclose(y[0], want, rtol=1e-12)


@pytest.mark.parametrize("plus_one", [False, True])
def test_norms_of_heads_are_norms_of_pieces(plus_one):
    x, weight = normal(3, 12), normal(4)

    y = run(
        lambda b, i, w: b.rms_norm("n", i["x"], w("g"), 1e-6, heads=3, plus_one=plus_one),
        {"x": x}, {"g": weight},
    )  # fmt: skip

    pieces = x.reshape(3, 3, 4)
    want = pieces / np.sqrt((pieces**2).mean(-1, keepdims=True) + 1e-6) * (weight + plus_one)
    np.testing.assert_allclose(y, want.reshape(3, 12), rtol=1e-13)


@pytest.mark.parametrize("biased", [False, True])
def test_layer_norm_has_mean_zero_and_variance_one(biased):
    x, weight, bias = normal(3, 16) + 2, normal(16), normal(16)

    def build(b, given_, weigh):
        shift = weigh("bias") if biased else None
        return b.layer_norm("n", given_["x"], weigh("weight"), shift, 1e-12)

    y = run(build, {"x": x}, {"weight": weight, "bias": bias})
    plain = (y - (bias if biased else 0)) / weight

    np.testing.assert_allclose(plain.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(plain.var(axis=1), 1, rtol=1e-9)
    np.testing.assert_allclose(np.corrcoef(plain[0], x[0])[0, 1], 1, rtol=1e-12)


def test_layer_norm_gives_written_values():
    def build(b, given_, weigh):
        return b.layer_norm("n", given_["x"], weigh("weight"), weigh("bias"), 1.0)

    x = np.array([[1.0, 3.0, 5.0, 7.0]])  # mean 4, variance 5
    y = run(build, {"x": x}, {"weight": np.array([1.0, 2, 1, 1]), "bias": np.array([0.0, 0, 0, 5])})

    np.testing.assert_allclose(y, [[-3 / 6**0.5, -2 / 6**0.5, 1 / 6**0.5, 3 / 6**0.5 + 5]])


def test_encoder_attention_is_attention_whose_last_row_all_rows_are():
    """A row of encoder attention equals the last row of causal attention over the same rows."""
    q, k, v = normal(5, 12), normal(5, 6), normal(5, 6)
    rows = Rows(np.array([0, 7, 0, 7, 0]), np.array([0, 0, 1, 1, 2]), np.ones(5, bool))

    def build(b, given_, weight):
        qkv = (given_["q"], given_["k"], given_["v"])
        return b.encoder_attention("a", qkv, 4, 2, 0.5)

    y = run(build, {"q": q, "k": k, "v": v}, rows=rows)

    for sequence in ([0, 2, 4], [1, 3]):
        for t in sequence:
            order = [i for i in sequence if i != t] + [t]
            causal = attend(q[order], k[order], v[order], 4, 2)
            np.testing.assert_allclose(y[t], causal[-1], rtol=1e-12, atol=1e-14)


def test_softcap_scale_and_gate():
    x, gate = normal(2, 4) * 50, normal(2, 1)

    capped = run(lambda b, i, w: b.softcap("c", i["x"], 30.0), {"x": x})
    gated = run(lambda b, i, w: b.sigmoid_gate("g", i["x"], i["gate"]), {"x": x, "gate": gate})

    np.testing.assert_allclose(capped, 30 * np.tanh(x / 30))
    np.testing.assert_allclose(gated, x / (1 + np.exp(-gate)))


@pytest.mark.parametrize("gating", list(Gating))
@pytest.mark.parametrize("biased", [False, True])
def test_routes_take_the_best(gating, biased):
    scores, bias = normal(5, 7), normal(7) * biased

    def weights(b, i, w):
        return b.route("r", i["x"], 3, gating, normalise=True, scale=2.5, bias=w("b"))[1]

    y = run(weights, {"x": scores}, {"b": bias})

    for row, found in zip(scores, y, strict=True):
        likely = np.exp(row) / np.exp(row).sum()
        likely = {Gating.SIGMOID: 1 / (1 + np.exp(-row)), Gating.SOFTMAX: likely}.get(gating, row)
        best = sorted(range(7), key=lambda e: -(likely + bias)[e])[:3]
        chosen = np.exp(row[best]) if gating is Gating.SOFTMAX_CHOSEN else likely[best]
        np.testing.assert_allclose(found, 2.5 * chosen / chosen.sum(), rtol=1e-12)


def test_experts_multiply_their_own_rows():
    x, stack, bias = normal(6, 5), normal(4, 3, 5), normal(4, 3)
    scores = normal(6, 4)

    def build(b, i, w):
        experts, weights = b.route("r", i["s"], 2, Gating.SOFTMAX, normalise=True)
        each = b.expert_matmul("e", i["x"], w("stack"), experts, w("bias"))
        return b.weighted_sum("sum", each, weights)

    y = run(build, {"x": x, "s": scores}, {"stack": stack, "bias": bias})

    for t in range(6):
        best = np.argsort(-scores[t])[:2]
        shares = np.exp(scores[t, best]) / np.exp(scores[t, best]).sum()
        want = sum(s * (stack[e] @ x[t] + bias[e]) for s, e in zip(shares, best, strict=True))
        np.testing.assert_allclose(y[t], want, rtol=1e-12)


def test_a_short_convolution_sees_the_rows_before():
    x, kernel, bias = normal(6, 3), normal(3, 4), normal(3)

    y = run(
        lambda b, i, w: b.short_conv("c", i["x"], w("k"), w("b")),
        {"x": x}, {"k": kernel, "b": bias},
    )  # fmt: skip

    for c in range(3):
        want = np.convolve(x[:, c], kernel[c, ::-1])[:6] + bias[c]
        np.testing.assert_allclose(y[:, c], want, rtol=1e-12)


@pytest.mark.parametrize("grouped", [False, True])
def test_the_delta_net_is_the_reference_of_the_tests(grouped):
    heads, k_heads, width, t = 4, 2, 3, 7
    q, k = (
        (x / np.linalg.norm(x, axis=-1, keepdims=True)).reshape(t, -1)
        for x in normal(2, t, k_heads, width)
    )
    v, beta, alpha = normal(t, heads * width), normal(t, heads), normal(t, heads)
    rate, bias = -np.exp(normal(heads)), normal(heads)

    def build(b, i, w):
        gates = b.delta_gates("g", i["beta"], i["alpha"], w("rate"), w("bias"))
        qkv = i["q"], i["k"], i["v"]
        return b.gated_delta_net("d", qkv, gates, heads, k_heads, grouped=grouped)

    y = run(
        build, {"q": q, "k": k, "v": v, "beta": beta, "alpha": alpha}, {"rate": rate, "bias": bias}
    )

    of = np.arange(heads) // 2 if grouped else np.arange(heads) % 2
    decay = rate * np.log1p(np.exp(alpha + bias))
    want, _ = reference.delta_net(
        q.reshape(t, k_heads, width)[:, of], k.reshape(t, k_heads, width)[:, of],
        v.reshape(t, heads, width), decay, 1 / (1 + np.exp(-beta)),
    )  # fmt: skip
    np.testing.assert_allclose(y, want.reshape(t, -1), rtol=1e-11)


def test_keys_and_values_are_kept_in_the_states_own_type():
    """The state is float16, so the values that rows read from the state are rounded."""
    q, k, v = np.ones((2, 2)), np.zeros((2, 2)), np.array([[1 + 2**-12, 1.0], [3.0, 3.0]])

    y = run(
        lambda b, i, w: b.attention("a", i["q"], i["k"], i["v"], 1, 1, 1.0),
        {"q": q, "k": k, "v": v}, states=States,
    )  # fmt: skip

    np.testing.assert_array_equal(y[0], [1, 1])


def test_an_input_that_is_missing_is_named():
    b = Builder("one")
    b.output(b.scale("y", b.input("x", Dim("D", 2)), 2.0))
    graph = b.build()

    with pytest.raises(LayoutError, match="are missing: x"):
        Interpreter(graph, {}.__getitem__).run({}, Rows.of(1), States(graph))
