"""Ragged layers of random pairs, and what selectors and stores make of them."""

from __future__ import annotations

import pytest
import torch

from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.cache.tail import Tail
from kvz.decode.attend import PassAttention, Span
from kvz.decode.decoding import Readers, Reading
from kvz.decode.engine import forward
from kvz.decode.policies.selection import Selection, Selector, Units
from kvz.models.language_model import LanguageModel

PREFIX = 3
GROUPS = [1, 3, 4, 8]


def ragged(lengths: list[int], dim: int = 16, seed: int = 0) -> RaggedLayer:
    """A layer whose heads keep `lengths` context pairs beside the prefix."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *(PREFIX + n for n in lengths)]).cumsum(0)
    keys, values = (torch.randn(int(offsets[-1]), dim, generator=generator) for _ in range(2))
    return RaggedLayer(keys, values, offsets, torch.zeros(len(keys), dtype=torch.int32))


LENGTHS = [200, 61, 30, 0]


def scored(selector: Selector, layer: RaggedLayer, q: torch.Tensor) -> tuple[list[torch.Tensor], Selection]:
    """The scores that a selector ranks units by, `[H,n,units]`, and its selection, for `q [H,n,G,D]`."""
    seen: list[torch.Tensor] = []
    selector.prepare(RaggedCache((layer,), 400), PREFIX)
    with pytest.MonkeyPatch.context() as patch:
        select = Units.select
        patch.setattr(Units, "select", lambda units, scores: seen.append(scores) or select(units, scores))
        return seen, selector.choose(0, q, 0.25)


def rows_of(layer: RaggedLayer, selection: Selection, head: int, token: int) -> list[int]:
    """The context tokens chosen for a token in a head, each once."""
    rows = selection.rows[head, token][selection.valid[head, token]] - layer.bounds[head] - PREFIX
    assert len(set(rows.tolist())) == len(rows)
    return sorted(rows.tolist())


def context(layer: RaggedLayer, head: int) -> torch.Tensor:
    return layer.keys[layer.bounds[head] + PREFIX : layer.bounds[head + 1]].double()


def run(
    cache: RaggedCache, readers: Readers, tail: Tail, parts: list[torch.Tensor], heads: int, group: int
) -> list[torch.Tensor]:
    """Attention outputs `[n,Hq,D]` of a question and of tokens after it, the same random inputs for every policy."""
    outs = []
    for part in parts:
        q, k, v = part[: heads * group], part[heads * group : heads * group + heads], part[-heads:]
        n = part.shape[1]
        attend = PassAttention([Span(cache, readers[n == 1], tail, n)], part.dtype, 0.25)
        outs.append(attend(0, *(t.transpose(0, 1) for t in (q, k, v))))
        attend.advance()
    return outs


def feed(model: LanguageModel, reading: Reading, tail: Tail, ids: list[int]) -> torch.Tensor:
    """Append tokens to a tail in one pass: logits after the last one, `[vocabulary]`."""
    span = Span(reading.cache, reading.readers()[len(ids) == 1], tail, len(ids))
    return forward(model, [ids], [reading.cache.logical_length + tail.length], [span])[0]
