"""Answers by steps that do not wait for the host: the question as always, then a `StepGraph`."""

from __future__ import annotations

from kvz.cache.tail import Tail
from kvz.config import Sampling
from kvz.decode.decoding import Reading
from kvz.decode.engine import feed_question
from kvz.decode.sampling import checked
from kvz.decode.sequence import Sequence
from kvz.decode.step.graph import LATE, WARM_UPS, StepGraph
from kvz.decode.step.reader import StepRoom
from kvz.decode.step.state import StepState
from kvz.models.language_model import LanguageModel

__all__ = ["StepDecoder"]

_LEAST_CAPACITY = 256  # tokens: tails are of this or of twice, four times ... as many


class StepDecoder:
    """Answers one question at a time; a graph serves all questions whose tails fit into it."""

    def __init__(
        self, model: LanguageModel, reading: Reading, sampling: Sampling | None = None, late: int | None = None
    ) -> None:
        """`reading` must have `steps`. The seed of `sampling` is of no matter here: each sequence has its own.

        Tokens arrive `late` steps later, as `StepGraph` has it.
        """
        self._model = model
        self._reading = reading
        self._sampling = sampling or Sampling()
        self._late = late
        self._graph: StepGraph | None = None

    def answer(self, sequence: Sequence, history: Tail | None = None) -> None:
        """Let a sequence run to its end. Raises DecodeError for logits that are NaN.

        The question follows the tokens of `history`, which must have room for both: their pairs are copied into this
        decoder's own tail, and those of question and answer back, as far as they came where an exception ends it.
        """
        graph = self._graph_for(sequence.room + (history.length if history else 0))
        tail = sequence.tail = graph.state.row(0)
        if history is None:
            self._answer(graph, tail, sequence)
            return
        tail.copy_from(history)
        try:
            self._answer(graph, tail, sequence)
        finally:
            history.copy_from(tail)

    def _answer(self, graph: StepGraph, tail: Tail, sequence: Sequence) -> None:
        feed_question(self._model, sequence)
        answer = sequence.answer
        if answer.stop is not None:
            return
        start = self._reading.cache.logical_length
        graph.begin(answer.ids[-1:], [tail.length], start, [sequence.sampler.seed], [1])
        try:
            fed = self._grow(graph, sequence, answer.limit - 1)
        except BaseException:
            tail.advance(len(answer.ids) - 1)  # the last one was not fed yet
            raise
        tail.advance(fed)

    def _grow(self, graph: StepGraph, sequence: Sequence, most: int) -> int:
        """Let the answer take tokens to its end, in at most `most` steps; how many it took. The rest is dropped."""
        launched, taken = 0, 0
        while sequence.answer.stop is None:
            if launched < most:
                launched += 1
                tokens = graph.step()
            else:
                tokens = graph.oldest()
            if tokens is not None:
                taken += 1
                sequence.take(checked(tokens[0]))
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
        return StepGraph(model, reading.cache, reader, state, self._sampling, self._late)
