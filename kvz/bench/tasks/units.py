"""What texts are measured out by: words of Latin letters, and single characters of other scripts, whether these put
spaces between words or not.

A character is taken with what is written onto it, so that no accent, vowel sign or joined emoji is torn off. Words that
no language has, such as lines of base64, count as several.
"""

from __future__ import annotations

import unicodedata

__all__ = ["cut", "tears", "units_of"]

_LATIN = (
    ("\0", "\u036f"),  # ASCII to IPA, and the accents that combine with them
    ("\u1e00", "\u1eff"),  # letters with several accents, as in Vietnamese
    ("\u2000", "\u206f"),  # dashes, quotation marks, joiners
    ("\u20a0", "\u20cf"),  # currencies
    ("\u2c60", "\u2c7f"),
    ("\ua720", "\ua7ff"),
    ("\ufb00", "\ufb06"),  # ligatures
)
_LONGEST = 32  # characters of a Latin word
_PART = 4  # characters of a longer one that are a unit
_MOST_MARKS = 8  # characters of another script with its marks: more is no writing
_JOINER = "\u200d"
_SKIN = ("\U0001f3fb", "\U0001f3ff")
_FLAG = ("\U0001f1e6", "\U0001f1ff")  # letters of which two are a flag


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


def tears(text: str, place: int) -> bool:
    """Whether a cut there would part a character from what is written onto it."""
    before, letter = text[place - 1], text[place]
    if _is_latin(before) and _is_latin(letter):
        return unicodedata.combining(letter) > 0
    return _goes_with(before, letter)


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
    return any(first <= letter <= last for first, last in _LATIN)


def _goes_with(piece: str, letter: str) -> bool:
    """Whether a letter belongs to the unit before it."""
    if _is_latin(piece[0]) and _is_latin(letter):
        return len(piece) < _PART or (unicodedata.combining(letter) > 0 and len(piece) < _MOST_MARKS)
    joined = letter == _JOINER or piece[-1] == _JOINER or _SKIN[0] <= letter <= _SKIN[1]
    if len(piece) == 1 and _FLAG[0] <= piece <= _FLAG[1]:
        return _FLAG[0] <= letter <= _FLAG[1]
    marks = unicodedata.category(letter).startswith("M")
    return (joined or marks) and len(piece) < _MOST_MARKS
