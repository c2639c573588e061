"""The report of runs as files: names, pictures, and what a folder had before."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from kvz.bench.run_folder import RunFolder
from kvz.bench.settings import config_of, make_settings
from kvz.bench.write_report import Results, check_target, compared, notes_of, results_of, write_report
from kvz.errors import UsageError
from kvz.models.language_model import LanguageModel
from kvz.scoring.head_score_file import KVZIP
from kvz.scoring.head_scores import HeadScores
from tests.bench.report.cells import make_cell

CONFIG = {
    "kvz": "1", "model": "tiny", "fingerprint": "f", "dtype": "float32", "device": "cpu", "tasks": ["qa"],
    "methods": ["kvzip@0.3"], "lengths": [4096], "samples": {"qa": 5}, "seed": 0, "protocol": "auto", "data": None,
    "texts": None,
}  # fmt: skip


def make_run(folder: Path, config: Mapping[str, Any] = CONFIG, **fields: Any) -> Path:
    with RunFolder(folder, config) as run:
        run.add_cell(make_cell(**fields))
    return folder


def pictures(folder: Path) -> set[str]:
    return {path.name for path in (folder / "pictures").iterdir()} if (folder / "pictures").exists() else set()


def test_names_that_are_no_text_can_be_written(tmp_path: Path, tiny: LanguageModel) -> None:
    data = tmp_path / os.fsdecode(b"bad\xff.jsonl")
    data.write_text('{"context": "c", "questions": ["q"], "answers": ["a"]}\n')
    settings = make_settings(["own"], ["kvzip"], data=data)
    config = {**config_of(settings, tiny), "samples": {"qa": 5}, "lengths": [4096]}
    runs = [make_run(tmp_path / os.fsdecode(b"run\xff") / name / "r\udcff", config) for name in "ab"]
    assert results_of(runs[0]).setup["data"].startswith("bad\ufffd.jsonl (")
    both = compared(runs)
    assert {cell["method"] for cell in both.cells} == {"kvzip@0.3 (r\ufffd-1)", "kvzip@0.3 (r\ufffd-2)"}
    write_report(tmp_path / "both", both)
    assert "kvzip@0.3 (r\ufffd-1)" in (tmp_path / "both" / "report.html").read_text()


def test_runs_have_names_of_their_own(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("x/a", "y/a", "z/a-1", "z/b")]
    methods = [cell["method"] for cell in compared(runs).cells]
    assert methods == [f"kvzip@0.3 ({name})" for name in ("a-2", "a-3", "a-1", "b")]


@pytest.mark.parametrize(("found", "said"), [(5, "qa 5"), (3, "qa 3 (5 asked for)")])
def test_fewer_contexts_than_asked_for_are_said(tmp_path: Path, found: int, said: str) -> None:
    assert results_of(make_run(tmp_path, contexts=found)).setup["contexts"] == said


def test_a_note_of_several_cells_is_said_once() -> None:
    cells = [make_cell(method=f"kvzip@0.{n}", note="too long" if n < 4 else "other") for n in range(1, 5)]
    assert notes_of(cells) == [
        "kvzip@0.1 on qa, 4,096 tokens, and 2 more cells: too long",
        "kvzip@0.4 on qa, 4,096 tokens: other",
    ]


def test_wording_and_metrics_are_said(tmp_path: Path) -> None:
    config = {**CONFIG, "template": "short-answer", "metrics": {"qa": "f1"}}
    setup = results_of(make_run(tmp_path, config)).setup
    assert (setup["template"], setup["metrics"]) == ("short-answer", "qa f1")


def test_every_start_of_a_run_is_in_its_report(tmp_path: Path) -> None:
    with RunFolder(make_run(tmp_path), CONFIG) as run:
        for machine, commit, started in (("a", "1" * 40, "1st"), ("b", "2" * 40, "2nd"), ("b", "2" * 40, "3rd")):
            run.add_environment({"kvz": "1", "machine": machine, "commit": commit, "started": started})
    setup = results_of(tmp_path).setup
    assert (setup["machine"], setup["date"]) == ("a, then b", "1st, then 2nd, then 3rd")
    assert setup["kvz"] == "1 (111111111111), then 1 (222222222222)"


def test_what_shapes_results_is_in_the_settings(tiny: LanguageModel) -> None:
    config = config_of(make_settings(["needle"], ["duo", "kvzip"]), tiny)
    prints = tiny.identity.fingerprints
    assert (config["fingerprint"], config["tokenizer"], config["chat_template"]) == (
        prints.model,
        prints.tokenizer,
        prints.template,
    )
    assert len(config["texts"]["sha256"]) == 64
    assert config["head_scores"] == {}, "a random model has none"
    assert config_of(make_settings(["key-value"], ["kvzip"]), tiny)["texts"] is None


def test_head_scores_of_another_calibration_make_another_run(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digests(value: float) -> dict[str, str]:
        scores = HeadScores(torch.full((tiny.geometry.layers, 2), value), KVZIP, None, "tiny")
        monkeypatch.setattr("kvz.scoring.head_scores.find_head_scores", lambda identity, file, kinds: scores)
        found = config_of(make_settings(["needle"], ["duo", "kvzip"]), tiny)["head_scores"]
        assert isinstance(found, dict)
        return found

    assert list(digests(0.5)) == ["duo"]
    assert digests(0.5) == digests(0.5) != digests(0.25)


def test_pictures_of_an_earlier_report_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    one, two = ([make_cell(task=task) for task in tasks] for tasks in (["qa"], ["qa", "key-value"]))
    write_report(tmp_path, Results(two, {}, []))
    (tmp_path / "pictures" / "mine.svg").write_text("mine")
    assert {"bytes-0.svg", "bytes-1.svg"} < pictures(tmp_path)
    write_report(tmp_path, Results(one, {}, []))
    assert {"bytes-0.svg", "mine.svg"} < pictures(tmp_path)
    assert "bytes-1.svg" not in pictures(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_report(tmp_path, Results(one, {}, []))
    assert pictures(tmp_path) == {"mine.svg"}


def test_a_new_run_has_no_report_of_the_old_one(tmp_path: Path) -> None:
    write_report(make_run(tmp_path), results_of(tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    with RunFolder(tmp_path, {**CONFIG, "seed": 1}, anew=True):
        left = {path.name for path in tmp_path.iterdir()}
    assert left - {".lock"} == {"config.json", "notes.txt"}


def test_a_report_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="is a file, where a report needs a folder"):
        write_report(tmp_path / "file", Results([make_cell()], {}, []))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "pictures").write_text("mine")
    with pytest.raises(UsageError, match="pictures is a file"):
        write_report(tmp_path / "out", Results([make_cell()], {}, []))


def test_a_broken_matplotlib_costs_the_pictures_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "matplotlib.py").write_text("raise AttributeError('_ARRAY_API not found')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_report(tmp_path / "out", Results([make_cell()], {}, []))
    assert "cannot be imported (_ARRAY_API not found)" in (tmp_path / "out" / "report.html").read_text()
    assert not (tmp_path / "out" / "pictures").exists()


def test_a_report_goes_to_no_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty")
    check_target(tmp_path / "new")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "table.md").write_text("mine")
    with pytest.raises(UsageError, match=r"docs is not empty and holds neither a run nor a report; give another --out"):
        check_target(tmp_path / "docs")
    write_report(tmp_path / "docs", Results([], {}, []))
    check_target(tmp_path / "docs")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="where a report needs a folder"):
        check_target(tmp_path / "link")
