"""How much memory is free."""

from __future__ import annotations

import os
from pathlib import Path

import torch

__all__ = ["free_bytes"]

_UNKNOWN = 4 << 30  # bytes taken to be free where nothing says so


def free_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on a device, as far as its system says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_of_system(), _of_group())


def _of_group() -> int:
    """What a container's limit leaves, if there is one."""
    folder = Path("/sys/fs/cgroup")
    try:
        return max(0, int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text()))
    except (OSError, ValueError):
        return 1 << 62


def _of_system() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return _UNKNOWN
