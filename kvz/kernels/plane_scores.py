"""Scores of single tokens for one step by an index of bit planes (see kvz.cache.bit_planes), all heads at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.bit_planes import BitPlanes
from kvz.kernels.device import takes_triton
from kvz.kernels.group_mean import plain_group_mean
from kvz.kernels.score_space import ALIGNED, ScoreSpace, padded_to

__all__ = ["PlaneIndex", "plain_plane_scores", "plane_scores"]


@dataclass(frozen=True, eq=False)
class PlaneIndex:
    """Bit planes as kernels read them: `planes [bits D, W]` uint8, W a multiple of 16; `ranges [H,D]` float32.

    Head h has bytes from `starts[h]` (`[H]` int32) for `counts[h]` tokens, and is scored by `used[h]` rows (both `[H]`
    int32); 0 means that it is taken whole: all its logits are zero. `most` and `most_rows` are the largest of them.
    """

    planes: Tensor
    ranges: Tensor
    starts: Tensor
    counts: Tensor
    used: Tensor
    most: int
    most_rows: int

    @classmethod
    def of(cls, index: BitPlanes, lengths: Sequence[int], used: Sequence[int]) -> PlaneIndex:
        """Of a layer's index of heads of so many tokens; it is copied only where its rows have to be padded."""
        device = index.planes.device
        missing = padded_to(index.planes.shape[1], ALIGNED) - index.planes.shape[1]
        planes = torch.nn.functional.pad(index.planes, (0, missing)) if missing else index.planes
        starts, counts, rows = (
            torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in (index.bounds[:-1], lengths, used)
        )
        return cls(planes.contiguous(), index.ranges.contiguous(), starts, counts, rows, max(lengths), max(used))

    @property
    def bits(self) -> int:
        """Planes of each dimension."""
        return self.planes.shape[0] // self.ranges.shape[1]

    def space(self, batch: int, group: int) -> ScoreSpace:
        """Room for the scores of `batch` questions; bits are exact in float16, weights are split in two of them."""
        heads, device = len(self.counts), self.planes.device
        return ScoreSpace.of(batch, heads, group, self.most_rows, self.most, torch.float16, device)


def plane_scores(query: Tensor, index: PlaneIndex, scale: float, space: ScoreSpace) -> Tensor:
    """Scores of tokens for `query [B,H,G,D]`: `space.scores [B,H,U]` float32, U being `most` padded to 16.

    The used[h] rows with the largest sum over the group of |q_d| range_d 2^-(b+1) are read, and what they add where
    their bit is set is summed; softmax of each query head, and the group's mean. `space.logits` is filled as well.
    Tokens that do not exist have score zero and any logit. Nothing waits for the device. By Triton for CUDA tensors,
    by torch otherwise. Raises ValueError where `space` is too small.
    """
    if takes_triton(query):
        from kvz.kernels.triton.plane_scores import launch_plane_scores

        with torch.cuda.device_of(query):
            return launch_plane_scores(query, index, scale, space)
    return plain_plane_scores(query, index, scale, space)


def plain_plane_scores(query: Tensor, index: PlaneIndex, scale: float, space: ScoreSpace) -> Tensor:
    """The same in torch, in float32, for a padded rectangle of rows and tokens."""
    space.check(query, index.most_rows, index.most)
    group = query.shape[2]
    halves = torch.arange(1, index.bits + 1, device=query.device).neg().exp2()
    weights = (halves[:, None] * (query.float() * index.ranges[:, None]).unsqueeze(-2)).flatten(-2)
    rows = weights.abs().sum(2).topk(max(1, index.most_rows), dim=2).indices
    used = torch.arange(rows.shape[2], device=query.device) < index.used[:, None]
    parts = weights.gather(3, rows.unsqueeze(2).expand(-1, -1, group, -1)) * used[:, None]
    token = torch.arange(index.most, device=query.device)
    columns = (index.starts[:, None] + token // 8).clamp_max(index.planes.shape[1] - 1)
    bits = (index.planes[rows[..., None], columns[:, None]] >> (token % 8).to(torch.uint8)) & 1
    space.logits[..., : index.most].copy_(parts @ bits.float() * scale)
    return space.scores.copy_(plain_group_mean(space.logits, index.counts))
