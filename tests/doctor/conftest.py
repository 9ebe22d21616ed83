"""The command line, as the tests of it have it."""

from tests.cli.conftest import npurt

__all__ = ["npurt"]
