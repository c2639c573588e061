"""The numbers of methods: NAME@NUMBER, and those given for all methods. Wrong ones raise UsageError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvz.defaults import RATIO
from kvz.errors import UsageError

__all__ = ["BUDGET", "Numbers", "share_of", "split_number", "whole_pairs"]

BUDGET = 256
"""Pairs of a head that a step reads, where nothing else is said."""

_MOST_DIGITS = 9  # of a number of pairs


@dataclass(frozen=True)
class Numbers:
    """What stands for numbers that are left out."""

    ratios: tuple[float, ...]
    budgets: tuple[int, ...]

    @property
    def shares(self) -> Sequence[str]:
        """For names that compress."""
        if self.ratios:
            return [_shown_ratio(ratio) for ratio in self.ratios]
        return [str(budget) for budget in self.budgets] or [f"{RATIO:g}"]

    @property
    def steps(self) -> Sequence[str]:
        """For names that read sparsely."""
        return [str(budget) for budget in self.budgets] or [str(BUDGET)]


def share_of(value: str, spec: str) -> tuple[float | None, int | None, str]:
    """Ratio, pairs a head, and how the label shows them; only one of the two is there."""
    if not value:
        return None, None, ""
    try:
        number = float(value)
    except ValueError:
        raise UsageError(f"method '{spec}': {value} is not a number") from None
    if 0 < number <= 1:
        return number, None, f"@{_shown_ratio(number)}"
    if number <= 0 or number % 1:
        raise UsageError(
            f"method '{spec}': '{value}' is neither a ratio above 0 and up to 1 nor a whole number of pairs"
        )
    keep = whole_pairs(value, spec)
    return None, keep, f"@{keep}"


def _shown_ratio(ratio: float) -> str:
    """A ratio as it was typed, with all its digits."""
    short = f"{ratio:g}"
    return short if float(short) == ratio else repr(ratio)


def whole_pairs(value: str, spec: str) -> int:
    """A number of pairs."""
    if not (value.isascii() and value.isdigit()):
        raise UsageError(f"method '{spec}': '{value}' is not a whole number of pairs")
    if len(value) > _MOST_DIGITS:
        raise UsageError(f"method '{spec[:40]}': more pairs than any context has")
    return int(value)


def split_number(part: str) -> tuple[str, str | None]:
    """A name and what follows its @; None where there is none."""
    name, at, number = part.partition("@")
    if at and not number.strip():
        raise UsageError(f"method '{part}': there is no number after @; give one, or leave the @ out")
    return name.strip(), number.strip() if at else None
