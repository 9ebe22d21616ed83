"""The version of npurt; no other file repeats it."""

__version__ = "0.2.0"
