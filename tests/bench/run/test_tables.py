"""A run as tables for a page: what is where, and in which order."""

from __future__ import annotations

from typing import Any, cast

from kvz.bench.report.cell import Cell
from kvz.bench.tables import lines_of


def cell(method: str, score: float, kl: float | None, task: str = "needles", **more: Any) -> Cell:
    found = {"task": task, "length": 2000, "protocol": "multi-query", "method": method, "score": score, "kl": kl}
    return cast(Cell, {**found, "ratio": None, "budget": None, **more})


CELLS = [
    cell("full", 0.9, 0.0),
    cell("kvzip@0.3", 0.5, 0.2, ratio=0.3),
    cell("kvzip@0.5", 0.75, 0.1, ratio=0.5),
    cell("snapkv@0.5", 0.25, 0.05, ratio=0.5),
    cell("hsa@64", 0.7, 0.4, budget=64),
    cell("kvzip@0.3/hsa@64", 0.6, None, ratio=0.3, budget=64),
    cast(Cell, {"task": "needles", "length": 2000, "method": "duo@0.1", "ratio": 0.1, "skipped": "too small"}),
    cell("full", 0.1, 0.0, "squad"),
    cell("kvzip@0.3", 0.1, 0.4, "squad", ratio=0.3),
]


def test_protocols_are_kept_apart() -> None:
    seen = [cell("full", 0.8, 0.0), cell("rocketkv@64", 0.7, 0.1, budget=64)]
    lines = lines_of([*CELLS, *(cast(Cell, {**c, "protocol": "single-shot"}) for c in seen)])
    titles = [line for line in lines if line.startswith("**needles") and "pairs of a head that a step reads*" in line]
    assert [title[2:].partition(":")[0] for title in titles] == [
        "needles, multi-query, 2,000 tokens, full cache 0.90",
        "needles, single-shot, 2,000 tokens, full cache 0.80",
    ]
    assert lines[lines.index(titles[1]) + 4] == "| rocketkv | 0.70 / 0.100 |"


def test_a_row_a_method_and_a_column_a_number() -> None:
    assert lines_of(CELLS) == [
        "**needles, 2,000 tokens, full cache 0.90: score / KL by share of pairs kept**",
        "",
        "| method | 0.5 | 0.3 |",
        "| --- | --: | --: |",
        "| kvzip | 0.75 / 0.100 | 0.50 / 0.200 |",
        "| snapkv | 0.25 / 0.050 |  |",
        "",
        "**needles, 2,000 tokens, full cache 0.90: score / KL by pairs of a head that a step reads**",
        "",
        "| method | 64 |",
        "| --- | --: |",
        "| hsa | 0.70 / 0.400 |",
        "",
        "**needles, 2,000 tokens, full cache 0.90: "
        "score / KL by pairs of a head that a step reads, of the share kept**",
        "",
        "| method | 64 |",
        "| --- | --: |",
        "| kvzip@0.3/hsa | 0.60 |",
        "",
        "**squad, 2,000 tokens, full cache 0.10: score / KL by share of pairs kept**",
        "",
        "| method | 0.3 |",
        "| --- | --: |",
        "| kvzip | 0.10 / 0.400 |",
        "",
        "**Order by share of pairs kept**",
        "",
        "- needles, 2,000 tokens: mean KL at 0.5: snapkv 0.050, kvzip 0.100",
        "",
    ]
