"""Answers by steps that do not wait for the host: the question as always, then a `StepGraph`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kvz.decode.decoding import Reading
from kvz.decode.run import Growing, Run
from kvz.decode.sampling import DeviceSampler, Sampling, not_numbers
from kvz.decode.step.graph import LATE, WARM_UPS, StepGraph
from kvz.decode.step.reader import StepRoom
from kvz.decode.step.state import StepState
from kvz.models.language_model import LanguageModel

__all__ = ["StepDecoder", "Stepped"]

_LEAST_CAPACITY = 256  # tokens: tails are of this or of twice, four times ... as many


@dataclass(frozen=True)
class Stepped:
    """What an answer took: wall seconds to the first token and of each step after it, and bytes of its tail."""

    first_token_seconds: float
    token_seconds: float | None
    tail_bytes: int


class StepDecoder:
    """Answers one question at a time; a graph serves all questions whose tails fit into it."""

    def __init__(self, model: LanguageModel, reading: Reading, sampling: Sampling | None = None) -> None:
        """`reading` must have `steps`."""
        self._model = model
        self._reading = reading
        self._sampler = DeviceSampler(sampling or Sampling(), model.device)
        self._graph: StepGraph | None = None

    def answer(self, ids: list[int], growing: Growing, limit: int, stream: Callable[[str], None]) -> Stepped:
        """Let an answer of at most `limit` tokens grow to its end. Raises DecodeError for logits that are NaN."""
        began = time.perf_counter()
        graph = self._graph_for(len(ids) + limit)
        start = self._reading.cache.logical_length
        tail = graph.state.row(0)
        stream(growing.take(Run(self._model, self._reading.store(tail), tail, start).feed(ids)))
        first = time.perf_counter()
        self._sampler.restart()
        graph.state.begin(growing.ids[-1:], [tail.length], start)
        steps = 0
        while growing.stop is None and steps < limit - 1:
            steps += 1
            if (tokens := graph.step()) is not None:
                stream(_taken(growing, tokens[0]))
        for tokens in graph.rest():
            if growing.stop is None:
                stream(_taken(growing, tokens[0]))
        fed = min(steps, len(growing.ids))
        tail.advance(fed)
        seconds = (time.perf_counter() - first) / steps if steps else None
        return Stepped(first - began, seconds, tail.nbytes)

    def _graph_for(self, tokens: int) -> StepGraph:
        """A graph whose tails hold `tokens`, and the steps that run before a recording and after an end."""
        wanted = tokens + LATE + WARM_UPS
        if self._graph is None or self._graph.state.capacity < wanted:
            self._graph = None  # freed before a larger one is allocated
            self._graph = self._made(max(_LEAST_CAPACITY, 1 << (wanted - 1).bit_length()))
        return self._graph

    def _made(self, capacity: int) -> StepGraph:
        model, reading = self._model, self._reading
        geometry = model.geometry
        state = StepState.make(geometry.shapes, 1, capacity, model.dtype, model.device)
        group = geometry.query_heads // geometry.shapes[0].kv_heads
        assert reading.steps is not None
        reader = reading.steps(StepRoom(1, group, capacity, model.dtype))
        return StepGraph(model, reading.cache, reader, state, self._sampler)


def _taken(growing: Growing, token: int) -> str:
    if token < 0:
        raise not_numbers()
    return growing.accept(token)
