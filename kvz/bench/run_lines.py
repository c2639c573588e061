"""The lines of a run's files, each checked by type: a cell, what one context gave for a cell, a start.

A line that a kill cut short or that was damaged is left out, with the reason; so is one that is there twice, and one of
a cell that the run does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

__all__ = ["CELLS", "ENVIRONMENT", "SAMPLES", "Lines", "environments", "good_cells", "good_samples"]

CELLS, SAMPLES, ENVIRONMENT = "cells.jsonl", "samples.jsonl", "environment.json"

_Share = Annotated[float, Meta(ge=0, le=1)]
_Seconds = dict[str, Annotated[float, Meta(ge=0)]]
_Count = Annotated[int, Meta(ge=0)]
_Texts = Annotated[list[str], Meta(min_length=1)]


@dataclass(frozen=True)
class Lines:
    """The lines that can be used, and what is wrong with each of the others."""

    good: list[dict[str, Any]]
    bad: list[str]


class _Line(Struct):
    task: str
    length: Annotated[int, Meta(ge=1)]
    protocol: str
    method: str


class _Fact(Struct):
    depth: float
    length: int
    score: float


class _Cell(_Line):
    ratio: float | None = None
    budget: int | None = None
    score: _Share | UnsetType = UNSET
    score_low: float | UnsetType = UNSET
    score_high: float | UnsetType = UNSET
    kl: float | None = None
    agreement: float | None = None
    kv_bytes: int | UnsetType = UNSET
    step_bytes: int | UnsetType = UNSET
    read_share: float | None = None
    floor_seconds: float | UnsetType = UNSET
    peak_bytes: int | None = None
    seconds: _Seconds | UnsetType = UNSET
    contexts: _Count | UnsetType = UNSET
    questions: _Count | UnsetType = UNSET
    new_tokens: float | UnsetType = UNSET
    policy: str | UnsetType = UNSET
    facts: list[_Fact] | UnsetType = UNSET
    note: str | UnsetType = UNSET
    skipped: str | UnsetType = UNSET
    error: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.score is UNSET and self.skipped is UNSET and self.error is UNSET:
            raise ValueError("neither a score nor why there is none")


class _Sample(_Line):
    sample: _Count
    tokens: _Count
    scores: Annotated[list[_Share], Meta(min_length=1)]
    agreement: list[float]
    kl: list[float]
    answers: _Texts
    new_tokens: list[int]
    kv_bytes: int
    step_bytes: int
    peak_bytes: int | None
    whole: bool
    policy: str
    seconds: _Seconds
    facts: dict[str, float | str]
    read_share: float | None = None

    def __post_init__(self) -> None:
        lists = (self.scores, self.agreement, self.kl, self.answers, self.new_tokens)
        if len({len(values) for values in lists}) > 1:
            raise ValueError("not as many scores as answers")


class _Start(Struct):
    kvz: str
    started: str | None = None
    commit: str | None = None
    machine: str | None = None
    device: str | None = None
    cuda: str | None = None
    read_bandwidth_gb_s: float | None = None
    weight_bytes: int | None = None


def good_cells(folder: Path, belongs: Callable[[dict[str, Any]], bool]) -> Lines:
    """The cells of a run; `belongs` says whether a line is of one that the run has."""
    return _lines(folder / CELLS, _Cell, belongs, _key)


def good_samples(folder: Path, belongs: Callable[[dict[str, Any]], bool]) -> Lines:
    """What each context gave for each cell of a run."""
    return _lines(folder / SAMPLES, _Sample, belongs, lambda line: (*_key(line), line["sample"]))


def environments(folder: Path) -> Lines:
    """What a run was made on, start by start."""
    path = folder / ENVIRONMENT
    if not path.exists():
        return Lines([], [])
    try:
        found = _decoded(path.read_bytes(), list)
    except ValueError as error:
        return Lines([], [f"{ENVIRONMENT} is left out: {error}"])
    good: list[dict[str, Any]] = []
    bad = []
    for number, item in enumerate(found, 1):
        try:
            msgspec.convert(item, _Start)
            good.append(item)
        except ValueError as error:
            bad.append(f"{ENVIRONMENT}, start {number} is left out: {error}")
    return Lines(good, bad)


def _lines(
    path: Path,
    kind: type[_Line],
    belongs: Callable[[dict[str, Any]], bool],
    identity: Callable[[dict[str, Any]], Hashable],
) -> Lines:
    good: dict[Hashable, dict[str, Any]] = {}
    bad = []
    content = path.read_bytes() if path.exists() else b""
    for number, raw in enumerate(content.splitlines(keepends=True), 1):
        try:
            line = _line(raw, kind)
            if not belongs(line):
                raise ValueError("this run has no such cell")
            if identity(line) in good:
                raise ValueError("it is there already")
            good[identity(line)] = line
        except ValueError as error:
            bad.append(f"{path.name}, line {number} is left out: {error}")
    return Lines(list(good.values()), bad)


def _line(raw: bytes, kind: type[_Line]) -> dict[str, Any]:
    if not raw.endswith(b"\n"):
        raise ValueError("it is cut short")
    line: dict[str, Any] = _decoded(raw, dict)
    msgspec.convert(line, kind)
    return line


def _decoded(raw: bytes, kind: type) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _key(line: dict[str, Any]) -> tuple[str, int, str, str]:
    return line["task"], line["length"], line["protocol"], line["method"]
