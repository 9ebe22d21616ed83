"""Models of a Hugging Face hub or a mirror: find files in the cache, and download missing ones.

npurt uses the account, token, mirror, offline mode and cache folder of `huggingface_hub`.
The cache has the layout of `huggingface_hub`, so that other programs can use the files.  npurt
downloads the files itself, because `huggingface_hub` resumes only within one call and checks no
hash. File names, sizes and hashes come from the server; npurt checks them before it builds paths
from the names.
Sources: huggingface_hub docs/guides/manage-cache (layout); llama.cpp common/download.cpp (choice).
"""

import contextlib
import difflib
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from npurt.base import late
from npurt.base.files import link_or_move, replacing
from npurt.errors import DownloadError, SettingError, brief
from npurt.models import download, requests
from npurt.models.choice import SUGGESTIONS, USUAL_QUANTS, HubFile, choose, has_quant
from npurt.models.reference import NAME, Reference
from npurt.models.requests import Busy, RemoteFile, shown
from npurt.settings import variable

QUESTION_S = 10.0  # timeout of a request to the hub's API, in seconds
ENDPOINT = "unset HF_ENDPOINT, or set it to the URL of a hub"
LONGEST_PATH = 1024  # characters of a path in a repository; a whole path may have 4096

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Listing:
    """The GGUF files of one commit of a repository."""

    commit: str
    files: tuple[HubFile, ...]


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub: its address, and the folder of its cache."""

    endpoint: str = field(repr=False)  # may contain a password
    cache: Path

    @classmethod
    def usual(cls) -> Self:
        """Return the hub of the environment variables HF_ENDPOINT, HF_HOME and HF_HUB_CACHE."""
        with late.imports():
            from huggingface_hub import constants

        endpoint = variable("HF_ENDPOINT") or constants.ENDPOINT
        return cls(endpoint.rstrip("/"), Path(constants.HF_HUB_CACHE))

    def fetch(self, wanted: Reference, *, progress: bool = True) -> Path:
        """Return the (first) file of *wanted* in the cache; download missing files.

        If the hub does not answer, cached files are used, with a warning.

        Raises:
            DownloadError: The hub refuses the request, or the downloaded data is damaged.
            SettingError: The repository has no such file.
        """
        found = self._look_up(wanted, progress)
        if isinstance(found, Path):
            return found
        commit, files = found
        self._download(wanted, commit, files, progress)
        self._note_commit(wanted, commit)
        return self._pointer(wanted.repo, commit, files[0].name)

    def look_up(self, wanted: Reference, *, progress: bool = True) -> Path | list[RemoteFile]:
        """Return the (first) cached file of *wanted*, or all remote files if one is not cached.

        Raises the errors of `fetch`.
        """
        found = self._look_up(wanted, progress)
        if isinstance(found, Path):
            return found
        return [self._remote(wanted.repo, found[0], file) for file in found[1]]

    def _look_up(self, wanted: Reference, progress: bool) -> Path | tuple[str, list[HubFile]]:
        """Return the file of *wanted* if all its parts are cached, else the commit and files."""
        cached = self.find(wanted)
        try:
            listing = self._ask(wanted, progress)
        except DownloadError as error:
            if cached and isinstance(error.__cause__, Busy | OSError):
                return _instead(cached, wanted, error)
            raise
        files = choose(listing.files, wanted)
        pointers = [self._pointer(wanted.repo, listing.commit, file.name) for file in files]
        if not all(pointer.exists() for pointer in pointers):
            return listing.commit, files
        self._note_commit(wanted, listing.commit)
        return pointers[0]

    @property
    def secure(self) -> bool:
        """Whether connections must be https; false if the user chose a mirror with http."""
        return not self.endpoint.startswith("http:")

    def find(self, wanted: Reference) -> Path | None:
        """Return the (first) file of *wanted* if all its parts are cached; otherwise None."""
        folder = self._folder(wanted.repo)
        commit = wanted.revision
        if not _COMMIT.fullmatch(commit):
            try:
                commit = (folder / "refs" / commit).read_text().strip()
            except (OSError, UnicodeDecodeError):
                return None
        if not _COMMIT.fullmatch(commit):
            return None
        snapshot = folder / "snapshots" / commit
        names = sorted(
            path.relative_to(snapshot).as_posix()
            for path in snapshot.rglob("*")
            if path.name.lower().endswith(".gguf") and path.exists()
        )
        try:
            files = choose([HubFile(name, 0, "") for name in names], wanted)
        except SettingError:
            return None
        return snapshot / files[0].name

    # --- The cache ------------------------------------------------------------------------------

    def _folder(self, repo: str) -> Path:
        return self.cache / f"models--{repo.replace('/', '--')}"

    def _pointer(self, repo: str, commit: str, name: str) -> Path:
        return self._folder(repo) / "snapshots" / commit / name

    def _note_commit(self, wanted: Reference, commit: str) -> None:
        """Store the commit of the revision in the cache, for use without a connection."""
        if wanted.revision == commit:
            return
        path = self._folder(wanted.repo) / "refs" / wanted.revision
        with contextlib.suppress(OSError):  # a read-only cache still has the file
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, durable=False) as file:
                file.write(commit.encode())

    def _download(
        self, wanted: Reference, commit: str, files: Sequence[HubFile], progress: bool
    ) -> None:
        folder = self._folder(wanted.repo)
        blobs = [folder / "blobs" / file.digest for file in files]
        remotes = [self._remote(wanted.repo, commit, file) for file in files]
        locks = self.cache / ".locks" / folder.name
        try:
            blobs[0].parent.mkdir(parents=True, exist_ok=True)
            left = sum(map(download.missing_bytes, remotes, blobs))
            download.require_space(blobs[0].parent, left)
            with download.progress_bar(sum(file.nbytes for file in files), progress) as bar:
                for file, remote, blob in zip(files, remotes, blobs, strict=True):
                    pointer = self._pointer(wanted.repo, commit, file.name)
                    with download.turn(locks / f"{file.digest}.lock", bar):
                        if pointer.exists() or blob.exists():
                            bar.update(file.nbytes)
                        else:
                            download.download(remote, blob, bar, secure=self.secure)
                        link_or_move(pointer, blob)
        except OSError as error:
            if isinstance(error, DownloadError):
                raise
            raise DownloadError(
                f"cannot write into {self.cache}: {error.strerror or error}",
                remedy="choose another folder with HF_HOME",
            ) from error

    def _remote(self, repo: str, commit: str, file: HubFile) -> RemoteFile:
        with late.imports():
            from huggingface_hub import hf_hub_url

        url = hf_hub_url(repo, file.name, revision=commit, endpoint=self.endpoint)
        return RemoteFile(url, file.name, file.nbytes, file.digest, _headers())

    # --- Requests to the hub's API --------------------------------------------------------------

    def _ask(self, wanted: Reference, progress: bool) -> Listing:
        """Request the list of GGUF files of the repository."""
        with late.imports():
            from huggingface_hub import HfApi

        _require_token()
        requests.session()  # raises an error if the proxy is invalid
        api = HfApi(endpoint=self.endpoint)

        def request() -> Any:
            with self._explaining(wanted):
                return api.model_info(
                    wanted.repo,
                    revision=wanted.revision,
                    files_metadata=True,
                    timeout=QUESTION_S,
                )

        remedy = "check HF_ENDPOINT, the address of the hub; or give the path of a local file"
        what = f"cannot list the files of {wanted.repo}"

        def tell(text: str) -> None:
            if progress and sys.stderr:
                sys.stderr.write(f"npurt: {text}\n")

        return _listing(requests.patiently(request, what, remedy, tell=tell))

    @contextlib.contextmanager
    def _explaining(self, wanted: Reference) -> Iterator[None]:
        """Convert exceptions of `huggingface_hub` to errors of npurt, or to `Busy`."""
        with late.imports():
            import httpx2
            from huggingface_hub import errors

        page = f"{shown(self.endpoint)}/{wanted.repo}"
        try:
            yield
        except errors.OfflineModeIsEnabled as error:
            raise DownloadError(
                f"{wanted} is not in {self.cache}, and HF_HUB_OFFLINE forbids downloads",
                remedy="unset HF_HUB_OFFLINE, or give the path of a local file",
            ) from error
        except errors.GatedRepoError as error:
            raise DownloadError(
                f"{wanted.repo} can be downloaded only by users who accept its terms",
                remedy=f"accept the terms at {page}, then set HF_TOKEN, or run `hf auth login`",
            ) from error
        except errors.RevisionNotFoundError as error:
            raise DownloadError(
                f"{wanted.repo} has no revision {wanted.revision!r}",
                remedy=f"choose one of the revisions at {page}/tree/main",
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise self._not_found(wanted.repo) from error
        except errors.HfHubHTTPError as error:
            raise _refused(wanted.repo, error) from error
        except httpx2.HTTPError as error:
            raise requests.no_answer(self.endpoint, error) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # The text of the error may contain the token.
            raise DownloadError(
                f"{shown(self.endpoint)} sent an answer that no hub sends ({type(error).__name__})",
                remedy=ENDPOINT,
            ) from error

    def _not_found(self, repo: str) -> DownloadError:
        near = ", ".join(self._similar(repo))
        return DownloadError(
            f"{shown(self.endpoint)} has no repository {repo}, or you have no access to it",
            remedy=(
                f"did you mean {near}?  "
                if near
                else "look for the repository in a browser, and copy its name; "
            )
            + "a private repository needs HF_TOKEN, or `hf auth login`",
        )

    def _similar(self, repo: str) -> list[str]:
        """Return existing repositories whose names are similar to *repo*."""
        with late.imports():
            from huggingface_hub import HfApi

        user, _, name = repo.partition("/")
        api, found = HfApi(endpoint=self.endpoint), list[str]()

        def ask() -> None:
            with contextlib.suppress(Exception):  # only an addition to the error message
                found.extend(str(model.id) for model in api.list_models(author=user, limit=200))
                found.extend(str(model.id) for model in api.list_models(search=name, limit=20))

        asking = threading.Thread(target=ask, daemon=True)  # `list_models` has no timeout
        asking.start()
        asking.join(QUESTION_S)
        named = [name for name in dict.fromkeys(found[:]) if re.fullmatch(f"{NAME}/{NAME}", name)]
        return difflib.get_close_matches(repo, named, SUGGESTIONS, cutoff=0.7)


def _instead(cached: Path, wanted: Reference, error: DownloadError) -> Path:
    """Return *cached*, unless the hub, which does not answer, might choose another file.

    Raises:
        DownloadError: The hub might choose another file.
    """
    with late.imports():
        from huggingface_hub.errors import OfflineModeIsEnabled

    offline = isinstance(error.__cause__, OfflineModeIsEnabled)  # the user wants cached files
    sure = wanted.quant or wanted.file or any(has_quant(cached.name, q) for q in USUAL_QUANTS)
    if not (offline or sure):
        raise DownloadError(
            error.what,
            remedy=f"try again later, or use the cached file: {wanted.repo}/{cached.name}",
        ) from error
    if not (offline and sure) and sys.stderr:
        sys.stderr.write(f"npurt: warning: {error.what}; using {cached.name} from the cache\n")
    return cached


def _listing(info: Any) -> Listing:
    """Check the hub's description of a repository, and return the listing of its GGUF files."""
    if not _COMMIT.fullmatch(str(info.sha)):
        raise _nonsense("commit", info.sha)
    files = []
    for file in info.siblings or ():
        name, nbytes = file.rfilename, file.size
        digest = file.lfs.sha256 if file.lfs else file.blob_id
        if not str(name).lower().endswith(".gguf"):
            continue
        if not _is_inside(name):
            raise _nonsense("file name", name)
        if type(nbytes) is not int or not 0 <= nbytes <= requests.LARGEST:
            raise _nonsense(f"size of {name}", nbytes)
        if not _DIGEST.fullmatch(str(digest)):
            raise _nonsense(f"hash of {name}", digest)
        files.append(HubFile(name, nbytes, digest))
    return Listing(str(info.sha), tuple(files))


def _is_inside(name: str) -> bool:
    """Return whether *name* is a relative path without ``..`` that file systems accept."""
    parts = name.split("/")
    return (
        len(name) <= LONGEST_PATH
        and name.isprintable()
        and not any(p in ("", ".", "..") or "\\" in p or len(p.encode()) > 255 for p in parts)
    )


def _nonsense(what: str, value: object) -> DownloadError:
    return DownloadError(
        f"the hub states an impossible {what}: {brief(value, 80)}", remedy=ENDPOINT
    )


def _refused(repo: str, error: Any) -> Exception:
    """Return the error for an unexpected status of the hub."""
    status = error.response.status_code
    if status in requests.BUSY:
        return requests.busy("the hub", status, error.response.headers)
    remedies = {
        401: "the token is refused: set HF_TOKEN to a valid one, or run `hf auth login` again",
        403: "the token has no access: set HF_TOKEN to a token with access, or ask the owner",
    }
    return DownloadError(
        f"the hub refuses access to {repo} with status {status}",
        remedy=remedies.get(status, f"open the page of {repo} in a browser; {ENDPOINT}"),
    )


def _require_token() -> None:
    """Raise an error for a token that is invalid in a header; the client's error would show it."""
    with late.imports():
        from huggingface_hub import get_token

    if re.fullmatch("[!-~]+", get_token() or "none"):
        return
    raise DownloadError(
        "the token has characters that are not ASCII, or spaces",
        remedy="set HF_TOKEN to the token alone, or run `hf auth login` again",
    )


def _headers() -> dict[str, str]:
    with late.imports():
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # lazily

    return dict(build_hf_headers(library_name="npurt"))
