"""What the machine is and how fast it reads memory: the floor under every time per token."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from importlib.metadata import version

import torch

__all__ = ["best_rate", "describe_machine", "read_bandwidth"]


_LEAST_READS = 3


def read_bandwidth(nbytes: int = 1 << 29, seconds: float = 2.0) -> float:
    """Bytes per second at which all threads read memory: `best_rate` of sums and maxima over `nbytes` of float32."""
    data = torch.ones(nbytes // 4)
    return max(best_rate(read, data.nbytes, seconds / 2) for read in (data.sum, data.amax))


def best_rate(read: Callable[[], object], nbytes: int, seconds: float) -> float:
    """The most bytes per second of all the reads of `nbytes` that are made in so many seconds, three at least.

    The best, not the mean: other work on the machine can only make a read slower, and what is asked for is what no
    read can exceed.
    """
    best, reads, started = float("inf"), 0, time.perf_counter()
    ended = started
    while reads < _LEAST_READS or ended - started < seconds:
        began = time.perf_counter()
        read()
        ended = time.perf_counter()
        best, reads = min(best, ended - began), reads + 1
    return nbytes / best


def describe_machine() -> str:
    """Processor, threads and versions, in one line."""
    return (
        f"{_processor()}, {_counted(torch.get_num_threads(), 'thread')}; Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {version('transformers')}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
