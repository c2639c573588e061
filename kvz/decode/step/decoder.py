"""Answers by steps that do not wait for the host: the question as always, then a `StepGraph`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kvz.cache.tail import Tail
from kvz.decode.decoding import Reading
from kvz.decode.run import Growing, Run
from kvz.decode.sampling import DeviceSampler, Sampling, checked
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
        """`reading` must have `steps`. The seed of `sampling` is of no matter here: it is given with each question."""
        self._model = model
        self._reading = reading
        self._sampler = DeviceSampler(sampling or Sampling(), model.device)
        self._graph: StepGraph | None = None

    def answer(
        self,
        ids: list[int],
        growing: Growing,
        stream: Callable[[str], None],
        seed: int | None = None,
        history: Tail | None = None,
    ) -> Stepped:
        """Let an answer grow to its end. Raises DecodeError for logits that are NaN.

        The question follows the tokens of `history`, which must have room for both: their pairs are copied into this
        decoder's own tail, and those of question and answer back, as far as they came where an exception ends it.
        """
        graph = self._graph_for(len(ids) + growing.limit + (history.length if history else 0))
        tail = graph.state.row(0)
        if history is None:
            return self._answer(graph, tail, ids, growing, stream, seed)
        tail.copy_from(history)
        try:
            return self._answer(graph, tail, ids, growing, stream, seed)
        finally:
            history.copy_from(tail)

    def _answer(
        self,
        graph: StepGraph,
        tail: Tail,
        ids: list[int],
        growing: Growing,
        stream: Callable[[str], None],
        seed: int | None,
    ) -> Stepped:
        began = time.perf_counter()
        start = self._reading.cache.logical_length
        stream(growing.take(Run(self._model, self._reading.store(tail), tail, start).feed(ids)))
        first = time.perf_counter()
        if growing.stop is not None:
            return Stepped(first - began, None, tail.nbytes)
        self._sampler.restart(seed)
        graph.begin(growing.ids[-1:], [tail.length], start)
        try:
            fed = self._grow(graph, growing, growing.limit - 1, stream)
        except BaseException:
            tail.advance(len(growing.ids) - 1)  # the last one was not fed yet
            raise
        tail.advance(fed)
        return Stepped(first - began, (time.perf_counter() - first) / fed, tail.nbytes)

    def _grow(self, graph: StepGraph, growing: Growing, most: int, stream: Callable[[str], None]) -> int:
        """Let the answer take tokens to its end, in at most `most` steps; how many it took. The rest is dropped."""
        launched, taken = 0, 0
        while growing.stop is None:
            if launched < most:
                launched += 1
                tokens = graph.step()
            else:
                tokens = graph.oldest()
            if tokens is not None:
                taken += 1
                stream(growing.accept(checked(tokens[0])))
        return taken

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
