"""Turning tokens into text as they come, never showing half a character or the beginning of a stop text."""

from __future__ import annotations

from collections.abc import Sequence

from kvz.models.tokenizer import Tokenizer

__all__ = ["TextStream"]

_REPLACEMENT = "\ufffd"  # what a tokenizer puts for bytes that are not a character, or not yet
_WINDOW = 8  # tokens, or a few more, decoded again as left context, so that spaces come out as in one piece
_WAITING = 3  # tokens that a character may be waiting in for its last byte


class TextStream:
    """Collects ids and releases the text that is settled.

    Text is held back while its last tokens may become a character, and while its end could be the beginning of a stop
    text. A token costs the same however long the answer is. What is no text comes as U+FFFD, a few tokens later.
    """

    def __init__(self, tokenizer: Tokenizer, stop_texts: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop_texts = tuple(stop_texts)
        self._ids: list[int] = []
        self._ends = [0]  # numbers of ids whose text was settled, the last one that of all settled text
        self._released: list[str] = []
        self._held = ""  # settled, and perhaps the beginning of a stop text
        self.stopped = False

    @property
    def text(self) -> str:
        """All settled text, up to a stop text if there was one."""
        return "".join(self._released) + self._held

    def push(self, token: int) -> str:
        """Add a token; returns text that became settled. Sets `stopped` once a stop text is complete."""
        self._ids.append(token)
        piece = self._pending(len(self._ids))
        if not piece.endswith(_REPLACEMENT):
            self._settle(len(self._ids), piece)
        elif len(self._ids) - self._ends[-1] > _WAITING:
            self._settle_begun(piece)
        return self._release(self._beginning_of_stop())

    def finish(self) -> str:
        """Settle what was held back and return it."""
        if not self.stopped:
            self._settle(len(self._ids), self._pending(len(self._ids)))
        return self._release(0)

    def _pending(self, end: int) -> str:
        """Text of the ids up to `end` that are not settled, as it reads after the ones before."""
        settled = self._ends[-1]
        # Context that began inside a character would spoil all bytes that follow where a token is a byte.
        first = next((at for at in reversed(self._ends) if at <= settled - _WINDOW), 0)
        known = self._tokenizer.decode(self._ids[first:settled])
        return self._tokenizer.decode(self._ids[first:end])[len(known) :]

    def _settle_begun(self, piece: str) -> None:
        """Settle the first of the pending tokens, whose text is `piece`: up to one that no character goes across."""
        for waiting in range(_WAITING, 0, -1):
            end = len(self._ids) - waiting
            begun, rest = self._pending(end), self._tokenizer.decode(self._ids[end:])
            if piece.startswith(begun) and piece[len(begun) :].lstrip(" ") == rest.lstrip(" "):
                self._settle(end, begun)
                return
        if len(self._ids) - self._ends[-1] > _WINDOW:
            self._settle(len(self._ids), piece)

    def _settle(self, end: int, piece: str) -> None:
        """Take the text of the ids up to `end`; a stop text in it began in what was held at the earliest."""
        self._ends.append(end)
        self._held += piece
        found = [at for stop in self._stop_texts if (at := self._held.find(stop)) >= 0]
        if found:
            self._held = self._held[: min(found)]
            self.stopped = True

    def _beginning_of_stop(self) -> int:
        """Characters at the end that may turn out to begin a stop text."""
        sizes = (size for stop in self._stop_texts for size in range(1, len(stop)) if self._held.endswith(stop[:size]))
        return 0 if self.stopped else max(sizes, default=0)

    def _release(self, held_back: int) -> str:
        end = len(self._held) - held_back
        piece, self._held = self._held[:end], self._held[end:]
        self._released.append(piece)
        return piece
