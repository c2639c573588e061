"""Questions from a file or a pipe: lines or JSONL, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvz.cli.questions import Question, read_questions
from kvz.errors import QuestionError
from tests.cli.conftest import Run

FEW = ("--max-new-tokens", 2, "-q", "--json")


def write(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "questions"
    path.write_bytes(data)
    return str(path)


def test_lines_are_numbered_and_blank_ones_left_out(tmp_path: Path) -> None:
    file = write(tmp_path, "\ufeffWho?\r\n\n  When and where? \n".encode())
    assert read_questions([], file) == [Question(1, "Who?"), Question(2, "When and where?")]


def test_jsonl_keeps_its_ids(tmp_path: Path) -> None:
    file = write(
        tmp_path, b'{"id": "a", "question": "Who?"}\n{"question": "When?", "more": 1}\n{"id": 7, "question": "?"}'
    )
    assert read_questions([], file) == [Question("a", "Who?"), Question(2, "When?"), Question(7, "?")]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x1c"])
def test_only_line_feeds_end_a_line(tmp_path: Path, separator: str) -> None:
    text = f"Who{separator}keeps it?"
    assert read_questions([], write(tmp_path, text.encode())) == [Question(1, text)]
    if separator != "\x1c":
        file = write(tmp_path, f'{{"question": "{text}"}}\n'.encode())
        assert read_questions([], file) == [Question(1, text)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"question": "Who?"}\n\nWhen?\n', "line 3: not JSON"),
        (b'{"question": "Who?"}\n{"question": "When?"\n', "line 2: not JSON"),
        (b'{"question": "Who?"}\n{"text": "When?"}\n', 'line 2: no "question"'),
        (b'{"question": "Who?"}\n["When?"]\n', 'line 2: no "question"'),
        (b'{"question": "Who?"}\n7\n', 'line 2: no "question"'),
        (b'{"question": 7}\n', "line 1"),
        (b'{"question": null}\n', "line 1"),
        (b"{" * 100_000, "line 1: not JSON"),
        (b"", "holds no question"),
        (b" \n\n\t\n", "holds no question"),
        (b"Who?\nW\xe4nn?\n", "not UTF-8 at byte 6"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_line(
    run: Run, archive: Path, tmp_path: Path, data: bytes, words: str
) -> None:
    file = write(tmp_path, data)
    run("ask", archive, "--questions", file).failed(file, words)


@pytest.mark.parametrize(
    "text",
    [
        '[{"question": "Who?"}, {"question": "When?"}]',
        '\n [\n  {\n    "question": "Who?"\n  }\n]\n',
        '["Who?",\n "When?"]',
        "[]",
        '[{"question": "Who?"},\n',
    ],
)
def test_a_json_array_is_refused_however_it_is_laid_out(tmp_path: Path, text: str) -> None:
    with pytest.raises(QuestionError, match=r"JSON array.*JSONL"):
        read_questions([], write(tmp_path, text.encode()))


@pytest.mark.parametrize("text", ["[1] says what?\nWhy?", "[Who?]\n[Why?]", "[" * 100_000])
def test_lines_that_begin_with_a_bracket_are_questions(tmp_path: Path, text: str) -> None:
    assert [question.text for question in read_questions([], write(tmp_path, text.encode()))] == text.split("\n")


@pytest.mark.parametrize("name", ["missing", "n" * 300])
def test_a_file_that_is_not_there(run: Run, archive: Path, tmp_path: Path, name: str) -> None:
    run("ask", archive, "--questions", tmp_path / name).failed(name)


def test_a_folder_of_questions(run: Run, archive: Path, tmp_path: Path) -> None:
    run("ask", archive, "--questions", tmp_path).failed(str(tmp_path))


def test_arguments_and_a_file(run: Run, archive: Path, tmp_path: Path) -> None:
    run("ask", archive, "Who?", "--questions", write(tmp_path, b"When?")).failed("one of these", status=2)


def test_answers_come_under_the_ids_asked(run: Run, archive: Path, tmp_path: Path) -> None:
    file = write(tmp_path, b'{"id": "first", "question": "Who?"}\n{"id": "second", "question": "When?"}\n')
    answers = run("ask", archive, "--questions", file, *FEW).succeeded().objects
    assert [(a["id"], a["question"]) for a in answers] == [("first", "Who?"), ("second", "When?")]


def test_questions_from_standard_input(run: Run, archive: Path) -> None:
    answers = run("ask", archive, "--questions", "-", *FEW, stdin=b"Who?\nWhen?\n").succeeded().objects
    assert [a["question"] for a in answers] == ["Who?", "When?"]


@pytest.mark.parametrize("data", [b"", b"\xff", b'{"question": 1}'])
def test_standard_input_that_cannot_be_used(run: Run, archive: Path, data: bytes) -> None:
    run("ask", archive, "--questions", "-", stdin=data).failed("standard input")


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(QuestionError, match="standard input"):
        read_questions([], "-")


def test_a_blank_question_among_others_is_reported(run: Run, archive: Path, tmp_path: Path) -> None:
    file = write(tmp_path, b'{"id": "a", "question": " "}\n{"id": "b", "question": "When?"}\n')
    outcome = run("ask", archive, "--questions", file, *FEW)
    assert outcome.status == 1
    assert [("error" in o, o["id"]) for o in outcome.objects] == [(True, "a"), (False, "b")]
    assert "question a" in outcome.err
