"""Seconds to write an archive to a file and to load it again, from the disk and not from the system's memory of it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch

from kvz.archive import Archive, load
from kvz.bench.prefilled import Made, Prefilled
from kvz.documents import document_from_text
from kvz.errors import OutputError
from kvz.excerpt import Excerpt
from kvz.manifest_of import manifest_of, parameters_of

__all__ = ["drop_cached", "stored_seconds"]


def stored_seconds(prefilled: Prefilled, made: Made) -> dict[str, float]:
    """Those of "write", to evict and to write a file, synced, and of "load", its checksums verified.

    The file is in the folder for temporary files. Without room there for it both are left out, and "load" where the
    system cannot be made to forget the file.
    """
    archive = _archive(prefilled, made)
    try:
        with tempfile.TemporaryDirectory(prefix="kvz-bench-") as folder:
            path = Path(folder) / "bench.kvz"
            began = time.perf_counter()
            archive.save(path)
            seconds = {"write": made.evict_seconds + time.perf_counter() - began}
            if drop_cached(path):
                began = time.perf_counter()
                load(path)
                seconds["load"] = time.perf_counter() - began
            return seconds
    except (OutputError, OSError):
        return {}


def drop_cached(path: Path) -> bool:
    """Let the system forget what it has in memory of a file that has been synced; False where it cannot be asked to.

    A file system that is in memory itself, such as tmpfs, goes on holding it.
    """
    if not hasattr(os, "posix_fadvise"):
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
    return True


def _archive(prefilled: Prefilled, made: Made) -> Archive:
    model, frame = prefilled.model, prefilled.context.frame
    source = document_from_text(prefilled.sample.context, "context")
    excerpt = Excerpt(list(prefilled.context.ids))
    parameters = parameters_of(made.recipe, model, frame, len(excerpt.ids))
    manifest = manifest_of(source, model, made.recipe, frame, parameters, excerpt, made.kept, made.demand.budget)
    ids = torch.tensor([*frame.prefix_ids, *excerpt.ids], dtype=torch.int32)
    return Archive(manifest, made.cache, ids)
