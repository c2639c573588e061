"""One measurement of a benchmark, and what a report asks of it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar

__all__ = [
    "Cell",
    "Fact",
    "Problem",
    "distinct",
    "family_of",
    "in_common",
    "is_full",
    "measured",
    "problems_of",
    "seconds_of",
    "series_of",
    "where_of",
]

_FULL = "full"
Key = TypeVar("Key", bound=Hashable)


class Fact(TypedDict):
    """One sample of a needle task: `depth` in 0..1 of the context, its `length` in tokens, and its score."""

    depth: float
    length: int
    score: float


class Cell(TypedDict, total=False):
    """One method on one task at one length.

    `task`, `length` (tokens asked for), `protocol` and `method` (a label like "kvzip@0.3/lowbit@256") are always there;
    a cell that was not measured has `skipped` or `error` in place of results; where several runs are compared, `run` is
    the name of one, and ends the method's label. `score` is a mean with its 95 % interval
    `score_low` to `score_high`; `kl` and `agreement` (share of tokens) compare with the full cache; `kv_bytes` are
    stored, `step_bytes` are read by a decode step, which attends `read_share` of the full cache's pairs;
    `floor_seconds` is the time to read them and the weights, `peak_bytes` is the most memory that a method takes;
    `seconds` may have prefill, score, write, load, first_token and token (each one after the first).
    """

    task: str
    length: int
    protocol: str
    method: str
    ratio: float | None
    budget: int | None
    score: float
    score_low: float
    score_high: float
    kl: float | None
    agreement: float | None
    kv_bytes: int
    step_bytes: int
    read_share: float | None
    floor_seconds: float
    seconds: dict[str, float]
    peak_bytes: int
    contexts: int
    facts: list[Fact]
    skipped: str
    error: str
    run: str


@dataclass(frozen=True)
class Problem:
    """A cell without results: `kind` is "skipped" or "failed"."""

    task: str
    length: int
    protocol: str
    method: str
    kind: str
    reason: str


def measured(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that have results."""
    return [cell for cell in cells if not cell.get("skipped") and not cell.get("error") and "score" in cell]


def problems_of(cells: Sequence[Cell]) -> list[Problem]:
    """The others, and why."""
    having = {id(cell) for cell in measured(cells)}
    return [_problem(cell) for cell in cells if id(cell) not in having]


def where_of(cell: Cell, cells: Sequence[Cell]) -> str:
    """A cell in words, with its protocol where `cells` have several."""
    protocol = f", {cell['protocol']}" if len({c["protocol"] for c in cells}) > 1 else ""
    return f"{cell['method']} on {cell['task']}, {cell['length']:,} tokens{protocol}"


def is_full(cell: Cell) -> bool:
    """Whether a cell is of the full cache, which the others are compared with."""
    return _named(cell)[0].partition("@")[0] == _FULL


def seconds_of(cell: Cell) -> dict[str, float]:
    """Seconds of the phases that were timed."""
    return cell.get("seconds") or {}


def series_of(cell: Cell) -> str:
    """The method without what the horizontal axis shows: its budget, or its ratio where it has no budget."""
    varied = cell.get("budget") if cell.get("budget") is not None else cell.get("ratio")
    method, run = _named(cell)
    return "/".join(_without(part, varied) for part in method.split("/")) + run


def family_of(cell: Cell) -> str:
    """The method without any numbers."""
    method, run = _named(cell)
    return "/".join(part.partition("@")[0] for part in method.split("/")) + run


def in_common(cells: Sequence[Cell]) -> list[Cell]:
    """Those of tasks that every method was measured on at the same length: their means can be compared."""
    of_length: dict[int, dict[str, set[str]]] = {}
    for cell in cells:
        of_length.setdefault(cell["length"], {}).setdefault(cell["method"], set()).add(cell["task"])
    shared = {length: set.intersection(*methods.values()) for length, methods in of_length.items()}
    return [cell for cell in cells if cell["task"] in shared[cell["length"]]]


def distinct(keys: Sequence[Key]) -> list[Key]:
    """Each once, in the order in which they come."""
    return list(dict.fromkeys(keys))


def _named(cell: Cell) -> tuple[str, str]:
    """A method as it was asked for, and what follows it where several runs are compared: `kvzip@0.3`, ` (run)`."""
    run = f" ({cell['run']})" if cell.get("run") else ""
    return cell["method"].removesuffix(run), run


def _problem(cell: Cell) -> Problem:
    kind, reason = "skipped", cell.get("skipped")
    if not reason:
        kind, reason = "failed", cell.get("error") or "no score"
    return Problem(cell["task"], cell["length"], cell["protocol"], cell["method"], kind, reason)


def _without(part: str, number: float | None) -> str:
    name, at, value = part.partition("@")
    try:
        same = bool(at) and number is not None and float(value) == number
    except ValueError:
        same = False
    return name if same else part
