"""A run's report as files: tables as Markdown and CSV, pictures, and one page; several runs side by side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kvz.bench.file_names import plain_name
from kvz.bench.report.canvas import Picture
from kvz.bench.report.cell import Cell, measured, where_of
from kvz.bench.report.page import report_page
from kvz.bench.report.plots import draw_pictures
from kvz.bench.report.render import csv_of, markdown_of, plain_markdown
from kvz.bench.report_files import PICTURES, holds_report, remove_pictures
from kvz.bench.run_config import is_run
from kvz.bench.run_folder import read_run
from kvz.errors import UsageError
from kvz.format.atomic import atomic_file, is_taken, output_error

__all__ = ["Results", "check_target", "compared", "notes_of", "results_of", "write_report"]


@dataclass(frozen=True)
class Results:
    """The cells of one run or several, what they were measured on, and lines that could not be read."""

    cells: list[Cell]
    setup: dict[str, str]
    corrupt: list[str]


def results_of(path: Path) -> Results:
    """What is in a run's folder. Raises UsageError if it holds no run."""
    config, cells, environments, corrupt = read_run(path)
    return Results(cast("list[Cell]", cells), _setup(config, environments, cells), corrupt)


def compared(paths: Sequence[Path]) -> Results:
    """Several runs as one: the methods carry the name of their run. Raises UsageError."""
    if len(paths) == 1:
        return results_of(paths[0])
    names = _names(paths)
    found = [results_of(path) for path in paths]
    cells = [_of_run(cell, name) for name, results in zip(names, found, strict=True) for cell in results.cells]
    setup = {
        f"{name}, {key}": value
        for name, results in zip(names, found, strict=True)
        for key, value in results.setup.items()
    }
    corrupt = [f"{name}: {line}" for name, results in zip(names, found, strict=True) for line in results.corrupt]
    return Results(_by_block(cells), setup, corrupt)


def notes_of(cells: Sequence[Cell]) -> list[str]:
    """What is to be said of some cells beside their numbers."""
    found: dict[str, list[Cell]] = {}
    for cell in measured(cells):
        if note := cast("Mapping[str, Any]", cell).get("note"):
            found.setdefault(note, []).append(cell)
    return [f"{where_of(noted[0], cells)}{_more(len(noted) - 1)}: {note}" for note, noted in found.items()]


def _more(cells: int) -> str:
    return f", and {cells} more cell{'s' if cells > 1 else ''}" if cells else ""


def write_report(folder: Path, results: Results) -> list[str]:
    """Write report.html, table.md, table.csv and pictures/*.svg; returns the names of those in the folder itself.

    Pictures of an earlier report are removed; without matplotlib there are none. Raises OutputError, and UsageError if
    `folder` is a file.
    """
    notes = {"notes": "; ".join(notes)} if (notes := notes_of(results.cells)) else {}
    setup = {**results.setup, **notes}
    told = "\n".join(f"- {plain_markdown(name)}: {plain_markdown(value)}" for name, value in setup.items())
    pictures = _pictures(results.cells)
    texts = {
        "table.md": f"{markdown_of(results.cells)}\n{told}\n",
        "table.csv": csv_of(results.cells),
        "report.html": report_page(results.cells, setup, "kvz bench", pictures),
    }
    _check_folder(folder)
    drawn = {f"{picture.name}.svg": picture.svg for picture in pictures or ()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            _write(folder / name, text)
        _check_folder(folder / PICTURES)
        remove_pictures(folder, drawn)
        if drawn:
            (folder / PICTURES).mkdir(exist_ok=True)
        for name, svg in drawn.items():
            _write(folder / PICTURES / name, svg)
    except OSError as error:
        raise output_error(folder, error) from error
    return list(texts)


def _check_folder(path: Path) -> None:
    """Raise UsageError if a path that is to be a folder is something else."""
    if is_taken(path) and not path.is_dir():
        raise UsageError(f"{path} is a file, where a report needs a folder; give another --out")


def check_target(path: Path) -> None:
    """Raise UsageError if a path that a report is to go to is no folder, or a folder of something else."""
    _check_folder(path)
    if path.is_dir() and any(path.iterdir()) and not is_run(path) and not holds_report(path):
        raise UsageError(f"{path} is not empty and holds neither a run nor a report; give another --out")


def _pictures(cells: Sequence[Cell]) -> list[Picture] | None:
    """What the cells look like; None without matplotlib, and the page says so."""
    try:
        return draw_pictures(cells)
    except UsageError:
        return None


def _write(path: Path, text: str) -> None:
    with atomic_file(path, overwrite=True) as file:
        file.write(text.encode(errors="replace"))


def _setup(
    config: Mapping[str, Any], environments: Sequence[Mapping[str, Any]], cells: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """What a report says of a run, as names and texts."""
    samples = config.get("samples", {})
    said = {
        "model": f"{config.get('model')}, {config.get('dtype')}",
        "machine": _of_starts(environments, lambda start: start.get("machine")),
        "device": _of_starts(environments, lambda start: start.get("device")),
        "memory is read at": _of_starts(environments, lambda start: _rate(start.get("read_bandwidth_gb_s"))),
        "contexts": ", ".join(_contexts(name, count, cells) for name, count in samples.items()),
        "protocol": config.get("protocol"),
        "seed": config.get("seed"),
        "data": _file(config.get("data")),
        "template": config.get("template"),
        "metrics": ", ".join(f"{task} {metric}" for task, metric in config.get("metrics", {}).items()),
        "texts": _file(config.get("texts")),
        "kvz": _of_starts(environments, _version),
        "date": _of_starts(environments, lambda start: start.get("started")),
    }
    return {name: str(value) for name, value in said.items() if value not in (None, "", "None")}


def _contexts(task: str, asked: int, cells: Sequence[Mapping[str, Any]]) -> str:
    """How many contexts a task has, and how many were asked for where a file had fewer."""
    found = {cell["contexts"] for cell in cells if cell["task"] == task and "contexts" in cell}
    if found <= {asked}:
        return f"{task} {asked}"
    least, most = min(found), max(found)
    return f"{task} {least if least == most else f'{least} to {most}'} ({asked} asked for)"


def _of_starts(starts: Sequence[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], str | None]) -> str:
    """What was the case at each start of a run, each once."""
    return ", then ".join(dict.fromkeys(filter(None, map(read, starts))))


def _version(start: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (start.get("kvz"), _commit(start.get("commit")))))


def _rate(value: object) -> str | None:
    return None if value is None else f"{value} GB/s"


def _file(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else f"{value.get('name')} ({str(value.get('sha256'))[:12]})"


def _commit(value: str | None) -> str | None:
    return None if value is None else f"({value[:12]}{'-dirty' if value.endswith('-dirty') else ''})"


def _of_run(cell: Cell, name: str) -> Cell:
    return cast(Cell, {**cell, "method": f"{cell['method']} ({name})", "run": name})


def _by_block(cells: list[Cell]) -> list[Cell]:
    """The cells of one task, protocol and length together, in the order in which these come first."""
    keys = list(dict.fromkeys((cell["task"], cell["protocol"], cell["length"]) for cell in cells))
    return sorted(cells, key=lambda cell: keys.index((cell["task"], cell["protocol"], cell["length"])))


def _names(paths: Sequence[Path]) -> list[str]:
    """A short name for each run: its folder's, with a number where another run has it already."""
    own = [plain_name(path.resolve().name) for path in paths]
    names: list[str] = []
    for number, name in enumerate(own, 1):
        numbered = (f"{name}-{n}" for n in itertools.count(number))
        alone = own.count(name) == 1
        names.append(name if alone else next(made for made in numbered if made not in {*own, *names}))
    return names
