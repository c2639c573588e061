"""Files with something in them that cannot be asked: refused by line, whatever their layout."""

from __future__ import annotations

import re

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


def test_texts_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("One.\nTw\0o.")
    with pytest.raises(UsageError, match=r"a\.txt, line 2 has a NUL character in it, at character 3"):
        make_task("needle", texts=tmp_path)
    (tmp_path / "a.txt").write_bytes(b"One\xff")
    with pytest.raises(UsageError, match=r"a\.txt is not UTF-8 at byte 3"):
        make_task("needle", texts=tmp_path)
