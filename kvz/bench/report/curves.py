"""Curves: score against what is kept or read, score against bytes stored, and time against the length of a context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from kvz.bench.report.canvas import INK, Picture, legend, panels, picture_of, styles_of
from kvz.bench.report.cell import Cell, distinct, family_of, in_common, is_full, seconds_of, series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_bytes", "draw_scores", "draw_times", "front_of"]


def draw_scores(cells: Sequence[Cell]) -> list[Picture]:
    """For each task, a picture of score against budget and one against ratio: a panel a length, a line a method."""
    by_budget = [c for c in cells if not is_full(c) and c.get("budget") is not None]
    by_ratio = [c for c in cells if not is_full(c) and c.get("budget") is None and c.get("ratio") is not None]
    full = [c for c in cells if is_full(c)]
    return [
        *_score_pictures(by_budget, full, "budget", "pairs read of a head by a token", lambda c: c.get("budget")),
        *_score_pictures(by_ratio, full, "ratio", "share of pairs kept", lambda c: c.get("ratio")),
    ]


def draw_bytes(cells: Sequence[Cell]) -> list[Picture]:
    """For each task, score against bytes stored: a panel a length, and the front that no other method beats in both."""
    pictures = []
    cells = [c for c in cells if c.get("kv_bytes")]
    for number, task in enumerate(_tasks(cells)):
        own = [c for c in cells if _task(c) == task]
        styles = styles_of(distinct([family_of(c) for c in own if not is_full(c)]))
        lengths = _lengths(own)
        figure, all_axes = panels(len(lengths))
        for axes, length in zip(all_axes, lengths, strict=True):
            here = [c for c in own if c["length"] == length]
            front = front_of([(c["kv_bytes"] / 1e6, c["score"]) for c in here])
            axes.plot(
                *zip(*front, strict=True), color=INK, alpha=0.5, drawstyle="steps-post", label="best for its size"
            )
            for family, style in styles.items():
                points = [(c["kv_bytes"] / 1e6, c["score"]) for c in here if not is_full(c) and family_of(c) == family]
                if points:
                    x, y = zip(*points, strict=True)
                    axes.plot(x, y, color=style.color, marker=style.marker, linestyle="", markersize=5, label=family)
            for cell in filter(is_full, here):
                axes.plot(
                    [cell["kv_bytes"] / 1e6], [cell["score"]], color=INK, marker="*", linestyle="", label="full KV"
                )
            axes.set(title=f"{length:,} tokens", xlabel="stored, MB", xlim=(0, None))
        all_axes[0].set_ylabel("score")
        legend(figure)
        caption = "Keys and values stored against the mean score; on the line, nothing smaller scores as high."
        pictures.append(picture_of(figure, f"bytes-{number}", f"{_named(task)}: score and size", caption))
    return pictures


def draw_times(cells: Sequence[Cell]) -> list[Picture]:
    """Milliseconds a token against length, a line for each method; nothing where there is but one length."""
    cells = in_common([c for c in cells if seconds_of(c).get("token") is not None])
    if len(_lengths(cells)) < 2:
        return []
    methods = distinct([c["method"] for c in sorted(cells, key=lambda c: not is_full(c))])
    full = {c["method"] for c in cells if is_full(c)}
    styles = styles_of([method for method in methods if method not in full])
    figure, (axes,) = panels(1, height=3.8)
    for method in methods:
        own = [c for c in cells if c["method"] == method]
        points = [
            (length, 1e3 * fmean(seconds_of(c)["token"] for c in own if c["length"] == length))
            for length in _lengths(own)
        ]
        x, y = zip(*points, strict=True)
        if method in full:
            axes.plot(x, y, color=INK, marker="*", label="full KV")
        else:
            style = styles[method]
            axes.plot(x, y, style.linestyle, color=style.color, marker=style.marker, markersize=4, label=method)
    axes.set(xlabel="tokens of context", ylabel="milliseconds a token", xlim=(0, None), ylim=(0, None))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    legend(figure)
    caption = "Time of each generated token after the first, mean over the tasks that all methods have."
    return [picture_of(figure, "times", "Time a token", caption)]


def front_of(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (cost, score) that score higher than every cheaper one, by rising cost."""
    front: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return front


def _score_pictures(
    cells: Sequence[Cell], full: Sequence[Cell], kind: str, label: str, x_of: Callable[[Cell], float | None]
) -> list[Picture]:
    pictures = []
    for number, task in enumerate(_tasks(cells)):
        own = [c for c in cells if _task(c) == task]
        lengths = _lengths(own)
        figure, all_axes = panels(len(lengths))
        styles = styles_of(distinct([series_of(c) for c in own]))
        for axes, length in zip(all_axes, lengths, strict=True):
            for name, style in styles.items():
                found = [c for c in own if c["length"] == length and series_of(c) == name]
                points = sorted((float(x_of(c) or 0), c["score"], *_errors(c)) for c in found)
                if points:
                    x, y, below, above = zip(*points, strict=True)
                    axes.errorbar(
                        x, y, (below, above), color=style.color, linestyle=style.linestyle, marker=style.marker,
                        markersize=4, elinewidth=0.8, capsize=2, label=name,
                    )  # fmt: skip
            for cell in full:
                if _task(cell) == task and cell["length"] == length:
                    axes.axhline(cell["score"], color=INK, linestyle="--", linewidth=1, label="full KV")
            axes.set(title=f"{length:,} tokens", xlabel=label)
            _scale(axes, kind, [float(x_of(c) or 0) for c in own])
        all_axes[0].set_ylabel("score")
        legend(figure)
        caption = "Mean score with its 95 % interval."
        pictures.append(picture_of(figure, f"{kind}-{number}", f"{_named(task)}: score and {kind}", caption))
    return pictures


def _scale(axes: Axes, kind: str, values: Sequence[float]) -> None:
    """Budgets go by factors, shares from nothing to all."""
    if kind == "ratio":
        axes.set_xlim(0, 1.08)
        return
    ticks = sorted({value for value in values if value > 0})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.minorticks_off()
    axes.margins(x=0.1)


def _errors(cell: Cell) -> tuple[float, float]:
    """How far the interval reaches below and above the score."""
    low, high = cell.get("score_low"), cell.get("score_high")
    below = 0.0 if low is None else max(0.0, cell["score"] - low)
    return below, 0.0 if high is None else max(0.0, high - cell["score"])


def _task(cell: Cell) -> tuple[str, str]:
    return cell["task"], cell["protocol"]


def _tasks(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    return distinct([_task(cell) for cell in cells])


def _named(task: tuple[str, str]) -> str:
    return ", ".join(filter(None, task))


def _lengths(cells: Sequence[Cell]) -> list[int]:
    return sorted({cell["length"] for cell in cells})
