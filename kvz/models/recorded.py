"""The model that an archive was made with, as its manifest names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kvz.errors import ModelError
from kvz.format.manifest import Manifest

__all__ = ["of_recorded"]

Found = TypeVar("Found")


def of_recorded(manifest: Manifest, name: str | None, find: Callable[[str], Found]) -> Found:
    """What `find` says of the model `name`, or else of the manifest's own; a ModelError of that says whose it is."""
    if name is not None:
        return find(name)
    info = manifest.model
    try:
        return find(f"{info.id}@{info.revision}" if info.revision else info.id)
    except ModelError as error:
        raise ModelError(
            f"the archive was made with {info.id}; {error}; say with -m where that model is now"
        ) from error
