"""Where the time up to the first token goes: a stacked bar for each method, a panel for each length."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from kvz.bench.report.canvas import INK, Picture, legend, panels, picture_of
from kvz.bench.report.cell import Cell, distinct, in_common, is_full, seconds_of

__all__ = ["draw_phases", "phases_of"]

_PHASES = {
    "prefill": ("prefill", "#56b4e9"),
    "score": ("score", "#e69f00"),
    "write": ("write", "#cc79a7"),
    "load": ("load", "#0072b2"),
    "first_token": ("first token", "#009e73"),
}


def draw_phases(cells: Sequence[Cell]) -> list[Picture]:
    """One picture of all methods and lengths, or none if no phase was timed."""
    cells = in_common([cell for cell in cells if any(name in seconds_of(cell) for name in _PHASES)])
    if not cells:
        return []
    lengths = sorted({cell["length"] for cell in cells})
    methods = distinct([c["method"] for c in sorted(cells, key=lambda c: not is_full(c))])
    figure, all_axes = panels(len(lengths), height=1.0 + 0.26 * len(methods))
    for axes, length in zip(all_axes, lengths, strict=True):
        starts = [0.0] * len(methods)
        for name, (label, colour) in _PHASES.items():
            widths = [phases_of(cells, method, length).get(name, 0.0) for method in methods]
            if any(widths):
                axes.barh(methods, widths, left=starts, color=colour, edgecolor=INK, linewidth=0.4, label=label)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        axes.set(title=f"{length:,} tokens", xlabel="seconds")
        axes.grid(False, axis="y")
    all_axes[0].invert_yaxis()
    legend(figure)
    caption = "Seconds of each phase up to the first token of an answer, mean over the tasks that all methods have."
    return [picture_of(figure, "phases", "Where the time goes", caption)]


def phases_of(cells: Sequence[Cell], method: str, length: int) -> dict[str, float]:
    """Mean seconds of each phase of a method at a length, over the cells that timed it."""
    own = [seconds_of(cell) for cell in cells if (cell["method"], cell["length"]) == (method, length)]
    return {name: fmean(s[name] for s in own if name in s) for name in _PHASES if any(name in s for s in own)}
