"""Names of files as text: a name on disk is bytes, which need not be any."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["plain_name", "shown"]


def plain_name(name: str) -> str:
    """A file's name that can be written anywhere: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(name).decode(errors="replace")


def shown(model: str) -> str:
    """A model's name without the folders of the machine that it was measured on."""
    return plain_name(Path(model).name if Path(model).exists() else model)
