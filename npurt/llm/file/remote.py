"""Read the header of a GGUF file on a server without downloading the file."""

from collections.abc import Sequence
from pathlib import Path

from npurt.base.file_kinds import READ, recognised
from npurt.errors import ModelFormatError
from npurt.llm.file import parts
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import MAGIC, Header, Incomplete, TensorInfo, read_header
from npurt.models.ranged import RangedFile

FIRST = 1 << 20  # bytes of the first request; a vocabulary takes 2 to 20 MB
MAX_BYTES = 1 << 28  # maximum bytes of a header


class RemoteGGUF(GGUF):
    """A model on a server.  The constructor reads the headers; each tensor is read on access.

    Args:
        files: The file, or all parts of the model in order.

    Raises:
        DownloadError: The server does not send the requested bytes.
        ModelFormatError: npurt does not read this file.
    """

    def __init__(self, files: Sequence[RangedFile]) -> None:
        self.path = Path(files[0].name)
        self._files = list(files)
        headers = [(file.name, _header(file)) for file in files]
        stated = parts.names(self.path.name, headers[0][1].metadata)
        if len(stated) != len(files):
            raise ModelFormatError(
                f"{self.path.name} is one of {len(files)} files by its name, but its metadata "
                f"specify {len(stated)}",
                remedy="choose another file",
            )
        self._take(headers)

    def _view(self, info: TensorInfo) -> memoryview:
        return memoryview(self._files[info.part].read(info.offset, info.offset + info.nbytes))

    def release(self, name: str) -> None:
        """Do nothing: the bytes of tensors are not cached."""

    def close(self) -> None:
        """Do nothing: no connection stays open."""


def _header(file: RangedFile) -> Header:
    """Return the header of *file*, after reading as many bytes as needed."""
    data, wanted = b"", FIRST
    while True:
        data += file.read(len(data), wanted)
        if not data.startswith(MAGIC[: len(data)]):
            kind = recognised(data[:READ], file.nbytes or len(data), Path(file.name))
            raise ModelFormatError(
                f"{file.name} is not a GGUF file: it is {kind.what}",
                remedy="choose another file, which ends in .gguf; npurt convert converts a "
                "downloaded folder of safetensors",
            )
        try:
            return read_header(data, file.nbytes)
        except Incomplete as error:
            if error.needed > MAX_BYTES:
                raise ModelFormatError(
                    f"{file.name}: the header has more than {MAX_BYTES} bytes",
                    remedy="choose another file: this file is damaged or no model",
                ) from error
            wanted = max(2 * wanted, error.needed)
        except ModelFormatError as error:
            raise ModelFormatError(
                f"{file.name}: {error.what}",
                remedy="choose another file: the file on the server is damaged or incomplete, or "
                "npurt does not read it",
            ) from error
