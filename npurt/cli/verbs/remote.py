"""A model on an OpenAI-compatible server, for `npurt chat --url`.

Source of the fields: platform.openai.com/docs/api-reference/chat.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import time
import urllib.parse
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npurt.cli.arguments import options
from npurt.cli.arguments.sampling import add_sampling, check_sampling, sampling
from npurt.cli.output import terminal
from npurt.errors import ContextFull, NpurtError, SettingError
from npurt.llm.text.turns import turns

SECONDS = 300.0  # timeout for a silent server; a server may send nothing during a long prefill
MAX_LINE = 1 << 20  # upper bound on one event in bytes
MAX_ANSWER = 16 << 20  # upper bound on a list of models in bytes
MAX_KEY = 4096  # upper bound on a key file in bytes
TRY_URL = "check --url, which usually ends with /v1"
LOCAL = {  # flag of a local model -> its attribute in the parsed arguments
    "-dev": "device", "-ngl": "gpu_layers", "-c": "ctx_size", "-b": "batch_size", "-t": "threads",
    "-ctk": "kv_type", "--verify": "verify", "--lora": "lora", "--strict": "strict",
    "--context-shift": "context_shift", "-md": "draft", "--draft-max": "draft_max",
    "-devd": "device_draft",
}  # fmt: skip
THOUGHT = ("<think>\n", "\n</think>\n\n")  # tags around a thought, as most models write them


class RemoteError(NpurtError):
    """The server cannot be reached, refuses a request, or breaks off an answer."""


@dataclass(slots=True)
class AnswerTiming:
    """The figures of the last answer."""

    generated_tokens: int = 0  # from the server's usage, else the number of events with text
    decode_rate: float = 0.0  # tokens per second, measured by this client
    finish: str = ""  # the server's finish_reason


class RemoteModel:
    """A model on a server, with the methods of `npurt.Llama` that a chat uses.

    Args:
        url: The URL of the interface, such as ``http://127.0.0.1:8080/v1``.
        model: The model's name on the server; None: the server's only model.
        key: An API key.
        seconds: Timeout for a server that sends nothing.

    Raises:
        SettingError: *url* is not a valid URL.
        RemoteError: The server does not answer, or *model* is None and the server has several
            models.
    """

    def __init__(
        self, url: str, model: str | None = None, key: str | None = None, seconds: float = SECONDS
    ) -> None:
        self.timing = AnswerTiming()
        self._url = url
        self._key = key
        self._seconds = seconds
        self._tls, self._host, self._port, self._path = _parts(url)
        self.model = model or self._only_model()

    def __repr__(self) -> str:
        return f"{self.model} at {self._url}"

    def chat(
        self, messages: Sequence[Mapping[str, str]], *, stream: bool, **settings: Any
    ) -> Iterator[str]:
        """Yield the answer to *messages* in pieces; closing the generator cancels the request.

        Args:
            messages: The conversation.
            stream: Must be True.
            settings: Additional fields of the request.

        Raises:
            ContextFull: The conversation is too long.
            RemoteError: The server refuses the request or breaks off the answer.
        """
        self.timing = AnswerTiming()
        body = {"model": self.model, "messages": list(messages), "stream": stream,
                "stream_options": {"include_usage": True}, **settings}  # fmt: skip
        first = last = 0.0
        thinks, tokens = False, 0
        try:
            with self._asked("POST", "/chat/completions", body) as reply:
                for event in self._events(reply):
                    delta = self._taken(event)
                    thought, said = (_text(delta.get(k)) for k in ("reasoning_content", "content"))
                    if not thought and not said:
                        continue
                    last = time.monotonic()
                    first, tokens = first or last, tokens + 1
                    before = THOUGHT[0] if thought and not thinks else ""
                    between = THOUGHT[1] if said and (thinks or thought) else ""
                    thinks = not said and (thinks or bool(thought))
                    yield before + thought + between + said
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from error
        finally:
            timing = self.timing
            timing.generated_tokens = timing.generated_tokens or tokens
            if last > first:
                timing.decode_rate = (timing.generated_tokens - 1) / (last - first)

    def report(self) -> "RemoteModel":
        """Return this object, whose repr names the model and the server."""
        return self

    def line(self) -> str:
        """Return a line that names the model and the server."""
        return f"answers of {self!r}"

    # --- The server -----------------------------------------------------------------------------

    def _only_model(self) -> str:
        """Return the name of the server's model.

        Raises:
            RemoteError: The server has no model or several, or does not list its models.
        """
        try:
            with self._asked("GET", "/models") as reply:
                found = json.loads(reply.read(MAX_ANSWER))
            names = [str(each["id"]) for each in found["data"]]
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RemoteError(f"{self._url} lists no models", remedy=TRY_URL) from error
        if len(names) != 1:
            shown = ", ".join(self._shown(name, 80) for name in names[:20]) or "none"
            raise RemoteError(f"{self._url} has the models {shown}",
                              remedy="choose one with --model NAME")  # fmt: skip
        return self._shown(names[0], 200)

    @contextlib.contextmanager
    def _asked(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request, read the headers of the response, and yield the response.

        Raises:
            NpurtError: The server does not answer, or refuses the request.
        """
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        with contextlib.closing(kind(self._host, self._port, timeout=self._seconds)) as connection:
            try:
                connection.request(method, self._path + path, data, headers)
                reply = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
            with contextlib.closing(reply):
                if reply.status != 200:
                    raise self._refused(reply)
                yield reply

    def _events(self, reply: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        """Yield the objects of a stream up to its final event.

        Raises:
            RemoteError: The stream ends early or contains invalid events.
        """
        while line := reply.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE:
                raise RemoteError(f"{self._url} sends an event of more than {MAX_LINE} bytes",
                                  remedy="use another server")  # fmt: skip
            name, _, data = line.partition(b":")
            if name != b"data":
                continue  # a comment, another field, or the end of an event
            if data.strip() == b"[DONE]":
                return
            try:
                event = json.loads(data)
            except (ValueError, RecursionError):
                event = None
            if not isinstance(event, dict):
                raise RemoteError(
                    f"{self._url} sends an invalid event: {self._shown(repr(data), 80)}",
                    remedy=TRY_URL,
                )
            yield event
        if not self.timing.finish:
            raise RemoteError("the connection ended before the answer did",
                              remedy="use /regen, or send the message again")  # fmt: skip

    def _taken(self, event: dict[str, Any]) -> dict[str, Any]:
        """Store the counts in *event*; return the new part of the message.

        Raises:
            NpurtError: *event* is an error.
        """
        if event.get("error"):
            raise self._error(500, event)
        usage, choices = event.get("usage"), event.get("choices")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.timing.generated_tokens = usage["completion_tokens"]
        choice = choices[0] if isinstance(choices, list) and choices else {}
        if not isinstance(choice, dict):
            return {}
        self.timing.finish = _text(choice.get("finish_reason")) or self.timing.finish
        delta = choice.get("delta")
        return delta if isinstance(delta, dict) else {}

    # --- Errors ---------------------------------------------------------------------------------

    def _refused(self, reply: http.client.HTTPResponse) -> NpurtError:
        """Return the error for a response with a status other than 200."""
        if 300 <= reply.status < 400:
            to = self._shown(reply.headers.get("Location") or "another place", 200)
            return RemoteError(f"{self._url} redirects requests to {to}",
                               remedy="if you trust that server, give its URL")  # fmt: skip
        try:
            found = json.loads(reply.read(1 << 16))
        except (ValueError, RecursionError, OSError, http.client.HTTPException):
            found = {}
        wait = self._shown(reply.headers.get("Retry-After") or "a few", 20)
        return self._error(reply.status, found, wait)

    def _error(self, status: int, found: Any, wait: str = "a few") -> NpurtError:
        error = found.get("error") if isinstance(found, dict) else None
        fields = error if isinstance(error, dict) else {"message": error}
        said = self._shown(_text(fields.get("message")) or f"status {status}", 500)
        remedies = {
            401: "give a file with the right key: --api-key-file FILE",
            403: "give a file with the right key: --api-key-file FILE",
            404: "check --model, and --url, which usually ends with /v1",
            429: f"try again in {wait} seconds",
            503: f"try again in {wait} seconds",
        }
        if fields.get("code") in ("context_length_exceeded", "exceed_context_size_error"):
            return ContextFull(said, remedy="/clear begins a new conversation")
        remedy = remedies.get(status, "try again, or look at the server's log")
        return RemoteError(f"{self._url} refuses: {said}", remedy=remedy)

    def close(self) -> None:
        """Do nothing: no connection stays open between answers."""

    def _unreachable(self, error: Exception) -> RemoteError:
        if isinstance(error, TimeoutError):
            return self._broken(error)
        what = self._shown(str(error) or type(error).__name__, 200)
        return RemoteError(f"{self._url} gives no valid HTTP response: {what}",
                           remedy="start the server; npurt serve prints its URL")  # fmt: skip

    def _broken(self, error: Exception) -> RemoteError:
        if isinstance(error, TimeoutError):
            return RemoteError(f"{self._url} has sent nothing for {self._seconds:g} s",
                               remedy="try again, or give a larger --timeout")  # fmt: skip
        what = self._shown(str(error) or type(error).__name__, 200)
        return RemoteError(f"the connection broke: {what}",
                           remedy="use /regen, or send the message again")  # fmt: skip

    def _shown(self, text: str, maximum: int) -> str:
        """Return up to *maximum* characters of *text*; mask the API key and control characters."""
        if self._key:
            text = text.replace(self._key, "[key]")
        return "".join(c if c.isprintable() else " " for c in text[:maximum])


def turns_to_leave_out(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of oldest turns with a quarter of the characters; not the last turn."""
    sizes = [sum(len(messages[i]["content"] or "") for i in turn) for turn in turns(messages)]
    before = list(itertools.accumulate(sizes[:-1]))
    return min(bisect_left(before, sum(sizes) / 4) + 1, len(before))


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name a server."""
    group = parser.add_argument_group("server")
    group.add_argument("--url", metavar="URL",
                       help="chat with a model on an OpenAI-compatible server, such as "
                       "http://127.0.0.1:8080/v1; --model is the model's name there; the server's "
                       "defaults apply to settings that you do not give")  # fmt: skip
    group.add_argument("--api-key-file", type=Path, metavar="FILE",
                       help="file with the API key of the server")  # fmt: skip
    group.add_argument("--timeout", type=options.seconds, default=SECONDS, metavar="SECONDS",
                       help="timeout for a server that sends nothing")  # fmt: skip


def opened(args: argparse.Namespace) -> "RemoteModel":
    """Return the model that *args* name.

    Raises:
        NpurtError: See `RemoteModel` and `read_key`.
    """
    for flag, name in LOCAL.items():
        if getattr(args, name):
            args.usage_error(f"{flag} is for a local model; with --url the server decides")
    if not args.timeout:
        args.usage_error("--timeout must be above 0")
    key = read_key(args.api_key_file) if args.api_key_file else None
    return RemoteModel(args.url, args.model, key, args.timeout)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a request for the settings that differ from the flags' defaults.

    Raises:
        NpurtError: A setting is invalid.
    """
    form = args.grammar
    plain = argparse.Namespace(**{**vars(args), "grammar": None})  # the server parses the grammar
    check_sampling(plain)
    flags = argparse.ArgumentParser()
    add_sampling(flags)
    usual = sampling(flags.parse_args([]))
    found = {name: value for name, value in sampling(plain).items() if value != usual.get(name)}
    if form is None:
        return found
    text = options.text_of(form.text) if form.is_file else form.text
    if not form.is_schema:
        return found | {"grammar": text}
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingError(
            f"the schema is no JSON: {error}", remedy='write an object such as {"type": "object"}'
        ) from error
    named = {"name": "answer", "strict": True, "schema": schema}
    return found | {"response_format": {"type": "json_schema", "json_schema": named}}


def read_key(path: Path) -> str:
    """Return the API key in a file: the first line that is not a comment.

    Raises:
        SettingError: The file contains no key.
        NpurtError: The file cannot be read.
    """
    lines = options.bytes_of(path, MAX_KEY).decode("latin-1").splitlines()
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys or not (keys[0].isascii() and keys[0].isprintable()):
        raise SettingError(f"{path} has no key", remedy="write the key into it, in one line")
    return keys[0]


def _parts(url: str) -> tuple[bool, str, int | None, str]:
    """Return whether *url* uses TLS, its host, its port and its path.

    Raises:
        SettingError: *url* is not the URL of a server.
    """
    remedy = "write it as http://127.0.0.1:8080/v1"
    try:
        found = urllib.parse.urlsplit(url)
        port = found.port
    except ValueError as error:
        raise SettingError(f"--url is no URL: {error}", remedy=remedy) from None
    if found.username is not None or found.password is not None:
        raise SettingError("--url has a name or a password",
                           remedy="leave it out, and give a key with --api-key-file")  # fmt: skip
    plain = url.isascii() and url.isprintable() and " " not in url
    if found.scheme not in ("http", "https") or not found.hostname or not plain:
        raise SettingError(f"--url {url[:200]!r} is no URL of a server", remedy=remedy)
    return found.scheme == "https", found.hostname, port, found.path.rstrip("/") or "/v1"


def _text(value: Any) -> str:
    """Return *value* without control characters if it is a string, else ""."""
    if not isinstance(value, str):
        return ""
    return terminal.harmless(value)
