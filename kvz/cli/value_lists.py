"""Options that take several names or numbers, one or more a time."""

from __future__ import annotations

import re

from kvz.errors import UsageError

__all__ = ["names_of", "number_of", "whole_of"]

_MOST_DIGITS = 9
_BETWEEN = re.compile(r"[,;]")


def names_of(values: list[str] | None) -> list[str]:
    """Names that were given, one or several a time. Raises UsageError for an empty one."""
    parts = [part.strip() for value in values or () for part in _BETWEEN.split(value)]
    if values and not all(parts):
        raise UsageError("an option of names or numbers has an empty one; check its commas")
    return parts


def number_of(value: str, option: str) -> float:
    """What was given for an option, as a number. Raises UsageError."""
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"{option} '{value}' is not a number") from None


def whole_of(value: str, option: str) -> int:
    """The same as a whole number."""
    if not (value.isascii() and value.isdigit()):
        raise UsageError(f"{option} '{value}' is not a whole number")
    if len(value) > _MOST_DIGITS:
        raise UsageError(f"{option} {value[:_MOST_DIGITS]}... is too large a number")
    return int(value)
