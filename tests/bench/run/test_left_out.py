"""Contexts that a model or a method cannot have: left out of a cell, with a note, while the others are measured."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from kvz.bench.prefilled import Impossible, Prefilled
from tests.bench.run.conftest import Run, lines_of, timeless

LONG = "The ship sails north on a cold sea. " * 200  # far above the 1000 positions of the tests' model
WORDS = tuple(text * 10 for text in ("The key is blue. ", "One bell hangs here. ", "A gull sat down. "))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    rows = [{"context": text, "questions": ["q"], "answers": ["e"]} for text in (WORDS[0], LONG, *WORDS[1:])]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def words(own: Path, folder: Path, tmp_path: Path) -> list[Any]:
    return ["--task", "own", "--data", own, "--method", "snapkv@0.5", "--length", 10_000, "--dtype", "float32",
            "-m", folder, "--samples", 9, "--out", tmp_path / "run"]  # fmt: skip


def test_a_file_with_one_context_too_long_is_measured_on_the_others(run: Run, words: list[Any], tmp_path: Path) -> None:
    assert not any(cell["skipped"] for cell in run(*words, "--dry-run", "--json").succeeded().objects)
    outcome = run(*words).succeeded()
    cells = lines_of(tmp_path / "run" / "cells.jsonl")
    parts = lines_of(tmp_path / "run" / "samples.jsonl")
    assert [cell["method"] for cell in cells] == ["full", "full@repeat-kv", "snapkv@0.5"]
    for cell in cells:
        own = [part for part in parts if part["method"] == cell["method"]]
        assert cell["contexts"] == len(own) == 3
        assert cell["score"] == pytest.approx(fmean(part["scores"][0] for part in own))
        assert "1 of 4 contexts are left out (a context of" in cell["note"]
        assert "the model has 1000" in cell["note"]
    assert "1 of 4 contexts are left out" in outcome.text
    assert "1 of 4 contexts are left out" in (tmp_path / "run" / "report.html").read_text()


def test_it_goes_on_after_a_kill_as_if_unbroken(run: Run, words: list[Any], tmp_path: Path) -> None:
    run(*words).succeeded()
    folder = tmp_path / "run"
    whole = {name: lines_of(folder / name) for name in ("cells.jsonl", "samples.jsonl")}
    (folder / "cells.jsonl").write_text("")
    kept = (folder / "samples.jsonl").read_text().splitlines(keepends=True)[:4]
    (folder / "samples.jsonl").write_text("".join(kept))
    run(*words).succeeded()
    for name, lines in whole.items():
        assert timeless(lines_of(folder / name)) == timeless(lines)


def test_nothing_that_fits_is_a_skipped_cell(run: Run, words: list[Any], own: Path, tmp_path: Path) -> None:
    own.write_text(json.dumps({"context": LONG, "questions": ["q"], "answers": ["e"]}) + "\n")
    assert run(*words).status == 1
    for cell in lines_of(tmp_path / "run" / "cells.jsonl"):
        assert "the model has 1000" in cell["skipped"]
        assert "score" not in cell


def test_a_context_that_a_method_cannot_have_is_left_out_of_its_cell(
    run: Run, words: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand = Prefilled.demand

    def some(self: Prefilled, method: Any, question: str | None) -> Any:
        if method.label == "snapkv@0.5" and self.sample.context == WORDS[1]:
            raise Impossible("no such luck")
        return demand(self, method, question)

    monkeypatch.setattr(Prefilled, "demand", some)
    run(*words).succeeded()
    cells = {cell["method"]: cell for cell in lines_of(tmp_path / "run" / "cells.jsonl")}
    assert cells["full"]["contexts"] == 3
    assert cells["snapkv@0.5"]["contexts"] == 2
    assert "2 of 4 contexts are left out" in cells["snapkv@0.5"]["note"]
