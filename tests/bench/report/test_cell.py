"""What a cell's label says: its method, its numbers, and its run."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kvz.bench.report.cell import Cell, family_of, is_full, series_of


def cell(method: str, **fields: Any) -> Cell:
    return cast(Cell, {"method": method, "ratio": None, "budget": None, **fields})


@pytest.mark.parametrize("run", ["", "one (2)"])
@pytest.mark.parametrize(
    ("method", "numbers", "series", "family", "full"),
    [
        ("full", {}, "full", "full", True),
        ("full@repeat-kv", {}, "full@repeat-kv", "full", True),
        ("kvzip@0.3", {"ratio": 0.3}, "kvzip", "kvzip", False),
        ("kvzip@0.3/hsa@64", {"ratio": 0.3, "budget": 64}, "kvzip@0.3/hsa", "kvzip/hsa", False),
    ],
)
def test_labels(run: str, method: str, numbers: dict[str, float], series: str, family: str, full: bool) -> None:
    end = f" ({run})" if run else ""
    made = cell(method + end, **numbers, **({"run": run} if run else {}))
    assert (series_of(made), family_of(made), is_full(made)) == (series + end, family + end, full)
