"""A client that calls the application without sockets, and an engine client in this process."""

import asyncio
import functools
import json
from dataclasses import replace

from npurt.errors import NpurtError
from npurt.serve.app import application
from npurt.serve.engine.protocol import Ready
from npurt.serve.engine.worker import failure
from npurt.serve.front.front import Front, ServerSettings
from npurt.serve.front.served_model import ServedModel
from tests.limits import HANG_SECONDS
from tests.llm import tiny
from tests.serve.fake_engine import FakeBackend, drawn, script

TEMPLATE = (
    "{{ bos_token }}{% if tools %}[TOOLS]{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}[CALL]{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{% if enable_thinking %}[THINK]{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@functools.cache
def served(model="llama3", template=TEMPLATE):
    return ServedModel(tiny.path(model, "q8_0"), "tiny", template)


class LocalEngine:
    """An `EngineClient` with a backend in this process, which steps while `go` is set."""

    def __init__(self, backend):
        self.backend = backend
        self.ready = Ready(1, backend.n_ctx, backend.sequences, backend.device)
        self.alive, self.restarts, self.failure = True, 0, None
        self.go = asyncio.Event()
        self.go.set()
        self.sinks = {}
        self.ids = 0
        self.task = None

    def submit(self, submit, sink):
        self.ids += 1
        self.sinks[self.ids] = sink
        try:
            self.backend.submit(replace(submit, id=self.ids))
        except NpurtError as error:
            sink(failure(self.ids, error))
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())
        return self.ids

    def cancel(self, sequence):
        self.sinks.pop(sequence, None)
        self.backend.cancel(sequence)

    async def _run(self):
        while self.backend.busy:
            await self.go.wait()
            for event in self.backend.step():
                if event.id in self.sinks:
                    self.sinks[event.id](event)
            await asyncio.sleep(0)

    async def stats(self):
        return self.backend.stats()


class Reply:
    """A complete response of the application."""

    def __init__(self, messages):
        self.status = messages[0]["status"]
        self.headers = {k.decode(): v.decode() for k, v in messages[0]["headers"]}
        self.body = b"".join(m.get("body", b"") for m in messages[1:])
        self.parts = [m["body"] for m in messages[1:] if m.get("body")]

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def lines(self):
        """Return the objects of a body of JSON lines."""
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def events(self):
        """Return the data of each event, parsed as JSON except for the last "[DONE]"."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            data = lines["data"]
            value = data if data == "[DONE]" else json.loads(data)
            found.append((lines["event"], value) if "event" in lines else value)
        return found


class Client:
    """Send requests to the application; *say* is a text, or a function as of `FakeBackend`."""

    def __init__(self, say=drawn, *, model=None, settings=None, guard=None, **options):
        self.model = model or served()
        self.stuck = False  # True if the client stops receiving data
        self.say(say)
        self.backend = FakeBackend(lambda *args: self._say(*args), **options)
        self.engine = LocalEngine(self.backend)
        self.front = Front(self.model, self.engine, settings or ServerSettings())
        self.app = application(self.front, **(guard or {}))

    def say(self, say):
        if isinstance(say, str):
            say = script(self.model.tokenizer.encode(say, add_bos=False))
        self._say = say

    @property
    def prompt(self):
        """Return the last prompt that the engine received, as text."""
        return self.model.tokenizer.decode(self.backend.submitted[-1].tokens)

    async def __call__(self, path, body=None, *, method=None, headers=None, gone=None):
        """Send a request and return the reply; the client disconnects when *gone* is set."""
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        sent, left = [], [data]
        path, _, query = path.partition("?")
        given = {"host": "localhost", "content-length": str(len(data)), **(headers or {})}
        scope = {
            "type": "http", "method": method or ("GET" if body is None else "POST"),
            "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "root_path": "",
            "scheme": "http", "server": ("localhost", 80), "http_version": "1.1",
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in given.items()],
        }  # fmt: skip

        async def receive():
            if left:
                return {"type": "http.request", "body": left.pop(), "more_body": False}
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if self.stuck:
                await asyncio.Event().wait()

        await self.app(scope, receive, send)
        return Reply(sent) if sent else None


def asking(test):
    """Return the async function *test* as a synchronous test with a timeout."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def bounded():
            async with asyncio.timeout(HANG_SECONDS):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


SAY_HI = {"messages": [{"role": "user", "content": "hi"}]}
