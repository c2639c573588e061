"""Models of known geometry with random weights, and archives of random pairs for them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.bit_planes import plane_layer
from kvz.cache.index_plan import PAGE
from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.geometry import LayerShape
from kvz.kernels.page_bounds import page_bounds
from kvz.models.architecture import Architecture, Block
from kvz.models.attention import PairStore, step_logits
from kvz.models.checkpoint import random_weights
from kvz.models.decoder import Decoder, computed_in
from kvz.models.rotary import Rotary

__all__ = ["GEOMETRIES", "TINY", "ModelGeometry", "RandomModel", "random_archive", "random_lengths", "random_model"]


@dataclass(frozen=True)
class ModelGeometry:
    """What decides how fast a model decodes: layers, heads, dimensions, and whose layers they are."""

    name: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int
    family: str = "llama"

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.query_heads // self.kv_heads

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """Of the KV cache, layer by layer."""
        return (LayerShape(self.kv_heads, self.head_dim, None),) * self.layers

    def pair_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one key and value of one head."""
        return 2 * self.head_dim * dtype.itemsize


GEOMETRIES = {
    "llama-3.1-8b": ModelGeometry("llama-3.1-8b", 32, 32, 8, 128, 4096, 14336, 128256),
    "qwen2.5-7b": ModelGeometry("qwen2.5-7b", 28, 28, 4, 128, 3584, 18944, 152064, "qwen2"),
    "mistral-7b": ModelGeometry("mistral-7b", 32, 32, 8, 128, 4096, 14336, 32768, "mistral"),
}
TINY = ModelGeometry("tiny", 2, 6, 2, 64, 96, 128, 256)
"""For a look at whether this runs at all, on any machine."""


@dataclass(frozen=True, eq=False)
class RandomModel:
    """A decoder with random weights, and no more of a model than a step needs."""

    decoder: Decoder
    dtype: torch.dtype
    device: torch.device

    def step(self, ids: Tensor, positions: Tensor, store: PairStore) -> Tensor:
        """Logits after one token each of B sequences, `ids, positions [B]`: `[B,vocabulary]` float32."""
        return step_logits(self.decoder, self.dtype, ids, positions, store)


def random_model(geometry: ModelGeometry, dtype: torch.dtype, device: torch.device) -> RandomModel:
    """A model of this geometry with random weights."""
    rotary = Rotary.from_parameters({"rope_theta": 500_000.0}, geometry.head_dim, 1 << 17)
    block = Block(geometry.query_heads, geometry.kv_heads, geometry.head_dim, None, "full", geometry.intermediate)
    architecture = Architecture(
        family=geometry.family,
        hidden=geometry.hidden,
        vocabulary=geometry.vocabulary,
        blocks=(block,) * geometry.layers,
        rotaries={"full": rotary},
        eps=1e-6,
        scale=geometry.head_dim**-0.5,
        tied=False,
        biases=frozenset("qkv" if geometry.family == "qwen2" else ()),
    )
    decoder = Decoder(architecture, random_weights(architecture, dtype, device), computed_in(dtype, device))
    return RandomModel(decoder, dtype, device)


def random_lengths(heads: int, tokens: int, ratio: float, seed: int = 0) -> list[int]:
    """Pairs kept of each head: `ratio` of all, the longest head some 100 times the shortest, as in real archives."""
    draw = random.Random(seed)
    weights = [100 ** draw.random() for _ in range(heads)]
    total, lengths = round(ratio * heads * tokens), [0] * heads
    open_heads = set(range(heads))
    while total > 0 and open_heads:  # what does not fit into one head goes to the others
        share = total / sum(weights[h] for h in open_heads)
        for head in sorted(open_heads):
            more = min(tokens - lengths[head], total, -(-round(1e6 * weights[head] * share) // 1000000))
            lengths[head] += more
            total -= more
        open_heads = {h for h in open_heads if lengths[h] < tokens}
    return lengths


def random_archive(
    geometry: ModelGeometry, tokens: int, ratio: float, prefix: int, dtype: torch.dtype, device: torch.device
) -> RaggedCache:
    """An archive of `tokens` with `ratio` of its pairs, and both kinds of index."""
    torch.manual_seed(tokens)
    layers = []
    for number in range(geometry.layers):
        lengths = random_lengths(geometry.kv_heads, tokens, ratio, number)
        offsets = torch.tensor([0, *(n + prefix for n in lengths)]).cumsum(0)
        total = int(offsets[-1])
        keys, values = (torch.randn(total, geometry.head_dim, dtype=dtype, device=device) for _ in range(2))
        positions = torch.zeros(total, dtype=torch.int32, device=device)
        layer = RaggedLayer(keys, values, offsets.to(device), positions)
        planes, pages = plane_layer(layer, prefix), page_bounds(layer, prefix, PAGE)
        layers.append(RaggedLayer(keys, values, layer.offsets, positions, None, planes, pages))
    return RaggedCache(tuple(layers), tokens + prefix)
