"""Fixtures for tests of the command line."""

from tests.cli.conftest import npurt

__all__ = ["npurt"]
