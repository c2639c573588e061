"""How much more memory is held at most while something is done than just before it."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["can_watch", "most_of", "watched"]

_STATM = Path("/proc/self/statm")
_PERIOD = 0.005  # seconds


@contextmanager
def watched(device: torch.device) -> Iterator[Callable[[], int | None]]:
    """Watch memory in the block; gives a function that says by how many bytes it has risen at most since its start.

    On a GPU that is what torch has allocated, else what the process has resident, mapped files left out, looked at
    every 5 ms. What an allocator keeps of memory that was freed would hide a rise: it is given back to the system
    before. None where `can_watch` is False.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: int(torch.cuda.max_memory_allocated(device)) - before
    elif can_watch(device):
        _c_library().malloc_trim(0)
        with _sampled() as most:
            yield most
    else:
        yield lambda: None


def can_watch(device: torch.device) -> bool:
    """Whether memory can be watched: on a GPU, and on a CPU where /proc tells of it and the C library is glibc."""
    return device.type == "cuda" or (_STATM.exists() and hasattr(_c_library(), "malloc_trim"))


def most_of(rises: list[int | None]) -> int | None:
    """The largest of several; None if one of them is not known."""
    known = [rise for rise in rises if rise is not None]
    return max(known) if len(known) == len(rises) else None


@contextmanager
def _sampled() -> Iterator[Callable[[], int]]:
    before, finished = _resident(), threading.Event()
    seen = [before]

    def look() -> int:
        seen[0] = max(seen[0], _resident())
        return seen[0] - before

    def watch() -> None:
        while not finished.wait(_PERIOD):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield look
    finally:
        finished.set()
        watcher.join()


@cache
def _c_library() -> Any:
    return ctypes.CDLL(None)


def _resident() -> int:
    """Bytes of memory that is the process's own."""
    resident, mapped = map(int, _STATM.read_text().split()[1:3])
    return (resident - mapped) * os.sysconf("SC_PAGE_SIZE")
