"""Open the draft of a model."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from npurt.device.verify import Sampler
from npurt.errors import SettingError, brief
from npurt.graph.sizes import CHECKPOINT_SPACING, SIZES
from npurt.llm.arch.reading import describe
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.mapped import errors_of
from npurt.llm.session.context import Context
from npurt.llm.session.devices import Devices
from npurt.llm.session.loaded_model import LoadedModel
from npurt.llm.session.setup import set_up
from npurt.llm.spec.assistant import Assistant, output_head, require_same_vocabulary
from npurt.llm.spec.controller import Controller
from npurt.llm.spec.dflash import Network
from npurt.llm.spec.diffusion import Diffusion, block_head
from npurt.llm.spec.drafter import Drafter
from npurt.llm.spec.lookup import Lookup
from npurt.llm.spec.speculation import Speculation
from npurt.llm.spec.speculator import Speculator
from npurt.reference.device import ReferenceDevice

USUAL_DRAFT = 8  # default of the largest number of draft tokens in a step


def require_draft(draft: str | os.PathLike[str] | None, **settings: object) -> None:
    """Raise SettingError if a draft option is given without a draft."""
    for name, value in settings.items():
        if value is not None and draft is None:
            raise SettingError(
                f"{name} is {brief(value)}, but there is no draft",
                remedy=f"name a draft (-md), or leave {name} out",
            )


class Drafts:
    """Creates a speculator for each sequence of a model.

    Args:
        make: A function that returns a drafter for the sequence in a context of the model.
        maximum: The largest number of draft tokens in a step.
        identity: The identity of the draft's file; "" without a file.

    Attributes:
        maximum, identity: As in the arguments.
        speculation: The counts of all sequences.
    """

    def __init__(
        self, make: Callable[[Context], Drafter], maximum: int, identity: str = ""
    ) -> None:
        self.maximum = maximum
        self.identity = identity
        self.speculation = Speculation()
        self._make = make

    def speculator(
        self, context: Context, control: Callable[[Drafter, int], Controller] | None = None
    ) -> Speculator:
        """Return a speculator for the sequence in *context*.

        Args:
            control: A function that takes a drafter and its largest number of draft tokens, and
                returns a controller.  The default is a controller for a sequence that is decoded
                alone.
        """
        drafter = self._make(context)
        controller = control(drafter, self.maximum) if control else None
        speculator = Speculator(drafter, self.maximum, controller=controller)
        speculator.controller.speculation = self.speculation
        return speculator


def open_drafts(
    draft: str | os.PathLike[str],
    network: Network | None,
    target: LoadedModel,
    opened: contextlib.ExitStack,
    *,
    maximum: int | None = None,
    device: str | None = None,
) -> Drafts:
    """Open a draft for *target*.

    Args:
        draft: See `Llama`.
        network: The result of `open_network` for *draft*.
        target: The model that verifies the draft tokens.
        opened: Closes the opened files, devices and models.
        maximum: The largest number of draft tokens in a step; by default `USUAL_DRAFT`, or less if
            *target* cannot verify so many.
        device: The device of a draft model; by default the CPU.

    Raises:
        ModelFormatError: npurt cannot use the draft.
        SettingError: *maximum* or *device* is invalid.
    """
    target.setup.description.require_decoder()
    maximum = _draft_limit(target, maximum)
    make, identity = _maker(draft, network, target, opened, device or "cpu")
    drafts = Drafts(make, maximum, identity)
    target.ledger.add_status_note(drafts.speculation.line)
    return drafts


def _draft_limit(target: LoadedModel, wanted: int | None) -> int:
    """Return the largest number of draft tokens in a pass.

    It is limited so that a rollback never needs to evaluate tokens again.
    """
    limit = target.setup.limits.rows - 1
    if not target.executor.shifts:
        limit = min(limit, CHECKPOINT_SPACING)
    if limit < 1:
        raise SettingError(
            "a model that evaluates one token in a run cannot verify draft tokens",
            remedy="use an n_batch (-b) and an n_ctx (-c) of 2 or more, or no draft",
        )
    maximum = min(USUAL_DRAFT, limit) if wanted is None else wanted
    if not 1 <= maximum <= limit:
        raise SettingError(
            f"{brief(maximum)} tokens cannot be drafted at once",
            remedy=f"use a draft_max of 1 to {limit}",
        )
    return maximum


def _maker(
    draft: str | os.PathLike[str],
    network: Network | None,
    target: LoadedModel,
    opened: contextlib.ExitStack,
    device: str,
) -> tuple[Callable[[Context], Drafter], str]:
    """Return a function that makes drafters, and the identity of the draft's file."""
    if draft != "lookup" and network is None:
        model = _draft_model(draft, target, opened, device)
        output = output_head(model)
        return lambda context: Assistant(Context(model), target, output), model.file.identity
    if device != "cpu":
        raise SettingError(
            f"{Path(draft).name} cannot draft on {device}",
            remedy="leave draft_device (-devd) out: lookup and block drafts run on the host",
        )
    if network is None:
        return lambda context: Lookup(), ""
    name, head = Path(draft).name, block_head(target, network)
    return lambda context: Diffusion(name, network.another(), context, head), network.identity


def _draft_model(
    path: str | os.PathLike[str], target: LoadedModel, opened: contextlib.ExitStack, device: str
) -> LoadedModel:
    with errors_of(path):
        file = opened.enter_context(GGUF(path))
        describe(file).require_decoder()
        require_same_vocabulary(file, target.file)
        setup = set_up(
            file, target.n_ctx, SIZES.rows, "f16", sequences=target.setup.limits.sequences,
            kv_bytes=target.setup.limits.kv_bytes,
        )  # fmt: skip
        devices = opened.enter_context(Devices(device, target.devices.threads))
        if isinstance(devices.host, ReferenceDevice):
            raise SettingError(
                f"{device} cannot draft", remedy="leave draft_device (-devd) out, or use an NPU"
            )
        model = opened.enter_context(
            LoadedModel(
                setup, devices, Sampler(target.checks.mode),
                strict=target.ledger.strict, progress=target.progress,
            )
        )  # fmt: skip
    target.ledger.include("draft_", model.ledger)
    return model
