"""Pages: element-wise bounds of the keys of a few consecutive kept tokens, by which a head's pairs are chosen.

Pages cover the context's pairs of a head in position order; the prefix is attended whatever is chosen, and in no page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedLayer

__all__ = ["PagedLayer", "page_count", "page_layer"]


@dataclass(frozen=True, eq=False)
class PagedLayer:
    """Bounds of one layer's pages of `size` tokens: `extremes [2 D, pages]`, maxima then minima, head after head.

    Dims-major, so that a few dimensions of all pages of a head are whole rows. The last page of a head may be short.
    """

    size: int
    extremes: Tensor
    bounds: tuple[int, ...]

    def head(self, index: int) -> tuple[Tensor, Tensor]:
        """Views of one head's maxima and minima, `[D, its pages]`."""
        maxima, minima = self.extremes[:, self.bounds[index] : self.bounds[index + 1]].chunk(2)
        return maxima, minima

    def rows(self, index: int, chosen: Tensor) -> Tensor:
        """Some rows of one head's extremes, `[*, its pages]` for `chosen [*]`."""
        part = self.extremes[:, self.bounds[index] : self.bounds[index + 1]]
        return part.index_select(0, chosen.reshape(-1)).view(*chosen.shape, -1)

    @property
    def nbytes(self) -> int:
        """Bytes of both bounds."""
        return self.extremes.numel() * self.extremes.element_size()


def page_count(tokens: int, size: int) -> int:
    """Pages of `size` tokens that hold `tokens`."""
    return -(-tokens // size)


def page_layer(layer: RaggedLayer, prefix: int, size: int) -> PagedLayer:
    """The pages of a full layer whose heads begin with `prefix` tokens."""
    maxima, minima, counts = [], [], [0]
    for first, last in pairwise(layer.bounds):
        keys = layer.keys[first + prefix : last]
        maxima.append(_in_pages(keys, size, float("-inf")).amax(1))
        minima.append(_in_pages(keys, size, float("inf")).amin(1))
        counts.append(counts[-1] + page_count(len(keys), size))
    return PagedLayer(size, torch.cat([_dims_major(maxima), _dims_major(minima)]), tuple(counts))


def _in_pages(keys: Tensor, size: int, nothing: float) -> Tensor:
    """`keys [L,D]` as `[pages, size, D]`: the last page is filled up with what changes nothing."""
    count, dim = keys.shape
    pages = page_count(count, size)
    return torch.nn.functional.pad(keys, (0, 0, 0, pages * size - count), value=nothing).view(pages, size, dim)


def _dims_major(heads: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(heads)).t()
