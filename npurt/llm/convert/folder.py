"""Convert a checkpoint, the model folder that transformers saves, to a GGUF file."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from npurt.base.file_kinds import kind_of
from npurt.base.files import unreadable
from npurt.errors import ModelFormatError
from npurt.llm.arch import encoder, families, forward
from npurt.llm.arch.architecture import EMBEDDING, Architecture
from npurt.llm.convert.checkpoint.families import FAMILIES, Family, Keys
from npurt.llm.convert.checkpoint.fused_experts import (
    names_of_experts,
    taken_experts,
    tensors_of_experts,
)
from npurt.llm.convert.checkpoint.head import with_head
from npurt.llm.convert.checkpoint.joined import split_joined
from npurt.llm.convert.checkpoint.keys import keys_of, rope_tables
from npurt.llm.convert.checkpoint.names import text_model
from npurt.llm.convert.checkpoint.orders import Order, Orders
from npurt.llm.convert.checkpoint.pooling import pooling_of
from npurt.llm.convert.checkpoint.safetensors import AGAIN, StoredTensor, files, read
from npurt.llm.convert.checkpoint.settings import CheckpointSettings, meaning
from npurt.llm.convert.mixture import Types
from npurt.llm.convert.tokenizer.pieces import MODEL
from npurt.llm.convert.tokenizer.vocabulary import vocabulary_of
from npurt.llm.convert.types import FILE_TYPES, chosen, new_tensor
from npurt.llm.file.config import Config, read_config
from npurt.llm.file.header import read_header
from npurt.llm.file.writer import NewTensor, encoded, header, refuse_source, write
from npurt.llm.text.tokenizer import Tokenizer
from npurt.quant.canonical import F32
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME

# Tables that old versions of transformers saved, and multi-token-prediction blocks, which npurt
# does not run.
IGNORED = ("*.rotary_emb.inv_freq", "*.attn.masked_bias", "mtp.*")
CLASSES = ("ForCausalLM", "Model", "BertForMaskedLM")  # suffixes of the supported class names
NUMBER = r"(?:0|[1-9]\d{0,4})"  # index of a layer or an expert, without leading zeros
# Parameters other than the weight or bias of a module -> the suffix of their names in GGUF.
BARE = {"sinks": ".weight", "A_log": "", "dt_bias": ".bias"}
CONVOLUTIONS = ("shortconv.conv.weight", "ssm_conv1d.weight")
SHOWN = 5  # names that an error lists


def convert(folder: Path, target: Path, kind: str = "f16", *, progress: bool = True) -> None:
    """Convert the checkpoint in *folder* to the GGUF file *target*.

    The model is checked before the file is written, so npurt can run every file that it writes.

    Args:
        folder: A folder with config.json, tokenizer.json and one or several .safetensors files.
        kind: The type of the matrices, as for `requantise`.

    Raises:
        SettingError: npurt does not write this type, or *target* is a file of the checkpoint.
        ModelFormatError: A file is missing or damaged, or npurt does not convert this model type.
        NumericsError: A value is NaN or infinite, or does not fit in the type.
        NpurtError: *target* cannot be written.
    """
    kind = chosen(kind)
    if not folder.is_dir():
        try:
            found = kind_of(folder)
        except OSError as error:
            raise ModelFormatError(
                f"{folder} is no folder: {error.strerror}", remedy=unreadable(folder, error)
            ) from error
        raise ModelFormatError(f"{folder} is no folder, but {found.what}", remedy=found.remedy)
    with meaning("config.json"):
        settings = CheckpointSettings.read(folder)
        family = family_of(settings)
        known = {"general.architecture": family.arch} | keys_of(family, settings)
        stored = text_model(read(folder), folder, encoder=family.is_encoder)
        stored = with_head(settings, stored)
        rows = _rows(family, stored)
        # The numbers are checked before the next lines use them as sizes.
        architecture, config = _configuration(known, rows)
        tables = rope_tables(settings)
        tensors = _tables(tables)
        tensors += _tensors(family, settings, stored, partial(Types, kind, metadata=known))
    refuse_source(target, [*files(folder), *folder.glob("*.json"), *folder.glob("*.jinja"),
                            folder / MODEL])  # fmt: skip
    keys = {
        "general.architecture": family.arch,
        "general.type": "model",
        "general.name": folder.resolve().name,
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": 2,
        **known,
        f"{family.arch}.vocab_size": rows,
        **pooling_of(folder, family.arch),
        **vocabulary_of(folder, family.arch, rows),
    }
    with meaning("config.json"):
        pairs = {key: encoded(key, value) for key, value in keys.items()}
    _check(architecture, config, tensors, list(tables.values()))
    Tokenizer.from_gguf(read_header(header(pairs.values())).metadata)
    write(target, pairs, tensors, progress=progress)


def family_of(settings: CheckpointSettings) -> Family:
    """Return the model family of the ``model_type`` in config.json.

    Raises:
        ModelFormatError: npurt does not convert models of this type.
    """
    name = settings.get("model_type")
    classes = settings.get("architectures") or []
    if name not in FAMILIES or any(not str(each).endswith(CLASSES) for each in classes):
        raise ModelFormatError(
            f"npurt does not convert models of type {name!r}"
            + (f" ({', '.join(map(str, classes))})" if classes else ""),
            remedy=f"convert a text model of type {', '.join(FAMILIES)}, or download a GGUF file "
            "of the model",
        )
    return FAMILIES[name]


def _rows(family: Family, stored: Mapping[str, StoredTensor]) -> int:
    """Return the number of rows of the embedding.

    Raises:
        ModelFormatError: The checkpoint has no embedding, or one of an unknown type.
    """
    [stem] = [name for name, gguf in family.top.items() if f"{gguf}.weight" == EMBEDDING]
    if f"{stem}.weight" not in stored:
        raise ModelFormatError(f"the checkpoint has no {stem}.weight", remedy=AGAIN)
    embedding = stored[f"{stem}.weight"]
    return embedding.tensor().shape[0]


def _configuration(keys: Keys, rows: int) -> tuple[Architecture, Config]:
    """Return the architecture and the configuration that npurt would read from the new file.

    Args:
        keys: The keys of the architecture.
        rows: The number of rows of the embedding.

    Raises:
        ModelFormatError: The dimensions contradict each other, or exceed npurt's limits.
    """
    metadata = read_header(header(encoded(*pair) for pair in keys.items())).metadata
    architecture = families.find(metadata["general.architecture"])
    encodes = architecture.encoder is not None
    config = architecture.complete(read_config(metadata, rows, encoder=encodes))
    forward.check(architecture, config)
    return architecture, config


def _check(
    architecture: Architecture,
    config: Config,
    tensors: Sequence[NewTensor],
    tables: Sequence[npt.NDArray[np.float32]],
) -> None:
    """Raise an error if npurt could not run the converted model.

    Raises:
        ModelFormatError: The model lacks tensors or has unknown ones, or the shapes of tensors or
            the rotary tables do not fit the configuration.
    """
    by_name = {each.name: each for each in tensors}
    if architecture.encoder is not None:
        encoder.build(architecture, config, by_name)
    else:
        for divisors in tables or (None,):
            forward.build(architecture, config, by_name, divisors)


# --- Tensors --------------------------------------------------------------------------------------


def _tables(tables: Mapping[str, npt.NDArray[np.float32]]) -> list[NewTensor]:
    """Return the tensors with the divisors of the rotary frequencies."""
    return [
        new_tensor(name, values.shape, BY_NAME["f32"], partial(list, [QTensor(values, "f32")]))
        for name, values in tables.items()
    ]


def _tensors(
    family: Family,
    settings: CheckpointSettings,
    stored: dict[str, StoredTensor],
    types_of: Callable[[Iterable[str]], Types],
) -> list[NewTensor]:
    """Return the weight tensors of the GGUF file, in their order in the file."""
    experts = taken_experts(stored) if family.fused_experts else {}
    groups = _groups(family, stored)
    types = types_of([*groups, *names_of_experts(experts)])
    found = tensors_of_experts(experts, types)
    orders = family.orders(settings)
    for name, members in groups.items():
        shape, order = _shape(name, members[0]), _order(orders, name, members[0])
        if any(each.shape != members[0].shape or not each.format for each in members):
            shapes = " and ".join(sorted({str(each.shape) for each in members})[:SHOWN])
            raise ModelFormatError(
                f"the experts of {name} have shapes {shapes}", remedy="download the folder again"
            )
        values = partial(_values, members, shape, order, _change(family, name))
        if order:
            shape = *shape[: order.axis], len(order.indices), *shape[order.axis + 1 :]
        whole = (len(members),) * (len(members) > 1) + shape
        found.append(new_tensor(name, whole, types.of(name, whole), values))
    return sorted(found, key=_place_in_file)


def _place_in_file(tensor: NewTensor) -> list[int]:
    """Return the sort key of a tensor: tensors outside layers first, then the layers in order."""
    return [int(part) if part.isdigit() else -1 for part in tensor.name.split(".")[:2]]


def _groups(family: Family, stored: Mapping[str, StoredTensor]) -> dict[str, list[StoredTensor]]:
    """Return GGUF name -> tensors of the checkpoint: one, or one per expert in order."""
    groups: dict[str, dict[int, StoredTensor]] = {}
    unknown = []
    for name, each in split_joined(stored):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in IGNORED):
            continue
        place = _place(family, name)
        if place is None:
            unknown.append(name)
        elif (twin := groups.setdefault(place[0], {}).setdefault(place[1], each)) is not each:
            raise ModelFormatError(
                f"the checkpoint has both {twin.name} and {name}, which are the same tensor",
                remedy="download the folder again",
            )
    if unknown:
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        raise ModelFormatError(
            f"the checkpoint has {', '.join(unknown[:SHOWN])}{more}, which are no tensors of a "
            f"{family.arch} model",
            remedy="merge adapters into the weights first; if the model has several parts, convert "
            "the text model",
        )
    return {name: _in_order(name, members) for name, members in groups.items()}


def _in_order(name: str, members: Mapping[int, StoredTensor]) -> list[StoredTensor]:
    if sorted(members) != list(range(len(members))):
        gone = sorted(set(range(max(members) + 1)) - members.keys())
        raise ModelFormatError(
            f"{name} has {max(members) + 1} experts, of which these are missing: "
            + ", ".join(map(str, gone[:SHOWN])),
            remedy="download the whole folder again",
        )
    return [members[i] for i in range(len(members))]


def _place(family: Family, name: str) -> tuple[str, int] | None:
    """Return a tensor's name in the GGUF file and the index of its expert (0 without experts).

    Return None if the family has no such tensor.
    """
    stem, _, suffix = name.rpartition(".")
    if suffix in BARE:
        stem, suffix = name, BARE[suffix]
    elif suffix in ("weight", "bias"):
        suffix = f".{suffix}"
    else:
        return None
    if stem in family.top:
        return f"{family.top[stem]}{suffix}", 0
    match = re.fullmatch(rf"model\.layers\.({NUMBER})\.(.+)", stem, re.ASCII)
    if match is None:
        return None
    inner = match[2]
    expert = re.search(rf"(?<=\.experts\.){NUMBER}(?=\.)", inner, re.ASCII)
    if expert:
        inner = f"{inner[: expert.start()]}*{inner[expert.end() :]}"
    if inner not in family.names or "*" in match[2]:
        return None
    number = int(expert[0]) if expert else 0
    return f"blk.{int(match[1])}.{family.names[inner]}{suffix}", number


def _values(
    members: Sequence[StoredTensor],
    shape: tuple[int, ...],
    order: Order | None,
    change: Callable[[F32], F32] | None,
) -> Iterator[QTensor]:
    """Yield the values of each member in the GGUF file.

    Args:
        shape: The shape of each member in the checkpoint, without axes of length 1.
        order: The order of rows or columns in GGUF, or None if it is unchanged.
        change: A function of the values, applied before the reordering, or None.
    """
    for each in members:
        tensor = each.tensor(shape)
        if change:
            tensor = QTensor(change(tensor.dequantize()), "f32")
        if order:
            tensor = QTensor(tensor.blocks.take(order.indices, order.axis), tensor.format)
        yield tensor


def _shape(name: str, stored: StoredTensor) -> tuple[int, ...]:
    """Return the GGUF shape of a tensor; the checkpoint has convolutions as [D, 1, taps]."""
    shape = stored.shape
    if name.endswith(CONVOLUTIONS) and len(shape) == 3:
        shape = shape[0], shape[2]
    if 0 in (shape or (0,)):
        raise ModelFormatError(
            f"{stored.name} has shape {shape}", remedy="download the folder again"
        )
    return shape


def _order(orders: Orders, name: str, stored: StoredTensor) -> Order | None:
    """Return the order of the rows or columns in GGUF, or None if it is unchanged."""
    order = orders.get(name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2])
    if order and stored.shape[order.axis : order.axis + 1] != (order.size,):
        raise ModelFormatError(
            f"{stored.name} has shape {stored.shape}, but config.json implies {order.size} "
            + ("columns" if order.axis else "rows"),
            remedy="use the config.json of these weights: download both from one place",
        )
    return order


def _change(family: Family, name: str) -> Callable[[F32], F32] | None:
    """Return the function that computes the GGUF values of a tensor, or None if they are equal."""
    if name.endswith(".ssm_a"):
        return _rate
    norm = name.endswith("norm.weight") and not name.endswith("ssm_norm.weight")
    return _with_one if family.added_one and norm else None


def _rate(logarithms: F32) -> F32:
    return -np.exp(logarithms)


def _with_one(values: F32) -> F32:
    return values + np.float32(1)
