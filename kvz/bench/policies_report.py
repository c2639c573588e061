"""Policies as tables: divergence from the full cache, a row for each policy, a column for each budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvz.bench.fidelity_report import interval

__all__ = ["markdown", "pairs_of", "report", "rows_of", "values_of"]

_TASKS = ("questions", "needle", "key-value")


def report(result: dict[str, Any]) -> list[str]:
    """Lines to read on a terminal."""
    lines = [_heading(result), ""]
    for title, rows in _tables(result):
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines.append(title)
        lines += ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.append("")
    return lines


def markdown(result: dict[str, Any]) -> list[str]:
    """The same as Markdown tables."""
    lines = [_heading(result), ""]
    for title, (head, *rows) in _tables(result):
        lines += [f"**{title}**", "", _line(head), _line(["---"] + ["--:"] * (len(head) - 1)), *map(_line, rows), ""]
    return lines[:-1]


def rows_of(result: dict[str, Any], task: str | None = None) -> list[tuple[str, str]]:
    """The (archive, policy) pairs that were measured, in order."""
    cells = [c for c in result["cells"] if task in (None, c["task"])]
    return list(dict.fromkeys((c["archive"], c["policy"]) for c in cells))


def values_of(
    result: dict[str, Any], task: str, archive: str, policy: str, budget: int | None, measure: str
) -> list[float]:
    """One measure of every question of some cells."""
    return [asked[measure] for cell in _found(result, task, archive, policy, budget) for asked in cell["asked"]]


def pairs_of(result: dict[str, Any], task: str, archive: str, policy: str, budget: int | None) -> float:
    """Pairs that a token reads of a head of the context, on average."""
    cells = _found(result, task, archive, policy, budget)
    return sum(float(cell["pairs"]) for cell in cells) / len(cells)


def _found(result: dict[str, Any], task: str, archive: str, policy: str, budget: int | None) -> list[dict[str, Any]]:
    wanted = (task, archive, policy, budget)
    return [c for c in result["cells"] if (c["task"], c["archive"], c["policy"], c["budget"]) == wanted]


def _tables(result: dict[str, Any]) -> list[tuple[str, list[list[str]]]]:
    budgets = result["budgets"]
    tables = []
    for task in _TASKS:
        head = ["KL to the full cache (pairs read)", *(f"t = {budget}" for budget in budgets)]
        rows = [head]
        for archive, policy in rows_of(result, task):
            if policy == "dense":
                kl, _, _ = interval(values_of(result, task, archive, policy, None, "kl"))
                pairs = pairs_of(result, task, archive, policy, None)
                rows.append([f"{archive}: dense", f"{kl:.3f} ({pairs:.0f})", *[""] * (len(budgets) - 1)])
                continue
            cells = [_cell(result, task, archive, policy, budget) for budget in budgets]
            rows.append([f"{archive}: {policy}", *cells])
        tables.append((task, rows))
    return tables


def _cell(result: dict[str, Any], task: str, archive: str, policy: str, budget: int) -> str:
    kl, _, _ = interval(values_of(result, task, archive, policy, budget, "kl"))
    return f"{kl:.3f} ({pairs_of(result, task, archive, policy, budget):.0f})"


def _heading(result: dict[str, Any]) -> str:
    lengths = result["tokens"]
    return (
        f"{result['model']}, float32, {result['data']}, needles and keys: {len(result['contexts'])} contexts of "
        f"{min(lengths):,} to {max(lengths):,} tokens, {result['questions']} questions; {result['machine']}"
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
