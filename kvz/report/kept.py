"""What an archive kept, counted: heads per token, tokens per number of heads, and shares per layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvz.cache.ragged import RaggedCache
from kvz.format.manifest import Manifest

__all__ = ["Bin", "HeadShare", "LayerShares", "bins_of", "heads_per_token", "shares_of"]

_BINS = 45


@dataclass(frozen=True)
class HeadShare:
    """Context pairs that a KV head keeps, and their share of all."""

    kept: int
    share: float


@dataclass(frozen=True)
class LayerShares:
    """The heads of a layer and their mean; a sliding layer has none, but the number of last tokens it holds."""

    heads: tuple[HeadShare, ...]
    mean: float
    sliding_tokens: int | None


@dataclass(frozen=True)
class Bin:
    """Tokens that `first` to `last` heads kept."""

    first: int
    last: int
    tokens: int


def shares_of(manifest: Manifest) -> list[LayerShares]:
    """Every layer's shares, in order."""
    context = manifest.prompt.context_tokens
    layers = []
    for index, row in enumerate(manifest.compression.kept):
        heads = tuple(HeadShare(kept, kept / context) for kept in row)
        mean = sum(row) / (context * len(row)) if row else 0.0
        layers.append(LayerShares(heads, mean, None if row else manifest.head_lengths(index)[0]))
    return layers


def heads_per_token(manifest: Manifest, cache: RaggedCache) -> list[int]:
    """How many heads of full layers kept each of the context's tokens, `[S]`; they sum to the pairs kept."""
    prefix, length = manifest.prompt.prefix_tokens, manifest.logical_length
    counts = torch.zeros(length, dtype=torch.int64)
    for layer in cache.layers:
        if layer.window is None:
            counts += torch.bincount(layer.positions.long(), minlength=length)
    return [int(count) for count in counts[prefix:].tolist()]


def bins_of(heads: Sequence[int], total: int) -> list[Bin]:
    """The distribution of `heads` over 0 to `total`: tokens that no head kept, then bins of one width."""
    width = -(-total // _BINS)
    starts = [0, *range(1, total + 1, width)]
    ends = [start - 1 for start in starts[1:]] + [total]
    tokens = [0] * len(starts)
    for count in heads:
        tokens[-(-count // width)] += 1
    return [Bin(*found) for found in zip(starts, ends, tokens, strict=True)]
