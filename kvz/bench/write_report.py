"""A run's report as files: tables as Markdown and CSV, pictures, and one page; several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kvz.bench.report.canvas import Picture
from kvz.bench.report.cell import Cell, is_full, measured
from kvz.bench.report.page import report_page
from kvz.bench.report.plots import draw_pictures
from kvz.bench.report.render import csv_of, markdown_of
from kvz.bench.run_folder import read_run
from kvz.errors import UsageError
from kvz.format.atomic import atomic_file, output_error

__all__ = ["Results", "compared", "notes_of", "results_of", "write_report"]


@dataclass(frozen=True)
class Results:
    """The cells of one run or several, what they were measured on, and lines that could not be read."""

    cells: list[Cell]
    setup: dict[str, str]
    corrupt: list[str]


def results_of(path: Path) -> Results:
    """What is in a run's folder. Raises UsageError if it holds no run."""
    config, cells, environments, corrupt = read_run(path)
    return Results(cast("list[Cell]", cells), _setup(config, environments), corrupt)


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
    return [
        f"{cell['method']} on {cell['task']}, {cell['length']:,} tokens: {note}"
        for cell in measured(cells)
        if (note := cast("Mapping[str, Any]", cell).get("note"))
    ]


def write_report(folder: Path, results: Results) -> list[str]:
    """Write report.html, table.md, table.csv and pictures/*.svg; returns the names of those in the folder itself.

    Without matplotlib there are no pictures. Raises OutputError.
    """
    notes = {"notes": "; ".join(notes)} if (notes := notes_of(results.cells)) else {}
    setup = {**results.setup, **notes}
    told = "\n".join(f"- {name}: {value}" for name, value in setup.items())
    pictures = _pictures(results.cells)
    texts = {
        "table.md": f"{markdown_of(results.cells)}\n{told}\n",
        "table.csv": csv_of(results.cells),
        "report.html": report_page(results.cells, setup, "kvz bench", pictures),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            _write(folder / name, text)
        if pictures:
            (folder / "pictures").mkdir(exist_ok=True)
        for picture in pictures or ():
            _write(folder / "pictures" / f"{picture.name}.svg", picture.svg)
    except OSError as error:
        raise output_error(folder, error) from error
    return list(texts)


def _pictures(cells: Sequence[Cell]) -> list[Picture] | None:
    """What the cells look like; None without matplotlib, and the page says so."""
    try:
        return draw_pictures(cells)
    except UsageError:
        return None


def _write(path: Path, text: str) -> None:
    with atomic_file(path, overwrite=True) as file:
        file.write(text.encode())


def _setup(config: Mapping[str, Any], environments: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a report says of a run, as names and texts."""
    last = environments[-1] if environments else {}
    samples = config.get("samples", {})
    said = {
        "model": f"{config.get('model')}, {config.get('dtype')}",
        "machine": last.get("machine"),
        "device": last.get("device"),
        "memory is read at": _rate(last.get("read_bandwidth_gb_s")),
        "contexts": ", ".join(f"{name} {count}" for name, count in samples.items()),
        "protocol": config.get("protocol"),
        "seed": config.get("seed"),
        "data": _file(config.get("data")),
        "texts": _file(config.get("texts")),
        "kvz": " ".join(filter(None, (last.get("kvz"), _commit(last.get("commit"))))),
        "date": last.get("started"),
    }
    return {name: str(value) for name, value in said.items() if value not in (None, "", "None")}


def _rate(value: object) -> str | None:
    return None if value is None else f"{value} GB/s"


def _file(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else f"{value.get('name')} ({str(value.get('sha256'))[:12]})"


def _commit(value: str | None) -> str | None:
    return None if value is None else f"({value[:12]}{'-dirty' if value.endswith('-dirty') else ''})"


def _of_run(cell: Cell, name: str) -> Cell:
    method = cell["method"]
    label = f"full@{'repeat-kv ' if '@' in method else ''}{name}" if is_full(cell) else f"{name} {method}"
    return cast(Cell, {**cell, "method": label, "run": name})


def _by_block(cells: list[Cell]) -> list[Cell]:
    """The cells of one task, protocol and length together, in the order in which these come first."""
    keys = list(dict.fromkeys((cell["task"], cell["protocol"], cell["length"]) for cell in cells))
    return sorted(cells, key=lambda cell: keys.index((cell["task"], cell["protocol"], cell["length"])))


def _names(paths: Sequence[Path]) -> list[str]:
    """A short name for each run: its folder's, with a number where two are the same."""
    names = [path.resolve().name for path in paths]
    return [name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names, 1)]
