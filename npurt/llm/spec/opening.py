"""Open the draft that a model was opened with."""

import contextlib
import os
from pathlib import Path

from npurt.cpu.kernels.abi import limits
from npurt.cpu.state.recurrent import SPACING
from npurt.errors import SettingError, brief
from npurt.llm.arch.reading import describe
from npurt.llm.file.gguf import GGUF, errors_of
from npurt.llm.session.context import Context
from npurt.llm.session.devices import Devices
from npurt.llm.session.model import Model
from npurt.llm.session.setup import set_up
from npurt.llm.spec.assistant import Assistant
from npurt.llm.spec.dflash import Network
from npurt.llm.spec.diffusion import Diffusion
from npurt.llm.spec.drafter import Drafter
from npurt.llm.spec.lookup import Lookup
from npurt.llm.spec.speculator import Speculator
from npurt.runtime.execute.executor import runs_graphs
from npurt.verify import Sampler as Checks

USUAL_DRAFT = 8  # the most tokens of a draft, by default


def require_draft(draft: str | os.PathLike[str] | None, **settings: object) -> None:
    """Refuse draft options without a draft."""
    for name, value in settings.items():
        if value is not None and draft is None:
            raise SettingError(
                f"{name} is {brief(value)}, and there is no draft",
                remedy=f"name a draft (-md), or leave {name} out",
            )


def require_verifies(devices: Devices) -> None:
    """Refuse a device that cannot verify drafts."""
    if runs_graphs(devices.device):
        raise SettingError(
            f"{devices.device.caps.name} does not verify drafts",
            remedy="leave draft (-md) out",
        )


def open_speculator(
    draft: str | os.PathLike[str],
    network: Network | None,
    target: Context,
    opened: contextlib.ExitStack,
    *,
    most: int | None,
    device: str | None,
) -> Speculator:
    """Open a draft for *target*.

    Args:
        draft: See `Llama`.
        network: What `open_network` made of it.
        target: A context of the model that verifies.
        opened: Closes what is opened here.
        most: The most tokens to draft at once; by default `USUAL_DRAFT` or as many as can be.
        device: Where a draft model runs; by default the CPU.

    Raises:
        ModelFormatError: npurt cannot draft with it.
        SettingError: *most* or *device* makes no sense.
    """
    target.model.setup.description.require_decoder()
    most = _most_drafted(target, most)
    speculator = Speculator(_drafter(draft, network, target, opened, device or "cpu"), most)
    target.model.ledger.add_status_note(speculator.controller.speculation.line)
    return speculator


def _most_drafted(target: Context, wanted: int | None) -> int:
    """Return the most draft tokens of a pass; a rollback of all of them needs no pass."""
    room = target.model.setup.limits.rows - 1
    if not target.state.shifts:
        room = min(room, SPACING)
    if room < 1:
        raise SettingError(
            "a model that takes tokens one by one cannot verify a draft",
            remedy="use an n_batch (-b) and an n_ctx (-c) of 2 or more, or no draft",
        )
    most = min(USUAL_DRAFT, room) if wanted is None else wanted
    if not 1 <= most <= room:
        raise SettingError(
            f"{brief(most)} tokens cannot be drafted at once",
            remedy=f"use a draft_max of 1 to {room}",
        )
    return most


def _drafter(
    draft: str | os.PathLike[str],
    network: Network | None,
    target: Context,
    opened: contextlib.ExitStack,
    device: str,
) -> Drafter:
    if draft != "lookup" and network is None:
        return _assistant(draft, target.model, opened, device)
    if device != "cpu":
        raise SettingError(
            f"{Path(draft).name} cannot draft on {device}",
            remedy="leave draft_device (-devd) out: lookup and block drafts run on the host",
        )
    return Lookup() if network is None else Diffusion(Path(draft).name, network, target)


def _assistant(
    path: str | os.PathLike[str], target: Model, opened: contextlib.ExitStack, device: str
) -> Assistant:
    with errors_of(path):
        file = opened.enter_context(GGUF(path))
        describe(file).require_decoder()
        setup = set_up(file, target.n_ctx, limits().rows, "f16")
        devices = opened.enter_context(Devices(device, target.devices.threads))
        if runs_graphs(devices.device):
            raise SettingError(
                f"{device} cannot draft", remedy="leave draft_device (-devd) out, or use an NPU"
            )
        model = opened.enter_context(
            Model(
                setup, devices, Checks(target.checks.mode),
                strict=target.ledger.strict, progress=target.progress,
            )
        )  # fmt: skip
    context = Context(model)
    opened.callback(context.release)
    assistant = Assistant(context, target)
    target.ledger.include("draft_", model.ledger)
    return assistant
