"""The version of kvz, in one place."""

__version__ = "0.1.0"
