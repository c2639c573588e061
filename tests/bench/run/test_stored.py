"""An archive is loaded from the disk: what the system had of it in memory is gone by then."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from kvz.bench import stored
from kvz.bench.methods import FULL
from kvz.bench.prefilled import Prefilled
from kvz.bench.stored import drop_cached, stored_seconds
from kvz.bench.tasks.task import Question, Sample
from kvz.models.language_model import LanguageModel
from tests.conftest import TEXT

PAGE = mmap.PAGESIZE


def resident(path: Path) -> int:
    """Pages of a file that the system has in memory, by mincore."""
    size = path.stat().st_size
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as m,
    ):
        there = (ctypes.c_ubyte * -(-size // PAGE))()
        start = ctypes.addressof(ctypes.c_char.from_buffer(m))
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), there) == 0
        return sum(page & 1 for page in there)


def written(folder: Path) -> Path:
    """A synced file of a hundred pages; the test is skipped where they cannot be dropped from memory."""
    path = folder / "file"
    with path.open("wb") as file:
        file.write(b"x" * (100 * PAGE))
        file.flush()
        os.fsync(file.fileno())
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("no posix_fadvise here")
    return path


def test_what_is_in_memory_of_a_file_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert resident(path) == 100
    assert drop_cached(path)
    if resident(path) == 100:
        pytest.skip("files are in memory here")
    assert resident(path) == 0


def test_an_archive_is_loaded_from_the_disk(
    tiny: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    drop_cached(path)
    if resident(path):
        pytest.skip("files are in memory here")
    seen: list[int] = []
    load = stored.load

    def looked(path: Path) -> Any:
        seen.append(resident(path))
        return load(path)

    monkeypatch.setattr(stored, "load", looked)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prefilled = Prefilled(tiny, Sample(TEXT, (Question("Where?", ("clock",)),)), 3)
    seconds = stored_seconds(prefilled, prefilled.made(FULL, None))
    assert seen == [0]
    assert set(seconds) == {"write", "load"}
    assert min(seconds.values()) > 0


def test_load_is_left_out_where_the_file_stays_in_memory(tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    prefilled = Prefilled(tiny, Sample(TEXT, (Question("Where?", ("clock",)),)), 3)
    assert set(stored_seconds(prefilled, prefilled.made(FULL, None))) == {"write"}
