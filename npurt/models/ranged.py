"""Read parts of a remote file without storing them."""

from typing import Any

from npurt.base import late
from npurt.errors import DownloadError
from npurt.models import requests
from npurt.models.requests import Busy, RemoteFile

WHOLE = "download it, for instance with `npurt models fetch`, and give its path"


class RangedFile:
    """A remote file, of which parts are read by range requests (RFC 9110, 14).

    Attributes:
        name: The name of the file.
        nbytes: Bytes of the whole file; None if unknown before the first `read`.
    """

    def __init__(self, remote: RemoteFile, secure: bool = True) -> None:
        self.name = remote.name
        self.nbytes = remote.nbytes
        self._remote, self._secure = remote, secure
        self._tag = ""  # ETag of the version that was read first

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from *start* to *stop*, or to the end of the file.

        Raises:
            DownloadError: The server refuses the request, does not support ranges, or has changed
                the file since the first read.
        """
        return requests.patiently(
            lambda: self._request(start, stop),
            f"cannot read {self.name}",
            "or give the path of a local file",
            tell=lambda text: None,
        )

    def _request(self, start: int, stop: int) -> bytes:
        with late.imports():
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
        """Raise DownloadError if the response is another part, or of another version."""
        status = response.status_code
        if status == 200:
            raise DownloadError(
                f"cannot read a part of {self.name}: the server sends only whole files",
                remedy=WHOLE,
            )
        found, total = requests.stated(self._remote, response)
        if found != start or total is None:
            raise DownloadError(
                f"cannot read {self.name} from byte {start}: the server does not send this part",
                remedy=WHOLE,
            )
        tag = response.headers.get("etag", "")
        if total != (self.nbytes or total) or tag != (self._tag or tag):
            raise DownloadError(
                f"{self.name} changed while it was read, or is not the file that the hub states",
                remedy="run the same command once more: the new version is read from its beginning",
            )
        self.nbytes, self._tag = total, tag
