"""A run of `kvz bench` as small tables for a page: a row for each method, a column for each share or budget.

Run by `scripts/bench tables RUN`. It measures nothing: it reads the run's folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import cast

from kvz.bench.pages import fill_place
from kvz.bench.report.cell import Cell, distinct, is_full, measured, series_of
from kvz.bench.report.render import plain_markdown
from kvz.bench.write_report import results_of
from kvz.cli.console import emit
from kvz.errors import UsageError

__all__ = ["lines_of", "main"]

_SAID = ("model", "machine", "contexts", "protocol", "seed", "data", "kvz")


@dataclass(frozen=True)
class _Kind:
    """Methods that share what a column stands for."""

    title: str
    column: str
    has: tuple[str, ...]

    def holds(self, cell: Cell) -> bool:
        """Whether a measured cell is of this kind."""
        return not is_full(cell) and {name for name in ("ratio", "budget") if cell.get(name) is not None} == set(
            self.has
        )

    def place(self, cell: Cell) -> tuple[str, float]:
        """The row and the column of a cell."""
        return series_of(cell), float(cast("dict[str, float]", cell)[self.column])


_KINDS = (
    _Kind("share of pairs kept", "ratio", ("ratio",)),
    _Kind("pairs of a head that a step reads", "budget", ("budget",)),
    _Kind("pairs of a head that a step reads, of the share kept", "budget", ("ratio", "budget")),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a run's tables; with --into also write them into a page."""
    parser = argparse.ArgumentParser(prog="scripts/bench tables", description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--into", type=Path, help="put the tables into this page, at <!-- PLACE -->")
    parser.add_argument("--place", help="name of that place (default the run's folder's)")
    options = parser.parse_args(arguments)
    try:
        results = results_of(options.run)
        said = "; ".join(f"{name}: {plain_markdown(results.setup[name])}" for name in _SAID if name in results.setup)
        lines = [said, "", *lines_of(results.cells)]
        if options.into is not None:
            fill_place(options.into, options.place or options.run.name, lines)
    except UsageError as error:
        parser.error(str(error))
    for line in lines:
        emit(line)


def lines_of(cells: Sequence[Cell]) -> list[str]:
    """Markdown: for each task a table of each kind, "score / KL", then the methods in the order of their mean KL."""
    blocks = _blocks(measured(cells))
    lines: list[str] = []
    for name, block in blocks.items():
        full = next((cell for cell in block if is_full(cell)), None)
        told = f", full cache {full['score']:.2f}" if full else ""
        for kind in _KINDS:
            found = {kind.place(cell): cell for cell in block if kind.holds(cell)}
            lines += _table(f"{plain_markdown(name)}{told}: score / KL by {kind.title}", found)
    for kind in _KINDS:
        lines += _orders(blocks, kind)
    return lines


def _orders(blocks: Mapping[str, Sequence[Cell]], kind: _Kind) -> list[str]:
    """A line for each task: methods by their mean KL over the columns that all of them have, the nearest first."""
    lines = []
    for name, block in blocks.items():
        found = {kind.place(cell): cell for cell in block if kind.holds(cell) and cell.get("kl") is not None}
        methods, columns = _axes(found)
        shared = [column for column in columns if all((method, column) in found for method in methods)]
        if len(methods) < 2 or not shared:
            continue
        mean = {m: fmean(found[m, column]["kl"] or 0.0 for column in shared) for m in methods}
        order = ", ".join(f"{method} {mean[method]:.3f}" for method in sorted(methods, key=mean.__getitem__))
        at = ", ".join(f"{column:.15g}" for column in shared)
        lines.append(f"- {plain_markdown(name)}: mean KL at {at}: {order}")
    return [f"**Order by {kind.title}**", "", *lines, ""] if lines else []


def _blocks(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each task and length; of each protocol, too, which is named where there are several."""
    several = len({cell["protocol"] for cell in cells}) > 1
    blocks: dict[str, list[Cell]] = {}
    for cell in cells:
        protocol = f", {cell['protocol']}" if several else ""
        blocks.setdefault(f"{cell['task']}{protocol}, {cell['length']:,} tokens", []).append(cell)
    return blocks


def _table(title: str, found: Mapping[tuple[str, float], Cell]) -> list[str]:
    methods, columns = _axes(found)
    if not found:
        return []
    lines = [f"**{title}**", "", _line(["method", *(f"{column:.15g}" for column in columns)])]
    lines.append(_line(["---", *["--:"] * len(columns)]))
    lines += [_line([method, *(_result(found.get((method, column))) for column in columns)]) for method in methods]
    return [*lines, ""]


def _axes(found: Mapping[tuple[str, float], Cell]) -> tuple[list[str], list[float]]:
    """Methods as they come, and columns: the largest share first, the smallest budget first."""
    columns = sorted({column for _, column in found}, key=lambda column: -column if column <= 1 else column)
    return distinct([method for method, _ in found]), columns


def _result(cell: Cell | None) -> str:
    if cell is None:
        return ""
    kl = cell.get("kl")
    return f"{cell['score']:.2f}" + ("" if kl is None else f" / {kl:.3f}")


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"


if __name__ == "__main__":
    main()
