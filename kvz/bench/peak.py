"""The most memory that is held while something is done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

__all__ = ["watched"]

_STATM = Path("/proc/self/statm")
_PERIOD = 0.005  # seconds


@contextmanager
def watched(device: torch.device) -> Iterator[Callable[[], int | None]]:
    """Watch memory in the block; gives a function that says the most bytes that were held.

    On a GPU that is what torch had allocated, else the process's resident size, looked at every 5 ms; None where the
    system does not tell.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: int(torch.cuda.max_memory_allocated(device))
        return
    if not _STATM.exists():
        yield lambda: None
        return
    finished, seen = threading.Event(), [_resident()]

    def watch() -> None:
        while not finished.wait(_PERIOD):
            seen[0] = max(seen[0], _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: max(seen[0], _resident())
    finally:
        finished.set()
        watcher.join()


def _resident() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
