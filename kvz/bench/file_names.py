"""Names of files as text: a name on disk is bytes, which need not be any."""

from __future__ import annotations

import os

__all__ = ["plain_name"]


def plain_name(name: str) -> str:
    """A file's name that can be written anywhere: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(name).decode(errors="replace")
