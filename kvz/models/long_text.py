"""Encoding a long text piece by piece: an interrupt is heard between pieces, and what is not needed is left alone.

The ids are those of the whole text. Merges do not reach over a token's boundary, so what follows one is encoded as if
it began there; where a pattern that looks further disagrees, the boundary is not used. This holds for byte-pair
encoding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

__all__ = ["PIECE", "Encode", "Spans", "encoded_end", "encoded_pieces"]

Spans = list[tuple[int, int]]
Encode = Callable[[str, bool], tuple[list[int], Spans]]
"""Ids of a text, which goes on from another or not, and the characters start:end of each."""

PIECE = 1 << 16  # characters
_MARGIN = 256  # tokens at the end of a piece that what follows may change
_AGREEING = 128  # tokens that must be the same when the text is encoded from a boundary on
_TRIES = 64
_STARTS = 64  # characters from each of which an end is encoded: one of them is a boundary of the whole text
_ZONE = 4096  # characters in which they must have come together


def encoded_pieces(encode: Encode, text: str, continues: bool) -> Iterator[tuple[list[int], int]]:
    """Ids of a text in pieces, each with the character at which it ends."""
    at, size = 0, PIECE
    while at + size < len(text):
        ids, spans = encode(text[at : at + size], continues)
        cut = _cut(encode, text[at : at + 2 * size], ids, spans)
        if cut is None:
            size *= 2
            continue
        at, size, continues = at + spans[cut][0], PIECE, True
        yield ids[:cut], at
    yield encode(text[at:], continues)[0], len(text)


def _cut(encode: Encode, text: str, ids: list[int], spans: Spans) -> int | None:
    """The first of the `ids` of `text`'s beginning that can be left to the next piece; None if none can."""
    last = len(ids) - _MARGIN
    for cut in range(last, max(0, last - _TRIES), -1):
        start = spans[cut][0]
        if spans[cut - 1][1] > start:  # a character of both
            continue
        seen = text[start : spans[-1][1] + (spans[-1][1] - start)]
        if encode(seen, True)[0][:_AGREEING] == ids[cut : cut + _AGREEING]:
            return cut
    return None


def encoded_end(encode: Encode, text: str, count: int) -> tuple[list[int], int] | None:
    """The last ids of a text, `count` or more, and the character where they begin; None if all of it is to be encoded.

    The ids follow from the text's end alone where all places that it could be begun at lead to the same.
    """
    length = 8 * count
    while (start := len(text) - length) > 0:
        common = _meeting(encode, text[start : start + _ZONE])
        if common is None:
            return None
        at = start + common
        ids = [i for piece, _ in encoded_pieces(encode, text[at:], True) for i in piece]
        if len(ids) >= count:
            return ids, at
        length *= 2
    return None


def _meeting(encode: Encode, zone: str) -> int | None:
    """The first character of a zone at which a token begins from whichever of its characters it is encoded."""
    shared: set[int] | None = None
    for begin in range(min(_STARTS, len(zone))):
        spans = encode(zone[begin:], True)[1][:-_MARGIN]
        begins = {begin + b for (b, _), (_, before) in zip(spans[1:], spans, strict=False) if before <= b}
        shared = begins if shared is None else shared & begins
    return min(shared) if shared else None
