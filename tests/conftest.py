"""What every test may ask for: the real models, and Hypothesis without chance or clock."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

from npurt import settings
from npurt.once import once
from npurt.runtime.api import packed_weight

PROJECT = Path(__file__).resolve().parents[1]

# "ci" is what runs unless told otherwise, so that a failure is a failure everywhere;
# `pytest --hypothesis-profile=explore` looks for new ones.
hypothesis_settings.register_profile("ci", derandomize=True, deadline=None, database=None)
hypothesis_settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis_settings.load_profile("ci")


# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """Return a function from a model's name in `npurt models` to its file.

    `make models` fetches the files; one that is missing is fetched here.
    """
    from npurt import models

    folder = PROJECT / settings.read(settings.MODELS, str)  # an absolute setting stays itself

    def path_of(name: str) -> Path:
        return models.fetch(name, folder)

    return path_of


@pytest.fixture(scope="module", autouse=True)
def _shared_npus() -> Iterator[None]:
    """Close what `npurt.matmul` and `npurt.pack` open: they would keep a session until exit.

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
