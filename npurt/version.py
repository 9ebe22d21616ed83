"""The version of npurt; everything else reads it here."""

__version__ = "0.1.0"
