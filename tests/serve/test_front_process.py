"""Libraries that the front's process loads: none that only the engine needs."""

import json
import urllib.request
from pathlib import Path

from tests.limits import HANG_SECONDS

MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ASKED = [
    ("/v1/chat/completions", {"messages": MESSAGES, "stop": ["x"], "logit_bias": {"5": -1}}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True, "logprobs": True}),
    ("/v1/chat/completions", {"messages": MESSAGES, "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}),
    ("/v1/completions", {"prompt": "hi", "logprobs": 2}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 3}),
    ("/api/chat", {"messages": MESSAGES}),
    ("/tokenize", {"content": "hi"}),
]  # fmt: skip


def libraries(server):
    """Return the paths of the files that the front has mapped."""
    lines = Path(f"/proc/{server.process.pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if line.endswith(".so")}


def test_the_front_answers_without_numpy(live):
    """numpy would add 10 MB; only the engine needs arrays."""
    for path, body in ASKED:
        data = json.dumps({"model": "x", "max_tokens": 3} | body).encode()
        asked = urllib.request.Request(f"{live.url}{path}", data, {"Content-Type": "text/json"})
        with urllib.request.urlopen(asked, timeout=HANG_SECONDS) as reply:
            assert reply.read()
        loaded = libraries(live)
        assert any("tokenizers" in file for file in loaded)
        assert not any("/numpy/" in file for file in loaded), path
