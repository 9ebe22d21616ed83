"""Access control: API keys, allowed host names, allowed origins of web pages."""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Sequence
from pathlib import Path

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from npurt.base.files import unreadable
from npurt.errors import SettingError
from npurt.serve.http.errors import HttpError, shaped
from npurt.serve.http.log import refused

BLANKS = " \t\r"  # around a key; str.strip also removes bytes of a key, such as A0
METHODS = "GET, POST, HEAD, OPTIONS"


def read_keys(path: Path) -> list[str]:
    """Return the API keys in a file, one per line; lines that begin with # are comments.

    Raises:
        SettingError: The file cannot be read, or contains no key.
    """
    try:
        lines = path.read_text().split("\n")  # splitlines also splits at characters of a key
    except OSError as error:
        raise SettingError(
            f"cannot read {path}: {error.strerror}", remedy=unreadable(path, error)
        ) from error
    except ValueError as error:
        raise SettingError(
            f"cannot read {path}: {error}", remedy="save it as UTF-8 text, one key a line"
        ) from error
    keys = [line.strip(BLANKS) for line in lines if not line.startswith("#")]
    keys = [key for key in keys if key]
    if not keys:
        raise SettingError(f"{path} has no key", remedy="write one key a line")
    return keys


class AccessMiddleware:
    """Middleware that checks the Host header, the Origin header and the API key of requests.

    Args:
        app: The application that gets the allowed requests.
        keys: API keys; if empty, requests need no key.
        hosts: Allowed host names, besides localhost and IP addresses.  This check stops DNS
            rebinding: an attacker's page whose name resolves to this machine sends another name.
        origins: Origins whose web pages may send requests, besides the server's own origin.
        public: Paths that need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str],
        hosts: Iterable[str],
        origins: Iterable[str],
        public: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._keys = [_digest(key.encode()) for key in keys]
        self._hosts = {"localhost", *(host.lower().rstrip(".") for host in hosts)}
        self._public = frozenset(public)
        self._origins = {origin.rstrip("/") for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request that is not allowed; pass an allowed one to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        allowed = origin if origin in self._origins else None
        try:
            self._check_host(host)
            self._check_origin(origin, host)
            if scope["method"] == "OPTIONS":
                await _options(headers, allowed)(scope, receive, send)
                return
            scope["state"] = {**scope.get("state", {}), "salt": self._salt(scope["path"], headers)}
        except HttpError as error:
            refused(scope, error.status)
            answer = JSONResponse(shaped(error, scope["path"]), error.status, error.headers)
            await answer(scope, receive, _with_origin(send, allowed))
            return
        await self._app(scope, receive, _with_origin(send, allowed))

    def _check_host(self, host: str) -> None:
        name = _name(host)
        if name in self._hosts or _is_address(name):
            return
        raise HttpError(
            403, f"this server is not called {name!r:.100}",
            remedy="start it with --allow-host NAME", code="host_not_allowed",
        )  # fmt: skip

    def _check_origin(self, origin: str | None, host: str) -> None:
        scheme, _, authority = (origin or "").partition("://")
        own = scheme in ("http", "https") and authority == host  # https: a proxy with TLS
        if origin is None or origin in self._origins or own:
            return
        raise HttpError(
            403, f"web pages of {origin!r:.100} may not use this server",
            remedy="start it with --cors-origin ORIGIN", code="origin_not_allowed",
        )  # fmt: skip

    def _salt(self, path: str, headers: dict[bytes, str]) -> str:
        """Return the salt of the prefix cache, which differs for each API key.

        Raises:
            HttpError: The API key is missing or wrong.
        """
        if not self._keys or path in self._public:
            return ""
        scheme, _, token = headers.get(b"authorization", "").partition(" ")
        given = token.strip(BLANKS) if scheme.lower() == "bearer" else headers.get(b"x-api-key", "")
        digest = _digest(given.encode("latin-1"))
        # Compare with every key in constant time, so that the duration reveals nothing.
        if not sum([hmac.compare_digest(digest, key) for key in self._keys]):
            raise HttpError(
                401, "the API key is missing or wrong",
                remedy="send it as Authorization: Bearer KEY", code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        return digest.hex()[:16]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _name(host: str) -> str:
    """Return the host name in a Host header, without port and brackets."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _options(headers: dict[bytes, str], origin: str | None) -> Response:
    """Return the response to OPTIONS: the methods and headers that a web page may send."""
    found = {"Allow": METHODS}
    if origin is not None:
        wanted = headers.get(b"access-control-request-headers", "")
        found |= {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": wanted,
            "Access-Control-Max-Age": "600",
        }
    return Response(status_code=204, headers=found | _cors(origin))


def _cors(origin: str | None) -> dict[str, str]:
    return {} if origin is None else {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


def _with_origin(send: Send, origin: str | None) -> Send:
    if origin is None:
        return send
    extra = [(name.lower().encode(), value.encode()) for name, value in _cors(origin).items()]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sending
