"""The version of npurt; everything else reads it here."""

__version__ = "0.2.0"
