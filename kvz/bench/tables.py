"""A run of `kvz bench` as small tables for a page: a row for each method, a column for each share or budget.

Run by `scripts/bench tables RUN`. It measures nothing: it reads the run's folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvz.bench.pages import fill_place
from kvz.bench.report.cell import Cell, distinct, family_of, is_full, measured
from kvz.bench.write_report import results_of
from kvz.cli.console import emit
from kvz.errors import UsageError

__all__ = ["lines_of", "main", "orders_of"]

_SAID = ("model", "machine", "contexts", "protocol", "seed", "data", "kvz")


@dataclass(frozen=True)
class _Kind:
    """Methods that share what a column stands for."""

    title: str
    name: str

    def number(self, cell: Cell) -> float | None:
        """The column of a cell; None for cells of the other kind."""
        other = "budget" if self.name == "ratio" else "ratio"
        value = cell.get(self.name)
        return float(value) if isinstance(value, (int, float)) and cell.get(other) is None else None


_KINDS = (_Kind("share of pairs kept", "ratio"), _Kind("pairs of a head that a step reads", "budget"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a run's tables; with --into also write them into a page."""
    parser = argparse.ArgumentParser(prog="scripts/bench tables", description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--into", type=Path, help="put the tables into this page, at <!-- PLACE -->")
    parser.add_argument("--place", help="name of that place (default the run's folder's)")
    options = parser.parse_args(arguments)
    try:
        results = results_of(options.run)
        said = "; ".join(f"{name}: {results.setup[name]}" for name in _SAID if name in results.setup)
        lines = [said, "", *lines_of(results.cells)]
        if options.into is not None:
            fill_place(options.into, options.place or options.run.name, lines)
    except UsageError as error:
        parser.error(str(error))
    for line in lines:
        emit(line)


def lines_of(cells: Sequence[Cell]) -> list[str]:
    """Markdown: for each task a table of each kind, "score / KL", then the methods in the order of their mean KL."""
    lines: list[str] = []
    for task, length in distinct([(cell["task"], cell["length"]) for cell in measured(cells)]):
        block = [cell for cell in cells if (cell["task"], cell["length"]) == (task, length)]
        full = next((cell for cell in block if is_full(cell)), None)
        told = f", full cache {full['score']:.2f}" if full else ""
        for kind in _KINDS:
            lines += _table(f"{task}, {length:,} tokens{told}: score / KL by {kind.title}", block, kind)
    for kind in _KINDS:
        lines += orders_of(cells, kind.name, kind.title)
    return lines


def orders_of(cells: Sequence[Cell], name: str, title: str) -> list[str]:
    """A line for each task: methods by their mean KL over the columns that all of them have, the nearest first."""
    kind, lines = _Kind(title, name), []
    for task, length in distinct([(cell["task"], cell["length"]) for cell in measured(cells)]):
        found = _by_place([cell for cell in cells if (cell["task"], cell["length"]) == (task, length)], kind)
        methods, columns = _axes(found)
        shared = [column for column in columns if all((method, column) in found for method in methods)]
        if len(methods) < 2 or not shared:
            continue
        mean = {m: sum(found[m, column].get("kl") or 0.0 for column in shared) / len(shared) for m in methods}
        order = ", ".join(f"{method} {mean[method]:.3f}" for method in sorted(methods, key=mean.__getitem__))
        lines.append(f"- {task}, mean KL at {', '.join(f'{column:.15g}' for column in shared)}: {order}")
    return [f"**Order by {title}**", "", *lines, ""] if lines else []


def _table(title: str, cells: Sequence[Cell], kind: _Kind) -> list[str]:
    found = _by_place(cells, kind)
    methods, columns = _axes(found)
    if not found:
        return []
    lines = [f"**{title}**", "", _line(["method", *(f"{column:.15g}" for column in columns)])]
    lines.append(_line(["---", *["--:"] * len(columns)]))
    lines += [_line([method, *(_result(found.get((method, column))) for column in columns)]) for method in methods]
    return [*lines, ""]


def _by_place(cells: Sequence[Cell], kind: _Kind) -> dict[tuple[str, float], Cell]:
    """Measured cells of a kind by method and column."""
    numbered = [(cell, kind.number(cell)) for cell in measured(cells) if not is_full(cell)]
    return {(family_of(cell), number): cell for cell, number in numbered if number is not None}


def _axes(found: dict[tuple[str, float], Cell]) -> tuple[list[str], list[float]]:
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
