"""Continuous batching: sequences over one or several archives of one model, each of which joins and leaves at any step.

A question alone is a batch of one. Each step reads a part of the questions that wait, in a pass of their own, and then
gives every running answer a token in one pass for all of them, so that the model's weights are read once. Questions
have their own passes so that an answer is the same alone and beside others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvz.cache.tail import TailPool
from kvz.config import Sampling
from kvz.decode.attend import PassAttention, Span
from kvz.decode.sequence import Sequence
from kvz.errors import DecodeError
from kvz.kernels.linear import FEW_ROWS
from kvz.memory import free_bytes
from kvz.models.language_model import LanguageModel

if TYPE_CHECKING:
    from kvz.decode.step.slots import StepSlots

__all__ = ["MOST_SEQUENCES", "PASS_TOKENS", "Engine", "feed_question", "forward"]

MOST_SEQUENCES = 16
"""Sequences that run at once: beyond, a step costs as much more as it does more."""

PASS_TOKENS = 1024
"""Tokens of a long question that go through the model at a time."""

_TOGETHER = 240  # tokens of several questions in a pass: more would be computed otherwise than a question alone


class Engine:
    """Runs sequences of one model. Not to be used by two threads at once."""

    def __init__(self, model: LanguageModel, most: int = MOST_SEQUENCES, graphs: bool | None = None) -> None:
        """At most `most` sequences run at once; others wait.

        With `graphs`, answers whose policy has steps get their tokens from a recorded step; None: on a GPU.
        """
        self._graphs = model.device.type == "cuda" if graphs is None else graphs
        self.model = model
        self.most = most
        self._pool = TailPool(model.geometry.shapes, model.dtype, model.device)
        self._slots: dict[tuple[int, Sampling], StepSlots] = {}
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []

    @property
    def unfinished(self) -> int:
        """Sequences that wait or run."""
        return len(self._waiting) + len(self._running)

    def add(self, sequence: Sequence) -> Sequence:
        """Let a sequence wait for its turn."""
        self._waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Stop a sequence; its memory is free at once. One that is not here is none of its business."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        self._release(sequence)

    def step(self) -> list[Sequence]:
        """Read questions, give every running answer a token; returns the sequences that this ended."""
        self._admit()
        answering = [sequence for sequence in self._running if not sequence.unfed]
        if feeding := self._feeding():
            self._pass(feeding)
        self._grow(answering)
        ended = [sequence for sequence in self._running if sequence.ended]
        for sequence in ended:
            self._release(sequence)
        return ended

    def run(self) -> Iterator[Sequence]:
        """Step until nothing is left; gives each sequence as it ends."""
        while self.unfinished:
            yield from self.step()

    def _admit(self) -> None:
        """Open tails for those who wait, in their order, as long as there are places and memory."""
        while self._waiting and len(self._running) < self.most:
            sequence = self._waiting[0]
            if sequence.tail is None:
                pool = self._pool_of(sequence)
                needed = pool.growth(sequence.room)
                if self._running and needed and 2 * needed > free_bytes(self.model.device):
                    return  # those who run will leave
                sequence.tail = pool.open(sequence.room)
            self._running.append(sequence)  # in both for a moment: what an interrupt leaves, `abort` can find
            self._waiting.pop(0)

    def _feeding(self) -> list[Sequence]:
        """The sequences whose questions are read in the next pass: a long one alone, short ones together."""
        waiting = [sequence for sequence in self._running if sequence.unfed]
        chosen, total = waiting[:1], sum(sequence.unfed for sequence in waiting[:1])
        if total <= FEW_ROWS:  # kernels for a few rows round otherwise than those for more
            return chosen
        for sequence in waiting[1:]:
            total += sequence.unfed
            if total > _TOGETHER or sequence.unfed <= FEW_ROWS:
                break
            chosen.append(sequence)
        return chosen

    def _pass(self, sequences: Collection[Sequence]) -> None:
        """One forward pass over the next tokens of some sequences."""
        sequences = sorted(sequences, key=lambda sequence: id(sequence.reading))
        parts = [sequence.following(PASS_TOKENS) for sequence in sequences]
        spans, starts = [], []
        for sequence, part in zip(sequences, parts, strict=True):
            assert sequence.tail is not None
            question, tokens = sequence.readers
            cache = sequence.reading.cache
            spans.append(Span(cache, question if sequence.unfed else tokens, sequence.tail, len(part)))
            starts.append(cache.logical_length + sequence.tail.length)
        logits = forward(self.model, parts, starts, spans)
        others: list[BaseException] = []
        for sequence, part, row in zip(sequences, parts, logits, strict=True):
            try:
                sequence.feed(len(part), row)
            except DecodeError as error:
                sequence.error = error
            except BaseException as error:  # a stream that cannot take its text: the others' tails have grown as well
                others.append(error)
        if others:
            raise others[0]

    def _release(self, sequence: Sequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        if sequence.owns_tail and sequence.tail is not None:
            if sequence.error is not None:
                sequence.tail.clear()
            self._pool_of(sequence).close(sequence.tail)

    def _pool_of(self, sequence: Sequence) -> TailPool | StepSlots:
        """Where a sequence's tail lies: in the memory of its archive's graph, where there is one."""
        if not self._graphs or sequence.reading.steps is None or not sequence.owns_tail:
            return self._pool
        from kvz.decode.step.slots import StepSlots  # which feeds questions by this module's functions

        sampling = replace(sequence.sampler.sampling, seed=None)  # a seed is a row's own
        key = id(sequence.reading), sampling
        if key not in self._slots:
            self._slots[key] = StepSlots(self.model, sequence.reading, sampling, self.most)
        return self._slots[key]

    def _grow(self, answering: Collection[Sequence]) -> None:
        """A token more for each of these answers: one pass for all of them, on a GPU one graph for each archive."""
        eager: list[Sequence] = []
        stepped: dict[int, tuple[StepSlots, list[Sequence]]] = {}
        for sequence in answering:
            pool = self._pool_of(sequence)
            if isinstance(pool, TailPool):
                eager.append(sequence)
            else:
                stepped.setdefault(id(pool), (pool, []))[1].append(sequence)
        for start in range(0, len(eager), FEW_ROWS):
            self._pass(eager[start : start + FEW_ROWS])
        for slots, sequences in stepped.values():
            slots.grow(sequences)


def feed_question(model: LanguageModel, sequence: Sequence) -> None:
    """Read a whole question into the sequence's tail, and choose the answer's first token. Raises DecodeError."""
    assert sequence.tail is not None
    cache = sequence.reading.cache
    while sequence.unfed:
        part = sequence.following(PASS_TOKENS)
        span = Span(cache, sequence.readers[0], sequence.tail, len(part))
        logits = forward(model, [part], [cache.logical_length + sequence.tail.length], [span])
        sequence.feed(len(part), logits[0])


def forward(
    model: LanguageModel, parts: Collection[Collection[int]], starts: Collection[int], spans: Collection[Span]
) -> Tensor:
    """A forward pass over token ids `parts`, whose first have RoPE positions `starts`, into the tails of `spans`.

    Returns the logits after the last token of each part, `[parts,vocabulary]` float32.
    """
    decoder = model.decoder
    attend = PassAttention(list(spans), model.dtype, decoder.architecture.scale)
    ids = torch.tensor([token for part in parts for token in part])
    positions = torch.cat([torch.arange(s, s + len(part)) for s, part in zip(starts, parts, strict=True)])
    hidden = decoder.forward(ids, positions, attend)
    attend.advance()
    last = torch.tensor([len(part) for part in parts]).cumsum(0) - 1
    return decoder.logits(hidden[last.to(model.device)])
