"""How long cells will take, roughly: products at the machine's speed, steps at its memory's."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from kvz.bench.machine import read_bandwidth
from kvz.bench.methods import FULL, REPEAT_KV
from kvz.bench.plan import Planned
from kvz.bench.tasks.task import Task
from kvz.models.identity import ModelIdentity

__all__ = ["Speed", "estimate_cell", "measure_speed"]

_PREFILLS = {"kvzip-rms": 2.6, "kvzip": 2.0, "kvzip+": 2.6, "h2o": 1.2, "full": 0.0}
"""What scoring takes, in prefills; other methods look at a window only."""
_WINDOW = 0.1
_OVERHEAD = 2.0  # of a step over reading its bytes
_EXPANDED_STEPS = 16
_QUESTIONS = 5  # of a context with several


@dataclass(frozen=True)
class Speed:
    """Operations a second of large products, and bytes a second read from memory."""

    operations: float
    bandwidth: float


def measure_speed(dtype: torch.dtype, device: torch.device) -> Speed:
    """A few products and sums on the machine; less than a second."""
    a, b = torch.ones(512, 1024, dtype=dtype, device=device), torch.ones(1024, 1024, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        (a @ b)[0, 0].item()
        best = min(best, time.perf_counter() - began)
    bandwidth = read_bandwidth(1 << 26, 0.0) if device.type == "cpu" else 1e12
    return Speed(2 * 512 * 1024 * 1024 / best, bandwidth)


def estimate_cell(cell: Planned, task: Task, model: ModelIdentity, itemsize: int, speed: Speed) -> float:
    """Seconds for one context of a cell; that of the full cache includes the prefill, which the others share."""
    if cell.skipped:
        return 0.0
    weights, geometry = model.facts.step_weights, model.geometry
    heads = geometry.query_heads * sum(shape.head_dim for shape in geometry.shapes)
    prefill = (2 * weights * cell.length + 2 * heads * cell.length**2) / speed.operations
    pairs = sum(2 * shape.kv_heads * shape.head_dim for shape in geometry.shapes)
    step = _OVERHEAD * (weights + pairs * cell.length) * itemsize / speed.bandwidth
    questions = _QUESTIONS if task.shared or task.turns else 1
    answers = questions * (task.new_tokens * step + 3 * prefill * 64 / cell.length)
    if cell.method == FULL:
        return prefill + answers
    if cell.method == REPEAT_KV:
        return _EXPANDED_STEPS * step
    archives = questions if cell.sees_questions else 1
    return archives * _PREFILLS.get(cell.method.compress, _WINDOW) * prefill + answers
