"""RocketKV-MT (arXiv 2502.14051): nothing is evicted; each question's first stage says what HSA may choose from.

The first stage is SnapKV's at question time: attention of the question's last tokens over archive and question, summed
over them and over the group, max-pooled over 63 positions, the best pairs of each KV head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.decode.beside import Beside
from kvz.decode.budget import rocket_kept
from kvz.decode.policies.dense import DenseReader
from kvz.decode.policies.hsa import HSA
from kvz.decode.policies.sparse import SparseReader

__all__ = ["FirstStage", "SecondStage"]

_WINDOW, _KERNEL = 32, 63


class FirstStage:
    """Reads an archive densely for one question, and notes for each layer which pairs the answer may choose from."""

    def __init__(self, cache: RaggedCache, prefix: int, budget: int, dense: DenseReader) -> None:
        self.chosen: dict[int, RaggedLayer] = {}
        self._cache = cache
        self._prefix = prefix
        self._budget = budget
        self._dense = dense

    def attend(self, layer: int, query: Tensor, scale: float, beside: Beside) -> Tensor:
        """Attention over everything; the last tokens of `query [H,G,n,D]` are the window."""
        stored = self._cache.layers[layer]
        out, lse = self._dense.attend_part(layer, query, scale, beside)
        window = query[:, :, -_WINDOW:].float()
        sums = lse.view(*query.shape[:3])[:, :, -_WINDOW:]
        rows = []
        for head, (first, last) in enumerate(zip(stored.bounds[:-1], stored.bounds[1:], strict=True)):
            begin = first + self._prefix
            keep = min(self.kept(last - first, query.shape[-1]), last - begin)
            weights = torch.exp(window[head] @ stored.keys[begin:last].float().t() * scale - sums[head][..., None])
            best = _pooled(weights.sum((0, 1))).topk(keep).indices.sort().values + begin
            rows.append(torch.cat([torch.arange(first, begin, device=best.device), best]))
        self.chosen[layer] = _restricted(stored, rows)
        return out

    def kept(self, length: int, dim: int) -> int:
        """Context pairs that stay open to the second stage, of a head of `length`, prefix included."""
        return max(self._budget, rocket_kept(length, self._budget, dim) - self._prefix)

    def read(self, layer: int) -> float:
        """All of them."""
        return self._dense.read(layer)


@dataclass(eq=False)
class SecondStage:
    """HSA over what the first stage of the same question left open in each layer."""

    first: FirstStage
    prefix: int
    budget: int

    def __post_init__(self) -> None:
        self._made: dict[int, tuple[RaggedLayer, SparseReader]] = {}

    def attend(self, layer: int, query: Tensor, scale: float, beside: Beside) -> Tensor:
        """Attention over prefix and choice; a token that comes before any question looks at everything."""
        if layer not in self.first.chosen:
            return self.first.attend(layer, query, scale, beside)
        return self._reader(layer).attend(0, query, scale, beside)

    def read(self, layer: int) -> float:
        """What a token reads after a question."""
        if layer not in self.first.chosen:
            return self.first.read(layer)
        return self._reader(layer).read(0)

    def _reader(self, layer: int) -> SparseReader:
        chosen = self.first.chosen[layer]
        made = self._made.get(layer)
        if made is None or made[0] is not chosen:
            cache = RaggedCache((chosen,), 0)
            selector = HSA(self.budget)
            selector.prepare(cache, self.prefix)
            made = chosen, SparseReader(cache, self.prefix, selector, DenseReader(cache))
            self._made[layer] = made
        return made[1]


def _pooled(sums: Tensor) -> Tensor:
    """The largest of the positions around each, `[L]`."""
    if not len(sums):
        return sums
    kernel = min(_KERNEL, 2 * len(sums) + 1)  # a wider one sees no more
    return max_pool1d(sums[None], kernel, stride=1, padding=kernel // 2)[0]


def _restricted(layer: RaggedLayer, rows: list[Tensor]) -> RaggedLayer:
    """Some rows of each head, as a layer of their own."""
    flat = torch.cat(rows)
    offsets = torch.tensor([0, *(len(of_head) for of_head in rows)], device=flat.device).cumsum(0)
    return RaggedLayer(layer.keys[flat], layer.values[flat], offsets, layer.positions[flat])
