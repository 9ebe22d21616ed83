"""HTTP requests for remote files: allowed URLs, responses, redirects and retries.

The HTTP client is that of huggingface_hub, with its proxies, certificates and offline mode.
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
from npurt.base import late
from npurt.errors import DownloadError, SettingError

T = TypeVar("T")

TIMEOUT_S = 30.0  # timeout of a connection, and between two parts of a response
TRIES = 5  # failed requests in a row, with less than PROGRESS bytes in total
LARGEST = 1 << 50  # bytes; a larger file size counts as an error of the server
WAIT_S = 1.0  # wait before the second try; doubled for each further try
LONG_WAIT_S = 5.0  # longer waits are shown to the user
MAX_WAIT_S = 120.0  # longest wait that a server may request
TOO_MANY = 429  # status: too many requests
BUSY = (408, 425, TOO_MANY, 500, 502, 503, 504)  # statuses after which a retry may succeed
REDIRECTS = 10
CONNECTION = (  # environment variables of the connection
    "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A remote file.

    Attributes:
        url: The URL.
        name: The name of the file in messages and the progress bar.
        nbytes: The size of the file; None if unknown.
        digest: SHA-256 of the content, or its SHA-1 as a git blob, in hexadecimal; "" if unknown.
        headers: Headers of the request; Authorization is not sent to another host.
    """

    url: str
    name: str
    nbytes: int | None = None
    digest: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Busy(Exception):
    """A request failed, but a retry may succeed.

    Attributes:
        wait: Seconds that the server requests to wait; None if it requests none.
        tries: The largest number of tries.
        remedy: The advice to the user after the last try.
    """

    def __init__(
        self,
        why: str,
        wait: float | None = None,
        tries: int = LARGEST,
        remedy: str = "see whether other pages of this server open on this machine",
    ) -> None:
        super().__init__(why)
        self.wait = wait
        self.tries = tries
        self.remedy = remedy


def busy(who: str, status: int, headers: Mapping[str, str]) -> Busy:
    """Return the error for a response with a status in `BUSY`."""
    remedy = "try again later: the fault is the server's"
    if status == TOO_MANY:
        remedy = "try again in some minutes; a hub allows more requests with a token in HF_TOKEN"
    return Busy(f"{who} answers {status}", retry_after(headers), remedy=remedy)


def no_answer(url: str, error: BaseException) -> Busy:
    """Return the error for a request to *url* without a response.

    If the host name cannot be resolved, there are only two tries: the machine is probably offline.
    """
    host = urlsplit(url).hostname
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return Busy(f"the name of {host} cannot be resolved ({cause.strerror})", tries=2)
        cause = cause.__cause__ or cause.__context__
    user = urlsplit(url).netloc.rpartition("@")[0]  # user name, and possibly a password
    said = str(error).replace(f"{user}@", "") if user else str(error)
    return Busy(f"no answer from {host}: {said}")


def parts_of(url: str) -> SplitResult:
    """Split a URL into its parts.

    Raises:
        SettingError: *url* is not a URL.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if the port is not a number
        (parts.hostname or "").encode("idna")  # raises if a label is empty or too long
    except ValueError as error:
        raise SettingError(
            f"the URL is malformed: {error}", remedy="write https://HOST/PATH"
        ) from error
    return parts


def require_secure(url: str) -> None:
    """Check that *url* is https, or http on this machine.

    Raises:
        SettingError: *url* is neither, or is not a URL.
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
        remedy="use https: other connections can be tampered with",
    )


def is_loopback(host: str) -> bool:
    """Return whether *host* is a name or address of this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def shown(url: str) -> str:
    """Return *url* without secrets: user, password and query."""
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
    """Call *request* until it does not raise `Busy`, and return its result.

    Args:
        what: The beginning of the error message.
        remedy: The end of the error's remedy.
        tries: The largest number of tries.
        tell: A function that is called with the reason before a long wait.

    Raises:
        DownloadError: All tries failed, or the server requests too long a wait.
    """
    for tried in range(1, tries + 1):
        try:
            return request()
        except Busy as error:
            wait = WAIT_S * 2 ** (tried - 1) if error.wait is None else error.wait
            if wait > MAX_WAIT_S:
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
    """Return the seconds in the header Retry-After; None without one, or if it is a date."""
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


def session() -> Any:
    """Return the HTTP client of `huggingface_hub`.

    Raises:
        DownloadError: The proxy or the certificates in the environment cannot be used.
    """
    with late.imports():
        import httpx2
        from huggingface_hub import get_session

    try:
        return get_session()
    except (ImportError, ValueError, OSError, httpx2.InvalidURL) as error:
        stated = ", ".join(settings.stated(CONNECTION))
        raise DownloadError(
            f"cannot use the proxy or the certificates from the environment: {stated}",
            remedy="write a proxy as http://HOST:PORT and certificates as the path of a file; "
            "for a socks proxy, `pip install socksio`",
        ) from error


@contextlib.contextmanager
def answer(remote: RemoteFile, headers: dict[str, str], secure: bool) -> Iterator[Any]:
    """Yield the response with the content; follow redirects, and check their targets."""
    with late.imports():
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
                f"{remote.name} is not on this machine, and HF_HUB_OFFLINE forbids downloads",
                remedy="unset HF_HUB_OFFLINE, or copy the file to this machine and give its path",
            ) from error
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeError) as error:
            raise DownloadError(
                f"cannot download {remote.name}: {error}",
                remedy="copy the link of the file from the browser: https://HOST/PATH/NAME.gguf",
            ) from error
        except httpx2.HTTPError as error:
            raise no_answer(url, error) from error
        parts_of(location)  # raises if urljoin cannot handle it
        following = urljoin(url, location)
        if urlsplit(following)[:2] != urlsplit(url)[:2]:  # scheme and host with its port
            headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        url = following
    raise DownloadError(
        f"cannot download {remote.name}: redirected more than {REDIRECTS} times",
        remedy="download the file with a browser, and give its path: this server does not send "
        "files properly",
    )


def _require_content(remote: RemoteFile, response: Any) -> None:
    """Raise an error if the response has no content."""
    status = response.status_code
    if status in (200, 206) or (status == 416 and "Range" in response.request.headers):
        return
    if status in BUSY:
        raise busy("the server", status, response.headers)
    if response.headers.get("x-error-code") == "GatedRepo":
        raise DownloadError(
            f"{remote.name} can be downloaded only by users who accept the terms of its repository",
            remedy="accept the terms on its page, then set HF_TOKEN, or run `hf auth login`",
        )
    remedies = {
        401: "give a token with access to the file: set HF_TOKEN, or run `hf auth login`",
        403: "request access to the file with the account of the token in HF_TOKEN",
        404: "open the page of the repository in a browser, and copy the link of the file: this "
        "name does not exist",
    }
    raise DownloadError(
        f"cannot download {remote.name}: the server answers {status}",
        remedy=remedies.get(status, "open the link in a browser, which shows the server's reason"),
    )


def stated(remote: RemoteFile, response: Any) -> tuple[int | None, int | None]:
    """Return the offset of the content in the file, and the size of the whole file.

    The offset is None if the response has no part of the file.  The size is None if the end of the
    content shows that it is complete.

    Raises:
        DownloadError: The size is unknown, so an incomplete download could not be detected.
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
    if chunked or remote.digest:  # the last chunk is marked: RFC 9112, 7.1
        return start, None if chunked else remote.nbytes
    raise DownloadError(
        f"cannot download {remote.name}: the server does not state its size, so an "
        "incomplete download could not be detected",
        remedy="add #sha256=HEX to the URL, or download it by other means and give its path",
    )


def _number(remote: RemoteFile, digits: str) -> int:
    if len(digits) > 20 or int(digits) > LARGEST:
        raise DownloadError(
            f"cannot download {remote.name}: the server states a size of {digits:.30} bytes",
            remedy="download the file with a browser, and give its path: this server does not send "
            "files properly",
        )
    return int(digits)
