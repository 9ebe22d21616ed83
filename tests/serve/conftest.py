"""Servers on loopback that the tests of a module share."""

import pytest

from tests.serve.client import TEMPLATE
from tests.serve.live import serving


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A server with the fake engine."""
    with serving(tmp_path_factory.mktemp("live"), sequences=8, n_ctx=512) as server:
        yield server


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A server with a tiny model."""
    folder = tmp_path_factory.mktemp("real")
    with serving(folder, engine="npurt.serve.engine", template=TEMPLATE, n_ctx=512) as server:
        yield server
