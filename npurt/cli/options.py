"""Flags that several verbs share, named as in llama-cli, and the library's arguments for them."""

import argparse
import io
import sys
from pathlib import Path
from typing import Any

from npurt.errors import NpurtError

MODEL = "GGUF file, name of `npurt models`, https URL or hf:USER/REPO"
REPO = "hub repository: USER/REPO, with :QUANT (usually Q4_K_M) or /FILE.gguf if wanted"
MOST_BYTES = 256 << 20  # of a file that is read whole: a text or a program, not a model


class OldName(argparse.Action):
    """The old name of a flag without a value; *const* is the new name, which it prints."""

    def __init__(self, option_strings: list[str], dest: str, const: str) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, help=argparse.SUPPRESS)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the flag, and print the new name."""
        del parser, values
        print(f"npurt: {option_string} is now called {self.const}", file=sys.stderr)
        setattr(namespace, self.dest, True)


def add_source(group: Any) -> None:
    """Add what says which model, each option one of two."""
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("-m", "--model", metavar="FILE", help=MODEL)
    source.add_argument("-hf", "--hf-repo", dest="model", type=of_hub, metavar="REPO", help=REPO)


def of_hub(text: str) -> str:
    """Return what ``-hf`` means in the form of ``-m``."""
    return text if text.startswith("hf:") else f"hf:{text}"


def model_path(args: argparse.Namespace) -> Path:
    """Return the file of the model that *args* name; one that is not here is downloaded."""
    from npurt.models.location import locate

    return locate(args.model)


def draft_path(draft: str) -> str | Path:
    """Return the file of a draft model, or *draft* where it names none."""
    from npurt.models.location import locate

    return draft if draft == "lookup" else locate(draft)


def add_draft(group: Any) -> None:
    """Add what says which model drafts."""
    source = group.add_mutually_exclusive_group()
    source.add_argument("-md", "--draft", metavar="FILE",
                        help="draft with a smaller model, or 'lookup': from the text")  # fmt: skip
    source.add_argument("-hfd", "--hf-repo-draft", dest="draft", type=of_hub, metavar="REPO",
                        help="draft with a smaller model of a hub repository")  # fmt: skip


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add what opens a model."""
    group = parser.add_argument_group("model")
    add_source(group)
    group.add_argument("-dev", "--device", metavar="NAME",
                       help="cpu, hexagon, rknpu, hexagon:sim, rknpu:sim or auto")  # fmt: skip
    group.add_argument("-t", "--threads", type=int, metavar="N", help="CPU threads")
    group.add_argument("-c", "--ctx-size", type=int, metavar="N", help="positions of the context")
    group.add_argument("-b", "--batch-size", type=int, metavar="N",
                       help="tokens evaluated at once, at most 512")  # fmt: skip
    group.add_argument("--kv-type", default="f16", choices=("f16", "f32"), help="of the KV cache")
    group.add_argument("--verify", choices=("off", "sample", "always"), help="check results")
    group.add_argument("--strict", action="store_true", help="refuse to fall back to the CPU")
    group.add_argument("--context-shift", action="store_true",
                       help="forget the oldest half when the context is full")  # fmt: skip
    add_draft(group)
    group.add_argument("--draft-max", type=int, metavar="N",
                       help="tokens to draft at once, at most")  # fmt: skip
    group.add_argument("-devd", "--device-draft", metavar="NAME",
                       help="device of a draft model, usually cpu")  # fmt: skip


def model(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `Llama` besides the path."""
    return {
        "device": args.device,
        "n_ctx": args.ctx_size,
        "n_batch": args.batch_size,
        "n_threads": args.threads,
        "kv_type": args.kv_type,
        "verify": args.verify,
        "strict": args.strict,
        "context_shift": args.context_shift,
        "draft": args.draft and draft_path(args.draft),
        "draft_max": args.draft_max,
        "draft_device": args.device_draft,
    }


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add what decides each token."""
    group = parser.add_argument_group("sampling")
    group.add_argument("-n", "--n-predict", type=number, metavar="N",
                       help="most tokens to generate; -1: no limit")  # fmt: skip
    group.add_argument("--temp", type=float, default=0.8, help="0: the likeliest token each time")
    group.add_argument("--top-k", type=int, default=40, help="keep the K likeliest; 0: all")
    group.add_argument(
        "--top-p",
        type=float,
        default=0.95,
        help="keep the likeliest tokens up to this total probability",
    )
    group.add_argument(
        "--min-p",
        type=float,
        default=0.05,
        help="drop tokens less likely than this share of the likeliest",
    )
    group.add_argument("--repeat-penalty", type=float, default=1.0, help="1: none")
    group.add_argument(
        "-s", "--seed", type=number, help="seed of the random numbers; -1: a new one each time"
    )
    group.add_argument("--stop", action="append", default=[], metavar="TEXT",
                       help="stop at this text and leave it out; may be repeated")  # fmt: skip


def number(text: str) -> int | None:
    """Read a number of 0 or more, or -1, which is llama-cli's way to give none."""
    value = int(text)
    if value < -1:
        raise argparse.ArgumentTypeError(f"{value} is neither -1 nor 0 or more")
    return None if value == -1 else value


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `Llama.generate` and `Llama.chat`."""
    return {
        "max_tokens": args.n_predict,
        "temperature": args.temp,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "repeat_penalty": args.repeat_penalty,
        "seed": args.seed,
        "stop": args.stop,
    }


def bytes_of(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file that is read whole.

    Raises:
        NpurtError: It cannot be read, or has more than *most* bytes.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise NpurtError(
            f"cannot read {path}: {error.strerror}", remedy="check the path"
        ) from error
    if len(data) > most:
        raise NpurtError(f"{path} has more than {most} bytes", remedy="give a smaller file")
    return data


def text_of(path: str) -> str:
    """Return the text of a file, its line ends as in Python.

    Raises:
        NpurtError: It cannot be read, is too large or not UTF-8.
    """
    data = bytes_of(path)
    try:
        return io.TextIOWrapper(io.BytesIO(data), "utf-8").read()
    except UnicodeDecodeError as error:
        raise NpurtError(f"{path} is no text: {error}", remedy="write it in UTF-8") from error
