"""The files of a report in a folder, and which of the pictures there are ours to remove."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

__all__ = ["PICTURES", "holds_report", "remove_pictures", "remove_report"]

PICTURES = "pictures"
_FILES = ("report.html", "table.md", "table.csv")
_DRAWN = re.compile(r"(budget|ratio|bytes|needle)-\d+\.svg|(times|phases)\.svg")


def holds_report(folder: Path) -> bool:
    """Whether a report was written into a folder."""
    return all((folder / name).is_file() for name in _FILES)


def remove_report(folder: Path) -> None:
    """Remove a report. Raises OSError."""
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    remove_pictures(folder)


def remove_pictures(folder: Path, but: Collection[str] = ()) -> None:
    """Remove the pictures of an earlier report but for those named; files of other names stay. Raises OSError."""
    place = folder / PICTURES
    if not place.is_dir():
        return
    for path in place.iterdir():
        if _DRAWN.fullmatch(path.name) and path.name not in but:
            path.unlink()
    if not any(place.iterdir()):
        place.rmdir()
