"""Questions from arguments, from a file of lines, or from JSONL."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvz.errors import QuestionError, UsageError

__all__ = ["Question", "read_questions"]


@dataclass(frozen=True)
class Question:
    """A question and the id that its answer is reported under."""

    id: str | int
    text: str


def read_questions(arguments: Sequence[str], file: str | None) -> list[Question]:
    """Questions given as arguments, or one a line in `file` ("-": standard input), as text or as JSON objects.

    Ids are numbers from 1 unless a JSON object has an `id`. Raises UsageError for none or both, and QuestionError,
    naming the line, for a file that cannot be used.
    """
    if bool(arguments) == (file is not None):
        raise UsageError("give questions as arguments, or a file of them with --questions or --turns, one of these")
    if file is None:
        return [Question(number, text) for number, text in enumerate(arguments, 1)]
    text = _read(file)
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise QuestionError(f"{_shown(file)} holds no question")
    if _is_array(text):
        raise QuestionError(f"{_shown(file)} is a JSON array; write one object a line instead (JSONL)")
    if lines[0][1].lstrip().startswith("{"):
        return [_from_json(line, number, order, file) for order, (number, line) in enumerate(lines, 1)]
    return [Question(order, line.strip()) for order, (_, line) in enumerate(lines, 1)]


def _read(file: str) -> str:
    try:
        if file == "-" and sys.stdin is None:
            raise QuestionError("standard input is closed; give a file of questions")
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise QuestionError(f"no such file of questions: {file}") from None
    except UnicodeDecodeError as error:
        raise QuestionError(f"{_shown(file)} is not UTF-8 at byte {error.start}; convert it with iconv") from None
    except (OSError, ValueError) as error:
        raise QuestionError(f"cannot read {_shown(file)}: {getattr(error, 'strerror', None) or error}") from error


def _is_array(text: str) -> bool:
    """Whether a text is one JSON array; one of objects need not be whole."""
    if text.lstrip().startswith("[{"):
        return True
    try:
        return text.lstrip().startswith("[") and isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False


def _from_json(line: str, number: int, order: int, file: str) -> Question:
    try:
        entry = json.loads(line)
        text = entry["question"]
    except (ValueError, RecursionError):
        raise QuestionError(
            f"{_shown(file)}, line {number}: not JSON; a file that begins with {{ holds one object a line"
        ) from None
    except (KeyError, TypeError):
        raise QuestionError(f'{_shown(file)}, line {number}: no "question" in it') from None
    if not isinstance(text, str):
        raise QuestionError(f'{_shown(file)}, line {number}: "question" is not a string')
    identity = entry.get("id", order)
    usable = isinstance(identity, (str, int)) and not isinstance(identity, bool)
    return Question(identity if usable else order, text)


def _shown(file: str) -> str:
    return "standard input" if file == "-" else file
