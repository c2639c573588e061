"""kvz bench, the command: what it lists, measures, writes, refuses, and how it goes on after a kill."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvz.bench.cell_run import Part
from kvz.bench.prefilled import Prefilled
from kvz.cli import main
from kvz.errors import OutputError, QuestionError
from kvz.scoring.snapkv import SnapKV
from tests.cli.harness import ENVIRONMENT, Outcome, finish, spawn
from tests.tiny import make_model_folder

Run = Callable[..., Outcome]
METHODS = "snapkv@0.3,rocketkv@32,kvzip@0.5/lowbit@16,quest@900,duo@0.5"
DOCS = Path(__file__).parents[3] / "docs"
TIMES = ("seconds", "peak_bytes", "floor_seconds")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the tests' own."""
    return tmp_path_factory.mktemp("kvz-cache")


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Any:
    """One thread, no network, and a probe of memory that is quick."""
    monkeypatch.setenv("KVZ_CACHE", str(cache))
    monkeypatch.setattr("kvz.bench.environment._PROBE", 1 << 20)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("bench-model"), layers=2, max_position_embeddings=1000)


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    def run_bench(*arguments: object) -> Outcome:
        capfdbinary.readouterr()
        status = main.run(["bench", *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return Outcome(status, out, err.decode())

    return run_bench


@pytest.fixture
def line(folder: Path, tmp_path: Path) -> list[str]:
    """A small run of one task."""
    return ["--task", "needle", "--method", METHODS, "--length", "300", "--samples", "3", "--dtype", "float32",
            "-m", str(folder), "--out", str(tmp_path / "run")]  # fmt: skip


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def test_a_run_measures_what_it_lists(run: Run, line: list[str], tmp_path: Path) -> None:
    listed = run(*line, "--dry-run", "--json").succeeded().objects
    assert not (tmp_path / "run").exists()
    outcome = run(*line, "--json").succeeded()
    keys = ("task", "length", "protocol", "method")
    assert {tuple(cell[k] for k in keys) for cell in listed} == {tuple(c[k] for k in keys) for c in outcome.objects}
    assert sum(cell["estimated_seconds"] for cell in listed) > 0
    cells = {cell["method"]: cell for cell in outcome.objects}
    assert (cells["full"]["agreement"], cells["full"]["kl"]) == (1, 0)
    assert cells["snapkv@0.3"]["kl"] > 0
    assert cells["snapkv@0.3"]["kv_bytes"] < 0.5 * cells["full"]["kv_bytes"]
    assert "read densely" in cells["quest@900"]["skipped"]
    assert "kvz calibrate" in cells["duo@0.5"]["skipped"]
    assert lines_of(tmp_path / "run" / "cells.jsonl") == outcome.objects
    assert {"config.json", "environment.json", "table.md", "table.csv", "report.html"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    section = (DOCS / "cli.md").read_text().partition("\n## kvz bench\n")[2].partition("\n## ")[0]
    described = set(re.findall(r"`(\w+)`", section))
    for cell in [*listed, *outcome.objects]:
        assert {*cell, *cell.get("seconds", ())} <= described
    pictures = list((tmp_path / "run" / "pictures").glob("*.svg"))
    assert pictures
    assert all(path.read_text().startswith("<svg") for path in pictures)
    again = run(*line).succeeded()
    assert "7 of 7 cells are there" in again.err
    shown = again.text
    for word in ("full@repeat-kv", "rocketkv@32", "quest@900 on needle, 300 tokens: skipped"):
        assert word in shown
    assert lines_of(tmp_path / "run" / "cells.jsonl") == outcome.objects
    assert len(json.loads((tmp_path / "run" / "environment.json").read_text())) == 1


def test_runs_are_reported_side_by_side(run: Run, line: list[str], tmp_path: Path) -> None:
    small = [*line[:3], "snapkv@0.3", *line[4:7], "1", *line[8:-1]]
    for name in ("one", "two"):
        run(*small, tmp_path / name, "-q").succeeded()
    before = (tmp_path / "one" / "table.csv").read_text()
    (tmp_path / "one" / "table.csv").unlink()
    run("report", tmp_path / "one").succeeded()
    assert (tmp_path / "one" / "table.csv").read_text() == before
    with (tmp_path / "two" / "cells.jsonl").open("a") as file:
        file.write("half a li")
    both = run("report", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "both", "--json").succeeded()
    methods = [cell["method"] for cell in both.objects]
    assert methods == ["full@one", "full@repeat-kv one", "one snapkv@0.3", "full@two", "full@repeat-kv two",
                       "two snapkv@0.3"]  # fmt: skip
    assert "two: cells.jsonl, line 4" in both.err
    assert "one snapkv@0.3" in (tmp_path / "both" / "report.html").read_text()
    run("report", tmp_path / "three").failed("no run", status=2)
    run("report", tmp_path / "one", "--samples", 3).failed("--samples", status=2)
    run("reprot").failed("reprot", status=2)
    run("report").failed("which runs", status=2)
    run("report", tmp_path / "one", "--out", "").failed("--out is empty", status=2)
    run("report", tmp_path / "one", "--out", tmp_path / "one" / "table.md").failed("is a file", status=2)


def test_refusals(run: Run, line: list[str], tmp_path: Path) -> None:
    run("--task", "nedle").failed("needle", status=2)
    run("--method", "snapvk").failed("snapkv", status=2)
    run("--task", "key-value", "--texts", tmp_path).failed("--texts", status=2)
    run("--task", "needle", "--data", tmp_path).failed("--data", status=2)
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


def test_a_failed_cell_is_recorded_and_the_others_go_on(
    run: Run, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [*line[:3], "snapkv@0.3,kvzip@0.3", *line[4:7], "1", *line[8:]]
    score = SnapKV.score

    def fail(*arguments: Any) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(SnapKV, "score", fail)
    outcome = run(*small)
    assert outcome.status == 1
    cells = {cell["method"]: cell for cell in lines_of(tmp_path / "run" / "cells.jsonl")}
    assert cells["snapkv@0.3"]["error"] == "RuntimeError: no such luck"
    assert cells["kvzip@0.3"]["score"] >= 0
    assert "failed: RuntimeError: no such luck" in " ".join(outcome.text.split())
    monkeypatch.setattr(SnapKV, "score", score)
    path = tmp_path / "run" / "cells.jsonl"
    path.write_text("".join(text for text in path.read_text().splitlines(keepends=True) if "no such luck" not in text))
    run(*small).succeeded()
    assert [cell["method"] for cell in lines_of(path)][-1] == "snapkv@0.3"


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


def test_an_interrupt_that_a_library_swallows_is_no_failure(
    run: Run, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(self: Prefilled, *arguments: Any) -> Part:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RuntimeError("import failed")  # noqa: B904

    monkeypatch.setattr(Prefilled, "made", cut)
    outcome = run(*line)
    assert outcome.status == 130
    assert not any("error" in cell for cell in lines_of(tmp_path / "run" / "cells.jsonl"))
    assert "goes on" in outcome.err


def wait_for_lines(path: Path, count: int) -> None:
    """Until a file has so many lines."""
    until = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_killed_three_times_it_gives_the_same(run: Run, line: list[str], cache: Path, tmp_path: Path) -> None:
    parts, draw = tmp_path / "run" / "samples.jsonl", random.Random()
    environment = {**ENVIRONMENT, "KVZ_CACHE": str(cache)}
    done = 0
    for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGINT):
        process = spawn("bench", *line, env=environment)
        wait_for_lines(parts, done + 1)
        time.sleep(draw.random() * 0.2)
        process.send_signal(number)
        outcome = finish(process)
        if number == signal.SIGINT and outcome.status:  # it may have been done already
            assert outcome.status == 130, outcome.err
            assert "kvz: interrupted" in outcome.err
            assert (tmp_path / "run" / "report.html").exists()
        done = min(parts.read_bytes().count(b"\n"), 14)
    run(*line).succeeded()
    run(*line[:-1], tmp_path / "unbroken").succeeded()
    for name in ("cells.jsonl", "samples.jsonl"):
        broken, whole = (timeless(lines_of(tmp_path / run / name)) for run in ("run", "unbroken"))
        assert broken == whole


def test_without_matplotlib_there_are_tables(
    run: Run, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    small = [*line[:3], "full", *line[4:7], "1", *line[8:]]
    assert "full@repeat-kv" in run(*small).succeeded().text
    assert not (tmp_path / "run" / "pictures").exists()
    assert "kvz[bench]" in (tmp_path / "run" / "report.html").read_text()
    assert "full@repeat-kv" in (tmp_path / "run" / "table.md").read_text()


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


def test_a_closed_pipe_ends_it(run: Run, line: list[str], tmp_path: Path) -> None:
    small = [*line[:3], "full", *line[4:7], "1", *line[8:]]
    run(*small, "-q").succeeded()
    process = spawn("bench", "report", str(tmp_path / "run"), "--json", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    outcome = finish(process)
    assert "Traceback" not in outcome.err
    assert outcome.err == ""
    assert outcome.status == 1
