"""What every test may ask for: the real models, and Hypothesis without chance or clock."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

from npurt import settings

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
