"""Questions from a file or a pipe: lines or JSONL, and errors that name the line."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvz.cli.lines import read_lines
from kvz.cli.questions import Question, read_questions
from kvz.errors import QuestionError
from tests.cli.conftest import Run
from tests.cli.harness import endless_stdin, finish, spawn

FEW = ("--max-new-tokens", 2, "-q", "--json")


def write(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "questions"
    path.write_bytes(data)
    return str(path)


def test_lines_are_numbered_and_blank_ones_left_out(tmp_path: Path) -> None:
    file = write(tmp_path, "\ufeffWho?\r\n\n  When and where? \n".encode())
    assert list(read_questions([], file)) == [Question(1, "Who?"), Question(2, "When and where?")]


LINES = b"Who?\rWhen?\r\n\r\rWhat?\n"


def test_a_carriage_return_ends_a_line(run: Run, archive: Path, tmp_path: Path) -> None:
    file = write(tmp_path, LINES)
    assert [question.text for question in read_questions([], file)] == ["Who?", "When?", "What?"]
    piped = run("ask", archive, "--questions", "-", *FEW, stdin=LINES).succeeded()
    assert [answer["question"] for answer in piped.objects] == ["Who?", "When?", "What?"]
    talk = run("chat", archive, *FEW, stdin=LINES).succeeded()
    assert [answer["question"] for answer in talk.objects] == ["Who?", "When?", "What?"]


@given(st.lists(st.sampled_from(["a", "数", "\r", "\n", "\r\n", ""]), max_size=12), st.integers(1, 4))
def test_lines_are_those_of_the_whole_however_they_come(parts: list[str], size: int) -> None:
    data = "".join(parts).encode()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]

    class Pipe:
        def read1(self, most: int, /) -> bytes:
            return chunks.pop(0) if chunks else b""

    expected = io.StringIO(data.decode(), newline=None).read().split("\n")
    expected = expected[:-1] if not expected[-1] else expected
    assert list(read_lines(Pipe(), "pipe")) == list(enumerate(expected, 1))


def test_jsonl_keeps_its_ids(tmp_path: Path) -> None:
    file = write(
        tmp_path, b'{"id": "a", "question": "Who?"}\n{"question": "When?", "more": 1}\n{"id": 7, "question": "?"}'
    )
    assert list(read_questions([], file)) == [Question("a", "Who?"), Question(2, "When?"), Question(7, "?")]


@pytest.mark.parametrize("identity", ["null", "1.0", "[1]", "true", '{"n": 1}'])
def test_an_id_that_no_answer_could_be_found_by_is_refused(tmp_path: Path, identity: str) -> None:
    file = write(tmp_path, f'{{"question": "Who?"}}\n{{"id": {identity}, "question": "When?"}}\n'.encode())
    with pytest.raises(QuestionError, match=r'line 2: "id" is .*string or a whole number, or leave it out'):
        list(read_questions([], file))


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (
            ['{"id": 2, "question": "Who?"}', '{"question": "When?"}'],
            "line 2: the question has no id, and its number 2",
        ),
        (['{"question": "Who?"}', '{"id": 1, "question": "When?"}'], "line 2: the id 1 is the number"),
    ],
)
def test_a_number_is_never_the_id_of_another_question(tmp_path: Path, lines: list[str], named: str) -> None:
    with pytest.raises(QuestionError, match=named):
        list(read_questions([], write(tmp_path, "\n".join(lines).encode())))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x1c"])
def test_only_line_feeds_and_carriage_returns_end_a_line(tmp_path: Path, separator: str) -> None:
    text = f"Who{separator}keeps it?"
    assert list(read_questions([], write(tmp_path, text.encode()))) == [Question(1, text)]
    if separator != "\x1c":
        file = write(tmp_path, f'{{"question": "{text}"}}\n'.encode())
        assert list(read_questions([], file)) == [Question(1, text)]


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


def test_questions_without_an_end_are_read_as_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = endless_stdin(monkeypatch, b"Who?\n")
    asked = iter(read_questions([], "-"))
    assert [next(asked) for _ in range(3)] == [Question(1, "Who?"), Question(2, "Who?"), Question(3, "Who?")]
    assert pipe.taken <= 1 << 17
    for _ in range(100_000):
        last = next(asked)
    assert last == Question(100_003, "Who?")
    assert pipe.taken <= 5 * 100_003 + (1 << 17)


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = endless_stdin(monkeypatch, b"Who? ")
    with pytest.raises(QuestionError, match="standard input, line 1 is longer than 16 MiB"):
        read_questions([], "-")
    assert pipe.taken < 1 << 25


@pytest.mark.parametrize("options", [("--questions", "-"), ("--turns", "-")])
def test_a_question_is_answered_before_the_next_one_comes(archive: Path, options: tuple[str, str]) -> None:
    process = spawn("ask", str(archive), *options, *map(str, FEW), stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for text in ("Who?", "When?"):
        process.stdin.write(f"{text}\n".encode())
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["question"] == text
    assert finish(process).status == 0


def test_what_comes_before_a_line_that_cannot_be_used_is_answered(run: Run, archive: Path) -> None:
    stdin = b'{"question": "Who?"}\n{"question": "When?"}\nWhat?\n'
    for batch in ((), ("--batch-size", 2)):
        outcome = run("ask", archive, "--questions", "-", *FEW, *batch, stdin=stdin)
        assert outcome.status == 1
        assert [answer["question"] for answer in outcome.objects] == ["Who?", "When?"]
        assert "standard input, line 3: not JSON" in outcome.err


@pytest.mark.parametrize("size", [2, "auto"])
def test_a_batch_takes_questions_from_a_pipe(run: Run, archive: Path, size: object) -> None:
    stdin = b"".join(b"Question %d?\n" % number for number in range(40))
    outcome = run("ask", archive, "--questions", "-", "--batch-size", size, *FEW, stdin=stdin).succeeded()
    assert [answer["id"] for answer in outcome.objects] == list(range(1, 41))


@pytest.mark.parametrize("text", ['[{"question": "Who?"}]', "\n [\n  {\n", '["Who?",\n "When?"]', "[]", '["Who?"]'])
def test_a_json_array_in_a_pipe_is_refused(run: Run, archive: Path, text: str) -> None:
    run("ask", archive, "--questions", "-", stdin=text.encode()).failed("JSON array", "JSONL")


@pytest.mark.parametrize("text", ["[1] says what?\nWhy?", "[Who?]\n[Why?]"])
def test_lines_of_a_pipe_that_begin_with_a_bracket_are_questions(run: Run, archive: Path, text: str) -> None:
    answers = run("ask", archive, "--questions", "-", *FEW, stdin=text.encode()).succeeded().objects
    assert [answer["question"] for answer in answers] == text.split("\n")
