"""Times on a device: medians of several runs, and what copying memory can do at most."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

__all__ = ["copy_ceiling", "median_ms", "recorded"]

_COPIED = 1 << 30  # bytes


def median_ms(call: Callable[[], object], device: torch.device, runs: int = 30, warm_ups: int = 5) -> float:
    """Milliseconds of one call: each run timed alone, by the device's own clock where it has one."""
    for _ in range(warm_ups):
        call()
    if device.type != "cuda":
        return 1e3 * statistics.median(_wall(call) for _ in range(runs))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    torch.cuda.synchronize(device)
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize(device)
    return float(statistics.median(begin.elapsed_time(end) for begin, end in events))


def recorded(call: Callable[[], object], device: torch.device, times: int) -> Callable[[], object]:
    """`call`, `times` over, as one launch where that is possible: what is timed then is the device and not the host."""
    if device.type != "cuda":
        return lambda: [call() for _ in range(times)]
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph.replay


def copy_ceiling(device: torch.device) -> float:
    """Bytes a second that a copy within the device's memory reads and writes."""
    size = _COPIED if device.type == "cuda" else _COPIED >> 6
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / (median_ms(lambda: target.copy_(source), device, 10) / 1e3)


def _wall(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
