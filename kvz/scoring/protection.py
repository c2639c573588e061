"""Context tokens that a user wants every head to keep, whatever they score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvz.documents import line_feeds
from kvz.errors import UsageError
from kvz.models.tokenizer import Tokenizer
from kvz.scoring.spans import Span

__all__ = ["protected_tokens"]

_LONGEST_CHARACTER = 4  # tokens, each a byte


def protected_tokens(tokenizer: Tokenizer, ids: Sequence[int], protect: Sequence[str | Span]) -> Tensor:
    """Mask `[S]` bool of the tokens that lie in a span, or that hold a character of a protected text.

    Raises UsageError for a span that holds no token and for a text that does not occur.
    """
    mask = torch.zeros(len(ids), dtype=torch.bool)
    for item in protect:
        if not isinstance(item, str):
            if not len(range(*slice(*item).indices(len(ids)))):
                shown = ":".join("" if end is None else str(end) for end in item)
                raise UsageError(f"the span {shown} holds none of the document's {len(ids)} tokens")
            mask[slice(*item)] = True
    if texts := [item for item in protect if isinstance(item, str)]:
        text, starts, ends = _characters(tokenizer, ids)
        for wanted in texts:
            mask |= _tokens_of(wanted if wanted in text else line_feeds(wanted), text, starts, ends)
    return mask


def _tokens_of(wanted: str, text: str, starts: Tensor, ends: Tensor) -> Tensor:
    """Tokens with a character of any occurrence of `wanted`."""
    found = torch.zeros(len(text) + 1, dtype=torch.int32)  # at a character: occurrences that begin less those that end
    at = text.find(wanted)
    if at < 0:
        raise UsageError(f"the document does not contain the text to protect: '{wanted[:60]}'")
    while at >= 0:
        found[at] += 1
        found[at + len(wanted)] -= 1
        at = text.find(wanted, at + 1)
    inside = torch.cat([found.new_zeros(1), (found.cumsum(0)[:-1] > 0).cumsum(0)])
    return inside[ends] > inside[starts]


def _characters(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, Tensor, Tensor]:
    """The text of `ids`, and the characters start:end of each token; tokens that share a character share a range."""
    pieces: list[str] = []
    starts, ends = [], []
    first, done = 0, 0
    for last in range(1, len(ids) + 1):
        # Decoded after the token before, since some tokenizers drop a space at the beginning.
        before = ids[max(0, first - 1) : first]
        piece = tokenizer.decode([*before, *ids[first:last]])[len(tokenizer.decode(before)) :]
        if piece.endswith("\N{REPLACEMENT CHARACTER}") and last - first < _LONGEST_CHARACTER and last < len(ids):
            continue
        pieces.append(piece)
        starts += [done] * (last - first)
        done += len(piece)
        ends += [done] * (last - first)
        first = last
    return "".join(pieces), torch.tensor(starts), torch.tensor(ends)
