"""Flags that several verbs share, named as in llama-cli, and their conversion to arguments."""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from npurt.base.files import require_file, unreadable
from npurt.base.gguf_parts import part_names
from npurt.errors import NpurtError, SettingError
from npurt.runtime.open import registry
from npurt.settings import HOSTS

MODEL = "GGUF file, name of `npurt models`, https URL or hf:USER/REPO"
REPO = "hub repository: USER/REPO[:QUANT] (default: Q4_K_M) or USER/REPO/FILE.gguf"
NAMES = registry.listed(["cpu", *registry.usual_names(), "auto"])
DEVICE = f"{NAMES} (default: NPURT_DEVICE, else cpu)"
# As in llama.cpp (common/arg.cpp), --threads -1 is the default and means the default number.
THREADS = "CPU threads; -1: from the machine's cores and limits (default: -1)"
INTERRUPTED = 130  # exit status after Ctrl-C
TRAINED = "the model's trained context, at most 4096"
KV_TYPES = ("f16", "f32")  # the first is the default
GOES_ON = "{} is not complete; run the same command again to resume the download"
MAX_BATCH = 512  # tokens of a run; `npurt.graph.sizes` has the same number
MAX_SECONDS = 1e8  # upper bound on a timeout; the system's limit is slightly higher
MAX_BYTES = 256 << 20  # upper bound on a file that is read into memory (not a model)


class Notice(argparse.Action):
    """A hidden flag that prints the sentence *said*, and sets *dest* to True if *dest* is given."""

    def __init__(self, option_strings: list[str], dest: str, said: str, **options: Any) -> None:
        hidden = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        super().__init__(option_strings, dest, **{"nargs": 0, **options, **hidden})
        self._said = said

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Print the sentence, and set *dest*."""
        del parser, values
        print(f"npurt: {option_string} {self._said}", file=sys.stderr)
        if self.dest != argparse.SUPPRESS:
            setattr(namespace, self.dest, True)


class KvType(argparse.Action):
    """The argparse action for the KV cache's type, which is the same for keys and values."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the type; refuse a second, different type."""
        if getattr(namespace, self.dest) not in (None, values):
            parser.error(f"{option_string} {values}: keys and values have one type in npurt, and "
                         f"{getattr(namespace, self.dest)} was given before")  # fmt: skip
        setattr(namespace, self.dest, values)


def add_unneeded(group: Any, *names: str, why: str, **options: Any) -> None:
    """Accept llama-cli's flags *names*, which have no effect in npurt; *why* is the reason."""
    group.add_argument(*names, action=Notice, dest=argparse.SUPPRESS,
                       said=f"changes nothing: {why}", **options)  # fmt: skip


def add_device(group: Any) -> None:
    """Add the flags that choose a model's device."""
    group.add_argument("-dev", "--device", metavar="NAME", help=DEVICE)
    group.add_argument("-ngl", "--gpu-layers", "--n-gpu-layers", type=_layers, metavar="N",
                       help="0: all layers on the CPU; any other number, auto or all: all layers "
                       "on the device of -dev")  # fmt: skip
    add_unneeded(group, "-fa", "--flash-attn", why="flash attention is always on",
                 nargs="?", choices=("on", "off", "auto", "1", "0"))  # fmt: skip
    add_unneeded(group, "--mmap", "--no-mmap", why="weights are copied out of the file once")
    add_unneeded(group, "--mlock", why="npurt locks no memory")
    add_unneeded(group, "--warmup", "--no-warmup", why="there is no warm-up")
    add_unneeded(group, "--jinja", why="chat templates are always rendered by Jinja")


def add_compute(group: Any) -> None:
    """Add the flags for threads, batch size and verification."""
    group.add_argument("-t", "--threads", type=number, metavar="N", help=THREADS)
    group.add_argument("-b", "--batch-size", type=_batch, metavar="N",
                       help=f"tokens evaluated at once, at most {MAX_BATCH} (default: "
                       f"{MAX_BATCH})")  # fmt: skip
    group.add_argument("--verify", choices=("off", "sample", "always"),
                       help="verify products of the device (default: NPURT_VERIFY, else "
                       "sample)")  # fmt: skip


def compute(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `Llama` for the flags of `add_device` and `add_compute`."""
    return {
        "device": device(args),
        "n_batch": args.batch_size,
        "n_threads": args.threads,
        "verify": args.verify,
    }


def _kv_type(text: str) -> str:
    if text not in KV_TYPES:
        raise argparse.ArgumentTypeError(
            f"npurt has no KV cache of {text}; use {' or '.join(KV_TYPES)}"
        )
    return text


def _layers(text: str) -> int:
    """Parse the number of layers on the device; return -1 for all layers."""
    if text in ("auto", "all"):
        return -1
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of layers") from None


def _batch(text: str) -> int:
    """Parse the number of tokens in a run; a larger number, as llama.cpp's 2048, is `MAX_BATCH`."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value > MAX_BATCH:
        print(f"npurt: -b {value}: npurt evaluates at most {MAX_BATCH} tokens at once",
              file=sys.stderr)  # fmt: skip
    return min(value, MAX_BATCH)


def positive(text: str) -> int:
    """Parse an integer of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def device(args: argparse.Namespace) -> str | None:
    """Return the device that ``-dev`` and ``-ngl`` choose.

    Raises:
        SettingError: The two flags contradict each other.
    """
    named: str | None = args.device
    if args.gpu_layers != 0:
        return named
    if named not in (None, "auto", *HOSTS):
        raise SettingError(
            f"-ngl 0 runs all layers on the CPU, and -dev names {named}",
            remedy="leave out one of the two flags",
        )
    return named if named == "numpy" else "cpu"


def add_source(group: Any, add: Callable[[Any], None] | None = None) -> Any:
    """Add the flags that name a model, of which exactly one is required; return their group.

    The usage shows the group only if nothing is added to it later, so *add* adds further flags.
    """
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("-m", "--model", metavar="FILE", help=MODEL)
    source.add_argument("-hf", "--hf-repo", dest="model", type=of_hub, metavar="REPO", help=REPO)
    if add is not None:
        add(source)
    return source


def of_hub(text: str) -> str:
    """Convert a value of ``-hf`` to a value of ``-m``."""
    return text if text.startswith("hf:") else f"hf:{text}"


def model_path(args: argparse.Namespace) -> Path:
    """Return the file of the model that *args* name; download it if it is not on this machine."""
    return located(args.model)


def located(model: str) -> Path:
    """Return the file that *model* names; download it if it is not on this machine.

    After Ctrl-C, print how to resume the download.
    """
    from npurt.models.location import locate

    with goes_on(model):
        return locate(model)


@contextlib.contextmanager
def goes_on(model: str) -> Iterator[None]:
    """Print how to resume the download of *model* if Ctrl-C interrupts the context."""
    try:
        yield
    except KeyboardInterrupt:
        print(GOES_ON.format(model), file=sys.stderr)
        raise


def require_apart(output: str | Path, *inputs: str | Path | None) -> None:
    """Check that *output* is neither one of *inputs* nor a part of a split model in *inputs*.

    Raises:
        SettingError: *output* is one of these files.
    """
    for path in [Path(each) for each in inputs if each]:
        for part in part_names(path.name):
            if _is_same(output, path.parent / part):
                raise SettingError(
                    f"{output} is an input as well", remedy="give the output another name"
                )


def _is_same(output: str | Path, path: Path) -> bool:
    try:
        return os.path.samefile(output, path)
    except (OSError, ValueError):  # one of the two files does not exist
        return False


def require_output(output: str | Path, *inputs: str | Path | None) -> None:
    """Check that *output* can be written and is none of the *inputs*.

    Raises:
        NpurtError: *output* cannot be written, or is one of the inputs.
    """
    try:
        require_file(Path(output))
    except OSError as error:
        raise NpurtError(
            f"cannot write {output}: {error.strerror}",
            remedy="name a new or existing file in a folder that exists",
        ) from error
    require_apart(output, *inputs)


def models_of(args: argparse.Namespace, path: Path) -> list[str | Path]:
    """Return the files that a run reads: the model at *path*, the draft model and the adapters."""
    return [path, *([args.draft] if args.draft else []), *(file for file, _ in args.lora)]


def draft_path(draft: str) -> str | Path:
    """Return the file of the draft model *draft*; return "lookup" unchanged."""
    return draft if draft == "lookup" else located(draft)


def add_draft(group: Any) -> None:
    """Add the flags that name a draft model."""
    source = group.add_mutually_exclusive_group()
    source.add_argument("-md", "--draft", metavar="FILE",
                        help="draft with a smaller model, or 'lookup': from the context's "
                        "repetitions")  # fmt: skip
    source.add_argument("-hfd", "--hf-repo-draft", dest="draft", type=of_hub, metavar="REPO",
                        help="draft with a smaller model from a hub repository")  # fmt: skip


def add_text(parser: argparse.ArgumentParser, what: str, file: str) -> None:
    """Add the flags for a text and for a file with the text; *what* and *file* are their help."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("-p", "--prompt", type=words, metavar="TEXT",
                        help=f"{what} (default: standard input, unless it is a "
                        "terminal)")  # fmt: skip
    source.add_argument("-f", "--file", metavar="FILE", help=f"{file}; -: standard input")


def add_model(
    parser: argparse.ArgumentParser,
    add: Callable[[Any], None] | None = None,
    *,
    context: str = TRAINED,
    shift: bool = False,
) -> Any:
    """Add the flags for opening a model; return the group of the flags that name it.

    Args:
        add: See `add_source`.
        context: The default context, for the help.
        shift: The verb continues after the context is full, with ``--context-shift``.
    """
    group = parser.add_argument_group("model")
    source = add_source(group, add)
    add_device(group)
    group.add_argument("-c", "--ctx-size", type=int, metavar="N",
                       help="tokens in the context; 0: the model's trained context "
                       f"(default: {context})")  # fmt: skip
    add_compute(group)
    group.add_argument("-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "--kv-type",
                       dest="kv_type",
                       action=KvType, type=_kv_type, choices=KV_TYPES, metavar="TYPE",
                       help="type of the KV cache, for keys and values: f16 or f32 "
                       "(default: f16)")  # fmt: skip
    group.add_argument("--lora", "--lora-scaled", action="append", type=scaled, default=[],
                       metavar="FILE[:SCALE]",
                       help="GGUF file of a LoRA adapter, and its scale (default: 1); may be "
                       "repeated")  # fmt: skip
    group.add_argument(
        "--strict", action="store_true", help="fail instead of falling back to the CPU"
    )
    if shift:
        group.add_argument("--context-shift", action="store_true",
                           help="drop the oldest half of the context when it is "
                           "full")  # fmt: skip
    add_draft(group)
    group.add_argument("--draft-max", type=positive, metavar="N",
                       help="maximum number of tokens per draft (default: 8)")  # fmt: skip
    group.add_argument("-devd", "--device-draft", metavar="NAME",
                       help="device of a draft model (default: cpu)")  # fmt: skip
    return source


def model(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `Llama` besides the path."""
    return {
        **compute(args),
        "n_ctx": args.ctx_size,
        "kv_type": args.kv_type or KV_TYPES[0],
        "strict": args.strict,
        "context_shift": getattr(args, "context_shift", False),
        "draft": args.draft and draft_path(args.draft),
        "draft_max": args.draft_max,
        "draft_device": args.device_draft,
        "lora": args.lora or None,
    }


def scaled(text: str) -> tuple[str, float]:
    """Parse ``FILE[:SCALE]``; return the file and the scale.

    If a file with the whole name exists, the colon is part of the name.
    """
    path, _, scale = text.rpartition(":")
    if path and not Path(text).exists():
        with contextlib.suppress(ValueError):
            return path, float(scale)
    return text, 1.0


def add_conversation(parser: argparse.ArgumentParser, raw: str | None = None) -> None:
    """Add llama-cli's flags for a conversation; *raw* is the help of ``--raw``; None hides it."""
    group = parser.add_argument_group("conversation")
    group.add_argument("-sys", "--system-prompt", "--system", dest="system", type=words,
                       metavar="TEXT", help="system message")  # fmt: skip
    group.add_argument("-cnv", "--conversation", dest="conversation", action="store_true",
                       default=None,
                       help="use the model's chat template (default: if the model has "
                       "one)")  # fmt: skip
    group.add_argument("-no-cnv", "--no-conversation", "--raw", dest="conversation",
                       action="store_false", default=None,
                       help=raw or argparse.SUPPRESS)  # fmt: skip


def words(text: str) -> str:
    """Decode an argument as UTF-8, independent of the locale."""
    try:
        return os.fsencode(text).decode()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"byte {error.start} is not UTF-8") from error


def number(text: str) -> int | None:
    """Parse an integer of 0 or more; return None for -1, llama-cli's value for "not set"."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < -1:
        raise argparse.ArgumentTypeError(f"{value} is below -1")
    return None if value == -1 else value


def seconds(text: str) -> float:
    """Parse a time in seconds, from 0 to `MAX_SECONDS`."""
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) <= MAX_SECONDS:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds up to {MAX_SECONDS:g}")


def bytes_of(path: str | Path, maximum: int = MAX_BYTES) -> bytes:
    """Return the content of a file.

    Raises:
        NpurtError: The file cannot be read, or has more than *maximum* bytes.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(maximum + 1)
    except OSError as error:
        raise NpurtError(
            f"cannot read {path}: {error.strerror}", remedy=unreadable(path, error)
        ) from error
    except ValueError as error:  # the path has a null character, or one the locale cannot encode
        raise NpurtError(
            f"cannot read {path}: {error}", remedy="rename the file with plain letters"
        ) from error
    if len(data) > maximum:
        raise NpurtError(f"{path} has more than {maximum} bytes", remedy="give a smaller file")
    return data


def standard_input(maximum: int = MAX_BYTES) -> bytes:
    """Return the bytes of standard input.

    Raises:
        NpurtError: Standard input has more than *maximum* bytes.
    """
    data: bytes = sys.stdin.buffer.read(maximum + 1)
    if len(data) > maximum:
        raise NpurtError(f"standard input has more than {maximum} bytes", remedy="give it less")
    return data


def text_of(path: str) -> str:
    """Return the text of a file, or of standard input for ``-``, with line ends converted to LF.

    Raises:
        NpurtError: The file cannot be read, is too large or not UTF-8.
    """
    data = standard_input() if path == "-" else bytes_of(path)
    try:
        return io.TextIOWrapper(io.BytesIO(data), "utf-8").read()
    except UnicodeDecodeError as error:
        raise NpurtError(
            f"{path} is no text: byte {error.start} is not UTF-8",
            remedy="give a text in UTF-8; iconv converts other encodings",
        ) from error
