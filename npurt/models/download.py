"""Download files over HTTP: resume interrupted downloads, check files, then rename them.

`npurt.models.requests` sends the requests; this module writes and checks the files.
"""

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from npurt.base import late
from npurt.base.file_kinds import kind_of
from npurt.errors import DownloadError
from npurt.models.requests import Busy, RemoteFile, answer, patiently, stated

if TYPE_CHECKING:
    from tqdm import tqdm

MAGIC = b"GGUF"
CHUNK = 1 << 20  # bytes copied at a time
PROGRESS = 1 << 20  # bytes after which failed requests are counted anew
RESUME = "run the same command again to continue the download"


def download(
    remote: RemoteFile, target: Path, bar: "tqdm[NoReturn]", *, secure: bool = True
) -> None:
    """Download *remote* to *target*, whose folder exists; continue an earlier incomplete download.

    The caller must ensure that nothing else downloads the same file at the same time.

    Args:
        secure: Refuse connections, including redirects, that are neither https nor local.

    Raises:
        DownloadError: The server, the connection or the disk failed, or the content is wrong.
    """
    partial = target.with_name(f"{target.name}.npurt-incomplete")
    tag = partial.with_name(f"{partial.name}.tag")
    try:
        _fill(remote, partial, tag, bar, secure)
        _check(remote, partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
        tag.unlink(missing_ok=True)
    except DownloadError:
        if not partial.exists():
            tag.unlink(missing_ok=True)
        raise
    except OSError as error:
        raise DownloadError(
            f"cannot write {target}: {error.strerror or error}",
            remedy=f"free space, or choose another folder; {RESUME}",
        ) from error


def require_space(folder: Path, nbytes: int) -> None:
    """Check that the disk of *folder* has *nbytes* of free space.

    Raises:
        DownloadError: The disk has less free space, or the folder cannot be read.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise DownloadError(
            f"cannot look into {folder}: {error.strerror}", remedy="give a folder that can be read"
        ) from error
    if nbytes > free:
        raise DownloadError(
            f"{nbytes / 1e6:.0f} MB are needed in {folder}, which has {free / 1e6:.0f} MB free",
            remedy="free space, or choose a folder on another disk",
        )


def missing_bytes(remote: RemoteFile, target: Path) -> int:
    """Return the number of bytes of *remote* not yet downloaded to *target*; 0 if unknown."""
    if target.exists() or remote.nbytes is None:
        return 0
    return max(0, remote.nbytes - _size(target.with_name(f"{target.name}.npurt-incomplete")))


def verify(path: str | Path, sha256: str) -> None:
    """Check the SHA-256 of a file against *sha256*, in hexadecimal.

    Raises:
        DownloadError: The hashes differ; the message has both.
    """
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DownloadError(
            f"{path} is damaged: its SHA-256 is {found}, not {sha256}",
            remedy="delete the file if it still exists, and fetch it again",
        )


@contextlib.contextmanager
def progress_bar(nbytes: int | None, progress: bool) -> "Iterator[tqdm[NoReturn]]":
    """Yield a progress bar on standard error; it is hidden if that is not a terminal."""
    with late.imports():
        from tqdm import tqdm  # here, because importing it reads the environment

    hidden = None if progress and sys.stderr else True
    with tqdm(total=nbytes, unit="B", unit_scale=True, disable=hidden) as bar:
        yield bar


@contextlib.contextmanager
def turn(lock: Path, bar: "tqdm[NoReturn]") -> Iterator[None]:
    """Hold *lock*, as `huggingface_hub` does; wait while another process holds it."""
    with late.imports():
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # lazily

    lock.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(WeakFileLock(lock, timeout=0.1))
        except TimeoutError:
            bar.set_description("waiting for another download")
            held.enter_context(WeakFileLock(lock))
        yield


# --- One file -------------------------------------------------------------------------------------


def _fill(
    remote: RemoteFile, partial: Path, tag: Path, bar: "tqdm[NoReturn]", secure: bool
) -> None:
    """Complete *partial*; failed requests are counted anew after each `PROGRESS` bytes."""
    bar.set_description(remote.name[-40:])
    bar.update(_size(partial))

    def is_complete() -> bool:
        try:
            _request(remote, partial, tag, bar, secure)
        except Busy:
            if _size(partial) - before < PROGRESS:
                raise
            return False
        return True

    what = f"cannot download {remote.name}"
    before = _size(partial)
    while not patiently(is_complete, what, RESUME, tell=bar.set_description):
        before = _size(partial)


def _request(
    remote: RemoteFile, partial: Path, tag: Path, bar: "tqdm[NoReturn]", secure: bool
) -> None:
    """Request the missing bytes of *partial* and append them.

    Raises:
        Busy: The file is still incomplete.
    """
    have = _size(partial)
    if have == remote.nbytes:
        return
    headers = {**remote.headers, "Accept-Encoding": "identity"}
    known = tag.read_text() if have and tag.exists() else ""
    offset = have if remote.digest or known else 0
    if offset:
        headers |= {"Range": f"bytes={offset}-"} | ({"If-Range": known} if known else {})
    with answer(remote, headers, secure) as response:
        start, total = stated(remote, response)
        changed = start and known and response.headers.get("etag", known) != known
        if changed or start not in (0, offset):  # also after status 416: the file may have changed
            partial.unlink(missing_ok=True)
            bar.update(-have)
            raise Busy("the server does not have that part of the file")
        bar.update(start - have)
        _keep_tag(remote, response, tag, start)
        limit = total if remote.nbytes is None else remote.nbytes
        if limit is not None:
            bar.total = bar.total or limit
            require_space(partial.parent, limit - start)
        _append(response, partial, start > 0, bar, limit)
    found = _size(partial)
    if limit is not None and total is not None and found < min(limit, total):
        raise Busy(f"the server sent only {found} of {total} bytes")


def _append(
    response: Any, partial: Path, resumed: bool, bar: "tqdm[NoReturn]", limit: int | None
) -> None:
    with late.imports():
        import httpx2

    with partial.open("ab" if resumed else "wb") as file:
        try:
            for chunk in response.iter_raw():
                file.write(chunk)
                bar.update(len(chunk))
                if limit is not None and file.tell() > limit:
                    break  # `_check` raises the error
        except httpx2.HTTPError as error:
            raise Busy(f"the connection broke at {file.tell()} of {limit} bytes") from error


def _keep_tag(remote: RemoteFile, response: Any, tag: Path, start: int) -> None:
    """Store the ETag of a file without a known hash, to resume only the same version."""
    strong = response.headers.get("etag", "")
    if not remote.digest and strong.isascii() and strong.startswith('"'):
        tag.write_text(strong)
    elif start == 0:
        tag.unlink(missing_ok=True)  # it belongs to an earlier version


def _check(remote: RemoteFile, partial: Path) -> None:
    """Delete *partial* and raise DownloadError if its size, hash or first bytes are wrong."""
    found = _size(partial)
    if remote.nbytes is not None and found != remote.nbytes:
        what = f"it has {found} bytes, not {remote.nbytes}"
    elif remote.digest and (digest := _digest(partial, remote.digest)) != remote.digest:
        what = f"its hash is {digest}, not {remote.digest}"
    elif not remote.digest and _start(partial) != MAGIC:
        kind = kind_of(partial)
        partial.unlink()
        raise DownloadError(
            f"{remote.name} from the server is no GGUF file, but {kind.what}",
            remedy="open the URL in a browser and use the link of the .gguf file itself; on "
            "Hugging Face its link has /resolve/ where the page's has /blob/",
        )
    else:
        return
    partial.unlink()
    raise DownloadError(
        f"the download of {remote.name} is damaged: {what}",
        remedy="download it again: the damaged file was deleted; if this recurs, the server's "
        "file is wrong",
    )


def _digest(path: Path, like: str) -> str:
    """Return the hash of a file; the length of *like* determines the algorithm."""
    with path.open("rb") as file:
        if len(like) == hashlib.sha256().digest_size * 2:
            return hashlib.file_digest(file, "sha256").hexdigest()
        blob = hashlib.sha1(b"blob %d\0" % _size(path), usedforsecurity=False)
        while chunk := file.read(CHUNK):
            blob.update(chunk)
        return blob.hexdigest()


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(MAGIC))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
