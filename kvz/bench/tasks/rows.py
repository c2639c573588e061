"""Rows of a data file: JSON objects, one a line, each of which knows where it stands so that a bad one can be named."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvz.errors import UsageError

__all__ = ["Row", "as_texts", "bad_data", "check_text", "read_json", "read_rows", "read_text"]

_HUB_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+(?<!\.json)(?<!\.jsonl))(?::(?P<config>[\w.-]+))?")  # no file's name
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # the latter are halves of surrogate pairs, which JSON can spell
_SPLITS = ("test", "validation")


@dataclass(frozen=True)
class Row:
    """A row's fields and where it stands, such as "own.jsonl, line 3". The methods raise UsageError and say so."""

    where: str
    fields: dict[str, Any]

    def text(self, *names: str) -> str:
        """The text under the first of `names` that is there."""
        value = self._value(names)
        if not isinstance(value, str):
            raise UsageError(f'{self.where}: "{self._present(names)}" is not a text')
        check_text(value, f'{self.where}: "{self._present(names)}"')
        return value

    def filled(self, *names: str) -> str:
        """The text there, which must not be blank: a context or a question."""
        value = self.text(*names)
        if not value.strip():
            raise UsageError(f'{self.where}: "{self._present(names)}" is blank')
        return value

    def texts(self, *names: str) -> tuple[str, ...]:
        """The list of texts there, at least one and none blank; a text or a number alone is a list of one."""
        return as_texts(self._value(names), f'{self.where}: "{self._present(names)}"')

    def items(self, *names: str) -> list[Any]:
        """The list there, at least one item."""
        value = self._value(names)
        if not isinstance(value, list) or not value:
            raise UsageError(f'{self.where}: "{self._present(names)}" is not a list with something in it')
        return value

    def rows(self, name: str) -> list[Row]:
        """The list of objects there."""
        items = self.items(name)
        if not all(isinstance(item, dict) for item in items):
            raise UsageError(f'{self.where}: "{name}" is not a list of objects')
        return [Row(f"{self.where}, {name} {number}", item) for number, item in enumerate(items, 1)]

    def number(self, name: str, least: float, most: float) -> float:
        """The number there, from `least` to `most`."""
        value = self._value((name,))
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise UsageError(f'{self.where}: "{name}" is not a number from {least:g} to {most:g}')
        return value

    def has(self, name: str) -> bool:
        """Whether something is there."""
        return self.fields.get(name) is not None

    def _present(self, names: tuple[str, ...]) -> str:
        found = next((name for name in names if self.has(name)), None)
        if found is None:
            raise UsageError(f"{self.where}: no {' or '.join(map(json.dumps, names))} in it")
        return found

    def _value(self, names: tuple[str, ...]) -> Any:
        return self.fields[self._present(names)]


class _Written(float):
    """A number of a file, as text with the digits it was written with: 2.50 is not 2.5."""

    def __new__(cls, text: str) -> _Written:
        number = super().__new__(cls, text)
        if math.isinf(number):
            raise ValueError(f"{text[:40]} is too large a number")
        number.__dict__["text"] = text
        return number

    def __str__(self) -> str:
        return str(self.__dict__["text"])


def as_texts(value: object, what: str) -> tuple[str, ...]:
    """A text, a number, or a list of them as texts, at least one and none blank.

    Raises UsageError, beginning with `what`. A blank answer would be found in whatever a model writes.
    """
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in items):
        raise UsageError(f"{what} is not a text, nor a list with texts in it")
    texts = tuple(map(str, items))
    for text in texts:
        check_text(text, what)
        if not text.strip():
            raise UsageError(f"{what} is blank" if len(texts) == 1 else f"{what} has a blank text in it")
    return texts


def check_text(text: str, what: str) -> None:
    """Raise UsageError, beginning with `what`, for a text that no model can be shown."""
    if found := _NO_TEXT.search(text):
        kind = "a NUL character" if found[0] == "\0" else f"half a character (\\u{ord(found[0]):04x})"
        raise UsageError(f"{what} has {kind} in it, at character {found.start() + 1}; take it out")


def read_rows(source: Path) -> list[Row]:
    """The rows of a JSONL file, or of a hub's data set named org/name or org/name:config.

    Raises UsageError, naming the line, for a file that is not JSONL.
    """
    if not source.exists() and not source.parent.is_dir() and (hub := _HUB_ID.fullmatch(source.as_posix())):
        return _from_hub(hub["id"], hub["config"])
    lines = [(n, line) for n, line in enumerate(read_text(source).split("\n"), 1) if line.strip()]
    rows = [_row(f"{source}, line {number}", line) for number, line in lines]
    if not rows:
        raise UsageError(f"{source} holds no rows")
    return rows


def read_json(source: Path) -> Any:
    """What a JSON file holds. Raises UsageError, naming the line, for one that is not JSON."""
    try:
        return _loads(read_text(source))
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{source}, line {error.lineno}: not JSON ({error.msg})") from None
    except ValueError as error:
        raise UsageError(f"{source}: not JSON ({error})") from None


def bad_data(source: Path, layout: str, where: str) -> UsageError:
    """The error for a file that is not of the layout."""
    return UsageError(f"{source} is not in {layout}'s layout: {where}")


def read_text(source: Path) -> str:
    """What a file of UTF-8 holds. Raises UsageError."""
    try:
        return source.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"no such file of data: {source}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 at byte {error.start}; convert it with iconv -t UTF-8") from None
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror or error}") from None


def _loads(text: str) -> Any:
    """JSON, without the NaN and the infinities that Python adds to it. Raises ValueError and RecursionError."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_Written)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if "digits" in str(error):
            raise ValueError("a number has too many digits") from None
        raise


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")


def _row(where: str, line: str) -> Row:
    try:
        fields = _loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: not JSON; the file holds one object a line") from None
    if not isinstance(fields, dict):
        raise UsageError(f"{where}: not a JSON object; the file holds one object a line")
    return Row(where, fields)


def _from_hub(name: str, config: str | None) -> list[Row]:
    shown = name + (f":{config}" if config else "")
    try:
        from datasets import load_dataset
    except ImportError:
        raise UsageError(
            f"no such file: {shown}; to read a hub's data set of that name, pip install 'kvz[data]'"
        ) from None
    try:
        splits = load_dataset(name, config)
    except Exception as error:  # it raises what it likes: connection, HTTP, unknown configuration
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
        raise UsageError(f"cannot load the data set {shown} from the hub: {reason}; give a local file") from error
    split = next((split for split in (*_SPLITS, *splits) if split in splits), None)
    if split is None:
        raise UsageError(f"the data set {shown} has no split; give another, or a local file")
    rows = list(_numbered(shown, split, splits[split]))
    if not rows:
        raise UsageError(f"the data set {shown} holds no rows in its split {split}; give another, or a local file")
    return rows


def _numbered(name: str, split: str, rows: Iterable[dict[str, Any]]) -> Iterable[Row]:
    return (Row(f"{name}, {split} row {number}", dict(row)) for number, row in enumerate(rows, 1))
