"""Files with something in them that cannot be asked: refused by line, whatever their layout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvz.bench.tasks.registry import make_task
from kvz.errors import UsageError
from tests.bench.tasks.conftest import write_lines

TURN = {"input": "q", "answer": "a"}
GOOD = {
    "gsm8k": {"question": "q", "answer": "#### 1"},
    "longbench": {"input": "q", "context": "c", "answers": ["a"], "dataset": "hotpotqa"},
    "ruler": {"context": "c", "question": "q", "answer": "a"},
    "scbench": {"context": "c", "multi_turns": [TURN]},
}


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("gsm8k", {"question": ""}, '"question" is blank'),
        ("longbench", {"input": ""}, '"input" is blank'),
        ("longbench", {"context": " "}, '"context" is blank'),
        ("longbench", {"answers": [""]}, '"answers" is blank'),
        ("longbench", {"input": "\udfff"}, '"input" has half a character'),
        ("ruler", {"question": ""}, '"question" is blank'),
        ("ruler", {"context": "\n"}, '"context" is blank'),
        ("ruler", {"answer": [" "]}, '"answer" is blank'),
        ("ruler", {"context": None, "question": None, "input": "\n \nq"}, '"input" is one line'),
        ("scbench", {"context": "c\0"}, '"context" has a NUL character'),
        ("scbench", {"multi_turns": [TURN, {**TURN, "input": " "}]}, 'multi_turns 2: "input" is blank'),
        ("scbench", {"multi_turns": [{**TURN, "answer": ""}]}, 'multi_turns 1: "answer" is blank'),
    ],
)
def test_what_cannot_be_asked_is_refused_by_line(tmp_path, name, fields, said):
    path = write_lines(tmp_path / "scbench_kv.jsonl", [GOOD[name], {**GOOD[name], **fields}])
    with pytest.raises(UsageError, match=f"line 2.*{re.escape(said)}"):
        make_task(name, path)


@pytest.mark.parametrize(
    ("metric", "answer"),
    [
        ("number", "noon"), ("count", "three"), ("retrieval", "none"), ("f1", "!!"), ("exact-match", "a"),
        ("exact-match", "!!!"),
    ],
)  # fmt: skip
def test_an_answer_that_its_metric_cannot_score_is_refused(tmp_path, metric, answer):
    rows = [{"context": "c", "questions": ["q"], "answers": [text], "metric": metric} for text in ("7 apples", answer)]
    path = write_lines(tmp_path / "own.jsonl", rows[1:])
    with pytest.raises(UsageError, match=f"line 1: answer 1, .*{re.escape(answer)}.*the metric {metric} can score"):
        make_task("own", path)


def test_numbers_are_answers_as_they_are_written(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"context": "c", "questions": ["a", "b", "c"], "answers": [2.50, 1e3, 0.00001]}\n')
    [sample] = make_task("own", path).samples(len, 9, 1, 0)
    assert [question.answers for question in sample.questions] == [("2.50",), ("1e3",), ("0.00001",)]
    path.write_text('{"context": "c", "questions": ["a"], "answers": [1e999]}\n')
    with pytest.raises(UsageError, match="line 1: not JSON"):
        make_task("own", path)


@pytest.mark.parametrize("task", ["qa_1", "QA-2", "ruler-qa-1", "RULER_qa_2"])
def test_rulers_questions_take_any_of_their_answers_however_they_are_spelled(tmp_path, task):
    row = {"context": "c", "question": "q", "answer": ["Paris", "the capital"], "task": task}
    loaded = make_task("ruler", write_lines(tmp_path / "set.jsonl", [row]))
    assert loaded.metric.score("It is Paris.", loaded.samples(len, 9, 1, 0)[0].questions[0]) == 1


def test_a_task_that_ruler_has_not_is_refused(tmp_path):
    row = {"context": "c", "question": "q", "answer": "a"}
    path = write_lines(tmp_path / "set.jsonl", [{**row, "task": "ruler_niah_single_1"}, {**row, "task": "hotpotqa"}])
    with pytest.raises(UsageError, match=r"line 2: \"task\" 'hotpotqa' is none of RULER's: niah_"):
        make_task("ruler", path)


def test_a_path_in_a_folder_that_is_there_is_no_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match=r"no such file of data: data/typo\.txt$"):
        make_task("own", Path("data/typo.txt"))


def test_texts_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("One.\nTw\0o.")
    with pytest.raises(UsageError, match=r"a\.txt, line 2 has a NUL character in it, at character 3"):
        make_task("needle", texts=tmp_path)
    (tmp_path / "a.txt").write_bytes(b"One\xff")
    with pytest.raises(UsageError, match=r"a\.txt is not UTF-8 at byte 3"):
        make_task("needle", texts=tmp_path)
