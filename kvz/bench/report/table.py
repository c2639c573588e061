"""Cells as tables of text: one block for each task, protocol and length, the full cache first, the best marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvz.bench.report.cell import Cell, distinct, is_full, measured, seconds_of
from kvz.wording import size

__all__ = ["MEANINGS", "Block", "Row", "blocks_of", "summary_of"]

_NOTHING = "–"


MEANINGS = {
    "full, full@repeat-kv": "the full cache; and the same, keys and values copied to each query head",
    "score, 95 %": "mean of the task's metric, 0 to 1, and its interval over contexts: wide where they are few",
    "pairs read": "share of the full cache's pairs that a token attends: with half of them a score says little",
    "KL, same tokens": "divergence from the full cache, nats a token, and tokens that are likeliest for both",
    "stored": "bytes in memory of the archive and of what its policy chooses by",
    "read a step": "bytes of these that a token of an answer reads: to choose, and what is chosen",
    "a token, first token": "seconds a token of an answer, and from the question to the first one",
    "floor": "the least that a token can take: reading the weights and the bytes of a step once from memory",
    "compress, load": "seconds to prefill, score and write an archive, and to load it",
    "peak memory": "the most that scoring takes, or that is held from evicting to the last answer, without weights",
}
"""What the columns of a table are, in a line each; docs/benchmarks.md has the rest."""


@dataclass(frozen=True)
class Row:
    """A method's values as text; `best[i]` marks the best compressed method of a column, `full` the full cache."""

    method: str
    values: tuple[str, ...]
    best: tuple[bool, ...]
    full: bool


@dataclass(frozen=True)
class Block:
    """A table: a title, its columns without the method's own, and rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class _Column:
    """A measure: how to read it from a cell, how to show it, and whether more of it is better, less, or neither."""

    name: str
    read: Callable[[Cell], float | None]
    show: Callable[[Cell, float], str]
    better: Callable[[Sequence[float]], float] | None = min


def blocks_of(cells: Sequence[Cell]) -> list[Block]:
    """A block for each task, protocol and length, in the order they come. Columns that nothing fills are left out."""
    found = measured(cells)
    keys = distinct([_key(cell) for cell in found])
    return [
        _block(_title(key, _several_protocols(found)), [cell for cell in found if _key(cell) == key], _COLUMNS)
        for key in keys
    ]


def summary_of(cells: Sequence[Cell]) -> Block | None:
    """Scores alone: a row for each method, a column for each block; None where there is but one."""
    found = measured(cells)
    keys = distinct([_key(cell) for cell in found])
    if len(keys) < 2:
        return None
    methods = distinct([cell["method"] for cell in _full_first(found)])
    scores = {(cell["method"], _key(cell)): cell["score"] for cell in found}
    full = {cell["method"] for cell in found if is_full(cell)}
    best = {key: _best([scores[m, key] for m in methods if m not in full and (m, key) in scores], max) for key in keys}
    rows = []
    for method in methods:
        values = [scores.get((method, key)) for key in keys]
        marks = tuple(
            method not in full and value is not None and value == best[key]
            for key, value in zip(keys, values, strict=True)
        )
        rows.append(Row(method, tuple(_NOTHING if v is None else f"{v:.3f}" for v in values), marks, method in full))
    return Block("scores", tuple(_title(key, _several_protocols(found)) for key in keys), tuple(rows))


def _block(title: str, cells: list[Cell], columns: Sequence[_Column]) -> Block:
    cells = _full_first(cells)
    used = [column for column in columns if any(column.read(cell) is not None for cell in cells)]
    most = max((cell.get("contexts", 0) for cell in cells), default=0)
    whole = [cell for cell in cells if cell.get("contexts", 0) == most]  # others are of fewer, maybe easier contexts
    best = [_best_of(column, whole) for column in used]
    rows = []
    for cell in cells:
        values = [column.read(cell) for column in used]
        shown = (_NOTHING if v is None else c.show(cell, v) for c, v in zip(used, values, strict=True))
        may = not is_full(cell) and cell.get("contexts", 0) == most
        marks = tuple(may and v is not None and v == top for v, top in zip(values, best, strict=True))
        rows.append(Row(cell["method"], tuple(shown), marks, is_full(cell)))
    return Block(title, tuple(column.name for column in used), tuple(rows))


def _best_of(column: _Column, cells: list[Cell]) -> float | None:
    values = [v for cell in cells if not is_full(cell) and (v := column.read(cell)) is not None]
    return _best(values, column.better) if column.better is not None else None


def _best(values: Sequence[float], better: Callable[[Sequence[float]], float]) -> float | None:
    """The best of several; one alone, or all the same, is no best."""
    return better(values) if len(set(values)) > 1 else None


def _full_first(cells: list[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: not is_full(cell))


def _key(cell: Cell) -> tuple[str, str, int]:
    return cell["task"], cell["protocol"], cell["length"]


def _title(key: tuple[str, str, int], protocols: bool) -> str:
    task, protocol, length = key
    return ", ".join(part for part in (task, protocol if protocols else "", f"{length:,} tokens") if part)


def _several_protocols(cells: Sequence[Cell]) -> bool:
    return len({cell["protocol"] for cell in cells}) > 1


def _interval(cell: Cell, low: float) -> str:
    high = cell.get("score_high")
    return f"{low:.3f}–{low if high is None else high:.3f}"


def _percent(cell: Cell, share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"


def _phase(name: str) -> Callable[[Cell], float | None]:
    return lambda cell: seconds_of(cell).get(name)


def _compress(cell: Cell) -> float | None:
    """Seconds from a text to what answers are read from."""
    found = [value for name in ("prefill", "score", "write") if (value := _phase(name)(cell)) is not None]
    return sum(found) if found else None


def _bytes(cell: Cell, value: float) -> str:
    return size(value)


# Those that matter most first: a narrow terminal leaves out the last ones.
_COLUMNS = (
    _Column("score", lambda cell: cell.get("score"), lambda cell, v: f"{v:.3f}", max),
    _Column("95\u00a0%", lambda cell: cell.get("score_low"), _interval, None),
    _Column("pairs read", lambda cell: cell.get("read_share"), _percent, None),
    _Column("KL", lambda cell: cell.get("kl"), lambda cell, v: f"{v:.3f}"),
    _Column("same tokens", lambda cell: cell.get("agreement"), lambda cell, v: f"{100 * v:.1f} %", max),
    _Column("stored", lambda cell: cell.get("kv_bytes"), _bytes),
    _Column("read a step", lambda cell: cell.get("step_bytes"), _bytes),
    _Column("a token", _phase("token"), lambda cell, v: f"{1e3 * v:.1f} ms"),
    _Column("floor", lambda cell: cell.get("floor_seconds"), lambda cell, v: f"{1e3 * v:.1f} ms"),
    _Column("first token", _phase("first_token"), lambda cell, v: f"{v:.2f} s"),
    _Column("compress", _compress, lambda cell, v: f"{v:.2f} s"),
    _Column("load", _phase("load"), lambda cell, v: f"{v:.2f} s"),
    _Column("peak memory", lambda cell: cell.get("peak_bytes"), _bytes),
)
