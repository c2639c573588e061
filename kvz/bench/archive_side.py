"""kvz as one side of a comparison: a loaded archive that is fed tokens, with a stopwatch on its attention."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from kvz.archive import Archive
from kvz.cache.tail import Tail
from kvz.decode.decoding import Decoding
from kvz.models.attention import PairStore
from kvz.models.language_model import LanguageModel

__all__ = ["ArchiveSide", "TimedStore"]


class TimedStore:
    """A pair store with a stopwatch on attention, the write to the tail included."""

    def __init__(self, store: PairStore) -> None:
        self.seconds = 0.0
        self._store = store

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """The store's own attention; its wall time is added to `seconds`."""
        began = time.perf_counter()
        out = self._store.attend(layer, query, key, value, scale)
        self.seconds += time.perf_counter() - began
        return out


class ArchiveSide:
    """An archive that is read in one way, and a tail that grows as it is fed."""

    def __init__(self, model: LanguageModel, archive: Archive, decoding: Decoding, capacity: int) -> None:
        """`capacity` is the most tokens that it will be fed."""
        self.reading = decoding.reading(archive.cache, archive.manifest.prompt.prefix_tokens)
        self._model = model
        self._start = archive.cache.logical_length
        self._tail = Tail(model.geometry.shapes, capacity, model.dtype, model.device)
        self._store = TimedStore(self.reading.store(self._tail))

    @property
    def kv_bytes(self) -> int:
        """Bytes of the archive's keys, values and positions."""
        return self.reading.cache.nbytes

    @property
    def attention_seconds(self) -> float:
        """Wall seconds spent in attention so far."""
        return self._store.seconds

    def feed(self, ids: Sequence[int]) -> Tensor:
        """Append tokens; logits after the last one, `[vocabulary]` float32."""
        logits = self._model.logits(torch.tensor(list(ids)), self._start + self._tail.length, self._store)
        self._tail.advance(len(ids))
        return logits
