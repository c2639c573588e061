"""Attention of a step of sparse decoding: prefix, chosen pairs and tail of each question, all heads at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedLayer
from kvz.kernels.attention import attention
from kvz.kernels.device import multiprocessors, takes_triton

__all__ = ["ChoosableLayer", "SparseSpace", "plain_sparse_attention", "sparse_attention"]

_H100 = 132  # multiprocessors: what is planned for where there are none
_MOST_SPLITS = 64
_LEAST = 64  # pairs that are worth a program


@dataclass(frozen=True, eq=False)
class ChoosableLayer:
    """A layer's pairs as kernels read them: `keys, values [sum,D]`, flat, and what is chosen from them.

    Head h begins at row `starts[h]` (`[H]` int64) with `prefix` pairs that are always attended; behind them are
    `lengths[h]` (`[H]` int32) pairs in units of `size`, of which `takes[h]` (`[H]` int32) are attended, `most` in the
    head that takes most.
    """

    keys: Tensor
    values: Tensor
    starts: Tensor
    lengths: Tensor
    takes: Tensor
    prefix: int
    size: int
    most: int

    @classmethod
    def of(cls, layer: RaggedLayer, prefix: int, size: int, takes: Sequence[int]) -> ChoosableLayer:
        """Of a full layer; `takes` as in kvz.decode.policies.selection.Units."""
        device = layer.keys.device
        starts = torch.tensor(layer.bounds[:-1], device=device)
        lengths = torch.tensor(layer.bounds, device=device).diff() - prefix
        counts = torch.tensor(takes, dtype=torch.int32, device=device)
        return cls(layer.keys, layer.values, starts, lengths.int(), counts, prefix, size, max(takes))

    def units(self, batch: int) -> Tensor:
        """Room for the units that are chosen, `[B,H,most]` int32: what select_top writes."""
        shape = (batch, len(self.takes), self.most)
        return torch.full(shape, -1, dtype=torch.int32, device=self.keys.device)


@dataclass(frozen=True, eq=False)
class SparseSpace:
    """What a step writes before its parts are merged: `outs [B,H,S,G,D]` and `lses [B,H,S,G]`, float32."""

    outs: Tensor
    lses: Tensor

    @classmethod
    def of(cls, layer: ChoosableLayer, batch: int, group: int, capacity: int) -> SparseSpace:
        """For questions with a tail of `capacity` pairs: as many parts S as keep a GPU busy."""
        heads, dim = len(layer.takes), layer.keys.shape[1]
        pairs = layer.prefix + layer.most * layer.size + capacity
        wanted = 2 * (multiprocessors(layer.keys.device) or _H100)  # programs at a time
        splits = max(1, min(_MOST_SPLITS, -(-wanted // (batch * heads)), -(-pairs // _LEAST)))
        outs = torch.zeros(batch, heads, splits, group, dim, device=layer.keys.device)
        return cls(outs, outs.new_zeros(batch, heads, splits, group))


def sparse_attention(
    query: Tensor,
    layer: ChoosableLayer,
    units: Tensor,
    tail: tuple[Tensor, Tensor],
    past: Tensor,
    scale: float,
    space: SparseSpace,
    out: Tensor,
) -> Tensor:
    """Attention of `query [B,H,G,D]`, one token for each question, into `out [B,1,H*G,D]`.

    `units [B,H,K]` int32 are numbers of units of a head's pairs, of which the first takes[h] count, and of them those
    that are not negative. `tail` are the questions' own keys and values `[B,H,capacity,D]`, of which `past [B]` int32
    exist. A row that sees nothing is zero. Nothing waits for the device. By Triton for CUDA tensors.
    """
    if takes_triton(query):
        from kvz.kernels.triton.sparse_attention import launch_sparse_attention

        with torch.cuda.device_of(query):
            return launch_sparse_attention(query, layer, units, tail, past, scale, space, out)
    return plain_sparse_attention(query, layer, units, tail, past, scale, space, out)


def plain_sparse_attention(
    query: Tensor,
    layer: ChoosableLayer,
    units: Tensor,
    tail: tuple[Tensor, Tensor],
    past: Tensor,
    scale: float,
    space: SparseSpace,
    out: Tensor,
) -> Tensor:
    """The same in plain torch: what is attended is gathered, and masked where it does not exist."""
    batch, heads, group, dim = query.shape
    rows, valid = _rows(layer, units)
    fixed = (layer.starts[:, None] + torch.arange(layer.prefix, device=query.device)).expand(batch, -1, -1)
    seen = torch.arange(tail[0].shape[2], device=query.device) < past[:, None]
    exists = [torch.ones_like(fixed, dtype=torch.bool), valid, seen[:, None].expand(-1, heads, -1)]
    archived = torch.cat([fixed, rows], 2)
    masked = torch.cat(exists, 2)
    keys, values = (
        torch.cat([stored[archived], own], 2).masked_fill_(~masked[..., None], 0)
        for stored, own in zip((layer.keys, layer.values), tail, strict=True)
    )
    bias = torch.zeros(masked.shape, dtype=query.dtype, device=query.device).masked_fill_(~masked, float("-inf"))
    attended, _ = attention(query, keys, values, scale, bias=bias.unsqueeze(2))
    nothing = ~masked.any(2)[..., None, None]
    out[:, 0] = attended.masked_fill(nothing, 0).reshape(batch, heads * group, dim)
    return out


def _rows(layer: ChoosableLayer, units: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `[B,H,K*size]` of the pairs that are chosen, and where there is one."""
    inside = torch.arange(layer.size, device=units.device)
    tokens = units.long().unsqueeze(-1) * layer.size + inside
    counted = torch.arange(units.shape[2], device=units.device) < layer.takes[:, None]
    valid = counted[..., None] & (units >= 0).unsqueeze(-1) & (tokens < layer.lengths[:, None, None])
    rows = torch.where(valid, tokens + layer.starts[:, None, None] + layer.prefix, 0)
    return rows.flatten(2), valid.flatten(2)
