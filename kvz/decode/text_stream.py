"""Turning tokens into text as they come, never showing half a character or the beginning of a stop text."""

from __future__ import annotations

from collections.abc import Sequence

from kvz.models.tokenizer import Tokenizer

__all__ = ["TextStream"]

_REPLACEMENT = "\ufffd"  # what a tokenizer puts for bytes that are not yet a character
_WINDOW = 8  # tokens, or a few more, decoded again as left context, so that spaces come out as in one piece


class TextStream:
    """Collects ids and releases the text that is settled.

    Text is held back while its last bytes are not a whole character, and while its end could be the beginning of a
    stop text. Decoding a token costs the same however long the answer is, but for tokens that are not yet a character.
    """

    def __init__(self, tokenizer: Tokenizer, stop_texts: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop_texts = tuple(stop_texts)
        self._ids: list[int] = []
        self._ends = [0]  # numbers of ids whose text was settled, the last one that of _text
        self._text = ""
        self._released = 0
        self.stopped = False

    @property
    def text(self) -> str:
        """All settled text, up to a stop text if there was one."""
        return self._text

    def push(self, token: int) -> str:
        """Add a token; returns text that became settled. Sets `stopped` once a stop text is complete."""
        self._ids.append(token)
        piece = self._pending()
        if not piece.endswith(_REPLACEMENT):
            self._settle(piece)
        return self._release(self._held_back())

    def finish(self) -> str:
        """Settle what was held back and return it."""
        if not self.stopped:
            self._settle(self._pending())
        return self._release(0)

    def _pending(self) -> str:
        """Text of the ids that are not settled, as it reads after the ones before."""
        settled = self._ends[-1]
        # Context that began inside a character would spoil all bytes that follow where a token is a byte.
        first = next((end for end in reversed(self._ends) if end <= settled - _WINDOW), 0)
        known = self._tokenizer.decode(self._ids[first:settled])
        return self._tokenizer.decode(self._ids[first:])[len(known) :]

    def _settle(self, piece: str) -> None:
        self._ends.append(len(self._ids))
        search_from = max(0, len(self._text) - max(map(len, self._stop_texts), default=0))
        self._text += piece
        found = [at for stop in self._stop_texts if (at := self._text.find(stop, search_from)) >= 0]
        if found:
            self._text = self._text[: min(found)]
            self.stopped = True

    def _held_back(self) -> int:
        """Characters at the end that may turn out to begin a stop text."""
        if self.stopped:
            return 0
        longest = 0
        for stop in self._stop_texts:
            for size in range(1, len(stop)):
                if self._text.endswith(stop[:size]):
                    longest = max(longest, size)
        return longest

    def _release(self, held_back: int) -> str:
        end = max(self._released, len(self._text) - held_back)
        piece, self._released = self._text[self._released : end], end
        return piece
