"""What the tests of hostile archives share: a lie in a manifest, and the refusal it must meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvz.archive import load
from kvz.errors import ArchiveError, CorruptArchive


def refuse(path: Path, data: bytes, kind: type[ArchiveError] = CorruptArchive) -> str:
    path.write_bytes(data)
    with pytest.raises(ArchiveError) as caught:
        load(path)
    assert type(caught.value) is kind, caught.value
    assert len(str(caught.value)) < 500
    return str(caught.value)


def set_at(*keys: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    """A change of the value at `keys` of a manifest."""

    def change(manifest: Any) -> None:
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = to

    return change
