"""One answer being made: question tokens into the tail, then token after token until something ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.tail import Tail
from kvz.decode.pace import Pace
from kvz.decode.sampling import Sampler, Sampling
from kvz.decode.text_stream import TextStream
from kvz.models.attention import PairStore
from kvz.models.language_model import LanguageModel
from kvz.prompt import Seam

__all__ = ["Answer", "Growing", "Run"]

_QUESTION_CHUNK = 1024  # tokens of a long question that go through the model at a time


@dataclass(frozen=True)
class Answer:
    """An answer and what it took.

    `stop` is "end" (the model ended it), "length" (max_new_tokens reached) or "full" (no position left). `ids` are the
    generated ids without the end token. Seconds are wall time: from the question to the first token, and for a token
    after it (their median; None if there was none). `kv_bytes` are those of archive (its index among them) and
    tail when the answer was complete. `policy` says how generated tokens read the archive, `pairs_read` how many of its
    pairs each of them read, over all layers and heads, as budgets count them (None if there was none).
    """

    text: str
    ids: tuple[int, ...]
    context_tokens: int
    question_tokens: int
    stop: str
    first_token_seconds: float
    token_seconds: float | None
    kv_bytes: int
    policy: str = "dense"
    pairs_read: float | None = None

    @property
    def new_tokens(self) -> int:
        """Tokens generated, the end token not among them."""
        return len(self.ids)


class Growing:
    """An answer's tokens and text as they come, `limit` tokens at most; `stop` is None until something ends it."""

    def __init__(self, model: LanguageModel, seam: Seam, limit: int, at_limit: str, sampling: Sampling | None) -> None:
        """At most `limit` tokens, and `at_limit` says in a word what ends it then."""
        self.ids: list[int] = []
        self.stop: str | None = None
        self._tokenizer = model.tokenizer
        self._text = TextStream(model.tokenizer, seam.stop_texts)
        self._stop_ids = seam.stop_ids
        self.limit = limit
        self._at_limit = at_limit
        self._sampler = Sampler(sampling or Sampling())

    @property
    def said(self) -> list[int]:
        """The ids without those that make up a stop text."""
        kept = len(self.ids)
        while self._text.stopped and kept and len(self._tokenizer.decode(self.ids[:kept])) > len(self._text.text):
            kept -= 1
        return self.ids[:kept]

    @property
    def text(self) -> str:
        """All text that is settled."""
        return self._text.text.strip()

    def take(self, logits: Tensor) -> str:
        """Choose the next token from `logits [vocabulary]`; returns the text that this settles."""
        return self.accept(self._sampler.choose(logits))

    def accept(self, token: int) -> str:
        """Take a token that was chosen elsewhere; returns the text that this settles."""
        if token in self._stop_ids:
            self.stop = "end"
            return self._text.finish()
        self.ids.append(token)
        piece = self._text.push(token)
        if self._text.stopped:
            self.stop = "end"
        elif len(self.ids) == self.limit:
            self.stop = self._at_limit
        return piece if self.stop is None else piece + self._text.finish()


class Run:
    """A way through the model for one question at a time: `store` is what it attends, `tail` where its pairs go."""

    def __init__(self, model: LanguageModel, store: PairStore, tail: Tail, logical_length: int) -> None:
        self._model = model
        self._store = store
        self._tail = tail
        self._logical_length = logical_length

    def answer(
        self, ids: list[int], growing: Growing, stream: Callable[[str], None] = lambda piece: None
    ) -> tuple[float, float | None]:
        """Feed `ids` and let the answer grow to its end.

        Returns the wall seconds to the first token, and of each step after it (their median; None if there was none).
        """
        pace = Pace()
        piece = growing.take(self.feed(ids))
        pace.mark()
        stream(piece)
        while growing.stop is None:
            piece = growing.take(self.feed([growing.ids[-1]]))
            pace.mark()
            stream(piece)
        return pace.first_token_seconds, pace.token_seconds

    def feed(self, ids: list[int]) -> Tensor:
        """Append tokens to the tail; logits after the last one, `[vocabulary]` float32."""
        parts = -(-len(ids) // _QUESTION_CHUNK)
        size = -(-len(ids) // parts)  # equal parts: a last one of one token would pass for a token of an answer
        for start in range(0, len(ids), size):
            part = torch.tensor(ids[start : start + size])
            logits = self._model.logits(part, self._logical_length + self._tail.length, self._store)
            self._tail.advance(len(part))
        return logits
