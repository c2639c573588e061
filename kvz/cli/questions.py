"""Questions from arguments, from a file of lines, or from JSONL; from a pipe as they come."""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from kvz.cli.arguments import as_text
from kvz.cli.lines import Readable, read_lines
from kvz.errors import QuestionError, UsageError

__all__ = ["Question", "Questions", "read_questions"]

_MOST_BYTES = 1 << 28  # of a file, which is read as a whole
_ARRAY = re.compile(r'\[\s*(\{.*|\]|".*"\s*[,\]]*|)')  # how the first line of one begins


@dataclass(frozen=True)
class Question:
    """A question and the id that its answer is reported under."""

    id: str | int
    text: str


@dataclass
class Questions:
    """Questions in their order: those that are `known`, then those that come through a pipe, if there are `several`."""

    known: list[Question]
    several: bool
    _coming: Iterator[Question] = field(default_factory=lambda: iter(()))

    def __iter__(self) -> Iterator[Question]:
        """Each question once, taken from the pipe when it is asked for."""
        known, self.known = self.known, []
        yield from known
        yield from self._coming

    def look_ahead(self, count: int) -> list[Question]:
        """All questions if they are known, else the next ones, `count` at most, which are waited for."""
        self.known += islice(self._coming, max(0, count - len(self.known)))
        return self.known


def read_questions(arguments: Sequence[str], file: str | None) -> Questions:
    """Questions given as arguments, or one a line in `file` ("-": standard input), as text or as JSON objects.

    Ids are numbers from 1 unless a JSON object has an `id`. A file is read as a whole, and a pipe as questions are
    taken from it, of which the first is waited for. Raises UsageError for none or both, and QuestionError, naming the
    line, for a file that cannot be used: of a pipe, when its questions up to there have been taken.
    """
    if bool(arguments) == (file is not None):
        raise UsageError("give questions as arguments, or a file of them with --questions or --turns, one of these")
    if file is None:
        known = [Question(number, as_text(argument)) for number, argument in enumerate(arguments, 1)]
        return Questions(known, len(known) > 1)
    if file != "-" and _is_regular(file):
        lines = list(_file_lines(file))
        if lines and _is_array("\n".join(line for _, line in lines)):
            raise _array_error(file)
        known = list(_parsed(iter(lines), file))
        coming: Iterator[Question] = iter(())
    else:
        coming = _parsed(_piped_lines(file), file)
        known = list(islice(coming, 1))
    if not known:
        raise QuestionError(f"{_shown(file)} holds no question")
    return Questions(known, len(known) > 1 or not _is_regular(file), coming)


def _parsed(lines: Iterator[tuple[int, str]], file: str) -> Iterator[Question]:
    """The questions of numbered lines: JSON objects if the first is one."""
    order, as_json, ids = 0, False, _Ids()
    for number, line in lines:
        if not line.strip():
            continue
        as_json = line.lstrip().startswith("{") if order == 0 else as_json
        order += 1
        yield _from_json(line, number, order, file, ids) if as_json else Question(order, line.strip())


class _Ids:
    """The ids of a file's questions: those that are given, and the numbers of questions without one."""

    def __init__(self) -> None:
        self._given: set[str | int] = set()
        self._numbers: set[int] = set()

    def take(self, entry: dict[str, Any], order: int) -> str | int:
        """The id of a question; ValueError says what is wrong with it. An id that is given twice is the user's."""
        if "id" not in entry:
            if order in self._given:
                raise ValueError(f"the question has no id, and its number {order} is the id of another; give it one")
            self._numbers.add(order)
            return order
        identity = entry["id"]
        if isinstance(identity, bool) or not isinstance(identity, (str, int)):
            shown = json.dumps(identity)
            shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
            raise ValueError(f'"id" is {shown}: give a string or a whole number, or leave it out')
        if identity in self._numbers:
            raise ValueError(f"the id {identity} is the number of a question without one; give that one an id too")
        self._given.add(identity)
        return identity


def _is_regular(file: str) -> bool:
    """Whether it is a file of a known size; what cannot be looked at is left to who opens it."""
    try:
        return file != "-" and stat.S_ISREG(Path(file).stat().st_mode)
    except (OSError, ValueError):
        return False


def _file_lines(file: str) -> Iterator[tuple[int, str]]:
    try:
        path = Path(file)
        if path.stat().st_size > _MOST_BYTES:
            raise QuestionError(
                f"{file} is more than {_MOST_BYTES >> 20} MiB; to have its questions answered as they are read, give "
                f"them through standard input: --questions - < {file}"
            )
        with path.open("rb") as stream:
            yield from read_lines(stream, file)
    except OSError as error:
        raise _unreadable(file, error) from error


def _piped_lines(file: str) -> Iterator[tuple[int, str]]:
    """Lines of a pipe; its first one says whether it is a JSON array."""
    first = True
    try:
        for number, line in _pipe_lines(file):
            if first and line.strip() and _ARRAY.fullmatch(line.strip()):
                raise _array_error(file)
            first = first and not line.strip()
            yield number, line
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error


def _pipe_lines(file: str) -> Iterator[tuple[int, str]]:
    if file != "-":
        with open(file, "rb") as stream:
            yield from read_lines(stream, file)
    elif sys.stdin is None:
        raise QuestionError("standard input is closed; give a file of questions")
    else:
        standard: Readable = sys.stdin.buffer  # type: ignore[assignment]
        yield from read_lines(standard, _shown(file))


def _unreadable(file: str, error: OSError | ValueError) -> QuestionError:
    if isinstance(error, FileNotFoundError):
        return QuestionError(f"no such file of questions: {file}")
    return QuestionError(f"cannot read {_shown(file)}: {getattr(error, 'strerror', None) or error}")


def _array_error(file: str) -> QuestionError:
    return QuestionError(f"{_shown(file)} is a JSON array; write one object a line instead (JSONL)")


def _is_array(text: str) -> bool:
    """Whether a text is one JSON array; one of objects need not be whole."""
    if text.lstrip().startswith("[{"):
        return True
    try:
        return text.lstrip().startswith("[") and isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False


def _from_json(line: str, number: int, order: int, file: str, ids: _Ids) -> Question:
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
    try:
        return Question(ids.take(entry, order), text)
    except ValueError as error:
        raise QuestionError(f"{_shown(file)}, line {number}: {error}") from None


def _shown(file: str) -> str:
    return "standard input" if file == "-" else file
