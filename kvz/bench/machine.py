"""What the machine is and how fast it reads memory: the floor under every time per token."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version

import torch

__all__ = ["describe_machine", "read_bandwidth"]


def read_bandwidth(nbytes: int = 1 << 29, repeats: int = 5) -> float:
    """Bytes per second at which all threads read memory: the best of `repeats` sums over `nbytes` of float32."""
    data = torch.ones(nbytes // 4)
    best = float("inf")
    for _ in range(repeats + 1):
        began = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - began)
    return nbytes / best


def describe_machine() -> str:
    """Processor, threads and versions, in one line."""
    return (
        f"{_processor()}, {torch.get_num_threads()} threads; Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {version('transformers')}"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
