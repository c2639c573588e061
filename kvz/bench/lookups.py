"""Contexts made for look-ups: needles in a text, and a list of keys with values. The same for the same seed."""

from __future__ import annotations

import random
from pathlib import Path

from kvz.bench.readings import Reading
from kvz.errors import UsageError

__all__ = ["make_lookups", "make_needles"]

_PLACES = [
    "harbour",
    "library",
    "observatory",
    "mill",
    "station",
    "chapel",
    "museum",
    "granary",
    "lighthouse",
    "school",
]
_COLOURS = ["red", "blue", "green", "white", "black", "yellow", "grey", "brown", "purple", "orange", "silver", "golden"]


def make_needles(texts: list[Path], count: int, seed: int = 0) -> Reading:
    """Sentences with a code each, at even depths between the paragraphs of some texts, and a question for each.

    Raises UsageError if there is no text.
    """
    paragraphs = [p for path in texts for p in path.read_text(encoding="utf-8").split("\n\n") if p.strip()]
    if not paragraphs:
        raise UsageError("no text to put needles into; run this in a clone of the repository")
    draw = random.Random(seed)
    places = draw.sample(_PLACES, count)
    codes = [str(draw.randrange(1000, 10000)) for _ in places]
    for number, (place, code) in reversed(list(enumerate(zip(places, codes, strict=True)))):
        at = len(paragraphs) * (2 * number + 1) // (2 * count)
        paragraphs.insert(at, f"The access code of the {place} is {code}.")
    asked = [
        (f"What is the access code of the {place}?", f" The access code of the {place} is {code}.")
        for place, code in zip(places, codes, strict=True)
    ]
    return Reading("needles", "\n\n".join(paragraphs), tuple(asked))


def make_lookups(count: int, questions: int, seed: int = 0) -> Reading:
    """A list of `count` keys with values, and questions for some of them, evenly spread."""
    draw = random.Random(seed)
    names = draw.sample([f"{colour} {place}" for colour in _COLOURS for place in _PLACES], count)
    entries = [(name, str(draw.randrange(1000, 10000))) for name in names]
    text = "\n".join(f"The number of the {name} is {value}." for name, value in entries)
    asked = [
        (f"What is the number of the {name}?", f" The number of the {name} is {value}.")
        for name, value in entries[:: max(1, count // questions)][:questions]
    ]
    return Reading("key-value", text, tuple(asked))
