"""Slots of a batch in a step's own memory, and the graph that adds a token to all of them."""

from __future__ import annotations

from collections.abc import Sequence

from kvz.cache.tail import Tail
from kvz.decode.decoding import Reading
from kvz.decode.run import Growing
from kvz.decode.sampling import DeviceSampler, Sampling, checked
from kvz.decode.step.graph import WARM_UPS, StepGraph
from kvz.decode.step.reader import StepRoom
from kvz.decode.step.state import StepState
from kvz.models.language_model import LanguageModel

__all__ = ["StepSlots"]

_LEAST_CAPACITY = 256  # tokens


class StepSlots:
    """What `TailSlots` is to a batch, for steps on the device; greedy, for a draw would depend on the other questions.

    The graph always runs for all `size` questions: what the rows that are not in use do is not looked at.
    """

    def __init__(self, model: LanguageModel, reading: Reading, size: int) -> None:
        """`reading` must have `steps`."""
        self._model = model
        self._reading = reading
        self._size = size
        self._rows: list[Tail] = []
        self._sampler = DeviceSampler(Sampling(), model.device)
        self._make(_LEAST_CAPACITY)

    @property
    def lengths(self) -> list[int]:
        """Tokens in each row that is in use."""
        return [row.length for row in self._rows]

    def bytes_of(self, index: int) -> int:
        """Bytes of the pairs held in a row."""
        return self._rows[index].nbytes

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in every row. Tails that were opened before lie elsewhere afterwards."""
        wanted = tokens + WARM_UPS + 1
        if wanted > self._graph.state.capacity:
            held, self._rows = self._rows, []
            self._make(1 << (wanted - 1).bit_length())
            for old in held:
                row = self._graph.state.row(len(self._rows))
                row.copy_from(old)
                self._rows.append(row)

    def open(self, tokens: int) -> Tail:
        """The next row, empty, with room for `tokens`."""
        self.reserve(tokens)
        row = self._graph.state.row(len(self._rows))
        self._rows.append(row)
        return row

    def close(self, index: int) -> None:
        """Free a row; the last one moves there."""
        last = self._rows.pop()
        if index < len(self._rows):
            moved = self._graph.state.row(index)
            moved.copy_from(last)
            self._rows[index] = moved

    def grow(self, answers: Sequence[Growing]) -> None:
        """A token more for the answer in each row in use. Raises DecodeError where logits are NaN."""
        idle = [0] * (self._size - len(self._rows))
        ids = [answer.ids[-1] for answer in answers]
        self._graph.begin([*ids, *idle], [*self.lengths, *idle], self._reading.cache.logical_length)
        tokens = self._graph.step_now()
        for row, answer, token in zip(self._rows, answers, tokens, strict=False):
            row.advance(1)
            answer.accept(checked(token))

    def _make(self, capacity: int) -> None:
        model, reading = self._model, self._reading
        geometry = model.geometry
        assert reading.steps is not None
        state = StepState.make(geometry.shapes, self._size, capacity, model.dtype, model.device)
        group = geometry.query_heads // geometry.shapes[0].kv_heads
        reader = reading.steps(StepRoom(self._size, group, capacity, model.dtype))
        self._graph = StepGraph(model, reading.cache, reader, state, self._sampler)
