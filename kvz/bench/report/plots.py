"""Every picture that the cells have data for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvz.bench.report.canvas import Picture, drawing
from kvz.bench.report.cell import Cell, measured
from kvz.bench.report.curves import draw_bytes, draw_scores, draw_times
from kvz.bench.report.needle_map import draw_needles
from kvz.bench.report.phases import draw_phases

__all__ = ["draw_pictures"]

_DRAWINGS: tuple[Callable[[Sequence[Cell]], list[Picture]], ...] = (
    draw_scores,
    draw_needles,
    draw_bytes,
    draw_times,
    draw_phases,
)


def draw_pictures(cells: Sequence[Cell]) -> list[Picture]:
    """Pictures in the order of a report. Raises UsageError without matplotlib, which is imported here first."""
    found = measured(cells)
    with drawing():
        return [picture for draw in _DRAWINGS for picture in draw(found)]
