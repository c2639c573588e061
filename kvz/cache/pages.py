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

__all__ = ["PagedLayer", "page_bounds", "page_count", "page_layer", "rounded_outward"]

_STEPS = 255


@dataclass(frozen=True, eq=False)
class PagedLayer:
    """Bounds of one layer's pages of `size` tokens: `extremes [2 D, pages]`, maxima then minima, head after head.

    Dims-major, so that a few dimensions of all pages of a head are whole rows. The last page of a head may be short.
    With `grid [H,2,D]` float32 the extremes are codes of 8 bits: a bound is grid[h,0] + grid[h,1] * code, rounded
    outward, so that it still is a bound.
    """

    size: int
    extremes: Tensor
    bounds: tuple[int, ...]
    grid: Tensor | None = None

    @property
    def bits(self) -> int:
        """Bits of a stored bound; more than 16 count as 16, as those of pairs do."""
        return 16 if self.grid is None else 8

    def head(self, index: int) -> tuple[Tensor, Tensor]:
        """One head's maxima and minima, `[D, its pages]` float32."""
        maxima, minima = self.rows(index, torch.arange(len(self.extremes), device=self.extremes.device)).chunk(2)
        return maxima, minima

    def rows(self, index: int, chosen: Tensor) -> Tensor:
        """Some rows of one head's extremes, `[*, its pages]` float32 for `chosen [*]`."""
        part = self.extremes[:, self.bounds[index] : self.bounds[index + 1]]
        found = part.index_select(0, chosen.reshape(-1)).float()
        if self.grid is not None:
            low, step = self.grid[index].repeat(1, 2).index_select(1, chosen.reshape(-1)).unsqueeze(-1)
            found = low + step * found
        return found.view(*chosen.shape, -1)

    @property
    def nbytes(self) -> int:
        """Bytes of both bounds."""
        grid = 0 if self.grid is None else self.grid.numel() * self.grid.element_size()
        return self.extremes.numel() * self.extremes.element_size() + grid

    def to(self, device: torch.device) -> PagedLayer:
        """The same pages on another device."""
        grid = None if self.grid is None else self.grid.to(device)
        return PagedLayer(self.size, self.extremes.to(device), self.bounds, grid)


def page_count(tokens: int, size: int) -> int:
    """Pages of `size` tokens that hold `tokens`."""
    return -(-tokens // size)


def page_bounds(lengths: Sequence[int], size: int) -> tuple[int, ...]:
    """Where each head's pages begin and end, for heads of so many context tokens: `[H+1]`."""
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + page_count(length, size))
    return tuple(bounds)


def page_layer(layer: RaggedLayer, prefix: int, size: int) -> PagedLayer:
    """The pages of a full layer whose heads begin with `prefix` tokens."""
    maxima, minima, lengths = [], [], []
    for first, last in pairwise(layer.bounds):
        keys = layer.keys[first + prefix : last]
        maxima.append(_in_pages(keys, size, float("-inf")).amax(1))
        minima.append(_in_pages(keys, size, float("inf")).amin(1))
        lengths.append(len(keys))
    return PagedLayer(size, torch.cat([_dims_major(maxima), _dims_major(minima)]), page_bounds(lengths, size))


def rounded_outward(pages: PagedLayer) -> PagedLayer:
    """The same in 8 bits a bound: maxima rounded up and minima down, on a grid for each head and dimension."""
    dim = len(pages.extremes) // 2
    codes = torch.zeros(pages.extremes.shape, dtype=torch.uint8, device=pages.extremes.device)
    grids = []
    for index, (first, last) in enumerate(pairwise(pages.bounds)):
        maxima, minima = pages.head(index)
        low = minima.amin(1) if last > first else minima.new_zeros(dim)
        high = maxima.amax(1) if last > first else minima.new_zeros(dim)
        step = ((high - low) / _STEPS * (1 + 1e-5)).clamp_min(torch.finfo(torch.float32).tiny)
        up = ((maxima - low[:, None]) / step[:, None]).ceil()
        down = ((minima - low[:, None]) / step[:, None]).floor()
        up += (low[:, None] + step[:, None] * up < maxima).float()  # where the division was rounded inward
        down -= (low[:, None] + step[:, None] * down > minima).float()
        codes[:, first:last] = torch.cat([up, down]).clamp(0, _STEPS).to(torch.uint8)
        grids.append(torch.stack([low, step]))
    return PagedLayer(pages.size, codes, pages.bounds, torch.stack(grids))


def _in_pages(keys: Tensor, size: int, nothing: float) -> Tensor:
    """`keys [L,D]` as `[pages, size, D]`: the last page is filled up with what changes nothing."""
    count, dim = keys.shape
    pages = page_count(count, size)
    return torch.nn.functional.pad(keys, (0, 0, 0, pages * size - count), value=nothing).view(pages, size, dim)


def _dims_major(heads: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(heads)).t()
