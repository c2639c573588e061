"""A run's folder: what goes on, what is refused, and what a kill leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvz.bench.run_folder import RunFolder, read_run
from kvz.errors import OutputError, UsageError

CONFIG = {
    "kvz": "1", "model": "tiny", "fingerprint": "f", "dtype": "float32", "device": "cpu", "tasks": ["needle"],
    "methods": ["a", "b", "c"], "lengths": (100,), "samples": {"needle": 1}, "seed": 0, "protocol": "auto",
    "data": None, "texts": None,
}  # fmt: skip


def cell(method: str, **more: Any) -> dict[str, Any]:
    return {"task": "needle", "length": 100, "protocol": "single-shot", "method": method, "score": 1.0, **more}


def sample(method: str, number: int = 0, **more: Any) -> dict[str, Any]:
    named = {name: cell(method)[name] for name in ("task", "length", "protocol", "method")}
    return {**named, "sample": number, "tokens": 99, "scores": [1.0], "agreement": [1.0], "kl": [0], "answers": ["a"],
            "new_tokens": [2], "kv_bytes": 9, "step_bytes": 9, "peak_bytes": None, "whole": False, "policy": "dense",
            "seconds": {"prefill": 0.1}, "facts": {"depth": 0.5, "kind": "x"}, **more}  # fmt: skip


def key(method: str) -> tuple[str, int, str, str]:
    return "needle", 100, "single-shot", method


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with RunFolder(path, CONFIG) as folder:
        folder.add_cell(cell("full", answer="é\u2028\n"))
        folder.add_sample(sample("full"))
        folder.add_environment({"kvz": "1"})
    with RunFolder(path, CONFIG) as folder:
        assert folder.cells == [cell("full", answer="é\u2028\n")]
        assert [part["sample"] for part in folder.samples] == [0]
        assert folder.corrupt == []
        folder.add_environment({"kvz": "2"})
    config, cells, environments, corrupt = read_run(path)
    assert (config["seed"], len(cells), environments, corrupt) == (0, 1, [{"kvz": "1"}, {"kvz": "2"}], [])


def test_bad_lines_are_dropped_and_named(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", CONFIG) as folder:
        for name in ("a", "b", "c"):
            folder.add_cell(cell(name))
    path = tmp_path / "run" / "cells.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{}\n" + b"\xff\n" + b"[1]\n" + lines[1] + lines[2][:40])
    said = read_run(tmp_path / "run")[3]
    assert [text.partition(" is left out: ")[0] for text in said] == [f"cells.jsonl, line {n}" for n in (2, 3, 4, 6)]
    assert said[-1].endswith("it is cut short")
    with RunFolder(tmp_path / "run", CONFIG) as folder:
        assert [line["method"] for line in folder.cells] == ["a", "b"]
        assert len(folder.corrupt) == 4
        folder.add_cell(cell("c"))
    assert path.read_bytes() == b"".join(lines)


def test_lines_that_do_not_belong_or_are_there_twice_are_dropped(tmp_path: Path) -> None:
    with RunFolder(tmp_path, CONFIG) as folder:
        for line in (cell("a"), cell("a"), {**cell("b"), "task": "squad"}, cell("d"), cell("b")):
            folder.add_cell(line)
        for part in (sample("a"), sample("a", 1), sample("a"), sample("b"), sample("c", 2)):
            folder.add_sample(part)
    assert [line["method"] for line in read_run(tmp_path)[1]] == ["a", "b"]
    with RunFolder(tmp_path, CONFIG, planned={key("a"): 2, key("c"): 2}) as folder:
        assert [line["method"] for line in folder.cells] == ["a"]
        assert [(part["method"], part["sample"]) for part in folder.samples] == [("a", 0), ("a", 1)]
        assert [text.partition(" is left out: ")[::2] for text in folder.corrupt] == [
            ("cells.jsonl, line 2", "it is there already"),
            *((f"cells.jsonl, line {number}", "this run has no such cell") for number in (3, 4, 5)),
            ("samples.jsonl, line 3", "it is there already"),
            *((f"samples.jsonl, line {number}", "this run has no such cell") for number in (4, 5)),
        ]
    with RunFolder(tmp_path, CONFIG, planned={key("a"): 2}) as folder:
        assert folder.corrupt == []


DAMAGED_CELLS = [
    {"score": None}, {"score": "0.5"}, {"score": 1.5}, {"score": float("nan")}, {"kl": float("inf")}, {"task": ["x"]},
    {"length": "100"}, {"length": True}, {"method": 5}, {"facts": [{}]}, {"seconds": [1]}, {"seconds": {"token": "1"}},
    {"skipped": 1}, {"kv_bytes": "9"}, {"note": "\ud800"},
]  # fmt: skip
DAMAGED_SAMPLES = [
    {"scores": []}, {"scores": [None]}, {"sample": [0]}, {"sample": -1}, {"answers": ["a", "b"]}, {"facts": 1},
    {"seconds": None}, {"kv_bytes": None}, {"kl": [float("nan")]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line"),
    [
        *(("cells.jsonl", {**cell("b"), **damage}) for damage in DAMAGED_CELLS),
        *(("samples.jsonl", {**sample("b"), **damage}) for damage in DAMAGED_SAMPLES),
        ("samples.jsonl", {**cell("b"), "sample": 0, "scores": [1.0]}),
    ],
)
def test_lines_of_the_wrong_types_are_dropped_and_said(tmp_path: Path, name: str, line: dict[str, Any]) -> None:
    with RunFolder(tmp_path, CONFIG) as folder:
        folder.add_cell(cell("a"))
        folder.add_sample(sample("a"))
    with (tmp_path / name).open("a") as file:
        file.write(json.dumps(line) + "\n")
    if name == "cells.jsonl":
        _, cells, _, said = read_run(tmp_path)
        assert cells == [cell("a")]
        assert said[0].startswith("cells.jsonl, line 2 is left out: ")
    with RunFolder(tmp_path, CONFIG) as folder:
        assert (folder.cells, folder.samples) == ([cell("a")], [sample("a")])
        assert [text.partition(" is left out: ")[0] for text in folder.corrupt] == [f"{name}, line 2"]


@pytest.mark.parametrize("text", ["{", "5", '{"kvz": "1"}', '[{"kvz": 5}]', '[{"kvz": "1", "commit": 5}]', "[5]"])
def test_a_damaged_environment_is_said(tmp_path: Path, text: str) -> None:
    with RunFolder(tmp_path, CONFIG):
        pass
    (tmp_path / "environment.json").write_text(text)
    _, _, starts, said = read_run(tmp_path)
    assert starts == []
    assert "environment.json" in said[0]
    with RunFolder(tmp_path, CONFIG) as folder:
        assert folder.corrupt == said
        folder.add_environment({"kvz": "2"})
    assert read_run(tmp_path)[2:] == ([{"kvz": "2"}], [])


def test_a_start_on_something_else_is_said(tmp_path: Path) -> None:
    first = {"kvz": "1", "machine": "a", "device": "cpu", "commit": "c1", "started": "today"}
    with RunFolder(tmp_path / "run", CONFIG) as folder:
        assert folder.differences(first) == []
        folder.add_environment(first)
        assert folder.differences({**first, "started": "tomorrow"}) == []
        said = folder.differences({**first, "commit": "c2", "machine": "b"})
    assert said == ['machine was "a" before and is "b"', 'commit was "c1" before and is "c2"']


def test_another_run_is_refused_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder(path, CONFIG) as folder:
        folder.add_cell(cell("full"))
        with pytest.raises(OutputError, match="another process"):
            RunFolder(path, CONFIG)
    with pytest.raises(UsageError, match=r"lengths \[100\] there, \[200\] here; seed 0 there, 1 here"):
        RunFolder(path, {**CONFIG, "seed": 1, "lengths": [200]})
    assert len(read_run(path)[1]) == 1
    with RunFolder(path, {**CONFIG, "seed": 1}, anew=True) as folder:
        assert folder.cells == []
    assert json.loads((path / "config.json").read_text())["seed"] == 1


@pytest.mark.parametrize("anew", [False, True])
def test_folders_of_something_else_are_left_alone(tmp_path: Path, anew: bool) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        RunFolder(tmp_path, CONFIG, anew)
    with pytest.raises(UsageError, match="is a file"):
        RunFolder(tmp_path / "notes.txt", CONFIG, anew)
    with pytest.raises(UsageError, match="no run"):
        read_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("config", ['{"architectures": ["LlamaForCausalLM"]}', "[1]", "{", json.dumps({"kvz": "1"})])
@pytest.mark.parametrize("anew", [False, True])
def test_a_config_that_is_not_a_runs_is_left_alone(tmp_path: Path, config: str, anew: bool) -> None:
    mine = {"config.json": config, "samples.jsonl": "mine", "cells.jsonl": "mine"}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=r"holds no run of kvz bench: its config\.json is not a run's .*not empty"):
        RunFolder(tmp_path, CONFIG, anew)
    with pytest.raises(UsageError, match="holds no run"):
        read_run(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == mine


@pytest.mark.parametrize("damage", [{"samples": 5}, {"data": "x"}, {"lengths": ["a"]}, {"seed": True}])
def test_damaged_settings_are_refused_by_name(tmp_path: Path, damage: dict[str, Any]) -> None:
    with RunFolder(tmp_path / "run", CONFIG):
        pass
    (tmp_path / "run" / "config.json").write_text(json.dumps({**CONFIG, **damage}))
    for use in (lambda: read_run(tmp_path / "run"), lambda: RunFolder(tmp_path / "run", CONFIG)):
        with pytest.raises(UsageError, match=rf"config\.json is not a run's .*{next(iter(damage))}"):
            use()
