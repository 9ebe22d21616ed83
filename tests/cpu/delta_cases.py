"""Programs of a gated delta net and of experts, for every kernel set.

`cases` has the programs of all other ops.

Letters: N sequences, T tokens, K and H heads of k and v, W width.
"""

from dataclasses import replace

import numpy as np

from npurt.cpu.pool.engine import Input, empty
from npurt.cpu.pool.operands import GROUP, Convolution, Routing
from npurt.device.delta import DeltaNet
from tests.cpu import cases


def floats(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def unit(x):
    """Return *x* with vectors of length 1 along the last axis."""
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def permuted(x):
    """Return the same array, stored in memory head by head."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def delta(rng, *, heads, width, tokens, sequences=1, repeat=1, kda=False, permute=False,
          grouped=False):  # fmt: skip
    """Return a delta net of random inputs, with decay factors from 1 down to 0."""
    shape = (sequences, tokens, heads, width)
    v_heads = heads * repeat
    decay = -(10.0 ** rng.uniform(-4, 1.5, (sequences, tokens, v_heads, width if kda else 1)))
    arrange = permuted if permute else np.ascontiguousarray
    return DeltaNet(
        q=arrange(unit(floats(rng, *shape))),
        k=arrange(unit(floats(rng, *shape))),
        v=arrange(floats(rng, sequences, tokens, v_heads, width)),
        decay=decay.astype(np.float32),
        beta=rng.uniform(0, 1, (sequences, tokens, v_heads)).astype(np.float32),
        out=np.zeros((sequences, tokens, v_heads, width), np.float32),
        state=floats(rng, sequences, v_heads, width, width),
        scale=width**-0.5,
        grouped=grouped,
    )


def run_delta(program, net, slots=None, control=(0, -1, 0)):
    """Run *net* on a copy of its state; return its result and its state, or all *slots* if given.

    Slot 0 begins as the state of *net*, and slot i as i times that state.
    """
    program.rows = net.v.shape[1]
    memory = np.stack([net.state * max(i, 1) for i in range(slots or 1)])
    net = replace(net, out=np.zeros_like(net.out), state=memory[0])
    if slots:
        program.delta(net, slots=memory[None], control=np.array([control], np.int32))
    else:
        program.delta(net)
    return [net.out, memory if slots else net.state]


def convolution(rng, *, rows, heads=6, k_heads=2, width=32, kernel_size=4, capacity=9, position=0):
    """Return a convolution of random inputs; its state has the last of *position* earlier tokens.

    It has one sequence: `stored_inputs` has no axis of slots.
    """
    channels = (2 * k_heads + heads) * width
    stored_inputs = np.zeros((capacity, channels + 2 * heads), np.float32)
    for at in range(max(0, position - capacity), position):
        stored_inputs[at % capacity] = floats(rng, channels + 2 * heads)
    return Convolution(
        x=floats(rng, rows, channels + 5),
        gates=3 * floats(rng, rows, 2 * heads),
        weight=floats(rng, kernel_size, channels),
        rate=-np.exp(floats(rng, heads)),
        bias=floats(rng, heads),
        stored_inputs=stored_inputs,
        out=np.zeros((rows, channels), np.float32),
        out_gates=np.zeros((rows, 2 * heads), np.float32),
        heads=heads,
        k_heads=k_heads,
        width=width,
        eps=1e-6,
    )


def convolve(program, c, position=0, *, replay=False):
    """Run *c* on a copy of its state: return both results and the new state."""
    program.rows, program.position = len(c.x), position
    stored_inputs = c.stored_inputs.copy()
    c = replace(
        c,
        stored_inputs=stored_inputs[None],
        out=np.zeros_like(c.out),
        out_gates=np.zeros_like(c.out_gates),
    )
    program.conv(c, replay=replay)
    return [c.out, c.out_gates, stored_inputs]


def gate(program, x, z, weight, eps=1e-6):
    """Return the gated norm of *x*, and its quantised form where its width allows."""
    program.rows = len(x)
    out = Input(*x.shape, quantised=x.shape[1] % 32 == 0)
    program.gate(x, z, weight, eps, out)
    return [out.values, *cases.arrays(out)]


def routing(rows, experts, top_k):
    """Return the output arrays of a routing, filled with values that must be overwritten."""
    return Routing(
        expert_weights=np.full((rows, top_k), np.nan, np.float32),
        scatter_indices=np.full((rows, top_k), -1, np.int64),
        gather_indices=np.full(rows * top_k, -1, np.int64),
        groups=np.full(min(experts, rows * top_k), -1, GROUP),
        experts=experts,
    )


def route(program, scores, experts, top_k, *, normed=True, scale=1.0, over_chosen=False):
    """Choose *top_k* of the first columns of *scores*: return all of `Routing`."""
    program.rows = len(scores)
    to = routing(len(scores), experts, top_k)
    program.route(scores, to, normed=normed, scale=scale, over_chosen=over_chosen)
    return [to.expert_weights, to.scatter_indices, to.gather_indices, to.groups.view(np.int64)]


def mixture(program, weights, x, scores, top_k, *, int16=False, shared=None, gates=None, biases=()):
    """Multiply each row of *x* by its experts' matrices ``[E, N, K]`` and add up the results."""
    rows, k = x.shape
    experts = weights[0].shape[0]
    program.rows = rows
    to = routing(rows, experts, top_k)
    stacks = [cases.packed_stack(program, w) for w in weights]
    source = Input(rows, k, quantised=stacks[0].integer, int16=int16)
    source.values[:] = x
    if source.quantised:
        program.quant(source)
    program.route(scores, to, normed=True)
    copies = Input(rows * top_k, k, quantised=source.quantised, int16=int16)
    program.gather(source, to, copies)
    y = empty(rows * top_k, sum(w.shape[1] for w in weights))
    program.matmul(copies, stacks, y, routing=to, biases=biases)
    out = empty(rows, y.shape[1])
    program.weighted_sum(y, to, out, shared=shared, gate=gates)
    return [copies.values, *cases.arrays(copies), y, out]


def _delta(*slots, **shape):
    def case(program):
        return run_delta(program, delta(cases.rng_of(*shape.items()), **shape), *slots)

    return case


def _conv(position, rows, replay=False, **shape):
    def case(program):
        c = convolution(cases.rng_of(position, rows), rows=rows, position=position, **shape)
        return convolve(program, c, position - rows if replay else position, replay=replay)

    return case


def _gate(rows, heads, width):
    def case(program):
        rng = cases.rng_of(rows, heads, width)
        x, z = floats(rng, rows, heads * width), 9 * floats(rng, rows, heads * width + 3)
        return gate(program, x, z[:, 3:], floats(rng, width))

    return case


def _mixture(fmt, rows, experts, top_k, *, biased=False, **options):
    def case(program):
        rng = cases.rng_of(fmt, rows, experts)
        weights = [cases.stack(rng, fmt, experts, n, 64) for n in (16, 48)]
        x = cases.activations(rng, rows, 64)
        scores = 4 * floats(rng, rows, experts + 1)
        shared = floats(rng, rows, 64)
        gates = scores[:, experts:]
        added = {"shared": shared, "gates": gates}
        if biased:
            options["biases"] = [floats(rng, experts, w.shape[1]) for w in weights]
        return mixture(program, weights, x, scores, top_k, **added, **options)

    return case


def _route(rows, experts, top_k, **options):
    def case(program):
        scores = np.rint(4 * floats(cases.rng_of(rows, experts), rows, experts + 2))  # with ties
        return route(program, scores, experts, top_k, **options)

    return case


def every_case():
    """Return name -> case."""
    made = {
        f"delta {width} wide, {tokens} tokens, kda {kda}": _delta(
            heads=2, width=width, tokens=tokens, sequences=2, repeat=3, kda=kda
        )
        for width in range(16, 129, 16)
        for tokens in (1, 19)
        for kda in (False, True)
    }
    made["delta grouped"] = _delta(heads=3, width=16, tokens=2, repeat=2, grouped=True)
    made["delta permuted"] = _delta(heads=3, width=32, tokens=5, sequences=2, permute=True)
    made["delta from and to slots"] = _delta(3, (2, 1, 17), heads=2, width=32, tokens=40)
    for position, rows in ((0, 1), (0, 20), (2, 1), (30, 5)):
        made[f"conv {rows} rows at {position}"] = _conv(position, rows)
    made["conv of kernel size one"] = _conv(0, 3, kernel_size=1, width=16)
    made["conv of kernel size eight"] = _conv(12, 3, kernel_size=8, width=128, heads=1, k_heads=1)
    made["conv replayed"] = _conv(12, 5, True)
    made["gate"] = _gate(3, 4, 16)
    made["gate of odd width"] = _gate(2, 3, 48)
    for fmt in ("q8_0", "mxfp4", "f32", "f16"):
        for rows in (1, 3, 40):
            made[f"experts of {fmt}, {rows} rows"] = _mixture(fmt, rows, 5, 2)
    made["experts of q8_0, int16"] = _mixture("q8_0", 3, 5, 2, int16=True)
    made["experts of q8_0, with biases"] = _mixture("q8_0", 3, 5, 2, biased=True)
    for options in ({}, {"normed": False}, {"scale": 2.5}, {"over_chosen": True, "normed": False}):
        made[f"route {options}"] = _route(9, 37, 4, **options)
    made["route to all"] = _route(2, 3, 3)
    return made
