"""Fixtures for all tests: real models, a hub, and a Hypothesis without chance or clock."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

from npurt import settings
from npurt.base.once import once
from npurt.runtime.api import packed_weight
from tests.models.hub_server import CONTENT, NAMES, REPO, HubServer, serving

PROJECT = Path(__file__).resolve().parents[1]

# "ci" is the default: it is deterministic, so that a failure recurs on every machine.
# `pytest --hypothesis-profile=explore` tries new random examples.
hypothesis_settings.register_profile("ci", derandomize=True, deadline=None, database=None)
hypothesis_settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis_settings.load_profile("ci")


# Tests started in the background of a shell ignore Ctrl-C; some tests send it, so restore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """Return a function that maps a model's name in `npurt models` to its file.

    `make models` downloads the files; this function downloads a missing one.
    """
    from npurt import models

    # joining leaves an absolute path unchanged
    folder = PROJECT / (settings.read(settings.MODELS, str) or "models")

    def path_of(name: str) -> Path:
        return models.fetch(name, folder)

    return path_of


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """Yield a hub for this test; npurt and huggingface_hub use it in place of huggingface.co."""
    from huggingface_hub import constants

    from npurt.models import requests

    for name in ("HF_TOKEN", "NPURT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NPURT_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(requests, "WAIT_S", 0.01)
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.repos[REPO] = {name: name.encode() + CONTENT for name in NAMES}
        server.repos[REPO]["README.md"] = b"about"
        yield server


@pytest.fixture(scope="module", autouse=True)
def _shared_npus() -> Iterator[None]:
    """Close the sessions of `npurt.matmul` and `npurt.pack`, which would stay open until exit.

    Tests of other modules, in the same process, count sessions and memory.
    """
    usual, opened = packed_weight._shared, []

    @once
    def shared(name: str) -> packed_weight.Products:
        if name in ("auto", "cpu"):
            return usual(name)
        opened.append(packed_weight.Products(packed_weight.open_device(name)))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_weight, "_shared", shared)
        yield
    for products in opened:
        products.close()
