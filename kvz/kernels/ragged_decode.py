"""Attention of new tokens over a layer's archive and the questions' tails, by one call on every device.

On a CUDA device, for 16-bit models, it is two Triton launches, which a CUDA graph can capture; elsewhere plain torch.
Neither asks the device for a number. The plain form turns codes into numbers anew in every call: it says what the
kernel computes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.kernels.attention import attention
from kvz.kernels.decode_plan import DecodePlan, TailPairs
from kvz.kernels.device import takes_triton
from kvz.kernels.ragged_attention import plan_ragged, ragged_attention_with_lse

__all__ = ["plain_ragged_decode", "ragged_decode"]


def ragged_decode(
    query: Tensor, plan: DecodePlan, scale: float, tail: TailPairs | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of `query [B,Hq,n,D]` over all pairs of a planned layer and over each question's tail, causal.

    Returns the output `[B,n,Hq,D]` in the query's dtype and the natural log-sum-exp `[B,n,Hq]` float32; a row that sees
    no pair at all has zeros and -inf. Strides may be any, but 1 in the last dimension.
    """
    if takes_triton(query):
        from kvz.kernels.triton.ragged_attention import triton_ragged_decode  # where Triton is

        with torch.cuda.device_of(query):
            return triton_ragged_decode(query, plan, scale, tail)
    return plain_ragged_decode(query, plan, scale, tail)


def plain_ragged_decode(
    query: Tensor, plan: DecodePlan, scale: float, tail: TailPairs | None = None
) -> tuple[Tensor, Tensor]:
    """The same in plain torch."""
    rows, heads, dim = plan.rows, plan.heads, plan.pairs.dim
    split = rows.batch, heads, rows.group, rows.tokens
    flat = query.reshape(*split, dim).transpose(0, 1).reshape(heads, rows.count, dim)
    if tail is None:
        beside = flat.new_zeros(flat.shape), torch.full(flat.shape[:2], float("-inf"), device=flat.device)
    else:
        beside = _over_tail(query.reshape(*split, dim), tail, scale)
    ragged = plan.ragged
    if ragged is None:
        ragged = plan_ragged(*plan.pairs.numbers(query.dtype), plan.bounds, rows.count)
    out, lse = ragged_attention_with_lse(flat, ragged, scale, beside)
    nothing = torch.isneginf(lse)[..., None]
    out = out.masked_fill(nothing, 0).to(query.dtype)
    split = heads, rows.batch, rows.group, rows.tokens
    out = out.view(*split, dim).permute(1, 3, 0, 2, 4).flatten(2, 3)
    return out.contiguous(), lse.view(split).permute(1, 3, 0, 2).flatten(2, 3).contiguous()


def _over_tail(query: Tensor, tail: TailPairs, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of `query [B,H,G,n,D]` over the tails: `[H,B*G*n,D]` and `[H,B*G*n]`.

    The tokens of a question stand where `attention` has a batch: each sees a number of pairs of its own.
    """
    batch, heads, _, n, dim = query.shape
    places = torch.arange(tail.keys.shape[2], device=query.device)
    outs, lses = [], []
    for b in range(batch):
        last = tail.past[b] + torch.arange(n, device=query.device)
        bias = torch.zeros(n, len(places), dtype=query.dtype, device=query.device)
        bias.masked_fill_(places > last[:, None], float("-inf"))
        keys, values = (t[b].expand(n, -1, -1, -1) for t in (tail.keys, tail.values))
        wide = bias[:, None, None].expand(-1, heads, -1, -1)
        out, lse = attention(query[b].permute(2, 0, 1, 3), keys, values, scale, bias=wide)
        outs.append(out.permute(1, 2, 0, 3).reshape(heads, -1, dim))
        lses.append(lse.permute(1, 2, 0).reshape(heads, -1))
    return torch.cat(outs, 1), torch.cat(lses, 1)
