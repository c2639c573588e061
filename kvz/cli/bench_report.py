"""What kvz bench shows and writes of runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvz import wording
from kvz.cli import console
from kvz.errors import OutputError, UsageError

if TYPE_CHECKING:
    from kvz.bench.write_report import Results

__all__ = ["report_runs", "say_more", "show", "write"]

_WIDE = 10_000  # columns


def report_runs(words: list[str], out: Path | None, as_json: bool, quiet: bool) -> None:
    """Show the runs that `report RUN...` names, and write their report."""
    first, *rest = words
    if first != "report":
        raise UsageError(f"kvz bench takes options, or report and the folders of runs; not '{first}'")
    if not rest:
        raise UsageError("say which runs to report: kvz bench report RUN...")
    from kvz.bench.write_report import check_target, compared

    if out is not None:
        check_target(out)
    results = compared([Path(path) for path in rest])
    say = (lambda message: None) if quiet else console.note
    for line in results.corrupt:
        say(f"kvz: {line}")
    if as_json:
        for cell in results.cells:
            console.emit_json(dict(cell))
    else:
        show(results)
    target = out or (Path(rest[0]) if len(rest) == 1 else None)
    if target is not None:
        write(target, results, say)


def show(results: Results) -> None:
    """Tables on stdout; in a pipe nothing is left out or wrapped."""
    from rich.console import Console

    from kvz.bench.report.render import print_tables
    from kvz.bench.write_report import notes_of

    if sys.stdout is None:
        raise OutputError("standard output is closed")
    whole = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    print_tables(results.cells, Console(highlight=False, width=_WIDE if whole else None))
    for note in notes_of(results.cells):
        console.emit(wording.printable(note))


def write(path: Path, results: Results, say: Any) -> None:
    """Write the report into a folder, and say so."""
    from kvz.bench.write_report import write_report

    written = write_report(path, results)
    if say is not None:
        say(f"kvz: {', '.join(written)} written to {path}")


def say_more(say: Callable[[str], None]) -> None:
    """What a run's tables and folder leave open: what the columns mean, and why there are no pictures."""
    from importlib.util import find_spec

    say("kvz: what the columns mean is in report.html and in docs/benchmarks.md; few contexts rank no methods")
    if find_spec("matplotlib") is None:
        say("kvz: there are no pictures: drawing needs matplotlib, pip install matplotlib")
