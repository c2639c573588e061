"""kvz as one side of a comparison: a loaded archive that is fed tokens, with a stopwatch on its attention."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from kvz.archive import Archive
from kvz.cache.tail import Tail
from kvz.config import Decoding
from kvz.decode.attend import PassAttention, Span
from kvz.decode.decoding import reading_of
from kvz.models.language_model import LanguageModel

__all__ = ["ArchiveSide"]


class ArchiveSide:
    """An archive that is read in one way, and a tail that grows as it is fed."""

    def __init__(self, model: LanguageModel, archive: Archive, decoding: Decoding, capacity: int) -> None:
        """`capacity` is the most tokens that it will be fed."""
        self.reading = reading_of(decoding, archive.cache, archive.manifest.prompt.prefix_tokens)
        self._model = model
        self._start = archive.cache.logical_length
        self._tail = Tail(model.geometry.shapes, capacity, model.dtype, model.device)
        self._readers = self.reading.readers()
        self.attention_seconds = 0.0

    @property
    def kv_bytes(self) -> int:
        """Bytes of the archive's keys, values and positions."""
        return self.reading.cache.nbytes

    def feed(self, ids: Sequence[int]) -> Tensor:
        """Append tokens; logits after the last one, `[vocabulary]` float32. Adds to `attention_seconds`, wall time of
        attention and of writing to the tail."""
        decoder, at = self._model.decoder, self._start + self._tail.length
        reader = self._readers[len(ids) == 1]
        span = Span(self.reading.cache, reader, self._tail, len(ids))
        inner = PassAttention([span], self._model.dtype, decoder.architecture.scale)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            began = time.perf_counter()
            out = inner(layer, query, key, value)
            self.attention_seconds += time.perf_counter() - began
            return out

        hidden = decoder.forward(torch.tensor(list(ids)), torch.arange(at, at + len(ids)), attend)
        inner.advance()
        return decoder.logits(hidden[-1:])[0]
