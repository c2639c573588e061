"""What texts are measured out by: Latin words, and single characters of scripts that need not put spaces between words.

A character is taken with what is written onto it, so that no accent, vowel sign or joined emoji is torn off. Words that
no language has, such as lines of base64, count as several.
"""

from __future__ import annotations

import unicodedata

__all__ = ["cut", "units_of"]

_LATIN_END = "\u036f"  # Latin letters, IPA and the accents that combine with them
_PUNCTUATION = ("\u2000", "\u206f")  # dashes, quotation marks, joiners
_LONGEST = 32  # characters of a Latin word
_PART = 4  # characters of a longer one that are a unit
_MOST_MARKS = 8  # characters of another script with its marks: more is no writing
_JOINER = "\u200d"
_SKIN = ("\U0001f3fb", "\U0001f3ff")


def units_of(text: str) -> int:
    """How many units the text has."""
    return sum(len(_pieces(word)) for word in text.split())


def cut(text: str, units: int) -> str:
    """The first `units` units of the text, its words one space apart."""
    taken = []
    for word in text.split():
        if units <= 0:
            break
        pieces = _pieces(word)
        taken.append("".join(pieces[:units]))
        units -= len(pieces)
    return " ".join(taken)


def _pieces(word: str) -> list[str]:
    if len(word) <= _LONGEST and all(map(_is_latin, word)):
        return [word]
    pieces: list[str] = []
    for letter in word:
        if pieces and _goes_with(pieces[-1], letter):
            pieces[-1] += letter
        else:
            pieces.append(letter)
    return pieces


def _is_latin(letter: str) -> bool:
    return letter <= _LATIN_END or _PUNCTUATION[0] <= letter <= _PUNCTUATION[1]


def _goes_with(piece: str, letter: str) -> bool:
    """Whether a letter belongs to the unit before it."""
    if _is_latin(piece[0]) and _is_latin(letter):
        return len(piece) < _PART or (unicodedata.combining(letter) > 0 and len(piece) < _MOST_MARKS)
    joined = letter == _JOINER or piece[-1] == _JOINER or _SKIN[0] <= letter <= _SKIN[1]
    marks = unicodedata.category(letter).startswith("M")
    return (joined or marks) and len(piece) < _MOST_MARKS
