"""Where the questions of a batch have their tails, and how all of them get a token more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from kvz.cache.ragged import RaggedCache
from kvz.cache.slots import TailSlots
from kvz.cache.tail import Tail
from kvz.decode.batch_store import BatchStore
from kvz.decode.decoding import Reading
from kvz.decode.policies.dense import ArchiveReader
from kvz.decode.run import Growing
from kvz.decode.sampling import Sampling
from kvz.decode.step.slots import StepSlots
from kvz.models.language_model import LanguageModel

__all__ = ["BatchSlots", "PlainSlots", "batch_slots"]

_CAPACITY = 256  # tokens of a slot to begin with; slots grow


class BatchSlots(Protocol):
    """Rows for questions: the first `len(lengths)` are in use."""

    @property
    def lengths(self) -> list[int]:
        """Tokens in each row that is in use."""
        ...

    def bytes_of(self, index: int) -> int:
        """Bytes of the pairs held in a row."""
        ...

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in every row. Tails that were opened before lie elsewhere afterwards."""
        ...

    def open(self, tokens: int) -> Tail:
        """The next row, empty, with room for `tokens`."""
        ...

    def close(self, index: int) -> None:
        """Free a row; the last one moves there."""
        ...

    def grow(self, answers: Sequence[Growing]) -> None:
        """A token more for the answer in each row in use."""
        ...


class PlainSlots(TailSlots):
    """Rows that are attended as far as they go, and logits that each answer chooses from by itself."""

    def __init__(self, model: LanguageModel, cache: RaggedCache, tokens: ArchiveReader, size: int) -> None:
        """Answers' tokens read the archive by the reader `tokens`."""
        super().__init__(model.geometry.shapes, size, _CAPACITY, model.dtype, model.device)
        self._model = model
        self._start = cache.logical_length
        self._store = BatchStore(cache, self, tokens)

    def grow(self, answers: Sequence[Growing]) -> None:
        """A token more for the answer in each row in use."""
        ids = torch.tensor([answer.ids[-1] for answer in answers])
        logits = self._model.step(ids, self._start + torch.tensor(self.lengths), self._store)
        self.advance()
        for answer, row in zip(answers, logits, strict=True):
            answer.take(row)


def batch_slots(
    model: LanguageModel, reading: Reading, tokens: ArchiveReader, size: int, sampling: Sampling | None
) -> BatchSlots:
    """Slots for `size` questions: on a GPU a graph's, for greedy answers, elsewhere plain ones with a reader."""
    greedy = sampling is None or sampling.temperature == 0
    if model.device.type == "cuda" and greedy and reading.steps is not None:
        return StepSlots(model, reading, size)
    return PlainSlots(model, reading.cache, tokens, size)
