"""Tables for readers: Markdown, CSV, and a terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kvz.bench.report.cell import Cell, problems_of, seconds_of
from kvz.bench.report.table import Block, Row, blocks_of, summary_of
from kvz.wording import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["csv_of", "markdown_of", "plain_markdown", "print_tables"]

_KEYS = ("task", "protocol", "length", "method", "ratio", "budget")
_MEASURES = (
    "score",
    "score_low",
    "score_high",
    "read_share",
    "kl",
    "agreement",
    "kv_bytes",
    "step_bytes",
    "floor_seconds",
    "peak_bytes",
)
_PHASES = ("prefill", "score", "write", "load", "first_token", "token")
_SAID = ("contexts", "questions", "new_tokens", "policy", "note", "skipped", "error")
_MEANING = re.compile(r"([\\`*~&\[\]<>|]|(?<![^\W_])_|_(?![^\W_]))")  # what Markdown reads; it leaves snake_case alone


def markdown_of(cells: Sequence[Cell]) -> str:
    """All tables as Markdown, best values bold, then what was not measured and why."""
    lines = []
    for block in _all_blocks(cells):
        lines += [f"**{plain_markdown(block.title)}**", "", _line(["method", *map(plain_markdown, block.columns)])]
        lines.append(_line(["---", *["--:"] * len(block.columns)]))
        lines += [_line([plain_markdown(row.method), *_bold(row)]) for row in block.rows]
        lines.append("")
    if problems := problems_of(cells):
        head = ["task", "protocol", "tokens", "method", "", "reason"]
        lines += ["**Not measured**", "", _line(head), _line(["---"] * len(head))]
        for p in problems:
            lines.append(_line(map(plain_markdown, (p.task, p.protocol, f"{p.length:,}", p.method, p.kind, p.reason))))
        lines.append("")
    return "\n".join(lines)


def csv_of(cells: Sequence[Cell]) -> str:
    """One line a cell, numbers as they are; seconds of each phase in columns of their own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_KEYS, *_MEASURES, *(f"{phase}_seconds" for phase in _PHASES), *_SAID])
    for cell in cells:
        values: dict[str, Any] = dict(cell)
        seconds = seconds_of(cell)
        row = [values.get(name) for name in (*_KEYS, *_MEASURES)] + [seconds.get(phase) for phase in _PHASES]
        writer.writerow([*row, *(values.get(name) for name in _SAID)])
    return out.getvalue()


def print_tables(cells: Sequence[Cell], console: Console) -> None:
    """Draw all tables on a terminal, and list what was not measured. Names are text, never markup."""
    from rich.text import Text

    for block in _all_blocks(cells):
        console.print(_fitting(block, console))
    several = len({cell["protocol"] for cell in cells}) > 1
    for problem in problems_of(cells):
        protocol = f", {problem.protocol}" if several else ""
        where = f"{problem.method} on {problem.task}, {problem.length:,} tokens{protocol}"
        console.print(Text(printable(f"{where}: {problem.kind}: {problem.reason}")))


def _fitting(block: Block, console: Console) -> Table:
    """A block with as many of its first columns as the terminal has room for; the caption names the others."""
    unlimited = console.options.update(width=1 << 16)
    table = _table(block, len(block.columns))
    for count in range(len(block.columns) - 1, 0, -1):
        if console.measure(table, options=unlimited).maximum <= console.width:
            break
        table = _table(block, count)
    return table


def _table(block: Block, count: int) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    left = ", ".join(block.columns[count:])
    caption = Text(printable(f"no room for {left}")) if left else None
    table = Table(title=Text(printable(block.title)), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption, table.caption_justify = caption, "left"
    table.add_column("method", no_wrap=True)
    for column in block.columns[:count]:
        table.add_column(Text(printable(column).replace(" ", "\n")), justify="right", no_wrap=True)
    for row in block.rows:
        values = zip(row.values[:count], row.best, strict=False)
        styled = [Text(printable(value), style="bold" if best else "") for value, best in values]
        table.add_row(Text(printable(row.method)), *styled)
    return table


def _all_blocks(cells: Sequence[Cell]) -> list[Block]:
    summary = summary_of(cells)
    return [*([summary] if summary else []), *blocks_of(cells)]


def _bold(row: Row) -> list[str]:
    return [f"**{value}**" if best else value for value, best in zip(row.values, row.best, strict=True)]


def plain_markdown(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _MEANING.sub(r"\\\1", printable(" ".join(text.split())))


def _line(values: Iterable[str]) -> str:
    return "| " + " | ".join(values) + " |"
