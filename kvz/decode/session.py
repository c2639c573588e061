"""A session: one archive, one model, any number of questions, each starting from the archive as it is on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.decode.decoding import Decoding
from kvz.decode.policies.dense import DensePolicy
from kvz.decode.sampling import Sampler, Sampling
from kvz.decode.text_stream import TextStream
from kvz.defaults import MAX_NEW_TOKENS
from kvz.errors import QuestionError, UsageError
from kvz.models.language_model import LanguageModel
from kvz.prompt import Seam, question_ids

__all__ = ["Answer", "Session", "check_max_new_tokens"]

_QUESTION_CHUNK = 1024  # tokens of a long question that go through the model at a time


@dataclass(frozen=True)
class Answer:
    """An answer and what it took.

    `stop` is "end" (the model ended it), "length" (max_new_tokens reached) or "full" (no position left). `ids` are the
    generated ids without the end token. Seconds are wall time: from the question to the first token, and for each
    token after it (None if there was none). `kv_bytes` are those of archive and tail when the answer was complete.
    `policy` says how generated tokens read the archive, `pairs_read` how many of its pairs each of them read, over all
    layers and heads, with what it took to choose them (None if there was no such token).
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


class Session:
    """Asks questions of a pruned cache. Asking A, B, A gives A's answer twice (greedy, or with a seed)."""

    def __init__(
        self, model: LanguageModel, cache: RaggedCache, seam: Seam, prefix: int = 0, decoding: Decoding | None = None
    ) -> None:
        """`cache` must come from `model`; `seam` and `prefix` (tokens) are those of the archive."""
        self._model = model
        self._cache = cache.to(model.device)
        self._seam = seam
        self._reading = (decoding or Decoding()).reading(self._cache, prefix)
        self._tail: Tail | None = None

    @property
    def policy(self) -> str:
        """How generated tokens read the archive; "dense" also where a budget covers every head."""
        return self._reading.policy

    def ask(
        self,
        question: str,
        max_new_tokens: int = MAX_NEW_TOKENS,
        sampling: Sampling | None = None,
        stream: Callable[[str], None] = lambda piece: None,
    ) -> Answer:
        """Answer one question; `stream` receives the text in pieces as it is settled.

        Raises QuestionError if the question is empty or does not fit into the model's positions.
        """
        check_max_new_tokens(max_new_tokens)
        began = time.perf_counter()
        self._check_size(len(str(question)) // self._model.tokenizer.longest_token, "at least ")
        ids = question_ids(self._model.tokenizer, self._seam, question)
        room = self._check_size(len(ids))
        limit = min(max_new_tokens, room)
        tail = self._fresh_tail(len(ids) + limit)
        store = self._reading.store(tail)
        run = _Run(self._model, store, tail, self._cache.logical_length)
        text = TextStream(self._model.tokenizer, self._seam.stop_texts)
        tokens = run.tokens(ids, limit, Sampler(sampling or Sampling()))
        token: int | None = next(tokens)
        first = last = time.perf_counter()
        new: list[int] = []
        stop = "length" if limit == max_new_tokens else "full"
        while token is not None:
            if token in self._seam.stop_ids:
                stop = "end"
                break
            new.append(token)
            stream(text.push(token))
            token = None if text.stopped else next(tokens, None)
            last = time.perf_counter()
        stream(text.finish())
        self._tail = tail
        return Answer(
            text=text.text.strip(),
            ids=tuple(new),
            context_tokens=self._cache.logical_length,
            question_tokens=len(ids),
            stop="end" if text.stopped else stop,
            first_token_seconds=first - began,
            token_seconds=(last - first) / run.steps if run.steps else None,
            kv_bytes=self._cache.nbytes + tail.nbytes,
            policy=self._reading.policy,
            pairs_read=store.pairs_read / store.steps if store.steps else None,
        )

    def _check_size(self, tokens: int, measure: str = "") -> int:
        """Positions left for an answer after a question of so many tokens; QuestionError if there are none."""
        positions = self._model.geometry.max_positions
        left = positions - self._cache.logical_length
        if tokens >= left:
            raise QuestionError(
                f"the question is {measure}{tokens} tokens and only {left} of the model's {positions} positions are "
                f"left after the context of {self._cache.logical_length}; ask something shorter"
            )
        return left - tokens

    def _fresh_tail(self, tokens: int) -> Tail:
        """An empty tail for `tokens` or more: the one of the question before, unless that is being used or too small.

        Taken out of the session until the answer is complete, so that questions from several threads do not mix.
        """
        tail, self._tail = self._tail, None
        if tail is not None and tail.capacity >= tokens:
            tail.reset()
            return tail
        del tail  # freed before a larger one is allocated
        return Tail(self._model.geometry.shapes, tokens, self._model.dtype, self._model.device)


def check_max_new_tokens(count: int) -> None:
    """Raise UsageError unless `count` is a length that an answer can have."""
    if count < 1:
        raise UsageError(f"max new tokens {count}: give 1 or more")


class _Run:
    """One question's way through the model; `steps` counts the tokens fed back one by one."""

    def __init__(self, model: LanguageModel, policy: DensePolicy, tail: Tail, logical_length: int) -> None:
        self.steps = 0
        self._model = model
        self._policy = policy
        self._tail = tail
        self._logical_length = logical_length

    def tokens(self, ids: list[int], limit: int, sampler: Sampler) -> Iterator[int]:
        """At most `limit` tokens after the question `ids`, each chosen when it is asked for."""
        logits = self._feed(ids)
        for count in range(1, limit + 1):
            token = sampler.choose(logits)
            yield token
            if count < limit:
                self.steps += 1
                logits = self._feed([token])

    def _feed(self, ids: list[int]) -> Tensor:
        """Append tokens to the tail; logits after the last one, `[vocabulary]` float32."""
        size = _QUESTION_CHUNK - (len(ids) % _QUESTION_CHUNK == 1)  # a last part of one would pass for a new token
        for start in range(0, len(ids), size):
            part = torch.tensor(ids[start : start + size])
            logits = self._model.logits(part, self._logical_length + self._tail.length, self._policy)
            self._tail.advance(len(part))
        return logits
