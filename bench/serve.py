"""Compare `npurt serve` with llama.cpp's server under load: same file and threads, in turn.

    python bench/serve.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf --peer llama.cpp/build/bin
    python bench/serve.py --tests memory connections requests agent     # npurt alone, no rates

The peer's folder has llama-server. All servers run all the time and answer in turn, after a pause
in which the threads of the previous server go to sleep. They have the same number of threads and
slots and the same context per sequence, otherwise their own defaults. npurt drafts by lookup by
default and the peer does not, and the peer's faster kernels depend on the machine. So several
variants of the peer run (--peer-flags): with its defaults, without its repacked kernels, and with
its own drafts. The ratio is npurt / llama.cpp, with the variant that has the better median of a
figure.

rates         aggregate tokens/s of N clients, time to the first text, tokens of the prompts, and,
              for npurt, CPU time of the front's process per token
memory        PSS of the front's process, from /proc/PID/smaps_rollup
connections   PSS and descriptors that idle keep-alive connections add, and descriptors after them
requests      PSS and descriptors after a tenth of many short requests, and after all of them
agent         two conversations in turn, sent whole with each turn, and a short request for a
              title between turns: evaluated prompt tokens, divided by new prompt tokens

A token of a prompt is new if no earlier prompt with its answer begins with the same tokens up to
this token. An answer counts as new if its text is tokenised differently from the generated tokens,
as with models of random weights.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

TESTS = ("rates", "memory", "connections", "requests", "agent")
HOST = "127.0.0.1"
SLOTS = 8
START_SECONDS = 120
PAUSE = 1.0  # seconds: threads of OpenMP spin for 0.2 s after their work
PEER_FLAGS = ("", "--no-repack", "--spec-default")
WORDS = ["amber", "basin", "cedar", "delta", "ember", "fjord", "glade", "heath", "inlet", "joist"]

# --- Servers --------------------------------------------------------------------------------------


@dataclass
class Server:
    """A running server.

    Attributes:
        name: Column name in tables.
        port: TCP port of the server.
        pid: Process that has the connections.
        split: Whether another process evaluates the model.
    """

    name: str
    port: int
    pid: int
    split: bool

    def pss(self) -> int:
        """Return the process's proportional set size in bytes."""
        with open(f"/proc/{self.pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_seconds(self) -> float:
        """Return the scheduler's CPU time of all running threads, in seconds."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def command(name: str, args: argparse.Namespace, port: int) -> list[str]:
    """Return the command that starts a server."""
    shared = [
        "-m",
        str(args.model),
        "--port",
        str(port),
        "-np",
        str(SLOTS),
        "-t",
        str(args.threads),
    ]
    template = ["--chat-template", args.chat_template] if args.chat_template else []
    if name == "npurt":
        return [sys.executable, "-m", "npurt", "serve", *shared, *template, "-c", str(args.context)]
    whole = str(SLOTS * args.context)  # llama-server divides the context among the slots
    own = ["-c", whole, "--log-disable", *name.removeprefix("llama.cpp").split()]
    return [str(args.peer / "llama-server"), *shared, *template, *own]


@contextlib.contextmanager
def running(name: str, args: argparse.Namespace) -> Iterator[Server]:
    """Run a server during the block, from when it is ready."""
    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command(name, args, port), stdout=log, stderr=log)
        try:
            late = time.monotonic() + START_SECONDS
            while asyncio.run(healthy(port)) != 200:
                if process.poll() is not None or time.monotonic() > late:
                    log.seek(0)
                    sys.exit(f"{name} did not start:\n{log.read()[-2000:]}")
                time.sleep(0.1)
            yield Server(name, port, process.pid, split=name == "npurt")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


async def healthy(port: int) -> int:
    try:
        return (await ask(port, "GET", "/health")).status
    except OSError:
        return 0


# --- A client -------------------------------------------------------------------------------------


@dataclass
class Reply:
    """A complete HTTP answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        if self.status != 200:
            sys.exit(f"status {self.status}: {self.body[:500]!r}")
        return json.loads(self.body)


class Connection:
    """A keep-alive connection of HTTP/1.1."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Connection":
        self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, method: str, path: str, body: Any = None) -> Reply:
        status, parts = await self._send(method, path, body)
        return Reply(status, b"".join([part async for part in parts]))

    async def stream(self, path: str, body: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream."""
        status, parts = await self._send("POST", path, body)
        rest = b""
        async for part in parts:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])
        if status != 200:
            sys.exit(f"status {status}: {rest[:500]!r}")

    async def _send(self, method: str, path: str, body: Any) -> tuple[int, AsyncIterator[bytes]]:
        data = b"" if body is None else json.dumps(body).encode()
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        lines = (line.partition(":") for line in head[1:] if line)
        headers = {name.lower(): value.strip().lower() for name, _, value in lines}
        return int(head[0].split()[1]), self._parts(headers)

    async def _parts(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        if headers.get("transfer-encoding") != "chunked":
            yield await self._reader.readexactly(int(headers.get("content-length", "0")))
            return
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()


async def ask(port: int, method: str, path: str, body: Any = None) -> Reply:
    """Send a request over a new connection, because servers may close idle ones."""
    async with Connection(port) as connection:
        return await connection.ask(method, path, body)


# --- Tests ----------------------------------------------------------------------------------------


def prompt_of(number: int, words: int) -> str:
    """Return a prompt of *words* words that shares no prefix with those of other numbers."""
    count = len(WORDS)
    return " ".join(
        f"{WORDS[(number + i * (1 + number % 7)) % count]}{number}" for i in range(words)
    )


async def one_stream(port: int, number: int, tokens: int) -> tuple[float, int]:
    """Stream one completion; return the seconds to its first text, and the tokens of the prompt."""
    body = {
        "prompt": prompt_of(number, 40), "max_tokens": tokens, "temperature": 0, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    first, usage = 0.0, {}
    start = time.perf_counter()
    async with Connection(port) as connection:
        async for event in connection.stream("/v1/completions", body):
            if not first and any(choice["text"] for choice in event.get("choices", ())):
                first = time.perf_counter() - start
            usage = event.get("usage") or usage
    if usage["completion_tokens"] != tokens:
        sys.exit(f"the completion has {usage['completion_tokens']} tokens, not {tokens}")
    return first, usage["prompt_tokens"]


async def rates(server: Server, clients: int, round_: int, tokens: int) -> dict[str, float]:
    """Return the figures of *clients* completions at once."""
    numbers = [1000 * round_ + 10 * clients + i for i in range(clients)]
    await asyncio.sleep(PAUSE)
    before, start = server.cpu_seconds(), time.perf_counter()
    told = await asyncio.gather(*[one_stream(server.port, n, tokens) for n in numbers])
    seconds, cpu = time.perf_counter() - start, server.cpu_seconds() - before
    count = clients * tokens
    found = {
        f"tokens/s, {clients} clients": count / seconds,
        f"first token, s, {clients} clients": statistics.median(first for first, _ in told),
        f"prompt tokens, {clients} clients": sum(prompt for _, prompt in told),
    }
    if server.split:
        found[f"front CPU, us a token, {clients} clients"] = 1e6 * cpu / count
    return found


async def connections(server: Server, count: int) -> dict[str, float]:
    """Open many connections with one request each; return their memory and descriptors."""
    await healthy(server.port)
    before, opened = server.pss(), server.descriptors()
    async with contextlib.AsyncExitStack() as stack:
        idle = []
        for _ in range(count):
            idle.append(await stack.enter_async_context(Connection(server.port)))
            (await idle[-1].ask("GET", "/health")).json()
        memory, maximum = server.pss() - before, server.descriptors()
    await closed(server, opened)
    return {
        f"PSS of {count} idle connections, MB": memory / 1e6,
        "descriptors before": opened, "with them": maximum, "after": server.descriptors(),
    }  # fmt: skip


async def closed(server: Server, opened: int) -> None:
    """Wait up to ten seconds until the server has at most *opened* descriptors."""
    for _ in range(100):
        if server.descriptors() <= opened:
            break
        await asyncio.sleep(0.1)


async def requests(server: Server, count: int) -> dict[str, float]:
    """Send many short requests, `SLOTS` at a time; return memory and descriptors."""
    numbers = iter(tqdm(range(count), f"{server.name}: requests", leave=False))
    opened = server.descriptors()
    tenth = count // 10
    at_tenth: list[float] = []

    async def some() -> None:
        for number in numbers:
            if number == tenth:
                at_tenth.append(server.pss())
            body = {"prompt": prompt_of(number % 500, 8), "max_tokens": 4, "seed": number}
            (await ask(server.port, "POST", "/v1/completions", body)).json()

    await asyncio.gather(*[some() for _ in range(SLOTS)])
    end = server.pss()
    await closed(server, opened)
    return {
        f"PSS after {tenth} requests, MB": at_tenth[0] / 1e6,
        f"PSS after {count}, MB": end / 1e6,
        "growth, %": 100 * (end / at_tenth[0] - 1),
        "more descriptors": server.descriptors() - opened,
    }


@dataclass
class Agent:
    """Conversations with a server, and counts of the prompt tokens that it evaluated."""

    port: int
    known: list[list[int]] = field(default_factory=list)  # prompts with their answers
    prompt: int = 0
    evaluated: int = 0
    new: int = 0

    async def say(self, messages: list[dict[str, str]], maximum: int) -> str:
        """Return the answer to *messages*."""
        body = {"messages": messages, "max_tokens": maximum, "temperature": 0}
        told = await self._post("/v1/chat/completions", body)
        answer = told["choices"][0]["message"]["content"] or ""
        usage = told["usage"]
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens")
        cached = told["timings"]["cache_n"] if cached is None else cached
        text = (await self._post("/apply-template", {"messages": messages}))["prompt"]
        ids = await self._ids(text)
        self.prompt += usage["prompt_tokens"]
        self.evaluated += usage["prompt_tokens"] - cached
        same = max((shared(ids, each) for each in self.known), default=0)
        self.new += len(ids) - min(same, len(ids) - 1)
        generated, whole = usage["completion_tokens"], await self._ids(text + answer)
        # The count of generated tokens may include an end token.
        as_generated = len(whole) - len(ids) in (generated, generated - 1)
        self.known.append(whole if as_generated else ids)
        return answer

    async def _ids(self, text: str) -> list[int]:
        asked = {"content": text, "add_special": False, "parse_special": True}
        return (await self._post("/tokenize", asked))["tokens"]

    async def _post(self, path: str, body: Any) -> Any:
        return (await ask(self.port, "POST", path, body)).json()


def shared(a: list[int], b: list[int]) -> int:
    """Return the length of the common prefix."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


async def agent(server: Server, turns: int, words: int) -> dict[str, float]:
    """Hold two conversations in turn, with a request for a title between turns."""
    system = f"You are an assistant that uses tools. {prompt_of(7, 2 * words)}"
    talks = [[{"role": "system", "content": system}] for _ in range(2)]
    found = Agent(server.port)
    for turn in tqdm(range(turns), f"{server.name}: turns", leave=False):
        for number, talk in enumerate(talks):
            text = prompt_of(100 + 10 * turn + number, words)
            talk.append({"role": "user", "content": text})
            talk.append({"role": "assistant", "content": await found.say(talk, 16)})
        title = {"role": "user", "content": f"A title of three words for: {text}"}
        await found.say([title], 4)
    return {
        "prompt tokens": found.prompt, "new": found.new, "evaluated": found.evaluated,
        "evaluated / new": found.evaluated / found.new,
    }  # fmt: skip


# --- Main program
# ------------------------------------------------------------------------------------


def measure(servers: list[Server], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run each test; return rows with the server, the test and its figures by name."""
    rows: list[dict[str, Any]] = []

    def add(server: Server, test: str, figures: dict[str, float]) -> None:
        rows.append({"server": server.name, "test": test, "figures": figures})

    for server in servers:
        asyncio.run(rates(server, 1, -1, 4))  # warm up
    for server in servers[:2]:  # npurt and the peer's first variant
        if "memory" in args.tests:
            add(server, "memory", {"PSS, MB": server.pss() / 1e6})
        if "agent" in args.tests:
            add(server, "agent", asyncio.run(agent(server, args.turns, args.words)))
        if "connections" in args.tests:
            add(server, "connections", asyncio.run(connections(server, args.connections)))
        if "requests" in args.tests:
            add(server, "requests", asyncio.run(requests(server, args.requests)))
    if "rates" in args.tests:
        turns = [(r, n, s) for r in range(args.rounds) for n in args.clients for s in servers]
        for round_, clients, server in tqdm(turns, "rates", leave=False):
            add(server, "rates", asyncio.run(rates(server, clients, round_, args.tokens)))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return a markdown table: medians with ranges, and ratios of npurt to the best peer."""
    names = list(dict.fromkeys(row["server"] for row in rows))
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for figure, value in row["figures"].items():
            values.setdefault(figure, {}).setdefault(row["server"], []).append(value)
    lines = [f"| figure | {' | '.join(names)} | ratio |", "|---" * (len(names) + 2) + "|"]
    for figure, of in values.items():
        cells = [spread(of.get(name, [])) for name in names]
        own, *peers = (of.get(name, []) for name in names)
        better = max if figure.startswith("tokens/s") else min
        peer = better(filter(None, peers), key=statistics.median, default=())
        ratios = [a / b for a, b in zip(own, peer, strict=False) if b]
        lines.append(f"| {' | '.join([figure, *cells, spread(ratios)])} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    if not values:
        return ""
    many = f" [{min(values):.4g}-{max(values):.4g}]" if len(values) > 1 else ""
    return f"{statistics.median(values):.4g}{many}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare servers under load.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--peer", type=Path, help="folder with llama-server; default: npurt alone")
    parser.add_argument("--peer-flags", nargs="+", default=PEER_FLAGS, metavar="FLAGS",
                        help="variants of the peer: flags for llama-server, quoted, and '' for"
                        " none; variants after the first run only the test `rates`")  # fmt: skip
    parser.add_argument("--tests", nargs="+", default=list(TESTS), choices=TESTS)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--context", type=int, default=4096, help="positions per sequence")
    parser.add_argument("--chat-template", metavar="NAME", help="for models without a template")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, SLOTS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of each completion")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--words", type=int, default=20, help="words per user message of the agent")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also ends the servers
    peers = [f"llama.cpp {flags}".strip() for flags in args.peer_flags if args.peer]
    names = ["npurt", *(peers if "rates" in args.tests else peers[:1])]
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(running(name, args))
            for name in tqdm(names, "starting", leave=False)
        ]
        rows = measure(servers, args)
    print(json.dumps(rows) if args.json else table(rows))


if __name__ == "__main__":
    main()
