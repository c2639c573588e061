"""One question being answered: what is still to be fed, a tail, and the tokens and text of its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kvz.cache.tail import Tail
from kvz.config import Sampling
from kvz.decode.decoding import Readers, Reading
from kvz.decode.pace import Pace
from kvz.decode.sampling import Sampler
from kvz.decode.text_stream import TextStream
from kvz.errors import KvzError
from kvz.models.tokenizer import Tokenizer
from kvz.prompt import Seam

__all__ = ["Answer", "AnswerText", "Sequence"]


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


class AnswerText:
    """An answer's tokens and text as they come, `limit` tokens at most; `stop` is None until something ends it."""

    def __init__(self, tokenizer: Tokenizer, seam: Seam, limit: int, at_limit: str) -> None:
        """`at_limit` says in a word what ends the answer after `limit` tokens."""
        self.ids: list[int] = []
        self.stop: str | None = None
        self.limit = limit
        self._at_limit = at_limit
        self._tokenizer = tokenizer
        self._text = TextStream(tokenizer, seam.stop_texts)
        self._stop_ids = seam.stop_ids

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

    def accept(self, token: int) -> str:
        """Take the next token; returns the text that this settles."""
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


class Sequence:
    """A question of `ids` over the archive of a `reading`, and its answer.

    `tail` is given where it outlives the sequence, as a conversation's does; else the engine opens one. `stream`
    receives the answer's text in pieces. `error` is what ended a sequence that could not be answered.
    """

    def __init__(
        self,
        reading: Reading,
        ids: list[int],
        answer: AnswerText,
        sampling: Sampling | None = None,
        stream: Callable[[str], None] = lambda piece: None,
        tail: Tail | None = None,
    ) -> None:
        self.reading = reading
        self.ids = ids
        self.answer = answer
        self.tail = tail
        self.owns_tail = tail is None
        self.error: KvzError | None = None
        self.sampler = Sampler(sampling or Sampling())
        self._stream = stream
        self._fed = 0
        self._readers: Readers | None = None
        self._pace = Pace()

    @property
    def readers(self) -> Readers:
        """What the question's tokens read the archive by, and the answer's; some belong to one question alone."""
        if self._readers is None:
            self._readers = self.reading.readers()
        return self._readers

    @property
    def room(self) -> int:
        """Tokens that its tail must have room for."""
        return len(self.ids) + self.answer.limit

    @property
    def unfed(self) -> int:
        """Tokens of the question that have not gone through the model."""
        return len(self.ids) - self._fed

    @property
    def ended(self) -> bool:
        """Whether the answer is complete, or will never be."""
        return self.answer.stop is not None or self.error is not None

    def following(self, most: int) -> list[int]:
        """What is fed next: up to `most` tokens of the question, in equal parts, or the answer's last token."""
        if not self.unfed:
            return self.answer.ids[-1:]
        parts = -(-self.unfed // most)
        return self.ids[self._fed : self._fed - (-self.unfed // parts)]

    def feed(self, count: int, logits: Tensor) -> None:
        """Note that `count` tokens went through the model; choose the next one unless the question goes on.

        `logits [vocabulary]` float32 are those after the last of them. Raises DecodeError.
        """
        if self._fed < len(self.ids):
            self._fed += count
            if self.unfed:
                return
        self.take(self.sampler.choose(logits, len(self.answer.ids)))

    def take(self, token: int) -> None:
        """Take the answer's next token, and pass its text on."""
        self._pace.mark()
        self._stream(self.answer.accept(token))

    def finished(self, archive_nbytes: int) -> Answer:
        """The complete answer, over an archive of so many bytes."""
        assert self.tail is not None
        token_seconds = self._pace.token_seconds
        return Answer(
            text=self.answer.text,
            ids=tuple(self.answer.ids),
            context_tokens=self.reading.cache.logical_length,
            question_tokens=len(self.ids),
            stop=str(self.answer.stop),
            first_token_seconds=self._pace.first_token_seconds,
            token_seconds=token_seconds,
            kv_bytes=archive_nbytes + self.tail.nbytes,
            policy=self.reading.policy,
            pairs_read=self.reading.read(self.readers[1]).pairs if token_seconds is not None else None,
        )
