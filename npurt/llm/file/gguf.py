"""Open a GGUF file and return its tensors as views of the mapped file."""

from npurt.llm.file.mapped import MappedGGUF
from npurt.quant.tensor import QTensor


class GGUF(MappedGGUF):
    """A GGUF file whose tensors are views of the mapping; the views remain valid after `close`.

    Arguments, attributes and errors as `MappedGGUF`.
    """

    def __getitem__(self, name: str) -> QTensor:
        """Return tensor *name* as a view of the file; raise ModelFormatError if it is missing."""
        info = self._info(name)
        return QTensor.from_bytes(self._view(info), info.format, info.shape)

    def get(self, name: str) -> QTensor | None:
        """Return tensor *name*, or None if the file has no such tensor."""
        return self[name] if isinstance(name, str) and name in self.tensors else None
