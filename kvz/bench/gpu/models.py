"""Models of known geometry with random weights, and archives of random pairs for them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kvz.cache.bit_planes import plane_layer
from kvz.cache.pages import PAGE
from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.geometry import LayerShape
from kvz.kernels.page_bounds import page_bounds
from kvz.models.attention import ATTENTION_NAME, PairStore, register_attention
from kvz.models.forward import step_logits
from kvz.models.fused_norm import can_fuse, fuse_norms

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
    family: str = "Llama"

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
    "qwen2.5-7b": ModelGeometry("qwen2.5-7b", 28, 28, 4, 128, 3584, 18944, 152064, "Qwen2"),
    "mistral-7b": ModelGeometry("mistral-7b", 32, 32, 8, 128, 4096, 14336, 32768, "Mistral"),
}
TINY = ModelGeometry("tiny", 2, 6, 2, 64, 96, 128, 256)
"""For a look at whether this runs at all, on any machine."""


@dataclass(frozen=True, eq=False)
class RandomModel:
    """A network with random weights, and no more of a model than a step needs."""

    network: nn.Module
    dtype: torch.dtype
    device: torch.device

    @torch.inference_mode()
    def step(self, ids: Tensor, positions: Tensor, store: PairStore) -> Tensor:
        """Logits after one token each of B sequences, `ids, positions [B]`: `[B,vocabulary]` float32."""
        return step_logits(self.network, ids, positions, store, self.dtype, self.device)


def random_model(geometry: ModelGeometry, dtype: torch.dtype, device: torch.device) -> RandomModel:
    """A model of this geometry with random weights."""
    import transformers

    register_attention()
    config = getattr(transformers, f"{geometry.family}Config")(
        vocab_size=geometry.vocabulary,
        hidden_size=geometry.hidden,
        intermediate_size=geometry.intermediate,
        num_hidden_layers=geometry.layers,
        num_attention_heads=geometry.query_heads,
        num_key_value_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        max_position_embeddings=1 << 17,
        sliding_window=None,
        attn_implementation=ATTENTION_NAME,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            network = getattr(transformers, f"{geometry.family}ForCausalLM")(config).eval()
    finally:
        torch.set_default_dtype(before)
    network = network.to(dtype)
    if can_fuse(dtype, device):
        fuse_norms(network)
    return RandomModel(network, dtype, device)


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
