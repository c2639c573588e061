"""Text that things are hidden in: the sentences of files in a folder, or one short paragraph over and over."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Protocol

from kvz.bench.tasks.rows import check_text, read_text
from kvz.bench.tasks.units import cut, tears, units_of
from kvz.errors import UsageError

__all__ = ["NOISE", "Filler", "Haystack", "hide", "read_haystack", "sentences_of", "written_sentences"]

_SENTENCE = re.compile(
    r".+?(?:(?:(?<!\d)\.|[!?…؟۔])\s+"  # a point after a number may be one of a list
    r"|(?:[。！？｡।॥]|…{2,})[。！？｡।॥…”’」』）]*\s*"  # these need no white space after them
    r"|\Z)",
    re.DOTALL,
)
_LONGEST = 400  # characters of a sentence; texts without full stops, such as Thai ones, have none
_LAST_SPACE = re.compile(r".*\s", re.DOTALL)
_BLANK_LINES = re.compile(r"\n\s*\n")


class Filler(Protocol):
    """What fills a context around the things that are looked for."""

    @property
    def end(self) -> str:
        """What stands between two sentences."""

    @property
    def most(self) -> int | None:
        """How many units there are at most; None: as many as are wanted."""

    @property
    def licence(self) -> str:
        """Where its text comes from."""

    def sentences(self, draw: Random, taken: Collection[str]) -> Callable[[int], list[str]]:
        """A function of `n`: sentences of `n` units of text in all, each with the white space after it.

        More units only add to the end. None of the strings in `taken` is drawn as a key or a value.
        """


@dataclass(frozen=True)
class Haystack:
    """Paragraphs, each a tuple of sentences with the white space after them. Units are those of `units_of`.

    The text starts again when it has ended.
    """

    name: str
    paragraphs: tuple[tuple[str, ...], ...]
    end: str = " "
    most: None = None

    @property
    def licence(self) -> str:
        """Where its text comes from."""
        return f"made here; text around it: {self.name}"

    def sentences(self, draw: Random, taken: Collection[str] = ()) -> Callable[[int], list[str]]:
        """The sentences from a paragraph drawn at random on, the last one cut to give `n` units in all."""
        start = draw.randrange(len(self.paragraphs))
        order = [*self._measured[start:], *self._measured[:start]]

        def first(count: int) -> list[str]:
            whole, left = [], count
            for sentence, units in itertools.cycle(itertools.chain.from_iterable(order)):
                if units >= left:
                    break
                whole.append(sentence)
                left -= units
            return [*whole, cut(sentence, left) + self.end] if left else whole

        return first

    @cached_property
    def _measured(self) -> list[list[tuple[str, int]]]:
        """Each paragraph's sentences with the units that they have."""
        return [[(sentence, units_of(sentence)) for sentence in paragraph] for paragraph in self.paragraphs]


def read_haystack(folder: Path | None) -> Haystack:
    """The paragraphs of a folder's .txt files, of the example documents without one. Raises UsageError for none."""
    from kvz.bench.documents import EXAMPLES

    place = EXAMPLES if folder is None else folder
    texts = [_text(path) for path in sorted(place.glob("*.txt"))]
    paragraphs = tuple(filter(None, map(_split, (block for text in texts for block in _BLANK_LINES.split(text)))))
    if not paragraphs:
        raise UsageError(f"no text in {place} to hide things in; name a folder of .txt files with --texts")
    return Haystack("kvz's example documents" if folder is None else f"the texts in {folder.name}", paragraphs)


def sentences_of(text: str) -> tuple[str, ...]:
    """The sentences of all its paragraphs, each with the white space after it."""
    return tuple(sentence for block in _BLANK_LINES.split(text) for sentence in _split(block))


def written_sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text with all that stands between them: joined, they are the text."""
    return tuple(part for sentence in _SENTENCE.findall(text) for part in _parts(sentence))


def _text(path: Path) -> str:
    text = read_text(path)
    for number, line in enumerate(text.split("\n"), 1):
        check_text(line, f"{path}, line {number}")
    return text


def hide(sentences: Sequence[str], needles: Sequence[str], depths: Sequence[float], end: str = " ") -> str:
    """The text of the sentences with each needle at the sentence's edge nearest to its depth (0 start, 1 end)."""
    edges = list(itertools.accumulate(map(len, sentences), initial=0))
    at = [_nearest(edges, depth * edges[-1]) for depth in depths]
    pieces: list[str] = []
    placed = sorted(zip(at, range(len(needles)), strict=True))
    before = 0
    for edge, number in placed:
        pieces += sentences[before:edge]
        apart = "" if not pieces or pieces[-1][-1:].isspace() else end  # not all scripts have spaces
        pieces.append(apart + needles[number] + end)
        before = edge
    return "".join([*pieces, *sentences[before:]]).strip()


def _nearest(edges: list[int], target: float) -> int:
    after = bisect_left(edges, target)
    return after - 1 if after and target - edges[after - 1] < edges[after] - target else after


def _split(block: str) -> tuple[str, ...]:
    """A paragraph's sentences."""
    return written_sentences(f"{block.strip()}\n\n") if block.strip() else ()


def _parts(sentence: str) -> list[str]:
    """A sentence, or parts of one that goes on for too long: between words if it has some, else between characters."""
    parts = []
    while len(sentence) > _LONGEST:
        space = _LAST_SPACE.match(sentence[:_LONGEST])
        end = space.end() if space else _LONGEST
        while not space and end < len(sentence) and tears(sentence, end):
            end += 1
        parts.append(sentence[:end])
        sentence = sentence[end:]
    return [*parts, sentence] if sentence else parts


NOISE = Haystack(
    "one paragraph, repeated",
    (
        _split(
            "The rain has stopped. The road is dry again. A dog sleeps by the door. Nothing happens here. "
            "We wait and then go home."
        ),
    ),
)
