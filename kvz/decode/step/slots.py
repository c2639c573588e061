"""Tails of several sequences in a step's own memory, and the graph that adds a token to all of them."""

from __future__ import annotations

from collections.abc import Collection

from kvz.cache.tail import Tail
from kvz.config import Sampling
from kvz.decode.decoding import Reading
from kvz.decode.sampling import checked
from kvz.decode.sequence import Sequence
from kvz.decode.step.graph import WARM_UPS, StepGraph
from kvz.decode.step.reader import StepRoom
from kvz.decode.step.state import StepState
from kvz.errors import DecodeError
from kvz.models.language_model import LanguageModel

__all__ = ["StepSlots"]

_LEAST_CAPACITY = 256  # tokens


class StepSlots:
    """What a `TailPool` is to an engine, for steps on the device over one archive, under one sampling.

    The graph always runs for all `size` rows: what those that are not in use do is not looked at.
    """

    def __init__(self, model: LanguageModel, reading: Reading, sampling: Sampling, size: int) -> None:
        """`reading` must have `steps`."""
        self._model = model
        self._reading = reading
        self._sampling = sampling
        self._size = size
        self._open: dict[int, Tail] = {}
        self._graph: StepGraph | None = None

    def growth(self, tokens: int) -> int:
        """Bytes of tails that must be allocated before one of `tokens` can be opened."""
        wanted = self._wanted(tokens)
        if self._graph is not None and self._graph.state.capacity >= wanted:
            return 0
        shapes = self._model.geometry.shapes
        token = sum(2 * shape.kv_heads * shape.head_dim for shape in shapes) * self._model.dtype.itemsize
        return self._size * wanted * token

    def open(self, tokens: int) -> Tail:
        """An empty tail with room for `tokens`; there must be a row."""
        graph = self._graph_for(self._wanted(tokens))
        row = next(row for row in range(self._size) if row not in self._open)
        tail = self._open[row] = graph.state.row(row)
        return tail

    def close(self, tail: Tail) -> None:
        """Free a tail's row."""
        if self._open.get(tail.row) is tail:
            del self._open[tail.row]

    def grow(self, sequences: Collection[Sequence]) -> None:
        """A token more for these sequences, whose tails are rows of this; one whose logits are NaN gets its error."""
        assert self._graph is not None
        rows = {sequence.tail.row: sequence for sequence in sequences if sequence.tail is not None}
        ids, lengths, seeds, numbers = ([0] * self._size for _ in range(4))
        for row, tail in self._open.items():
            lengths[row] = tail.length  # what is fed to a row whose question is still read lies behind its pairs
        for row, sequence in rows.items():
            ids[row] = sequence.answer.ids[-1]
            seeds[row], numbers[row] = sequence.sampler.seed, len(sequence.answer.ids)
        self._graph.begin(ids, lengths, self._reading.cache.logical_length, seeds, numbers)
        tokens = self._graph.step_now()
        for row, sequence in rows.items():
            self._open[row].advance(1)
            try:
                sequence.take(checked(tokens[row]))
            except DecodeError as error:
                sequence.error = error

    def _wanted(self, tokens: int) -> int:
        return max(_LEAST_CAPACITY, 1 << (tokens + WARM_UPS).bit_length())

    def _graph_for(self, capacity: int) -> StepGraph:
        if self._graph is None or self._graph.state.capacity < capacity:
            model, reading = self._model, self._reading
            geometry = model.geometry
            assert reading.steps is not None
            if not self._open:
                self._graph = None  # freed before a larger one is allocated
            state = StepState.make(geometry.shapes, self._size, capacity, model.dtype, model.device)
            group = geometry.query_heads // geometry.shapes[0].kv_heads
            reader = reading.steps(StepRoom(self._size, group, capacity, model.dtype))
            self._graph = StepGraph(model, reading.cache, reader, state, self._sampling)
            for row, tail in self._open.items():
                grown = state.row(row)
                grown.copy_from(tail)
                tail.take_over(grown)
        return self._graph
