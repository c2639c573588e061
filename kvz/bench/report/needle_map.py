"""Needle tasks as maps: length of the context across, depth of the needle down, a panel for each method."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from statistics import fmean

from kvz.bench.report.canvas import Picture, panels, picture_of
from kvz.bench.report.cell import Cell, Fact, distinct, is_full

__all__ = ["draw_needles", "grid_of", "width_of"]

_MOST_DEPTHS = 11  # distinct depths that get a row each; more are gathered in tenths
_MOST_LENGTHS = 10  # distinct lengths that get a column each; more are gathered up to round numbers
_CAPTION = "Mean score by length of the context and depth of the needle in it: dark is 0, yellow the highest."
_LONGEST_TITLE = 28  # characters that a panel has room for


def draw_needles(cells: Sequence[Cell]) -> list[Picture]:
    """A picture for each task and protocol whose cells have facts."""
    cells = [cell for cell in cells if cell.get("facts")]
    pictures = []
    for number, (task, protocol) in enumerate(distinct([(c["task"], c["protocol"]) for c in cells])):
        own = [c for c in cells if (c["task"], c["protocol"]) == (task, protocol)]
        methods = distinct([c["method"] for c in sorted(own, key=lambda c: not is_full(c))])
        facts = {m: [fact for c in own if c["method"] == m for fact in c["facts"]] for m in methods}
        title = f"{', '.join(filter(None, (task, protocol)))}: where the needle is found"
        pictures.append(_picture(facts, f"needle-{number}", title))
    return pictures


def grid_of(
    facts: Sequence[Fact], lengths: Sequence[int], depths: Sequence[float], step: float, width: int = 0
) -> list[list[float | None]]:
    """Mean score for each depth and length, None where there is none: `[depths][lengths]`.

    A depth stands for the tenth that begins there if `step` is 0.1, a length for the `width` tokens up to it.
    """
    rows = []
    for depth in depths:
        here = [fact for fact in facts if _row(fact["depth"], step) == depth]
        scores = [[fact["score"] for fact in here if _column(fact["length"], width) == length] for length in lengths]
        rows.append([fmean(found) if found else None for found in scores])
    return rows


def width_of(lengths: Collection[int]) -> int:
    """Tokens of length that a column stands for: the least of 1, 2, 5, 10 ... that leaves few columns; 0 for each."""
    if len(set(lengths)) <= _MOST_LENGTHS:
        return 0
    widths = (figure * int(10**power) for power in itertools.count() for figure in (1, 2, 5))
    return next(width for width in widths if len({_column(n, width) for n in lengths}) <= _MOST_LENGTHS)


def _picture(facts: dict[str, list[Fact]], name: str, title: str) -> Picture:
    every = [fact for found in facts.values() for fact in found]
    width = width_of({fact["length"] for fact in every})
    lengths = sorted({_column(fact["length"], width) for fact in every})
    step = 0.1 if len({fact["depth"] for fact in every}) > _MOST_DEPTHS else 0.0
    depths = sorted({_row(fact["depth"], step) for fact in every})
    top = max(1.0, *(fact["score"] for fact in every))
    figure, all_axes = panels(len(facts), height=1.0 + 0.24 * len(depths))
    for axes, (method, found) in zip(all_axes, facts.items(), strict=True):
        grid = [
            [float("nan") if value is None else value for value in row]
            for row in grid_of(found, lengths, depths, step, width)
        ]
        axes.pcolormesh(grid, cmap="cividis", vmin=0, vmax=top, edgecolors="#808080", linewidth=0.4)
        for y, row in enumerate(grid):
            for x, value in enumerate(row):
                if value == value:
                    colour = "black" if value > 0.55 * top else "white"
                    axes.text(x + 0.5, y + 0.5, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.set_title(method if len(method) <= _LONGEST_TITLE else method.replace("/", "/\n"))
        axes.set_xticks(
            [x + 0.5 for x in range(len(lengths))], [f"{'≤ ' if width else ''}{length:,}" for length in lengths]
        )
        axes.set_yticks([y + 0.5 for y in range(len(depths))], [_depth(depth, step) for depth in depths])
        axes.set_ylim(len(depths), 0)
        axes.tick_params(length=0)
    figure.supxlabel("tokens of context", fontsize=9)
    figure.supylabel("depth of the needle", fontsize=9)
    return picture_of(figure, name, title, _CAPTION)


def _column(length: int, width: int) -> int:
    """The length that a column stands for: itself, or the end of its range."""
    return length if not width else -(-length // width) * width


def _row(depth: float, step: float) -> float:
    """The depth that a row stands for: itself, or the beginning of its tenth."""
    return depth if not step else min(int(depth / step + 1e-9), round(1 / step) - 1) * step


def _depth(depth: float, step: float) -> str:
    return f"{100 * depth:.0f} %" if not step else f"{100 * depth:.0f}–{100 * (depth + step):.0f} %"
