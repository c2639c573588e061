"""Tables and reports that the docs show are those of the runs beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvz.bench.report.render import csv_of
from kvz.bench.tables import lines_of
from kvz.bench.write_report import results_of

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
RUNS = sorted(path.parent.name for path in DOCS.glob("benchmarks/*/cells.jsonl"))


def test_every_run_is_on_the_page() -> None:
    assert len(RUNS) >= 3
    assert set(RUNS) == set(re.findall(r"<!-- ([\w-]+) -->", PAGE))


@pytest.mark.parametrize("name", RUNS)
def test_a_page_shows_the_tables_of_its_run(name: str) -> None:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert found is not None
    results = results_of(DOCS / "benchmarks" / name)
    assert results.corrupt == []
    assert found[1].splitlines()[2:] == "\n".join(lines_of(results.cells)).splitlines()


@pytest.mark.parametrize("name", RUNS)
def test_a_report_is_of_its_run(name: str) -> None:
    folder = DOCS / "benchmarks" / name
    cells = results_of(folder).cells
    assert (folder / "table.csv").read_text(encoding="utf-8") == csv_of(cells)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(f"{cell['score']:.3f}" in page for cell in cells if "score" in cell)
