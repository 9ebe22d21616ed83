"""Measure how long /health of another client waits while one client sends a large request.

    npurt serve -m models/SmolLM2-135M-Instruct.Q4_1.gguf --port 8080
    python bench/serve_stalls.py 8080

For each attack, the table shows the status and time of the large request, and the longest time of a
GET /health that another process sent meanwhile.  Each body has just under 4 MiB, the server's
limit.
"""

import argparse
import http.client
import json
import multiprocessing
import time
from collections.abc import Callable

SIZE = (4 << 20) - 1000  # bytes of a body
PAUSE = 0.02  # seconds between two requests for /health


def filled(before: str, element: str, after: str, separator: str = ",", most: int = SIZE) -> bytes:
    """Return *before*, as many of *element* as fit but at most *most*, and *after*."""
    count = min(most, (SIZE - len(before) - len(after)) // (len(element) + len(separator)))
    return (before + separator.join([element] * count) + after).encode()


def chat(element: str, ends: str = "[]") -> bytes:
    """Return a chat request whose content is a list of *element*, or with other *ends* a string."""
    before, after = '{"messages":[{"role":"user","content":', "}]}"
    return filled(before + ends[0], element, ends[1] + after, "," if ends == "[]" else "")


WORDS = "the quick brown fox jumps over "
ATTACKS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "ids": ("/v1/completions", lambda: filled('{"prompt":[', "1", "]}")),
    "empty lists": ("/v1/completions", lambda: filled('{"prompt":[', "[]", "]}")),
    "empty objects": ("/v1/completions", lambda: filled('{"prompt":[', "{}", "]}")),
    "ids to /completion": ("/completion", lambda: filled('{"prompt":[', "1", "]}")),
    "texts to /completion": ("/completion", lambda: filled('{"prompt":[', '"a"', "]}")),
    "ids to /v1/embeddings": ("/v1/embeddings", lambda: filled('{"input":[', "1", "]}")),
    "texts to /api/embed": ("/api/embed", lambda: filled('{"input":[', '"a"', "]}")),
    "/tokenize": ("/tokenize", lambda: filled('{"content":"', WORDS, '"}', "")),
    "/tokenize, pieces": (
        "/tokenize", lambda: filled('{"with_pieces":true,"content":"', WORDS, '"}', "")),
    "/tokenize, one word": ("/tokenize", lambda: filled('{"content":"', "a", '"}', "")),
    "/tokenize, escapes": ("/tokenize", lambda: filled('{"content":"', "\\u00e9", '"}', "")),
    "/detokenize": ("/detokenize", lambda: filled('{"tokens":[', "10000", "]}")),
    "/detokenize, few digits": ("/detokenize", lambda: filled('{"tokens":[', "42", "]}")),
    "chat, text": ("/v1/chat/completions", lambda: chat(WORDS, '""')),
    "chat, parts": ("/v1/chat/completions", lambda: chat('{"type":"text","text":"a"}')),
    "chat, numbers as parts": ("/v1/chat/completions", lambda: chat("1")),
    "responses, parts": (
        "/v1/responses",
        lambda: filled('{"input":[' + ",".join(["{}"] * 900) + ',{"role":"user","content":[',
                       '{"text":"a"}', "]}]}")),
    "messages, blocks": (
        "/v1/messages",
        lambda: filled('{"messages":[{"role":"user","content":[', '{"type":"text","text":"a"}',
                       "]}]}")),
    "count_tokens": (
        "/v1/messages/count_tokens",
        lambda: filled('{"messages":[{"role":"user","content":"', WORDS, '"}]}', "")),
    "apply-template": ("/apply-template", lambda: chat(WORDS, '""')),
    "logit_bias": (
        "/v1/completions", lambda: filled('{"prompt":"a","logit_bias":[', "[1,2]", "]}")),
    "stop": ("/v1/completions", lambda: filled('{"prompt":"a","stop":[', '"x"', "]}")),
    "breakers": (
        "/v1/completions", lambda: filled('{"prompt":"a","dry_sequence_breakers":[', '"x"', "]}")),
    "schema": (
        "/v1/chat/completions",
        lambda: filled('{"messages":[{"role":"user","content":"a"}],"response_format":{"type":'
                       '"json_schema","json_schema":{"schema":{"enum":[', "1", "]}}}}")),
    "tools": (
        "/v1/chat/completions",
        lambda: filled('{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function",'
                       '"function":{"name":"f","parameters":{"enum":[', "1", "]}}}]}")),
    "variables": (
        "/v1/chat/completions",
        lambda: filled('{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":[',
                       "1", "]}}")),
    "metadata": (
        "/v1/responses", lambda: filled('{"input":"a","metadata":{"x":[', "1", "]}}")),
    "unknown field": ("/v1/completions", lambda: filled('{"prompt":"a","x":[', "[]", "]}")),
    "keys": (
        "/v1/completions",
        lambda: json.dumps({"prompt": "a", **dict.fromkeys(map(str, range(250_000)))}).encode()),
    "depth": ("/v1/completions", lambda: filled('{"prompt":' + "[" * 2_000_000, "]", "}", "")),
    "lists in lists": (
        "/v1/completions", lambda: filled('{"prompt":[', "[[[[[[[[]]]]]]]]", "]}")),
    "numbers with digits": (
        "/v1/completions", lambda: filled('{"prompt":[', "0.1234567890123456", "]}")),
    "one long number": ("/v1/completions", lambda: b'{"prompt":' + b"1" * SIZE + b"}"),
    "as many ids as allowed": (
        "/v1/completions", lambda: filled('{"prompt":[', "1", "]}", most=262_000)),
    "as many ids to decode": (
        "/detokenize", lambda: filled('{"tokens":[', "1000", "]}", most=262_000)),
    "as many lists as allowed": (
        "/v1/embeddings", lambda: filled('{"input":[', "[1]", "]}", most=65_000)),
    "as many texts as allowed": (
        "/completion", lambda: filled('{"prompt":[', '"a"', ",1]}", most=262_000)),
    "as many blocks as allowed": (
        "/v1/messages",
        lambda: filled('{"messages":[', '{"role":"user","content":[' + ",".join(
            ['{"type":"text","text":"a"}'] * 900) + "]}", "]}", most=70)),
    "infill": ("/infill", lambda: filled('{"input_prefix":"', WORDS, '"}', "")),
    "generate": ("/api/generate", lambda: filled('{"raw":true,"prompt":"', WORDS, '"}', "")),
    "images": (
        "/api/chat",
        lambda: filled('{"messages":[{"role":"user","content":"a","images":[', "1", "]}]}")),
}  # fmt: skip


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, float]:
    """Return the status of a request and its time in seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    began = time.perf_counter()
    connection.request(method, path, body)
    reply = connection.getresponse()
    reply.read()
    return reply.status, time.perf_counter() - began


def watch(port: int, until: "multiprocessing.synchronize.Event", results: object) -> None:
    """Ask /health until *until* is set; put the longest time into *results*."""
    longest = 0.0
    while not until.is_set():
        longest = max(longest, ask(port, "GET", "/health")[1])
        time.sleep(PAUSE)
    results.put(longest)  # type: ignore[attr-defined]


def attacked(port: int, path: str, body: bytes | None) -> tuple[int, float, float]:
    """Return the status and time of a request, and the longest time of /health meanwhile."""
    until, results = multiprocessing.Event(), multiprocessing.Queue()
    watching = multiprocessing.Process(target=watch, args=(port, until, results))
    watching.start()
    time.sleep(0.3)
    if body is None:
        time.sleep(2)
        status, seconds = 0, 2.0
    else:
        status, seconds = ask(port, "POST", path, body)
    until.set()
    longest = results.get()
    watching.join()
    return status, seconds, longest


def main(port: int, names: list[str]) -> None:
    """Print a row for each attack."""
    print(f"{'attack':24} {'path':26} {'status':>6} {'seconds':>8} {'worst /health':>14}")
    rows = {"none": ("", None)} | {name: (path, make) for name, (path, make) in ATTACKS.items()}
    for name, (path, make) in rows.items():
        if names and name not in names:
            continue
        body = make() if make else None
        assert body is None or len(body) <= 4 << 20, (name, len(body))
        status, seconds, longest = attacked(port, path, body)
        print(
            f"{name:24} {path:26} {status:6} {seconds:7.2f} s {1e3 * longest:11.0f} ms", flush=True
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Time /health of a server during large requests.")
    parser.add_argument("port", type=int, help="port of a running npurt serve")
    parser.add_argument("names", nargs="*", help="rows to run (default: all)")
    given = parser.parse_args()
    main(given.port, given.names)
