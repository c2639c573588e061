"""kvz bench, the command: what it refuses, and what it makes of damaged files and cells that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvz.errors import OutputError, QuestionError
from tests.bench.run.conftest import Run, lines_of, timeless


def test_refusals(run: Run, line: list[str], tmp_path: Path) -> None:
    run("--task", "nedle").failed("needle", status=2)
    run("--method", "snapvk").failed("snapkv", status=2)
    run("--task", "key-value", "--texts", tmp_path).failed("--texts", status=2)
    run("--task", "needle", "--data", tmp_path).failed("--data", status=2)
    run("--task", "needle", "--template", "plain").failed("--template", status=2)
    run("--task", "needle,,").failed("empty", status=2)
    run("--length", "long").failed("--length", status=2)
    run("--length", "9" * 5000).failed("too large", status=2)
    run("-f").failed("--out", status=2)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("")
    run(*line).failed("holds no run", status=2)


def test_tasks_named_after_their_data_set_are_measured(run: Run, folder: Path, tmp_path: Path) -> None:
    rows = {
        "longbench": ("set.jsonl", {"input": "q", "context": "c c c", "answers": ["a"], "dataset": "hotpotqa"}),
        "scbench": ("scbench_vt.jsonl", {"context": "c c c", "multi_turns": [{"input": "q", "answer": "a"}]}),
    }
    for task, (name, row) in rows.items():
        (tmp_path / name).write_text(json.dumps(row) + "\n")
        out = tmp_path / task
        words = ["--task", task, "--data", tmp_path / name, "--method", "full", "--length", 300, "--dtype", "float32",
                 "-m", folder, "--samples", 1, "--json"]  # fmt: skip
        listed = run(*words, "--dry-run").succeeded().objects
        measured = run(*words, "--out", out).succeeded().objects
        assert {cell["task"].partition("-")[0] for cell in [*listed, *measured]} == {task}
        assert all("score" in cell for cell in measured), measured
        assert json.loads((out / "config.json").read_text())["tasks"] == [task]
        assert f"{measured[0]['task']} 1" in (out / "table.md").read_text()


def test_a_run_goes_on_only_with_the_metric_that_it_began_with(run: Run, folder: Path, tmp_path: Path) -> None:
    row = {"input": "One.\nWhat?", "outputs": ["a", "b"]}
    words = ["--task", "ruler", "--method", "full", "--length", 300, "--dtype", "float32", "-m", folder, "-q",
             "--out", tmp_path / "run", "--data"]  # fmt: skip
    for name in ("vt", "qa_1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "validation.jsonl").write_text(json.dumps(row) + "\n")
    run(*words, tmp_path / "vt" / "validation.jsonl").succeeded()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["metrics"] == {"ruler": "all-found"}
    run(*words, tmp_path / "vt" / "validation.jsonl").succeeded()
    run(*words, tmp_path / "qa_1" / "validation.jsonl").failed("another run", "metrics", status=2)


def test_a_question_that_cannot_be_asked_fails_its_own_cells(
    run: Run, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise QuestionError("no such question")

    monkeypatch.setattr("kvz.bench.runner.check_room", refuse)
    assert run(*line[:3], "full", *line[4:]).status == 1
    cells = lines_of(tmp_path / "run" / "cells.jsonl")
    assert {cell["error"] for cell in cells} == {"QuestionError: no such question"}


def test_a_resume_counts_cells_and_not_lines(run: Run, line: list[str], tmp_path: Path) -> None:
    small = [*line[:3], "full", *line[4:7], "1", *line[8:]]
    run(*small, "-q").succeeded()
    path = tmp_path / "run" / "cells.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + first + second.replace("needle", "squad"))
    (tmp_path / "run" / "environment.json").write_text("[5]")
    (tmp_path / "run" / "samples.jsonl").write_text('{"sample": [0]}\n')
    outcome = run(*small).succeeded()
    assert "cells.jsonl, line 2 is left out: it is there already" in outcome.err
    assert "cells.jsonl, line 3 is left out: this run has no such cell" in outcome.err
    assert "environment.json, start 1 is left out" in outcome.err
    assert "samples.jsonl, line 1 is left out" in outcome.err
    assert "1 of 2 cells are there" in outcome.err
    assert timeless(lines_of(path)) == timeless([json.loads(first), json.loads(second)])


def test_a_dry_run_refuses_what_the_run_would(run: Run, line: list[str], tmp_path: Path) -> None:
    listed = [*line[:3], "full", "--samples", "3", "--dtype", "float32", *line[-4:-2], "--dry-run"]
    run(*listed, "--dtype", "foo").failed("no dtype 'foo'", status=2)
    run(*listed, "--device", "bar").failed("device 'bar' cannot be used", status=2)
    cells = run(*listed, "--length", "1", "--json").succeeded().objects
    assert all("too short for this task" in cell["skipped"] for cell in cells)
    assert run(*listed, "--length", "300", "-q").succeeded().err == ""
    data = tmp_path / "mine.jsonl"
    data.write_text('{"context": "c", "questions": ["q"], "answers": ["a"]}\n' * 2)
    own = run("--task", "own", "--data", data, *listed[2:], "--length", 300, "--json").succeeded().objects
    assert {cell["contexts"] for cell in own} == {2}


def test_a_table_is_shown_although_the_report_cannot_be_written(
    run: Run, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OutputError("no space left")

    data = tmp_path / "mine.jsonl"
    data.write_text('{"context": "c", "questions": ["q"], "answers": ["a"]}\n' * 2)
    monkeypatch.setattr("kvz.bench.write_report.write_report", fail)
    outcome = run("--task", "own", "--data", data, *line[2:3], "full", *line[4:])
    assert outcome.status == 1
    assert "full@repeat-kv" in outcome.text
    assert "the file has 2 contexts, 3 were asked for" in outcome.err
    assert outcome.err.endswith("kvz: no space left\n")
