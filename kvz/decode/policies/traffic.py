"""What a token of an answer reads of an archive: in pairs, as budgets count, and in bytes, as memory delivers them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvz.cache.ragged import RaggedLayer

__all__ = ["Traffic", "pair_nbytes", "whole"]


@dataclass(frozen=True)
class Traffic:
    """What one step of one token reads.

    `pairs` is what counts against a budget (RocketKV's unit, arXiv 2502.14051): pairs of 16-bit keys and values that
    are attended, and what choosing them takes by the policy's paper, whatever the archive's dtype. `nbytes` are the
    bytes that are read, in the archive's own dtype: all that is looked at to choose, and what is attended. `attended`
    counts the pairs that are attended, without what choosing takes.
    """

    pairs: float
    nbytes: float
    attended: float

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.pairs + other.pairs, self.nbytes + other.nbytes, self.attended + other.attended)

    @classmethod
    def total(cls, parts: Iterable[Traffic]) -> Traffic:
        """All of them together."""
        return sum(parts, cls(0, 0, 0))


def pair_nbytes(layer: RaggedLayer) -> int:
    """Bytes of a key and its value."""
    return layer.keys.shape[1] * layer.keys.element_size() + layer.values.shape[1] * layer.values.element_size()


def whole(layer: RaggedLayer) -> Traffic:
    """A layer's keys and values, all of them; of one that slides its whole window."""
    pairs = layer.bounds[-1]
    return Traffic(pairs, pairs * pair_nbytes(layer), pairs)
