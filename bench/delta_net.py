"""Time one token of a gated delta net: the host's kernel and numpy, in turn.

    python bench/delta_net.py --threads 2

numpy computes the same equations on the same states: in float64, the tests' reference, and in
float32 without new arrays, numpy's fastest form. A token passes through several nets, each with its
own state, as in a model. Every round takes the shortest of several bursts of each side, so that
other load affects both sides; a ratio compares times of one round.

    python bench/delta_net.py --hexagon

This measures the host's time per token and layer when a Hexagon runs the net. "Beside a call" is
the whole time, with copies of states and verification, less the time inside remote_handle64_invoke.
Simulated calls are long and evict the host's code from the caches. "Alone" therefore skips the
calls, and with them the hand-over to the thread that makes them, and verification.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.device import CpuDevice
from npurt.cpu.pool.engine import CpuThreadPool
from npurt.cpu.pool.program import Program
from npurt.cpu.pool.table import RowTable
from npurt.cpu.state.arrays import Recurrence
from npurt.cpu.state.recurrent import SPACING
from npurt.cpu.state.slots import Slots
from npurt.device.delta import DeltaNet
from npurt.device.verify import Mode, Sampler
from npurt.hexagon.device.device import open_hexagon
from npurt.hexagon.session import messages
from npurt.hexagon.session.messages import REPLY
from npurt.runtime.execute.recurrence import RemoteDelta
from npurt.runtime.report.ledger import Ledger

LAYERS = 8
SIZES = {"Qwen3.5-0.8B": (16, 16, 128), "Qwen3.5-4B": (16, 32, 128), "64 wide": (16, 16, 64)}


def net_of(seed: int, k_heads: int, heads: int, width: int) -> DeltaNet:
    """Return a net for one token, with random inputs."""
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> npt.NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32)

    q, k = floats(1, 1, k_heads, width), floats(1, 1, k_heads, width)
    return DeltaNet(
        q=q / np.linalg.norm(q, axis=-1, keepdims=True),
        k=k / np.linalg.norm(k, axis=-1, keepdims=True),
        v=floats(1, 1, heads, width),
        decay=-abs(floats(1, 1, heads, 1)),
        beta=rng.random((1, 1, heads), np.float32),
        out=np.empty((1, 1, heads, width), np.float32),
        state=floats(1, heads, width, width),
        scale=width**-0.5,
        grouped=False,
    )


def in_numpy(nets: Sequence[DeltaNet], dtype: npt.DTypeLike) -> Callable[[], None]:
    """Return a function that runs *nets* once in *dtype*, on its own copies of their states."""
    layers = []
    for net in nets:
        repeat = net.v.shape[2] // net.k.shape[2]
        q, k = (np.tile(x[0, 0], (repeat, 1)).astype(dtype)[..., None] for x in (net.q, net.k))
        v, beta = net.v[0, 0].astype(dtype)[..., None], net.beta[0, 0].astype(dtype)
        decay, state = net.decay[0, 0].astype(dtype)[..., None], net.state[0].astype(dtype)
        layers.append((q, k, v, decay, beta[:, None, None], state, net.scale))
    change, out = np.empty_like(layers[0][5]), np.empty_like(layers[0][2])

    def run() -> None:
        for q, k, v, decay, beta, state, scale in layers:
            np.multiply(state, np.exp(decay), out=state)
            np.multiply(beta * (v - state @ k), k.transpose(0, 2, 1), out=change)
            np.add(state, change, out=state)
            np.multiply(state @ q, scale, out=out)

    return run


def seconds(run: Callable[[], Any], bursts: int, tokens: int = 10) -> float:
    """Return the seconds per token and layer in the shortest of *bursts* bursts."""
    times = []
    for _ in range(bursts):
        start = time.perf_counter()
        for _ in range(tokens):
            run()
        times.append(time.perf_counter() - start)
    return min(times) / tokens / LAYERS


def measure(
    engine: CpuThreadPool, sizes: tuple[int, int, int], rounds: int, bursts: int
) -> dict[str, Any]:
    """Return the median microseconds of each implementation, and median and range of the ratios."""
    nets = [net_of(seed, *sizes) for seed in range(LAYERS)]
    program = Program(engine)
    for net in nets:
        program.delta(net)
    runs: dict[str, Callable[[], Any]] = {
        "float64": in_numpy(nets, np.float64),
        "float32": in_numpy(nets, np.float32),
        "kernel": program.run,
    }
    for run in runs.values():
        run()
    timed = [{name: seconds(run, bursts) for name, run in runs.items()} for _ in range(rounds)]
    row: dict[str, Any] = {n: 1e6 * statistics.median(t[n] for t in timed) for n in runs}
    for name in ("float64", "float32"):
        ratios = sorted(t[name] / t["kernel"] for t in timed)
        row[f"{name} / kernel"] = (statistics.median(ratios), ratios[0], ratios[-1])
    return row


def answer_at_once(step: RemoteDelta) -> None:
    """Replace the calls of *step* to the DSP by an immediate answer."""
    memory: Any = step._held.slots[0].state._memory

    def send() -> None:
        head = np.array([(messages.REPLY_MAGIC, memory._request.head["sequence"], 0, 1, 0)], REPLY)
        memory._reply[:] = head.view(np.uint8)
        memory._y[-1, -1, memory._last] = 0

    memory._send = send


def beside_the_dsp(sizes: tuple[int, int, int], tokens: int, device: str) -> dict[str, float]:
    """Return the host's microseconds per token and layer: median and mean, with calls and alone."""
    control = np.array([[0, -1, 0]], np.int32)
    sampler = Sampler(Mode.SAMPLE)
    with CpuDevice(1) as cpu, open_hexagon(device) as hexagon:
        accounts = hexagon, cpu, Ledger(device), sampler
        nets = [net_of(seed, *sizes) for seed in range(LAYERS)]
        steps = []
        for net in nets:
            states = net.state[None, None]
            held = Recurrence([Slots(states[0])], states, np.empty((1, 0, 0), np.float32), control)
            steps.append(RemoteDelta(*accounts, net, held))
        line = hexagon._sessions.opened[0].transport._owned.caller._native

        def times(tokens: int, called: bool) -> list[float]:
            taken = []
            for token in range(tokens):
                control[0, 1] = 1 if token % SPACING == 0 else -1  # as `Recurrent` does in npurt
                for step in steps:
                    start = time.perf_counter_ns()
                    step.run(RowTable.of(1, token))
                    inside = line.nanoseconds if called else 0
                    taken.append((time.perf_counter_ns() - start - inside) / 1000)
            return taken

        times(1, True)  # sends the states
        beside = times(tokens, True)
        sampler.mode = Mode.OFF  # the results are not computed
        for step in steps:
            answer_at_once(step)
        alone = times(10 * SPACING, False)
    named = {"beside a call": beside, "alone": alone}
    return {
        f"{name}, {mean.__name__}": mean(us)
        for name, us in named.items()
        for mean in (statistics.median, statistics.mean)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="One token of a gated delta net, against numpy.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bursts", type=int, default=20)
    parser.add_argument("--hexagon", nargs="?", const="hexagon:sim", metavar="DEVICE")
    parser.add_argument("--tokens", type=int, default=64, help="with --hexagon")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.hexagon:
        for name, sizes in SIZES.items():
            row = beside_the_dsp(sizes, args.tokens, args.hexagon)
            print(json.dumps({"size": name} | {key: round(us, 1) for key, us in row.items()}))
        return
    engine = CpuThreadPool(args.threads)
    rows = {name: measure(engine, s, args.rounds, args.bursts) for name, s in SIZES.items()}
    engine.close()
    if args.json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        print(
            f"{name:14}"
            + "".join(f"{n} {row[n]:7.1f} us  " for n in ("float64", "float32", "kernel"))
        )
        for ratio in ("float64 / kernel", "float32 / kernel"):
            middle, low, high = row[ratio]
            print(f"  {ratio}: {middle:.1f} [{low:.1f}-{high:.1f}]")


if __name__ == "__main__":
    main()
