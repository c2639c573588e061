"""Scores of pages for one step: HSA's second step, RocketKV (arXiv 2502.14051), of all heads and questions at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.pages import PagedLayer
from kvz.kernels.device import takes_triton
from kvz.kernels.group_mean import plain_group_mean
from kvz.kernels.score_space import ALIGNED, ScoreSpace, padded_to

__all__ = ["PageIndex", "page_scores", "plain_page_scores"]

_LEAST = 1e-12  # of a share, as in kvz.decode.policies.selection.temperature


@dataclass(frozen=True, eq=False)
class PageIndex:
    """Page bounds as kernels read them: `extremes [2 D, W]`, maxima then minima, W a multiple of 16.

    Head h has pages `starts[h]` to `starts[h+1]` (`[H+1]` int32) and is scored by `dims[h]` dimensions (`[H]` int32);
    0 means that it is taken whole: all its logits are zero. `counts [H]` int32 are its pages. `grid [H,2,D]` as in
    PagedLayer. `most` and `most_dims` are the largest of counts and dims.
    """

    extremes: Tensor
    starts: Tensor
    counts: Tensor
    dims: Tensor
    grid: Tensor | None
    most: int
    most_dims: int

    @classmethod
    def of(cls, pages: PagedLayer, dims: Sequence[int]) -> PageIndex:
        """Of a layer's pages; the extremes are copied only where their rows have to be padded."""
        device = pages.extremes.device
        missing = padded_to(pages.extremes.shape[1], ALIGNED) - pages.extremes.shape[1]
        extremes = torch.nn.functional.pad(pages.extremes, (0, missing)) if missing else pages.extremes
        starts = torch.tensor(pages.bounds, dtype=torch.int32, device=device)
        most = max(last - first for first, last in zip(pages.bounds, pages.bounds[1:], strict=False))
        used = torch.tensor(dims, dtype=torch.int32, device=device)
        grid = None if pages.grid is None else pages.grid.contiguous()
        return cls(extremes.contiguous(), starts, starts.diff(), used, grid, most, max(dims))

    @property
    def dtype(self) -> torch.dtype:
        """Of the products: codes are exact in float16."""
        return torch.float16 if self.grid is not None else self.extremes.dtype

    def space(self, batch: int, group: int) -> ScoreSpace:
        """Room for the scores of `batch` questions."""
        heads, device = len(self.counts), self.extremes.device
        return ScoreSpace.of(batch, heads, group, self.most_dims, self.most, self.dtype, device)


def page_scores(query: Tensor, index: PageIndex, scale: float, space: ScoreSpace) -> Tensor:
    """Scores of pages for `query [B,H,G,D]`: `space.scores [B,H,U]` float32, U being `most` padded to 16.

    The dims[h] dimensions with the largest sum of |q| over the group are read, of the two bounds the one that the sign
    of the group's summed query points to; logits at the temperature of a softmax over all dimensions; softmax of each
    query head, and the group's mean. `space.logits` is filled as well. Pages that do not exist have score zero and any
    logit. Nothing waits for the device. By Triton for CUDA tensors, by torch otherwise. Raises ValueError where `space`
    is too small.
    """
    if takes_triton(query):
        from kvz.kernels.triton.page_scores import launch_page_scores

        with torch.cuda.device_of(query):
            return launch_page_scores(query, index, scale, space)
    return plain_page_scores(query, index, scale, space)


def plain_page_scores(query: Tensor, index: PageIndex, scale: float, space: ScoreSpace) -> Tensor:
    """The same in torch, in float32, for a padded rectangle of dimensions and pages."""
    space.check(query, index.most_dims, index.most)
    wide = query.float()
    batch, _, group, dim = query.shape
    size = wide.abs()
    summed, chosen = size.sum(2).topk(max(1, index.most_dims), dim=2)
    used = torch.arange(summed.shape[2], device=query.device) < index.dims[:, None]  # [H,R]
    rows = chosen + dim * (wide.sum(2) < 0).gather(2, chosen)
    parts = wide.gather(3, chosen.unsqueeze(2).expand(-1, -1, group, -1)) * used[:, None]
    tiny = torch.finfo(torch.float32).tiny
    share = parts.abs().sum(-1, keepdim=True) / size.sum(-1, keepdim=True).clamp_min(tiny)
    page = torch.arange(index.most, device=query.device)
    columns = (index.starts[:-1, None] + page).clamp_max(index.extremes.shape[1] - 1)
    bounds = index.extremes[rows[..., None], columns[:, None]].float()  # [B,H,R,most]
    if index.grid is not None:
        low, step = index.grid.unsqueeze(0).expand(batch, -1, -1, -1).unbind(2)
        bounds = low.gather(2, chosen)[..., None] + step.gather(2, chosen)[..., None] * bounds
    bounds = bounds.masked_fill(~used[..., None], 0)
    logits = parts @ bounds * (scale / share.clamp_min(_LEAST).sqrt())
    space.logits[..., : index.most].copy_(logits.masked_fill((index.dims == 0)[:, None, None], 0))
    return space.scores.copy_(plain_group_mean(space.logits, index.counts))
