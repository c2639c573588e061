"""kvz bench, the command: what it lists, measures and writes, and how it goes on after a kill."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvz.bench.cell_run import Part
from kvz.bench.prefilled import Prefilled
from kvz.scoring.snapkv import SnapKV
from tests.bench.run.conftest import Run, lines_of, timeless
from tests.cli.harness import ENVIRONMENT, finish, spawn

DOCS = Path(__file__).parents[3] / "docs"


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
    assert methods == [f"{name} ({run})" for run in ("one", "two") for name in ("full", "full@repeat-kv", "snapkv@0.3")]
    assert "two: cells.jsonl, line 4" in both.err
    assert "snapkv@0.3 (one)" in (tmp_path / "both" / "report.html").read_text()
    run("report", tmp_path / "three").failed("no run", status=2)
    run("report", tmp_path / "one", "--samples", 3).failed("--samples", status=2)
    run("reprot").failed("reprot", status=2)
    run("report").failed("which runs", status=2)
    run("report", tmp_path / "one", "--out", "").failed("--out is empty", status=2)
    run("report", tmp_path / "one", "--out", tmp_path / "one" / "table.md").failed("is a file", status=2)


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
    parts, draw = tmp_path / "run" / "samples.jsonl", random.Random(20)  # a failure can be repeated
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
