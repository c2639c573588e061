"""The report's page and its pictures."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvz.bench.report.cell import Cell, in_common
from kvz.bench.report.curves import front_of
from kvz.bench.report.needle_map import grid_of, width_of
from kvz.bench.report.page import report_page
from kvz.bench.report.phases import phases_of
from kvz.bench.report.plots import draw_pictures
from kvz.bench.report.table import MEANINGS
from kvz.errors import UsageError
from tests.bench.report.cells import METHODS, make_cell, make_cells
from tests.report.pages import Page, assert_nothing_fetched

SETUP = {"model": "tiny", "machine": "two <cores>"}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def matplotlib() -> None:
    pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def source(matplotlib: None) -> str:
    return report_page(make_cells(), SETUP, "kvz bench")


def words_of(svg: str) -> list[str]:
    """What is written in a picture; parsing it checks that it is well-formed."""
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_page_needs_nothing_else(source: str) -> None:
    page = Page(source)
    assert_nothing_fetched(source)
    assert page.all("h1")[0].text == "kvz bench"
    assert [dd.text for dd in page.all("dd")] == ["tiny", "two <cores>", *MEANINGS.values()]
    assert [dt.text for dt in page.all("dt")][2:] == list(MEANINGS)
    assert [h.text for h in page.all("h2")] == ["Scores", "Pictures", "Tables"]
    assert len(page.all("script")) == 0


def test_every_task_has_its_pictures(source: str) -> None:
    titles = [h.text for h in Page(source).all("h3")]
    for task in ("qa", "needle", "key-value"):
        for kind in ("score and budget", "score and ratio", "score and size"):
            assert f"{task}, one question: {kind}" in titles
    assert [t for t in titles if "needle is found" in t] == ["needle, one question: where the needle is found"]
    assert "Time a token" in titles
    assert "Where the time goes" in titles
    assert len(Page(source).all("svg")) == 12


def test_pictures_read_in_both_modes_and_name_their_series(matplotlib: None) -> None:
    pictures = {picture.name: picture for picture in draw_pictures(make_cells())}
    for picture in pictures.values():
        assert "currentColor" in picture.svg
        assert re.search("#010203|<style|<image|<metadata|fill: #ffffff; stroke", picture.svg) is None
        assert picture.title in ElementTree.fromstring(picture.svg).attrib["aria-label"]
    assert {"full KV", "kvzip@0.3/lowbit", "rocketkv"} <= set(words_of(pictures["budget-0"].svg))
    assert {"full KV", "kvzip", "snapkv", "2,048 tokens"} <= set(words_of(pictures["ratio-0"].svg))
    assert {"full", "rocketkv@256", "25 %", "8,192", "1.00", "0.00"} <= set(words_of(pictures["needle-0"].svg))
    assert {name for name, _, _ in METHODS} <= set(words_of(pictures["phases"].svg))


def test_pictures_are_the_same_each_time(matplotlib: None) -> None:
    assert draw_pictures(make_cells()[:24]) == draw_pictures(make_cells()[:24])


def test_drawing_leaves_matplotlib_as_it_was(matplotlib: None) -> None:
    import matplotlib as library

    before = dict(library.rcParams)
    draw_pictures(make_cells()[:4])
    assert dict(library.rcParams) == before


def test_one_cell(matplotlib: None) -> None:
    page = Page(report_page([make_cell()], {}))
    assert [h.text for h in page.all("h2")] == ["Pictures", "Tables"]
    assert [h.text for h in page.all("h3")] == [
        "qa, one question: score and ratio",
        "qa, one question: score and size",
        "Where the time goes",
        "qa, 4,096 tokens",
    ]


def test_cells_with_scores_alone_have_no_pictures_of_the_rest(matplotlib: None) -> None:
    bare = [Cell(task="qa", length=n, protocol="", method="a@0.5", ratio=0.5, budget=None, score=0.5) for n in (10, 20)]
    assert [picture.name for picture in draw_pictures(bare)] == ["ratio-0"]
    assert draw_pictures([]) == []


def test_what_was_not_measured_is_listed() -> None:
    cells = [
        Cell(task="qa", length=9000, protocol="", method="h2o<b>", error="<script>alert(1)</script>"),
        Cell(task="qa", length=9000, protocol="", method="duo", skipped="no head scores"),
    ]
    page = Page(report_page(cells, {}))
    assert [h.text for h in page.all("h2")] == ["Not measured"]
    (table,) = page.all("table", css="problems")
    assert "h2o<b>qa9,000failed<script>alert(1)</script>" in table.text
    assert "duoqa9,000skippedno head scores" in table.text
    assert page.all("script") == []
    assert "Nothing was measured." in report_page([], {})


def test_names_are_text_in_tables_and_pictures(matplotlib: None) -> None:
    name = '<i>a&b</i> $x^2$ _c "d"@0.3'
    cells = [make_cell(task=name, method=name, facts=[{"depth": 0.5, "length": 4096, "score": 1.0}])]
    cells.append(make_cell(task=name, method="b@0.3", score=0.6, length=8192))
    page = Page(report_page(cells, SETUP, "</title><script>"))
    assert page.all("title")[0].text == "</title><script> - kvz"
    assert page.all("i") == []
    assert name in [cell.text for cell in page.all("th")]
    for picture in draw_pictures(cells):
        assert re.search(r"<i>|\$x<", picture.svg) is None
        words = words_of(picture.svg)
        assert picture.name in ("times",) or any("<i>a&b</i> $x^2$ _c" in word for word in words)


def test_without_matplotlib_tables_stay_and_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"kvz\[bench\]"):
        draw_pictures(make_cells())
    page = Page(report_page(make_cells(), SETUP))
    assert [h.text for h in page.all("h2")] == ["Scores", "Tables"]
    assert "kvz[bench]" in " ".join(p.text for p in page.all("p"))
    assert page.all("svg") == []


def test_bold_on_the_page_is_what_is_best() -> None:
    cells = [make_cell(method="a", score=0.25, seconds={}), make_cell(method="b", score=0.75, seconds={})]
    assert [b.text for b in Page(report_page(cells, {})).all("b")] == ["0.750"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_the_front_is_what_nothing_beats(points: list[tuple[float, float]]) -> None:
    beaten = {p for p in points if any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in points)}
    assert front_of(points) == sorted(set(points) - beaten)


def test_a_grid_has_means_and_gaps() -> None:
    facts = [{"depth": d, "length": n, "score": s} for d, n, s in ((0, 10, 1.0), (0, 10, 0.0), (0.5, 20, 1.0))]
    assert grid_of(facts, [10, 20], [0, 0.5], 0.0) == [[0.5, None], [None, 1.0]]  # type: ignore[arg-type]


def test_many_depths_are_gathered_in_tenths(matplotlib: None) -> None:
    facts = [{"depth": i / 40, "length": 4096, "score": 1.0} for i in range(41)]
    (needle,) = [p for p in draw_pictures([make_cell(facts=facts)]) if p.name == "needle-0"]
    words = words_of(needle.svg)
    assert [word for word in words if "–" in word] == [f"{a}–{a + 10} %" for a in range(0, 100, 10)]


def test_many_lengths_are_gathered_up_to_round_numbers(matplotlib: None) -> None:
    assert width_of(range(1000, 1010)) == 0
    assert width_of([1001, 1207, 1302, *range(1400, 1500)]) == 20
    facts = [{"depth": 0.5, "length": n, "score": float(n < 1500)} for n in range(1050, 1970, 10)]
    width = width_of({int(fact["length"]) for fact in facts})
    lengths = [1100, 1200, 1300, 1400, 1500, 1600, 1700, 1800, 1900, 2000]
    assert grid_of(facts, lengths, [0.5], 0.0, width) == [[1, 1, 1, 1, 0.9, 0, 0, 0, 0, 0]]  # type: ignore[arg-type]
    (needle,) = [p for p in draw_pictures([make_cell(facts=facts)]) if p.name == "needle-0"]
    assert [word for word in words_of(needle.svg) if "≤" in word] == [f"≤ {n:,}" for n in lengths]


def test_times_are_means_over_the_tasks_that_all_methods_have() -> None:
    cells = [make_cell(task, 100, method) for task in ("qa", "needle") for method in ("full", "kvzip@0.3")]
    cells += [make_cell("slow", 100, "full"), make_cell("slow", 200, "full")]
    assert [(c["task"], c["length"]) for c in in_common(cells)] == [
        *2 * [("qa", 100)],
        *2 * [("needle", 100)],
        ("slow", 200),
    ]


def test_phases_are_means_over_the_cells_that_timed_them() -> None:
    cells = [
        make_cell(task="a", seconds={"prefill": 1, "load": 3}),
        make_cell(task="b", seconds={"prefill": 2, "token": 9}),
    ]
    assert phases_of(cells, "kvzip@0.3", 4096) == {"prefill": 1.5, "load": 3}
    assert phases_of(cells, "kvzip@0.3", 1) == {}
