"""Whether an answer stands in what was written, as words and numbers of its own: 4711 does not in 47117."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["stands_in"]

_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?P<mark>[,'’\u00a0\u2009\u202f])\d{3}(?:(?P=mark)\d{3})*)(?!\d)")
"""A number with marks between its thousands, which can be nothing else but a list without white space."""
_MAYBE_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d)|(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?!\d)")
"""Marks that may be something else: a blank between two numbers, points of an address."""
_RUN = re.compile(r"\d+(?:\.\d+)*")


def stands_in(prediction: str, answer: str) -> bool:
    """Whether the answer is in the prediction, in the same case, and no word or number goes on at either of its ends.

    Marks between thousands make no difference. Letters go on in scripts that part words and have no prefixes or
    suffixes of other words (Latin, Greek, Cyrillic, Armenian); in others an answer may be a part of longer words.
    """
    plain, wanted = _joined(prediction, _GROUPED), _joined(answer, _GROUPED)
    return _is_there(wanted, plain) or _is_there(_joined(wanted, _MAYBE_GROUPED), _joined(plain, _MAYBE_GROUPED))


def _joined(text: str, numbers: re.Pattern[str]) -> str:
    return numbers.sub(lambda number: re.sub(r"\D", "", number[0]), text)


def _is_there(answer: str, text: str) -> bool:
    start = text.find(answer)
    while start >= 0:
        if not _goes_on(text, start, answer[:1]) and not _goes_on(text, start + len(answer), answer[-1:]):
            return True
        start = text.find(answer, start + 1)
    return False


def _goes_on(text: str, at: int, own: str) -> bool:
    """Whether the word or number that the answer's character `own` belongs to has characters on both sides of `at`."""
    left, right = text[at - 1 : at], text[at : at + 1]
    if not own or not left or not right:
        return False
    if left.isdecimal() and right.isdecimal():
        return True
    return (_is_of_a_word(left) and _is_of_a_word(right)) or (own.isdecimal() and _parts_a_number(text, at))


def _is_of_a_word(character: str) -> bool:
    """A letter, accent or digit of a script in which words are apart."""
    spaced = character < "\u0590" or "\u1e00" <= character < "\u2000"
    return spaced and unicodedata.category(character)[0] in "LMN"


def _parts_a_number(text: str, at: int) -> bool:
    """Whether `at` is beside the point of a decimal number, but for one without a fraction; more points make a date."""
    run = next((run for run in _RUN.finditer(text) if run.start() < at < run.end()), None)
    return run is not None and run[0].count(".") == 1 and bool(int(run[0].partition(".")[2]))
