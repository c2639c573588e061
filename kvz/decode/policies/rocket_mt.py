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
from kvz.decode.policies.traffic import Traffic

__all__ = ["FirstStage", "SecondStage"]

_WINDOW, _KERNEL = 32, 63


class FirstStage:
    """Reads an archive densely for one question, and says for each layer which pairs the answer may choose from.

    They are copied, and what the second stage chooses by is made: both belong to the question, not to the answer's
    first token.
    """

    def __init__(self, cache: RaggedCache, prefix: int, budget: int, dense: DenseReader) -> None:
        self.chosen: dict[int, RaggedLayer] = {}
        self.second: dict[int, SparseReader] = {}
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
        self.chosen[layer] = chosen = _restricted(stored, rows)
        self.second[layer] = self._second(chosen)
        return out

    def kept(self, length: int, dim: int) -> int:
        """Context pairs that stay open to the second stage, of a head of `length`, prefix included."""
        return max(self._budget, rocket_kept(length, self._budget, dim) - self._prefix)

    def read(self, layer: int) -> Traffic:
        """All of it."""
        return self._dense.read(layer)

    @property
    def held_nbytes(self) -> int:
        """The copies, and what the second stage holds beside them."""
        copies = sum(layer.nbytes for layer in self.chosen.values())
        return copies + sum(reader.held_nbytes for reader in self.second.values())

    def _second(self, chosen: RaggedLayer) -> SparseReader:
        cache, selector = RaggedCache((chosen,), 0), HSA(self._budget)
        selector.prepare(cache, self._prefix)
        return SparseReader(cache, self._prefix, selector, DenseReader(cache))


@dataclass(frozen=True, eq=False)
class SecondStage:
    """HSA over what the first stage of the same question left open in each layer."""

    first: FirstStage

    def attend(self, layer: int, query: Tensor, scale: float, beside: Beside) -> Tensor:
        """Attention over prefix and choice; a token that comes before any question looks at everything."""
        reader = self.first.second.get(layer)
        if reader is None:
            return self.first.attend(layer, query, scale, beside)
        return reader.attend(0, query, scale, beside)

    def read(self, layer: int) -> Traffic:
        """What a token reads after a question."""
        reader = self.first.second.get(layer)
        return self.first.read(layer) if reader is None else reader.read(0)

    @property
    def held_nbytes(self) -> int:
        """What both stages hold of the last question."""
        return self.first.held_nbytes


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
