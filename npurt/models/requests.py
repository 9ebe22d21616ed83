"""Requests for a file on a server: which URLs are allowed, answers, and when to ask again.

The client is huggingface_hub's, with its proxies, certificates and offline mode.
"""

import contextlib
import ipaddress
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from npurt import settings
from npurt.errors import DownloadError, SettingError

T = TypeVar("T")

TIMEOUT_S = 30.0  # of a connection, and between two pieces of an answer
TRIES = 5  # requests in a row that together bring less than PROGRESS
LARGEST = 1 << 50  # bytes that a file is believed to have
WAIT_S = 1.0  # before the second try; doubles with each
LONG_WAIT_S = 5.0  # that users want to know about
MOST_WAIT_S = 120.0  # that a server may ask for
TOO_MANY = 429  # requests of this user
BUSY = (408, 425, TOO_MANY, 500, 502, 503, 504)  # statuses that another try may not get
REDIRECTS = 10
CONNECTION = (  # variables that state how to connect
    "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Remote:
    """A file on a server.

    Attributes:
        name: As messages and the progress bar show it.
        nbytes: None when unknown.
        digest: SHA-256 of the content, or SHA-1 of it as a git blob, in hexadecimal; "" if unknown.
        headers: Of the request to *url*; Authorization is not sent to another host.
    """

    url: str
    name: str
    nbytes: int | None = None
    digest: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Busy(Exception):
    """A request failed in a way that the next one may not.

    Attributes:
        wait: Seconds that the server asks to wait.
        tries: How often it is worth asking, at most.
        remedy: What to do when the last try fails, too.
    """

    def __init__(
        self,
        why: str,
        wait: float | None = None,
        tries: int = LARGEST,
        remedy: str = "check the connection",
    ) -> None:
        super().__init__(why)
        self.wait = wait
        self.tries = tries
        self.remedy = remedy


def busy(who: str, status: int, headers: Mapping[str, str]) -> Busy:
    """Return what an answer with a status of `BUSY` means."""
    remedy = "try again later: the fault is the server's"
    if status == TOO_MANY:
        remedy = "try again in some minutes; a hub allows more requests with a token in HF_TOKEN"
    return Busy(f"{who} answers {status}", retry_after(headers), remedy=remedy)


def no_answer(url: str, error: BaseException) -> Busy:
    """Return the error of a request to *url* that got no answer.

    A name that cannot be resolved is asked for twice: a machine that is offline stays so.
    """
    host = urlsplit(url).hostname
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return Busy(f"the name of {host} cannot be resolved ({cause.strerror})", tries=2)
        cause = cause.__cause__ or cause.__context__
    user = urlsplit(url).netloc.rpartition("@")[0]  # and a password, perhaps
    said = str(error).replace(f"{user}@", "") if user else str(error)
    return Busy(f"no answer from {host}: {said}")


def parts_of(url: str) -> SplitResult:
    """Return the parts of a URL.

    Raises:
        SettingError: It is not a URL.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # is read only here, and may be no number
        (parts.hostname or "").encode("idna")  # refuses empty and overlong labels
    except ValueError as error:
        raise SettingError(
            f"the URL is malformed: {error}", remedy="write https://HOST/PATH"
        ) from error
    return parts


def require_secure(url: str) -> None:
    """Refuse a URL that is neither https nor on this machine.

    Raises:
        SettingError: That is so, or it is no URL.
    """
    parts = parts_of(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and is_loopback(parts.hostname or ""):
        return
    if parts.scheme == "https":
        raise SettingError(f"{shown(url)} names no host", remedy="write https://HOST/PATH")
    raise SettingError(
        f"{shown(url)} is not an https URL",
        remedy="use https: what comes over another connection may be anybody's",
    )


def is_loopback(host: str) -> bool:
    """Return whether *host* is this machine, by its name or address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def shown(url: str) -> str:
    """Return *url* without what may be secret: the user, the password and the query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def patiently(
    request: Callable[[], T],
    what: str,
    remedy: str,
    *,
    tries: int = TRIES,
    tell: Callable[[str], object],
) -> T:
    """Return the result of *request*, which is repeated while it raises `Busy`.

    Before a long wait, *tell* is called with the reason.  *remedy* says what helps besides another
    try.

    Raises:
        DownloadError: It raised that too often, or the server asks for too long a wait.
    """
    for tried in range(1, tries + 1):
        try:
            return request()
        except Busy as error:
            wait = WAIT_S * 2 ** (tried - 1) if error.wait is None else error.wait
            if wait > MOST_WAIT_S:
                raise DownloadError(
                    f"{what}: {error}; the server asks to wait {wait:.0f} seconds",
                    remedy=f"try again after that time; {remedy}",
                ) from error
            if tried >= min(tries, error.tries):
                raise DownloadError(
                    f"{what}: {error}", remedy=f"{error.remedy}; {remedy}"
                ) from error
            if wait >= LONG_WAIT_S:
                tell(f"{what}: {error}; trying again in {wait:.0f} seconds")
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait, or None; a date is not understood."""
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


def session() -> Any:
    """Return the client of `huggingface_hub`.

    Raises:
        DownloadError: The environment states a proxy or certificates that cannot be used.
    """
    import httpx2
    from huggingface_hub import get_session

    try:
        return get_session()
    except (ImportError, ValueError, OSError, httpx2.InvalidURL) as error:
        stated = ", ".join(settings.stated(CONNECTION))
        raise DownloadError(
            f"the proxy or the certificates that the environment states cannot be used: {stated}",
            remedy="write a proxy as http://HOST:PORT and certificates as the path of a file; "
            "for a socks proxy, `pip install socksio`",
        ) from error


@contextlib.contextmanager
def answer(remote: Remote, headers: dict[str, str], secure: bool) -> Iterator[Any]:
    """Yield the answer that has the content; redirects are followed, with their targets checked."""
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    url = remote.url
    for _ in range(REDIRECTS):
        if secure:
            require_secure(url)
        try:
            with session().stream(
                "GET", url, headers=headers, follow_redirects=False, timeout=TIMEOUT_S
            ) as response:
                if not response.has_redirect_location:
                    _require_content(remote, response)
                    yield response
                    return
                location = response.headers["location"]
        except OfflineModeIsEnabled as error:
            raise DownloadError(
                f"{remote.name} is not here, and HF_HUB_OFFLINE forbids to download it",
                remedy="unset HF_HUB_OFFLINE, or copy the file here and give its path",
            ) from error
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeError) as error:
            raise DownloadError(
                f"cannot download {remote.name}: {error}", remedy="check the URL"
            ) from error
        except httpx2.HTTPError as error:
            raise no_answer(url, error) from error
        parts_of(location)  # refuses what urljoin cannot take
        following = urljoin(url, location)
        if urlsplit(following)[:2] != urlsplit(url)[:2]:  # scheme and host with its port
            headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        url = following
    raise DownloadError(
        f"cannot download {remote.name}: redirected more than {REDIRECTS} times",
        remedy="check the URL; the server is set up wrongly",
    )


def _require_content(remote: Remote, response: Any) -> None:
    """Refuse an answer without content."""
    status = response.status_code
    if status in (200, 206) or (status == 416 and "Range" in response.request.headers):
        return
    if status in BUSY:
        raise busy("the server", status, response.headers)
    if response.headers.get("x-error-code") == "GatedRepo":
        raise DownloadError(
            f"{remote.name} is given only to those who accept the terms of its repository",
            remedy="accept them on its page, then set HF_TOKEN, or run `hf auth login`",
        )
    remedies = {
        401: "give a token that may read it: set HF_TOKEN, or run `hf auth login`",
        403: "ask for access to it, with the account whose token HF_TOKEN has",
        404: "check the name: there is no such file",
    }
    raise DownloadError(
        f"cannot download {remote.name}: the server answers {status}",
        remedy=remedies.get(status, "check the URL in a browser"),
    )


def stated(remote: Remote, response: Any) -> tuple[int | None, int | None]:
    """Return where the content begins and how long the whole file is, as the answer states them.

    The beginning is None when the answer has no part of the file, the size None when the end of
    the content shows that it is whole.

    Raises:
        DownloadError: Nobody states a size, so a part could not be told from the whole.
    """
    headers = response.headers
    start: int | None = 0
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    text = "" if chunked else headers.get("content-length", "")
    if response.status_code != 200:  # RFC 9110, 14.4
        match = re.fullmatch(
            r"bytes (\d+)-\d+/(\d+|\*)", headers.get("content-range", ""), re.ASCII
        )
        if response.status_code == 416 or match is None:
            return None, None
        start, text, chunked = _number(remote, match[1]), match[2], False
    if text.isascii() and text.isdigit():
        return start, _number(remote, text)
    if chunked or remote.digest:  # chunks have a last one: RFC 9112, 7.1
        return start, None if chunked else remote.nbytes
    raise DownloadError(
        f"cannot download {remote.name}: the server does not state its size, so a part of it"
        " could not be told from the whole",
        remedy="add #sha256=HEX to the URL, or download it by other means and give its path",
    )


def _number(remote: Remote, digits: str) -> int:
    if len(digits) > 20 or int(digits) > LARGEST:
        raise DownloadError(
            f"cannot download {remote.name}: the server states that it has {digits:.30} bytes",
            remedy="check the URL; the server is set up wrongly",
        )
    return int(digits)
