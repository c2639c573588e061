"""A document's tokens as runs that as many heads kept, in blocks that a browser can lay out one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvz.decode.text_stream import TextStream
from kvz.models.tokenizer import Tokenizer

__all__ = ["Block", "Run", "blocks_of", "texts_of"]

_BLOCK, _LONGEST_BLOCK = 300, 1200  # tokens after which a block ends at the next newline, and in any case
_NO_TEXT = "·"


@dataclass(frozen=True)
class Run:
    """Tokens `first` to `last` of the document (from 0), each kept by `heads` heads, and their text."""

    first: int
    last: int
    heads: int
    text: str


@dataclass(frozen=True)
class Block:
    """Runs that follow each other."""

    runs: tuple[Run, ...]


def texts_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Text of each token, as it reads after the ones before; of tokens that share a character the last one has it."""
    stream = TextStream(tokenizer)
    texts = [stream.push(token) for token in ids]
    if texts:
        texts[-1] += stream.finish()
    return texts


def blocks_of(heads: Sequence[int], texts: Sequence[str] | None) -> list[Block]:
    """Blocks of tokens that `heads[i]` heads kept; without texts each token is a dot.

    A block ends after a newline if it can, because the next one begins on a line of its own.
    """
    return [Block(tuple(_runs(heads, texts, first, last))) for first, last in _spans(len(heads), texts)]


def _spans(count: int, texts: Sequence[str] | None) -> Iterator[tuple[int, int]]:
    first = 0
    for last in range(count):
        length, at_newline = last + 1 - first, texts is not None and texts[last].endswith("\n")
        if (length >= _BLOCK and at_newline) or length == _LONGEST_BLOCK or last + 1 == count:
            yield first, last + 1
            first = last + 1


def _runs(heads: Sequence[int], texts: Sequence[str] | None, first: int, end: int) -> Iterator[Run]:
    while first < end:
        last = first
        while last + 1 < end and heads[last + 1] == heads[first]:
            last += 1
        text = _NO_TEXT * (last + 1 - first) if texts is None else "".join(texts[first : last + 1])
        yield Run(first, last, heads[first], text)
        first = last + 1
