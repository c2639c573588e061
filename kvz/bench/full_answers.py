"""What the full cache answers, and how well a pruned one agrees: teacher-forced, in the full cache's own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.decode.attend import PassAttention, Span
from kvz.decode.decoding import Reading, dense_reading
from kvz.decode.policies.dense import ArchiveReader
from kvz.models.language_model import LanguageModel
from kvz.prompt import Seam, question_ids

__all__ = ["Agreement", "FullAnswer", "Reader", "ask_full"]


@dataclass(frozen=True, eq=False)
class FullAnswer:
    """The full cache's greedy answer to a question: its ids, and the log-probabilities `[n,V]` it chose them from."""

    question: list[int]
    gold: list[int]
    ids: list[int]
    log_probs: Tensor


@dataclass(frozen=True)
class Agreement:
    """A pruned cache against the full one, for one question.

    `tokens` is the share of the answer's tokens that it chooses too, `exact` whether it chooses all of them (and so
    answers the same), `kl` the mean divergence KL(full || pruned) and `nll` the mean negative log-likelihood of those
    tokens, both in nats a token; `gold` is the mean log-likelihood of the gold answer's tokens.
    """

    tokens: float
    exact: float
    kl: float
    nll: float
    gold: float


class Reader:
    """Reads a pruned cache with one model: question by question, from the cache as it is."""

    def __init__(
        self, model: LanguageModel, cache: RaggedCache, reading: Reading | None = None, capacity: int = 512
    ) -> None:
        """`reading` says how the tokens of an answer read the cache, one by one; without it they are read densely."""
        self._model = model
        self._start = cache.logical_length
        self._tail = Tail(model.geometry.shapes, capacity, model.dtype, model.device)
        self._reading = reading or dense_reading(cache)
        self._question, self._answer = self._reading.readers()

    def answer(self, question: list[int], gold: list[int], stop_ids: Sequence[int], limit: int) -> FullAnswer:
        """The greedy answer, an end token included; at most `limit` tokens."""
        self._tail.reset()
        rows, ids = [self._feed(question, 1, self._question)], [0]
        while True:
            ids[-1] = int(rows[-1][0].argmax())
            if ids[-1] in stop_ids or len(ids) == limit:
                return FullAnswer(question, gold, ids, torch.cat(rows))
            rows.append(self._feed([ids[-1]], 1, self._answer))
            ids.append(0)

    def agreement(self, full: FullAnswer) -> Agreement:
        """How this cache does on the full cache's answer, and on the gold answer."""
        self._tail.reset()
        first = self._feed(full.question, 1, self._question)
        ours = torch.cat([first, self._feed(full.ids[:-1], len(full.ids) - 1, self._answer)])
        self._tail.truncate(len(full.question))
        gold = torch.cat([first, self._feed(full.gold[:-1], len(full.gold) - 1, self._answer)])
        chosen = torch.tensor(full.ids)
        same = ours.argmax(1) == chosen
        return Agreement(
            tokens=float(same.float().mean()),
            exact=float(same.all()),
            kl=float((full.log_probs.exp() * (full.log_probs - ours)).sum(1).mean()),
            nll=-_mean_of(ours, full.ids),
            gold=_mean_of(gold, full.gold),
        )

    @property
    def tokens(self) -> ArchiveReader:
        """What the tokens of an answer read the cache by."""
        return self._answer

    def _feed(self, ids: list[int], count: int, reader: ArchiveReader) -> Tensor:
        """Append tokens to the tail; log-probabilities after each of the last `count`, `[count,V]`."""
        if not ids:
            return torch.empty(0, 1).expand(0, self._model.identity.vocabulary_size)
        decoder, at = self._model.decoder, self._start + self._tail.length
        span = Span(self._reading.cache, reader, self._tail, len(ids))
        attend = PassAttention([span], self._model.dtype, decoder.architecture.scale)
        hidden = decoder.forward(torch.tensor(ids), torch.arange(at, at + len(ids)), attend)
        attend.advance()
        return decoder.logits(hidden[-count:]).log_softmax(1).cpu()


def _mean_of(log_probs: Tensor, ids: list[int]) -> float:
    return float(log_probs[torch.arange(len(ids)), torch.tensor(ids)].mean())


def ask_full(
    model: LanguageModel, cache: RaggedCache, seam: Seam, asked: Sequence[tuple[str, str]]
) -> list[FullAnswer]:
    """The full cache's answers to (question, gold answer) pairs."""
    reader, answers = Reader(model, cache), []
    for question, gold in asked:
        ids = question_ids(model.tokenizer, seam, question)
        answers.append(reader.answer(ids, model.tokenizer.encode_plain(gold), seam.stop_ids, _LONGEST_ANSWER))
    return answers


_LONGEST_ANSWER = 24
