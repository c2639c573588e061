"""Fidelity as a table: means over questions, with 95 % intervals by bootstrap, and each method paired with KVzip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["interval", "markdown", "report"]

_AGAINST = "kvzip"
_DRAWS = 4000
_COLUMNS = ("method", "tokens %", "exact %", "KL", "KL less kvzip's", "gold log-lik.", "bytes %", "seconds")


def report(result: dict[str, Any]) -> list[str]:
    """Lines to read on a terminal."""
    lines = [_heading(result), ""]
    for ratio in result["ratios"]:
        rows = _rows(result, ratio)
        widths = [max(len(row[i]) for row in (_COLUMNS, *rows)) for i in range(len(_COLUMNS))]
        lines.append(f"r = {ratio:g}")
        lines += ["  " + "  ".join(_aligned(row, widths)) for row in (_COLUMNS, *rows)]
        lines.append("")
    return lines


def markdown(result: dict[str, Any]) -> list[str]:
    """The same as Markdown tables."""
    lines = [_heading(result), ""]
    for ratio in result["ratios"]:
        lines += [f"**r = {ratio:g}**", "", _line(_COLUMNS), _line(["---"] + ["--:"] * (len(_COLUMNS) - 1))]
        lines += [_line(row) for row in _rows(result, ratio)]
        lines.append("")
    return lines[:-1]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and the bounds of its 95 % interval by bootstrap over the values (fixed seed)."""
    data = torch.tensor(values, dtype=torch.float64)
    drawn = torch.randint(len(values), (_DRAWS, len(values)), generator=torch.Generator().manual_seed(0))
    means = data[drawn].mean(1).sort().values
    return float(data.mean()), float(means[int(0.025 * _DRAWS)]), float(means[int(0.975 * _DRAWS)])


def _heading(result: dict[str, Any]) -> str:
    return (
        f"{result['model']}, float32, {result['data']}: {len(result['contexts'])} contexts, "
        f"{result['questions']} questions; {result['machine']}"
    )


def _rows(result: dict[str, Any], ratio: float) -> list[list[str]]:
    cells = [cell for cell in result["cells"] if cell["ratio"] == ratio]
    names = list(dict.fromkeys(cell["method"] for cell in cells))
    rivals = _values([cell for cell in cells if cell["method"] == _AGAINST], "kl")
    return [_row(name, [cell for cell in cells if cell["method"] == name], rivals) for name in names]


def _row(name: str, cells: list[dict[str, Any]], rivals: list[float]) -> list[str]:
    if any("refused" in cell for cell in cells):
        return [name, *["-"] * (len(_COLUMNS) - 2), "budget too small"]
    kl = _values(cells, "kl")
    paired = len(kl) == len(rivals) and name != _AGAINST
    less = _spread([ours - theirs for ours, theirs in zip(kl, rivals, strict=True)]) if paired else ""
    share = sum(cell["bytes"] for cell in cells) / sum(cell["full_bytes"] for cell in cells)
    return [
        name,
        f"{100 * _mean(_values(cells, 'tokens')):.1f}",
        f"{100 * _mean(_values(cells, 'exact')):.0f}",
        _spread(kl, signed=False),
        less,
        f"{_mean(_values(cells, 'gold')):.3f}",
        f"{100 * share:.1f}",
        f"{_mean([cell['seconds'] for cell in cells]):.1f}",
    ]


def _values(cells: list[dict[str, Any]], measure: str) -> list[float]:
    return [asked[measure] for cell in cells for asked in cell.get("asked", [])]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(values: Sequence[float], signed: bool = True) -> str:
    mean, low, high = interval(values)
    return f"{mean:{'+' if signed else ''}.3f} [{low:.3f}, {high:.3f}]"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
