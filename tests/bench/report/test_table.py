"""Cells as rows, and rows as Markdown, CSV and a terminal's tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from kvz.bench.report.cell import Cell, family_of, problems_of, series_of
from kvz.bench.report.render import csv_of, markdown_of, plain_markdown, print_tables
from kvz.bench.report.table import Block, blocks_of, summary_of
from tests.bench.report.cells import METHODS, make_cell, make_cells

FAILED = Cell(task="qa", length=8192, protocol="one question", method="h2o@0.3", error="out of memory")
SKIPPED = Cell(task="qa", length=8192, protocol="one question", method="duo", skipped="no head scores")


def column(block: Block, name: str) -> list[tuple[str, bool]]:
    index = block.columns.index(name)
    return [(row.values[index], row.best[index]) for row in block.rows]


def on_terminal(cells: Sequence[Cell], width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    print_tables(cells, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_one_block_for_each_task_and_length_with_the_full_cache_first() -> None:
    blocks = blocks_of(make_cells())
    assert [block.title for block in blocks] == [
        f"{task}, {length} tokens" for task in ("qa", "needle", "key-value") for length in ("2,048", "4,096", "8,192")
    ]
    methods = [name for name, _, _ in METHODS]
    for block in blocks:
        assert [row.method for row in block.rows] == ["full", *methods[:-1]]
        assert [row.full for row in block.rows] == [True] + [False] * (len(methods) - 1)


def test_protocols_are_named_where_there_are_several() -> None:
    cells = [make_cell(), make_cell(protocol="several turns")]
    assert [block.title for block in blocks_of(cells)] == [
        "qa, one question, 4,096 tokens",
        "qa, several turns, 4,096 tokens",
    ]


def test_numbers_have_their_units() -> None:
    (block,) = blocks_of(
        [
            make_cell(
                score=0.5, score_low=0.45, score_high=0.53, kl=0.25, agreement=0.875, kv_bytes=28_000_000,
                step_bytes=500_000, read_share=0.512, peak_bytes=2_000_000_000,
                seconds={"prefill": 1, "score": 2, "write": 0.5, "load": 0.1, "first_token": 0.25, "token": 0.0125},
            )
        ]
    )  # fmt: skip
    shown = dict(zip(block.columns, block.rows[0].values, strict=True))
    assert shown == {
        "score": "0.500",
        "95\u00a0%": "0.450–0.530",
        "pairs read": "51 %",
        "KL": "0.250",
        "same tokens": "87.5 %",
        "stored": "28.0 MB",
        "read a step": "500.0 kB",
        "a token": "12.5 ms",
        "first token": "0.25 s",
        "compress": "3.50 s",
        "load": "0.10 s",
        "peak memory": "2.0 GB",
    }


def test_the_best_is_marked_among_compressed_methods_only() -> None:
    full = make_cell(method="full", ratio=None, score=0.9, kv_bytes=100, kl=None)
    cells = [
        make_cell(method="a", score=0.7, kl=0.5, kv_bytes=30),
        make_cell(method="b", score=0.8, kl=0.4, kv_bytes=40),
        make_cell(method="c", score=0.8, kl=0.6, kv_bytes=30),
        full,
    ]
    (block,) = blocks_of(cells)
    assert column(block, "score") == [("0.900", False), ("0.700", False), ("0.800", True), ("0.800", True)]
    assert column(block, "KL") == [("–", False), ("0.500", False), ("0.400", True), ("0.600", False)]
    assert [best for _, best in column(block, "stored")] == [False, True, False, True]
    assert [best for _, best in column(block, "95\u00a0%")] == [False] * 4


def test_a_cell_of_fewer_contexts_is_never_the_best() -> None:
    cells = [
        make_cell(method=name, score=score, contexts=n)
        for name, score, n in (("a", 0.9, 1), ("b", 0.5, 2), ("c", 0.4, 2))
    ]
    [block] = blocks_of([make_cell(method="full", ratio=None, score=1.0, contexts=2), *cells])
    assert {row.method: row.best[0] for row in block.rows} == {"full": False, "a": False, "b": True, "c": False}


def test_one_cell_is_no_best() -> None:
    (block,) = blocks_of([make_cell()])
    assert not any(block.rows[0].best)
    assert summary_of([make_cell()]) is None


def test_columns_that_nothing_fills_are_left_out() -> None:
    bare = Cell(task="qa", length=10, protocol="", method="a", score=0.5)
    (block,) = blocks_of([bare])
    assert (block.columns, block.title) == (("score",), "qa, 10 tokens")
    (block,) = blocks_of([bare, make_cell(length=10, protocol="", method="b", seconds={"token": 0.01})])
    assert "a token" in block.columns
    assert "compress" not in block.columns
    assert block.rows[0].values[1:] == ("–",) * (len(block.columns) - 1)
    assert blocks_of([]) == []


def test_the_summary_has_a_column_for_each_block() -> None:
    cells = [
        make_cell(length=10, method="a", score=0.5),
        make_cell(length=20, method="a", score=0.25),
        make_cell(length=20, method="b", score=0.75),
        make_cell(length=10, method="full", ratio=None, score=1),
    ]
    summary = summary_of(cells)
    assert summary is not None
    assert summary.columns == ("qa, 10 tokens", "qa, 20 tokens")
    assert [(row.method, row.values, row.best) for row in summary.rows] == [
        ("full", ("1.000", "–"), (False, False)),
        ("a", ("0.500", "0.250"), (False, False)),
        ("b", ("–", "0.750"), (False, True)),
    ]


def test_what_was_not_measured_is_listed_with_its_reason() -> None:
    cells = [make_cell(), FAILED, SKIPPED]
    assert [(p.method, p.kind, p.reason) for p in problems_of(cells)] == [
        ("h2o@0.3", "failed", "out of memory"),
        ("duo", "skipped", "no head scores"),
    ]
    assert [row.method for block in blocks_of(cells) for row in block.rows] == ["kvzip@0.3"]
    assert "| qa | one question | 8,192 | h2o@0.3 | failed | out of memory |" in markdown_of(cells)
    assert "h2o@0.3 on qa, 8,192 tokens: failed: out of memory" in on_terminal(cells)


@pytest.mark.parametrize(
    ("method", "ratio", "budget", "series", "family"),
    [
        ("kvzip@0.3", 0.3, None, "kvzip", "kvzip"),
        ("kvzip@0.3/lowbit@256", 0.3, 256, "kvzip@0.3/lowbit", "kvzip/lowbit"),
        ("rocketkv@512", None, 512, "rocketkv", "rocketkv"),
        ("kvzip@a/b@0.50", 0.5, None, "kvzip@a/b", "kvzip/b"),
        ("full", None, None, "full", "full"),
    ],
)
def test_lines_are_methods_without_what_their_axis_shows(
    method: str, ratio: float | None, budget: int | None, series: str, family: str
) -> None:
    cell = make_cell(method=method, ratio=ratio, budget=budget)
    assert (series_of(cell), family_of(cell)) == (series, family)


def test_markdown_has_as_many_cells_in_every_line_and_bold_best() -> None:
    cells = [make_cell(method="a|b*c<d>", score=0.5), make_cell(method="e\nf", score=0.6), FAILED]
    text = markdown_of(cells)
    tables = [t.splitlines() for t in text.split("\n\n") if t.startswith("|")]
    assert len(tables) == 2
    for table in tables:
        counts = {line.replace("\\|", "").count("|") for line in table}
        assert len(counts) == 1
    assert r"| a\|b\*c\<d\> | 0.500 |" in text
    assert "| e f | **0.600** |" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<img src=x onerror=alert(1)>*.jsonl", r"\<img src=x onerror=alert(1)\>\*.jsonl"),
        ("two\nlines", "two lines"),
        ("_so_ ~~not~~ &lt;b&gt;", r"\_so\_ \~\~not\~\~ \&lt;b\&gt;"),
        ("snake_case_Q4_K_M.gguf", "snake_case_Q4_K_M.gguf"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, shown: str) -> None:
    assert plain_markdown(text) == shown


def test_csv_has_every_cell_and_plain_numbers() -> None:
    cells = [make_cell(method='a,"b"\nc', score=0.1, contexts=5, policy="dense", note="as it was"), FAILED, SKIPPED]
    rows = list(csv.DictReader(io.StringIO(csv_of(cells))))
    assert [row["method"] for row in rows] == ['a,"b"\nc', "h2o@0.3", "duo"]
    assert (float(rows[0]["score"]), int(rows[0]["kv_bytes"])) == (0.1, cells[0]["kv_bytes"])
    assert (rows[0]["read_share"], rows[1]["read_share"]) == ("0.3", "")
    assert float(rows[0]["prefill_seconds"]) == cells[0]["seconds"]["prefill"]
    assert (rows[0]["contexts"], rows[0]["policy"], rows[0]["note"]) == ("5", "dense", "as it was")
    assert (rows[0]["budget"], rows[1]["error"], rows[2]["skipped"]) == ("", "out of memory", "no head scores")


def test_the_pairs_that_are_read_stand_beside_the_score_in_every_table() -> None:
    cells = [make_cell("needle", 500, f"{policy}@256", None, 256, read_share=0.512) for policy in ("hsa", "lowbit")]
    assert "| method | score | 95 % | pairs read |" in markdown_of(cells)
    assert markdown_of(cells).count("| 51 % |") == 2
    assert on_terminal(cells, 80).count("51 %") == 2
    older = [{name: value for name, value in cell.items() if name != "read_share"} for cell in cells]
    assert "pairs read" not in markdown_of(older)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [60, 80, 120, 128, 400])
def test_a_terminal_shows_no_half_numbers(width: int) -> None:
    cells = make_cells()[: len(METHODS)]
    text = on_terminal(cells, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    (block,) = blocks_of(cells)
    words = " ".join(text.split())
    left = words.partition("no room for ")[2].split(", ") if "no room for" in words else []
    shown = block.columns[: len(block.columns) - len(left)]
    assert list(block.columns[len(shown) :]) == left
    for row in block.rows:
        assert " ".join([row.method, *row.values[: len(shown)]]) in words
    assert (left == []) == (width >= 128)


def test_a_terminal_is_not_steered_by_names() -> None:
    text = on_terminal([make_cell(method="[red]a[/red]\x1b[2J")])
    assert "[red]a[/red]\\x1b[2J" in text
    assert "\x1b" not in text
