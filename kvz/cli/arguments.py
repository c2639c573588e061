"""Text that comes as an argument, or from a terminal."""

from __future__ import annotations

import os

__all__ = ["as_text"]


def as_text(argument: str) -> str:
    """The text that an argument's bytes are in UTF-8, whatever the locale; the argument itself if they are not.

    For text that goes to a model, not for names of files.
    """
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument
