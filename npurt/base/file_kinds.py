"""Recognise a file that is given as a model by its first bytes, and say what to do with it.

Sources of the signatures: file(1)'s magic numbers; huggingface/safetensors README; git-lfs
docs/spec.md; ggml src/ggml.h of 2023 (its magics); tensorflow lite/schema.fbs and ONNX onnx.proto
(first bytes).  The format of .rkllm is not published; the end of the name shows it.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from npurt.base.files import opened

GGUF = b"GGUF"
READ = 4096  # bytes that are read of a file
SHOWN = 5  # names that a remedy lists
TAR = slice(257, 262)  # the place of "ustar" in the header of a tar archive
_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|\?xml|!--)", re.IGNORECASE)
_TORCH = re.compile(rb"[^/]{1,200}/(data\.pkl|version|byteorder|\.format_version|\.data/)")
_TEXT = re.compile(r"[^\x00-\x08\x0e-\x1a\x1c-\x1f]+")

CONVERT = (
    "convert its folder, which also needs config.json and tokenizer.json: npurt convert {folder}"
)
PUBLISHED = "use a GGUF file of the same model, such as npurt run -hf USER/REPO"
TORCH = (
    "load the model with transformers, save it with save_pretrained (which writes .safetensors), "
    "and run npurt convert on that folder; or " + PUBLISHED
)
UNPACK = "unpack it ({}), and pass the .gguf file or the folder in it"
ADAPTER = (
    "merge it into its model with peft (merge_and_unload, then save_pretrained) and run npurt "
    "convert on the new folder; or convert it with llama.cpp's convert_lora_to_gguf.py for --lora"
)
OTHER_RUNTIME = "npurt cannot convert it back: " + PUBLISHED


@dataclass(frozen=True, slots=True)
class FileKind:
    """The kind of a file, with its article, and the action that the reader can take."""

    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Signature:
    """A row of the table: a test of the first bytes and the size of a file, and its `FileKind`.

    The remedy may contain ``{file}`` and ``{folder}``.
    """

    fits: Callable[[bytes, int], bool]
    what: str
    remedy: str


def _begins(*starts: bytes) -> Callable[[bytes, int], bool]:
    return lambda data, size: data.startswith(starts)


def _at(place: int, *texts: bytes) -> Callable[[bytes, int], bool]:
    return lambda data, size: data[place:].startswith(texts)


def _is_safetensors(data: bytes, size: int) -> bool:
    """Return whether the data begin with the length of a header, and the header with "{"."""
    return data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= max(size - 8, 0)


def _is_torch_archive(data: bytes, size: int) -> bool:
    """Return whether the first entry of a zip archive is one that torch.save writes."""
    return data.startswith(b"PK\x03\x04") and bool(_TORCH.match(data, 30))


def _is_onnx(data: bytes, size: int) -> bool:
    """Return whether the data begin with ONNX's version of 1 to 30 and another field."""
    return len(data) > 2 and data[0] == 0x08 and 0 < data[1] <= 30 and data[2] in b"\x12\x1a\x22:"


def _is_page(data: bytes, size: int) -> bool:
    return bool(_PAGE.match(data))


def _is_json(data: bytes, size: int) -> bool:
    return data.lstrip()[:1] in (b"{", b"[") and _is_text(data, size)


def _is_text(data: bytes, size: int) -> bool:
    text = data.decode("utf-8", "replace")
    return bool(text) and text[:-1].count("\ufffd") == 0 and bool(_TEXT.fullmatch(text))


def _is_empty(data: bytes, size: int) -> bool:
    return size == 0


def _is_zero(data: bytes, size: int) -> bool:
    return not data.strip(b"\0")


SIGNATURES = (
    _Signature(_is_empty, "an empty file", "download it again: the download did not begin"),
    _Signature(_is_zero, "a file that begins with zeros", "download it again: the download ended "
               "after its space was reserved"),
    _Signature(_begins(b"version https://git-lfs.github.com/spec/"),
               "a pointer of Git LFS, which stands for a file that was not downloaded",
               "run git lfs pull in {folder}, or download the file itself"),
    _Signature(_begins(b"lmgg", b"fmgg", b"tjgg", b"algg"),
               "a model in llama.cpp's format before GGUF (GGML)",
               "convert it with llama.cpp's convert_llama_ggml_to_gguf.py; or " + PUBLISHED),
    _Signature(_is_safetensors, "a file of weights in the format safetensors", CONVERT),
    _Signature(_begins(b"RKNN", b"CYPTRKNN"), "a model that was compiled for RKNN", OTHER_RUNTIME),
    _Signature(_begins(b"RKLLM"), "a model that was compiled for RKLLM", OTHER_RUNTIME),
    _Signature(_at(4, b"TFL3"), "a TensorFlow Lite model", OTHER_RUNTIME),
    _Signature(_begins(b"LITERTLM"), "a LiteRT-LM model", OTHER_RUNTIME),
    _Signature(_at(4, b"ET12", b"ET13"), "an ExecuTorch program", OTHER_RUNTIME),
    _Signature(_is_torch_archive, "a PyTorch checkpoint", TORCH),
    _Signature(_begins(b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
               "a Python pickle, as in an old PyTorch checkpoint", TORCH),
    _Signature(_begins(b"PK\x03\x04"), "a zip archive", UNPACK.format("unzip {file}")),
    _Signature(_begins(b"\x1f\x8b"), "a file compressed by gzip", UNPACK.format("gunzip {file}")),
    _Signature(_begins(b"\xfd7zXZ\0"), "a file compressed by xz", UNPACK.format("unxz {file}")),
    _Signature(_begins(b"BZh"), "a file compressed by bzip2", UNPACK.format("bunzip2 {file}")),
    _Signature(_begins(b"\x28\xb5\x2f\xfd"), "a file compressed by zstd",
               UNPACK.format("unzstd {file}")),
    _Signature(_begins(b"7z\xbc\xaf\x27\x1c"), "a 7z archive", UNPACK.format("7z x {file}")),
    _Signature(lambda data, size: data[TAR] == b"ustar", "a tar archive",
               UNPACK.format("tar xf {file}")),
    _Signature(_begins(b"\x93NUMPY"), "an array of numpy", PUBLISHED),
    _Signature(_begins(b"\x89HDF"), "an HDF5 file, such as a Keras model", PUBLISHED),
    _Signature(_begins(b"\x7fELF"), "a program or a library",
               "pass the model file, which ends in .gguf"),
    _Signature(_begins(b"%PDF"), "a PDF document", "pass the model file, which ends in .gguf"),
    _Signature(_is_page, "a web page", "download the file itself: on Hugging Face its link has "
               "/resolve/ where the page's has /blob/; a login may be needed first"),
    _Signature(_is_json, "a JSON text, such as an error message of a server or config.json",
               "read it ({file}); if it is the config.json of a checkpoint, run npurt convert "
               "{folder}"),
    _Signature(_is_onnx, "an ONNX model", OTHER_RUNTIME),
    _Signature(_is_text, "a text file", "read it ({file}): it may say why the download failed"),
)  # fmt: skip
# Kinds that only the end of the name shows.
ENDS = {".rkllm": FileKind("a model that was compiled for RKLLM", OTHER_RUNTIME)}


def kind_of(path: str | os.PathLike[str]) -> FileKind:
    """Return the kind of a file or folder that is no GGUF file.

    Raises:
        OSError: The file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return _of_folder(path)
    with opened(path) as file:
        data, size = file.read(READ), os.fstat(file.fileno()).st_size
    return recognised(data, size, path)


def recognised(data: bytes, size: int, path: Path) -> FileKind:
    """Return the kind of a file.

    Args:
        data: The first bytes.
        size: The size of the file in bytes.
        path: The path, for the remedy.
    """
    if data.startswith(GGUF):
        return FileKind("a GGUF file", "pass it with -m; npurt quantize changes its type")
    row = next((row for row in SIGNATURES if row.fits(data, size)), None)
    if path.suffix.lower() in ENDS and (row is None or row.fits is _is_onnx):
        return ENDS[path.suffix.lower()]
    if row is None:
        return FileKind(
            f"no kind of file that npurt knows; it begins with {data[:8]!r}",
            "pass a GGUF file, or a folder of safetensors to npurt convert",
        )
    if row.fits is _is_safetensors and path.name.startswith("adapter_model"):
        return FileKind("a LoRA adapter of peft", ADAPTER)
    places = {"file": str(path), "folder": str(path.parent)}
    return FileKind(row.what, row.remedy.format_map(places))


def _of_folder(path: Path) -> FileKind:
    """Return the kind of a folder by the names of its files."""
    names = sorted(each.name for each in path.iterdir())
    lists = {
        end: [name for name in names if name.lower().endswith(end)]
        for end in (".gguf", ".safetensors", ".bin", ".pth", ".pt", ".onnx", ".rkllm", ".rknn")
    }
    if lists[".gguf"]:
        shown = ", ".join(str(path / name) for name in lists[".gguf"][:SHOWN])
        more = ", ..." if len(lists[".gguf"]) > SHOWN else ""
        return FileKind(
            "a folder with GGUF files",
            f"pass one of its files: {shown}{more}; or serve all: npurt serve --models-dir {path}",
        )
    if "adapter_config.json" in names:
        return FileKind(
            "a folder with a LoRA adapter of peft",
            ADAPTER,
        )
    if lists[".safetensors"] and "config.json" in names:
        return FileKind("a folder with a checkpoint", f"convert it: npurt convert {path}")
    if lists[".safetensors"]:
        return FileKind(
            "a folder with weights but no config.json",
            f"download config.json and tokenizer.json of the model into {path}, then run npurt "
            f"convert {path}",
        )
    if "config.json" in names and not (lists[".bin"] or lists[".pth"] or lists[".pt"]):
        return FileKind(
            "a folder with config.json but without weights",
            f"download model.safetensors, or all *.safetensors of the model, into {path}",
        )
    if lists[".bin"] or lists[".pth"] or lists[".pt"]:
        return FileKind("a folder with a PyTorch checkpoint", TORCH)
    if lists[".onnx"] or lists[".rkllm"] or lists[".rknn"]:
        return FileKind("a folder with a model of another runtime", OTHER_RUNTIME)
    inner = ", ".join(names[:SHOWN]) or "nothing"
    return FileKind(
        f"a folder without a model ({inner})",
        "pass a GGUF file, or a folder of safetensors to npurt convert",
    )
