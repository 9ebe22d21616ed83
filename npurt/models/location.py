"""Find the file for ``-m``: a path, a name, a hub repository or a URL."""

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlunsplit

from npurt.base import late
from npurt.base.gguf_parts import model_name, part_names
from npurt.errors import DownloadError, ModelFormatError, SettingError
from npurt.models import catalogue, download, requests
from npurt.models.hub import Hub
from npurt.models.ranged import RangedFile
from npurt.models.reference import Reference
from npurt.models.requests import RemoteFile
from npurt.settings import MODELS, cache_folder, read

OF_HUB = "hf:"
HERE = Path("models")  # the folder of models in earlier versions
_MAY_BE_NAME = re.compile(r"\w[\w.-]{0,95}(/[\w.-]{1,96})?(:[\w.-]+)?")


def default_folder() -> Path:
    """Return the folder for downloaded models: `NPURT_MODELS`, or one in the user's cache folder.

    Raises:
        SettingError: `NPURT_MODELS` is not set, and the user has no home folder.
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
    """Return the folders that are searched for models; the first is `default_folder`."""
    usual = default_folder()
    return [usual] if usual.resolve() == HERE.resolve() else [usual, HERE]


def locate(model: str | os.PathLike[str], *, progress: bool = True) -> Path:
    """Return the file for *model*; download it if it is not on this machine.

    Args:
        model: The path of a file; a name of `npurt models`, or the name of a file in its list
            without ``.gguf``; ``hf:user/repo``,
            ``hf:user/repo:QUANT`` or ``hf:user/repo/FILE.gguf``; or an https URL.
        progress: Show a progress bar on standard error, if that is a terminal.

    Raises:
        SettingError: *model* has none of these forms, or the repository has no such file.
        DownloadError: The model cannot be downloaded.
        ModelFormatError: The file does not exist.
    """
    found = _on_hub(model)
    if found:
        hub, wanted = found
        return hub.fetch(wanted, progress=progress)
    return _download(str(model), progress) if _is_url(model) else _here(model, progress)


def look_up(model: str | os.PathLike[str], *, progress: bool = True) -> Path | list[RangedFile]:
    """Return the file for *model*, or its remote files, which are not downloaded.

    A model of the catalogue is part of a package, so it is downloaded as in `locate`.

    Raises:
        SettingError: *model* has none of the forms of `locate`, or the repository has no such file.
        DownloadError: The server refuses the request.
        ModelFormatError: The file does not exist.
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


def _is_url(model: str | os.PathLike[str]) -> bool:
    return isinstance(model, str) and bool(re.match(r"[a-z]+://", model, re.IGNORECASE))


def _on_hub(model: str | os.PathLike[str]) -> tuple[Hub, Reference] | None:
    """Return the hub and the reference for *model*; None if *model* is not on a hub."""
    text = str(model)
    if text.startswith(OF_HUB):
        return Hub.usual(), Reference.parse(text.removeprefix(OF_HUB))
    if not _is_url(model):
        return None
    requests.parts_of(text)
    hub = Hub.usual()
    wanted = Reference.of_url(text, hub.endpoint)
    return (hub, wanted) if wanted else None


def _here(model: str | os.PathLike[str], progress: bool) -> Path:
    """Return the file for a path or for a name in the catalogue."""
    text = catalogue.named(str(model))
    if not text:
        raise ModelFormatError("cannot open '': the name is empty", remedy="give a file")
    path, exists = Path(model), os.path.exists(model)
    if not exists and text in catalogue.CATALOGUE:
        files = [file for folder in folders() if (file := catalogue.find(text, folder))]
        return files[0] if files else catalogue.fetch(text, default_folder(), progress=progress)
    if not exists and path.suffix.lower() != ".gguf" and _MAY_BE_NAME.fullmatch(text):
        if found := _of_stem(path):
            return found
        raise ModelFormatError(
            f"there is no file {text!r}, and no model of that name",
            remedy=f"give a path, one of {', '.join(catalogue.CATALOGUE)}, an https URL, "
            f"or a hub repository as hf:{text if '/' in text else 'USER/REPO'}",
        )
    return path


def _of_stem(path: Path) -> Path | None:
    """Return the model file with the name *path* before ``.gguf``; None if there is none.

    A path with a folder means a file there; a name means a file that `npurt models` lists.
    """
    with late.imports():
        from npurt.models.stored import models_in, stored

    here = list(models_in(path.parent, "*"))
    if len(path.parts) == 1:
        here += [model.files for model in stored(folders(), Hub.usual()) if model.files]
    for files in here:
        if path.name in (files[0].stem, Path(model_name(files[0].name)).stem):
            return files[0]
    return None


def _of_url(url: str) -> tuple[Path, list[RemoteFile]]:
    """Return the folder for the file of *url*, and the remote file or its parts.

    A fragment ``#sha256=HEX`` has the hash.  Each URL has a separate folder.
    """
    requests.require_secure(url)
    parts = requests.parts_of(url)
    before, _, last = parts.path.rpartition("/")
    names = part_names(unquote(last))
    if not all(
        re.fullmatch(r"\w[\w.+ -]*", name)
        and len(name.encode()) <= 200  # the limit leaves space for suffixes
        for name in names
    ):
        raise SettingError(
            f"{requests.shown(url)} does not end in the name of a file",
            remedy="give the URL of the .gguf file itself, not of a page about it",
        )
    digest = parts.fragment.lower().removeprefix("sha256=")
    if parts.fragment and (len(names) > 1 or not re.fullmatch("[0-9a-f]{64}", digest)):
        raise SettingError(
            f"#{parts.fragment:.80} is no SHA-256 hash",
            remedy="write #sha256= and 64 hexadecimal digits, or omit the fragment",
        )
    folder = (
        default_folder() / "urls" / hashlib.sha256(url.encode(errors="replace")).hexdigest()[:16]
    )
    paths = [f"{before}/{quote(name)}" for name in names] if len(names) > 1 else [parts.path]
    remotes = [
        RemoteFile(urlunsplit(parts._replace(path=path, fragment="")), name, None, digest)
        for path, name in zip(paths, names, strict=True)
    ]
    return folder, remotes


def _download(url: str, progress: bool) -> Path:
    """Return the local file of *url*; download missing parts."""
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
