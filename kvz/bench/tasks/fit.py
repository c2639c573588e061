"""Contexts of a given length: how much filler it takes is estimated from a little of it, then put right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvz.bench.tasks.haystack import NOISE
from kvz.bench.tasks.task import Counter
from kvz.bench.tasks.words import generator
from kvz.errors import UsageError

__all__ = ["fit", "shortened", "take"]

_FIRST = 32  # units of the first estimate
_CLOSE = 100  # a hundredth of the length is close enough

Make = Callable[[int], str]
"""A text with so many units of filler; more units, more tokens."""


@dataclass(frozen=True)
class _Try:
    units: int
    text: str
    tokens: int


def fit(make: Make, counter: Counter, tokens: int, most: int | None = None) -> str:
    """The text of `tokens` tokens, 1 % more or less; where a unit is longer than that, words of noise make it up.

    There are `most` units at most. Raises UsageError if `tokens` are too few for the task or too many for `most`.
    """
    found = _search(make, counter, tokens, most)
    if tokens - found.tokens <= tokens // _CLOSE:
        return found.text
    if found.units == most:
        raise UsageError(f"there is text for {found.tokens} tokens only, not for {tokens}; ask for shorter contexts")
    noise = NOISE.sentences(generator())
    return _search(lambda n: f"{found.text}\n\n{''.join(noise(n))}".strip(), counter, tokens, None).text


def shortened(text: str, counter: Counter, tokens: int) -> str:
    """The text, or its start and its end as LongBench takes them, if it has more than `tokens` tokens."""
    if counter(text) <= tokens:
        return text

    def ends(count: int) -> str:
        return text[: (count + 1) // 2] + text[len(text) - count // 2 :]

    target = tokens - tokens // _CLOSE - 1  # `_search` may go over by a hundredth
    return _search(ends, counter, target, len(text)).text


def take(pieces: Sequence[str], counter: Counter, tokens: int, between: str = "\n\n") -> int:
    """How many of the pieces, joined, have at most `tokens` tokens; each is counted once, and the whole to be sure."""
    count, total = 0, 0
    for piece in pieces:
        total += counter(piece + between)
        if total > tokens:
            break
        count += 1
    while count and counter(between.join(pieces[:count])) > tokens:
        count -= 1
    return count


def _search(make: Make, counter: Counter, tokens: int, most: int | None) -> _Try:
    """The try within a hundredth of `tokens`, or else the one with most units that does not go over."""

    def attempt(units: int) -> _Try:
        text = make(units)
        return _Try(units, text, counter(text))

    low = attempt(0)
    high: _Try | None = None
    bare = low.tokens
    if low.tokens > tokens + tokens // _CLOSE:
        raise UsageError(f"contexts of {tokens} tokens are too short for this task: it needs {low.tokens} at least")
    if low.tokens >= tokens - tokens // _CLOSE:
        return low
    units = _FIRST
    while high is None or high.units - low.units > 1:
        tried = attempt(units if most is None else min(units, most))
        if abs(tried.tokens - tokens) <= tokens // _CLOSE:
            return tried
        if tried.tokens > tokens:
            high = tried
        else:
            low = tried
            if tried.units == most:
                return low
        units = _next(bare, low, high, tokens)
    return low


def _next(bare: int, low: _Try, high: _Try | None, tokens: int) -> int:
    """Where a straight line through what was tried meets `tokens`; between `low` and `high` where both are known."""
    if high is None:
        each = max((low.tokens - bare) / low.units, 1e-3)
        return low.units + max(1, min(int((tokens - low.tokens) / each), 64 * low.units))
    share = (tokens - low.tokens) / (high.tokens - low.tokens)
    inside = min(max(share, 0.1), 0.9)  # never only one end moves for long
    guess = low.units + int(inside * (high.units - low.units))
    return min(max(guess, low.units + 1), high.units - 1)
