"""Read parts of a file on a server, without keeping any of it."""

from typing import Any

from npurt.errors import DownloadError
from npurt.models import requests
from npurt.models.requests import Busy, Remote

WHOLE = "download it, for instance with `npurt models fetch`, and give its path"


class RangedFile:
    """A file on a server, of which parts are read by range requests (RFC 9110, 14).

    Attributes:
        name: Its name.
        nbytes: Bytes of the whole file; None until a part was read, unless it was stated before.
    """

    def __init__(self, remote: Remote, secure: bool = True) -> None:
        self.name = remote.name
        self.nbytes = remote.nbytes
        self._remote, self._secure = remote, secure
        self._tag = ""  # of the version that the first part was of

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from *start* to *stop*; fewer where the file ends before.

        Raises:
            DownloadError: The server refuses, gives no parts, or the file changed meanwhile.
        """
        return requests.patiently(
            lambda: self._request(start, stop),
            f"cannot read {self.name}",
            "or give the path of a file that is here",
            tell=lambda text: None,
        )

    def _request(self, start: int, stop: int) -> bytes:
        import httpx2

        headers = {**self._remote.headers, "Accept-Encoding": "identity"}
        headers["Range"] = f"bytes={start}-{stop - 1}"
        with requests.answer(self._remote, headers, self._secure) as response:
            self._check(response, start)
            limit = min(stop, self.nbytes or stop) - start
            data = bytearray()
            try:
                for chunk in response.iter_raw():
                    data += chunk
                    if len(data) >= limit:
                        return bytes(data[:limit])
            except httpx2.HTTPError as error:
                raise Busy(f"the connection broke at {start + len(data)}") from error
        raise Busy(f"the server sent only {len(data)} of {limit} bytes")

    def _check(self, response: Any, start: int) -> None:
        """Refuse an answer that is no part of the file, or of another version of it."""
        status = response.status_code
        if status == 200:
            raise DownloadError(
                f"cannot read a part of {self.name}: the server gives whole files only",
                remedy=WHOLE,
            )
        found, total = requests.stated(self._remote, response)
        if found != start or total is None:
            raise DownloadError(
                f"cannot read {self.name} from byte {start}: the server does not give that part",
                remedy=f"check the URL; or {WHOLE}",
            )
        tag = response.headers.get("etag", "")
        if total != (self.nbytes or total) or tag != (self._tag or tag):
            raise DownloadError(
                f"{self.name} changed while it was read, or is not the file that the hub states",
                remedy="try again",
            )
        self.nbytes, self._tag = total, tag
