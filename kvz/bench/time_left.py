"""How long a run will still take: what is ahead by estimates, at the pace of what is behind."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kvz.bench.plan import Key, Planned, key_of
from kvz.bench.run_folder import RunFolder

__all__ = ["TimeLeft"]


class TimeLeft:
    """Shown as text. `estimates` are seconds for one context of each cell."""

    def __init__(self, plan: Sequence[Planned], estimates: Mapping[Key, float], folder: RunFolder) -> None:
        self._estimates = estimates
        self._began = time.perf_counter()
        self._behind = 0.0
        parts = {(key_of(part), part["sample"]) for part in folder.samples}
        done = {key_of(cell) for cell in folder.cells}
        self._ahead = {
            cell.key: sum((cell.key, n) not in parts for n in range(cell.samples)) * estimates[cell.key]
            for cell in plan
            if cell.key not in done
        }

    def start(self) -> None:
        """The measuring begins now."""
        self._began = time.perf_counter()

    def measured(self, cell: Planned) -> None:
        """A context of a cell is done."""
        each = self._estimates[cell.key]
        self._behind += each
        self._ahead[cell.key] = max(0.0, self._ahead.get(cell.key, 0.0) - each)

    def over(self, cell: Planned) -> None:
        """A cell is done, or cannot be."""
        self._ahead.pop(cell.key, None)

    def __str__(self) -> str:
        ahead = sum(self._ahead.values())
        if self._behind:
            ahead *= (time.perf_counter() - self._began) / self._behind
        return f"about {ahead:.0f} s left" if ahead < 120 else f"about {ahead / 60:.0f} min left"
