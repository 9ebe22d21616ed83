"""Map a GGUF file, and read its metadata and tensor table.

This module does not need numpy; `gguf` returns tensors as arrays.  `header` reads and checks the
header; tensor data are not checked.  For a split model, the metadata come from the first file and
the tensors from all files.
Source: llama.cpp tools/gguf-split (keys of parts), MIT.
"""

import contextlib
import errno
import functools
import hashlib
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from npurt.base import late
from npurt.base.file_kinds import READ, kind_of, recognised
from npurt.base.files import Version, unreadable
from npurt.errors import LayoutError, ModelFormatError, SettingError, brief
from npurt.llm.file import parts
from npurt.llm.file.header import MAGIC, MAX_TENSORS, Header, TensorInfo, bad, read_header
from npurt.llm.file.metadata import require


class MappedGGUF:
    """A GGUF file, or all files of a split model, mapped read-only.

    The file may be replaced by a rename or deleted while it is open.  It must not be overwritten:
    a read would return the new bytes, and a read past the new end of a truncated file would end the
    process (SIGBUS).  `require_unchanged` notices most of these cases before a read.

    Args:
        path: A file, or another form of a model that `npurt.models.locate` finds or downloads.
        progress: Show a progress bar of a download on a terminal.

    Attributes:
        path: The file, or the first file of a split model.
        paths: All files.
        metadata: Key -> bool, int, float, str, memoryview of numbers or flags, or `StringArray`.
            Strings that are not UTF-8 hold surrogate escapes.
        tensors: Name -> `TensorInfo`, in the files' order.
        data_offset: The start of the tensor data in bytes from the start of the (first) file.

    Raises:
        SettingError: *path* is not a path, or names no file of a hub.
        DownloadError: The model cannot be downloaded.
        ModelFormatError: The file cannot be opened, or is not a GGUF file that npurt reads, or a
            part of the model is missing or does not belong to it.
    """

    def __init__(self, path: str | os.PathLike[str], *, progress: bool = True) -> None:
        self.path = _file(path, progress)
        with contextlib.ExitStack() as stack:
            mapping, version, header = _open_file(self.path, stack)
            mappings, versions, headers = [mapping], [version], [(self.path.name, header)]
            for file in parts.others(self.path, header.metadata):
                mapping, version, header = _open_file(file, stack)
                mappings.append(mapping)
                versions.append(version)
                headers.append((file.name, header))
            self._take(headers)
            stack.pop_all()
        self._mappings = mappings
        # Strings: os.stat takes twice as long for a Path.
        self._opened = [
            (str(path), version) for path, version in zip(self.paths, versions, strict=True)
        ]
        self._starts = [header.data_offset for _, header in headers]

    def _take(self, headers: Sequence[tuple[str, Header]]) -> None:
        """Set the attributes from the files of the model: the name and header of each, in order."""
        (name, first), *others = headers
        tensors = first.tensors
        for index, (file, header) in enumerate(others, 1):
            parts.check(file, header.metadata, index, first.metadata)
            _add_tensors(tensors, header, index, file)
        parts.check_total(name, first.metadata, len(tensors))
        self.metadata = first.metadata
        self.tensors = tensors
        self.data_offset = first.data_offset
        self.paths = [self.path.with_name(file) for file, _ in headers]
        self._spans = first.spans

    @property
    def architecture(self) -> str:
        """The model's architecture, such as ``llama``.

        Raises:
            ModelFormatError: The metadata specify no architecture.
        """
        return require(self.metadata, "general.architecture", str)

    @functools.cached_property
    def header_digest(self) -> str:
        """A hash of the headers and sizes of all files.

        Raises:
            LayoutError: The file is closed.
        """
        digest = hashlib.sha256()
        for part, start in enumerate(self._starts):
            digest.update(self._opened[part][1].nbytes.to_bytes(8, "little"))
            digest.update(memoryview(self._mapped(part))[:start])
        return digest.hexdigest()

    @functools.cached_property
    def identity(self) -> str:
        """A string that is the same only for the same files: headers, sizes, times of last writes.

        Raises:
            LayoutError: The file is closed.
        """
        times = [version.changed_ns for _, version in self._opened]
        return hashlib.sha256(f"{self.header_digest} {times}".encode()).hexdigest()

    def require_unchanged(self) -> None:
        """Raise an error if a file was overwritten or truncated since it was opened.

        Raises:
            ModelFormatError: A file was changed.
        """
        for path, version in self._opened:
            if version.overwritten(path):
                raise ModelFormatError(
                    f"{os.path.basename(path)} was changed while it was open",
                    remedy="open it again; to replace a model that may be in use, write another "
                    "file and rename it",
                )

    def _view(self, info: TensorInfo) -> memoryview:
        """Return the bytes of a tensor.

        Raises:
            ModelFormatError: The file was changed.
        """
        self.require_unchanged()
        return memoryview(self._mapped(info.part))[info.offset : info.offset + info.nbytes]

    def beginning(self, name: str, maximum: int) -> bytes:
        """Return the first bytes of tensor *name*, at most *maximum*.

        Raises:
            ModelFormatError: The file has no such tensor.
        """
        info = self._info(name)
        return bytes(self._view(replace(info, nbytes=min(maximum, info.nbytes))))

    def encoded(self, key: str) -> bytes:
        """Return the encoding of a key and its value in the (first) file.

        Raises:
            LayoutError: The file is closed.
            ModelFormatError: The file has no such key.
        """
        if not isinstance(key, str) or key not in self._spans:
            raise ModelFormatError(
                f"{self.path.name} has no key {brief(key)}",
                remedy="choose one of the keys in its metadata",
            )
        return self._mapped(0)[self._spans[key]]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path.name}, {len(self)} tensors)"

    def release(self, name: str) -> None:
        """Let the kernel drop the pages that hold only tensor *name*.

        The kernel reads the pages again when the tensor is accessed.  On a system without madvise,
        do nothing.
        """
        info = self._info(name)
        first = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (info.offset + info.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError):  # madvise is a hint
                self._mapped(info.part).madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Release the mapping, which is unmapped when its last view is deleted.

        A second call does nothing.  The mapping is never closed explicitly: numpy arrays keep it
        alive but do not prevent mmap.close, and reading an unmapped page would end the process.
        """
        self._mappings = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _info(self, name: str) -> TensorInfo:
        if name not in self:
            raise ModelFormatError(
                f"{self.path.name} has no tensor {brief(name, 80)}",
                remedy="choose a tensor of list(file); if the model needs this tensor, the file is "
                "incomplete",
            )
        return self.tensors[name]

    def _mapped(self, part: int) -> mmap.mmap:
        if not self._mappings:
            raise LayoutError(f"{self.path.name} is closed", remedy="open the file again")
        return self._mappings[part]


@contextlib.contextmanager
def errors_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the file name to each `ModelFormatError` that the ``with`` body raises."""
    try:
        yield
    except ModelFormatError as error:
        name = Path(path).name
        if name in error.what:
            raise
        raise ModelFormatError(f"{name}: {error.what}", remedy=error.remedy) from error


def _file(path: str | os.PathLike[str], progress: bool) -> Path:
    """Return the file of the model *path*; download it if it is not on this machine."""
    try:
        file = Path(path)
    except TypeError as error:
        raise SettingError(
            f"{brief(path, 40)} is no path",
            remedy="pass the path of a GGUF file, as a str or a Path",
        ) from error
    if os.path.exists(path):
        return file
    with late.imports():
        from npurt.models.location import locate  # imported here: a local file needs no download

    return locate(path, progress=progress)


def _open_file(
    path: str | os.PathLike[str], stack: contextlib.ExitStack
) -> tuple[mmap.mmap, Version, Header]:
    """Map a file and read its header; *stack* closes the mapping, and errors name the file."""
    mapping, version = _map(path)
    stack.callback(mapping.close)
    if mapping[: len(MAGIC)] != MAGIC:
        kind = recognised(mapping[:READ], len(mapping), Path(path))
        raise ModelFormatError(
            f"{os.fspath(path)} is not a GGUF file: it is {kind.what}", remedy=kind.remedy
        )
    with errors_of(path):
        return mapping, version, read_header(mapping)


def _add_tensors(tensors: dict[str, TensorInfo], part: Header, index: int, name: str) -> None:
    """Add the tensors of part *index*, the file *name*, to *tensors* of the earlier parts."""
    if len(tensors) + len(part.tensors) > MAX_TENSORS:
        raise bad(f"{name}: the model has more than {MAX_TENSORS} tensors")
    for info in part.tensors.values():
        if info.name in tensors:
            raise bad(f"{name}: tensor {info.name!r} is in an earlier part as well")
        tensors[info.name] = replace(info, part=index)


def _map(path: str | os.PathLike[str]) -> tuple[mmap.mmap, Version]:
    """Return a mapping of a regular file, and the file's version; its descriptor is closed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        status = os.fstat(fd)
        regular = stat.S_ISREG(status.st_mode)
        if stat.S_ISDIR(status.st_mode) or (regular and status.st_size == 0):
            kind = kind_of(path)
            raise ModelFormatError(
                f"cannot open {os.fspath(path)}: it is {kind.what}", remedy=kind.remedy
            )
        if not regular:
            raise OSError(errno.EINVAL, "it is not a regular file")
        return mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ), Version.of(status)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(fd)


def _unreadable(
    path: str | os.PathLike[str], error: OSError | ValueError, why: str = ""
) -> ModelFormatError:
    why = why or getattr(error, "strerror", None) or str(error)
    return ModelFormatError(
        f"cannot open {os.fspath(path) or repr('')}: {why}", remedy=unreadable(path, error)
    )
