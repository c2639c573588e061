"""Slow, plain float64 forms of what kvz computes fast; independent of kvz's own kernels."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from torch import Tensor

from kvz.cache.full import FullCache
from kvz.geometry import Geometry


def attention64(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T + mask) v and its log-sum-exp, in float64; `mask` is True where a key may be seen."""
    scores = query.double() @ key.double().transpose(-1, -2) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, -1) @ value.double(), torch.logsumexp(scores, -1)


class MaskedStore:
    """A pair store that keeps the full cache and masks evicted pairs: what physical eviction must equal."""

    def __init__(self, full: list[tuple[Tensor, Tensor]], kept: Tensor, geometry: Geometry, prefix: int) -> None:
        self.full = full
        self.geometry = geometry
        self.seen = torch.nn.functional.pad(kept, (prefix, 0), value=True)
        self.new: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if layer in self.new:
            key, value = (torch.cat([old, now], 2) for old, now in zip(self.new[layer], (key, value), strict=True))
        self.new[layer] = key, value
        rows, window = self.geometry.rows(layer), self.geometry.shapes[layer].window
        keys = torch.cat([self.full[layer][0], key[0]], 1)
        values = torch.cat([self.full[layer][1], value[0]], 1)
        heads, n, total, own = keys.shape[0], query.shape[2], keys.shape[1], key.shape[2]
        causal = torch.ones(n, own, dtype=torch.bool).tril(own - n)
        outs = []
        for q_head in range(query.shape[1]):
            head = q_head // (query.shape[1] // heads)
            if window is None:
                mask = torch.cat([self.seen[rows][head].expand(n, total - own), causal], 1)
            else:
                distance = torch.arange(total - n, total)[:, None] - torch.arange(total)
                mask = (distance >= 0) & (distance < window)
            outs.append(attention64(query[0, q_head], keys[head], values[head], scale, mask)[0])
        return torch.stack(outs, 1)[None].to(query.dtype)


def copy_of(full: FullCache) -> list[tuple[Tensor, Tensor]]:
    """Copies of a full cache's layers, to outlive eviction; of sliding layers, what is held."""
    held = [full.sliding(i) for i in range(full.layers)]
    pairs = [full.layer(i) if s is None else (s.keys, s.values) for i, s in enumerate(held)]
    return [(keys.clone(), values.clone()) for keys, values in pairs]


def eager64(folder: Path) -> transformers.PreTrainedModel:
    """transformers' own model in float64 with its plain attention, which can return its weights."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float64, attn_implementation="eager"
    ).eval()
