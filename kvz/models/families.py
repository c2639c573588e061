"""Which architectures can be stored, and the geometry of their KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvz.errors import UnsupportedModel

__all__ = ["FAMILIES", "Geometry", "geometry_of"]

FAMILIES: dict[str, str] = {
    "llama": "Llama and SmolLM2",
    "mistral": "Mistral",
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen3": "Qwen3",
}
"""transformers' `model_type` -> the models meant."""


_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True)
class Geometry:
    """Shape of a model's KV cache: `kv_heads[l]`, `head_dims[l]` of each layer; and the longest context in tokens."""

    query_heads: int
    kv_heads: tuple[int, ...]
    head_dims: tuple[int, ...]
    max_positions: int

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.kv_heads)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(KV heads, head dimension) of each layer."""
        return list(zip(self.kv_heads, self.head_dims, strict=True))


def geometry_of(config: Any) -> Geometry:
    """The geometry in a transformers config.

    Raises UnsupportedModel, by name, for another architecture, for layers that are not full attention, and for
    position embeddings that change with the length of the text.
    """
    kind = getattr(config, "model_type", "unknown")
    if kind not in FAMILIES:
        raise UnsupportedModel(f"architecture '{kind}' is not supported; supported are {', '.join(sorted(FAMILIES))}")
    layers = config.num_hidden_layers
    kinds = _layer_kinds(config)
    for index, layer_kind in enumerate(kinds):
        if layer_kind != "full_attention":
            raise UnsupportedModel(
                f"layer {index} of this {kind} model is of kind '{layer_kind}', which kvz cannot store; "
                "only full_attention layers can be"
            )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in _LENGTH_DEPENDENT_ROPE:
        raise UnsupportedModel(
            f"this {kind} model has '{rope}' position embeddings, whose keys depend on the length of the whole text; "
            "keys computed once cannot be kept"
        )
    query_heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // query_heads
    heads = getattr(config, "num_key_value_heads", None) or query_heads
    return Geometry(query_heads, (heads,) * layers, (dim,) * layers, int(config.max_position_embeddings))


def _layer_kinds(config: Any) -> list[str]:
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return list(kinds)
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        return ["sliding_attention"] * config.num_hidden_layers
    return ["full_attention"] * config.num_hidden_layers
