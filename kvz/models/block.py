"""One layer but for its attention, in plain torch: what every family's records mean, on any device, for any rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kvz.kernels.linear import linear
from kvz.models.architecture import Architecture, Block
from kvz.models.checkpoint import BlockWeights, ExpertWeights
from kvz.models.rotary import rotate

__all__ = ["BlockForward", "TorchBlock", "rms_norm"]

Tables = tuple[Tensor, Tensor]
_FEW_ROUTED = 16  # rows whose experts are gathered on a GPU: more would copy more weights than there are

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


class BlockForward(Protocol):
    """A layer's two halves, before and after its attention."""

    def heads(self, hidden: Tensor, tables: Tables | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[n,Hq,D]`, keys and values `[n,H,D]` of `hidden [n,hidden]`; `tables` are cosines and sines."""
        ...

    def add(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's output `[n,hidden]` for its input and its attention `[n,Hq,D]`."""
        ...


def rms_norm(rows: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMS norm over the last dimension, computed in float32; the rows as they are where there is no norm."""
    if weight is None:
        return rows
    return functional.rms_norm(rows.float(), (rows.shape[-1],), weight, eps).to(rows.dtype)


@dataclass(frozen=True, eq=False)
class TorchBlock:
    """The reference of every faster form."""

    facts: Architecture
    block: Block
    weights: BlockWeights

    def heads(self, hidden: Tensor, tables: Tables | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, normed and rotated: `[n,Hq,D]`, `[n,H,D]`, `[n,H,D]`."""
        weights, n, dim = self.weights, hidden.shape[0], self.block.head_dim
        joint = linear(self._norm(hidden, weights.attention_norm), weights.qkv, weights.qkv_bias)
        queries, pairs = self.block.query_heads * dim, self.block.kv_heads * dim
        query, key, value = joint.split((queries, pairs, pairs), -1)
        if self.facts.head_norm == "all":
            query, key = self._norm(query, weights.query_norm), self._norm(key, weights.key_norm)
        query, key, value = query.view(n, -1, dim), key.view(n, -1, dim), value.view(n, -1, dim)
        if self.facts.head_norm == "head":
            query, key = self._norm(query, weights.query_norm), self._norm(key, weights.key_norm)
        if tables is not None:
            query, key = rotate(query, tables), rotate(key, tables)
        return query, key, value

    def add(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Both sums of the residual stream: attention's, then the MLP's."""
        hidden = self._sum(hidden, self.output(attended), self.weights.attention_post_norm)
        return self._sum(hidden, self._mlp(hidden), self.weights.mlp_post_norm)

    def output(self, attended: Tensor) -> Tensor:
        """`attended [n,Hq,D]` through the output projection: `[n,hidden]`."""
        return linear(attended.flatten(1), self.weights.output, self.weights.output_bias)

    def _mlp(self, hidden: Tensor) -> Tensor:
        weights = self.weights
        rows = self._norm(hidden, weights.mlp_norm)
        if weights.experts is not None:
            return self._experts(weights.experts, rows)
        assert weights.gate_up is not None
        assert weights.down is not None
        gated = self._gated(linear(rows, weights.gate_up, weights.gate_up_bias))
        return linear(gated, weights.down, weights.down_bias)

    def _experts(self, experts: ExpertWeights, rows: Tensor) -> Tensor:
        """Each token's chosen experts, weighted by the router's softmax: `rows [n,hidden]` -> the same shape."""
        facts = self.block.experts
        assert facts is not None
        shares, chosen = linear(rows, experts.router).float().softmax(-1).topk(facts.chosen, -1)
        if facts.normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        if rows.device.type == "cuda" and (len(rows) <= _FEW_ROUTED or torch.cuda.is_current_stream_capturing()):
            return self._gathered_experts(experts, rows, shares, chosen)
        out = torch.zeros_like(rows)
        for expert in chosen.unique().tolist():
            token, place = torch.where(chosen == expert)
            gated = self._gated(linear(rows[token], experts.gate_up[expert]))
            added = linear(gated, experts.down[expert]) * shares[token, place, None].to(rows.dtype)
            out.index_add_(0, token, added)
        return out

    def _gathered_experts(self, experts: ExpertWeights, rows: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """The same without asking the device which experts were chosen, so that a CUDA graph can hold it."""
        gated = self._gated(torch.einsum("nh,nkih->nki", rows, experts.gate_up[chosen]))
        return torch.einsum("nki,nkhi,nk->nh", gated, experts.down[chosen], shares.to(rows.dtype))

    def _gated(self, joint: Tensor) -> Tensor:
        gate, up = joint.chunk(2, -1)
        return _ACTIVATIONS[self.facts.activation](gate) * up

    def _norm(self, rows: Tensor, weight: Tensor | None) -> Tensor:
        return rms_norm(rows, weight, self.facts.eps)

    def _sum(self, hidden: Tensor, added: Tensor, post_norm: Tensor | None) -> Tensor:
        added, scale = self._norm(added, post_norm), self.facts.residual_scale
        return hidden + (added if scale == 1 else added * scale)
