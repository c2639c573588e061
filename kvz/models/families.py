"""Which architectures can be stored, and the geometry of their KV cache as their configs have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvz.errors import UnsupportedModel
from kvz.geometry import Geometry, LayerShape

__all__ = ["FAMILIES", "geometry_of"]

FAMILIES: dict[str, str] = {
    "gemma3_text": "Gemma 3 (text)",
    "granite": "Granite",
    "llama": "Llama and SmolLM2",
    "mistral": "Mistral",
    "mixtral": "Mixtral",
    "olmo2": "OLMo 2",
    "phi3": "Phi-3 and Phi-4",
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3-MoE",
    "smollm3": "SmolLM3",
}
"""transformers' `model_type` -> the models meant."""

_HYBRIDS = ("gemma3_text", "qwen2", "qwen3")  # the families whose attention goes by layer_types
_MOST = 2**31  # of positions, and of a window, that a manifest can hold
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def geometry_of(config: Any) -> Geometry:
    """The geometry in a transformers config.

    Raises UnsupportedModel, by name, for another architecture, for layers that are neither full nor sliding attention,
    for layers that share keys and values, and for position embeddings that change with the length of the text.
    """
    kind = getattr(config, "model_type", "unknown")
    layers = getattr(config, "num_hidden_layers", 0)
    kinds = _layer_kinds(config, layers)
    _check_layers(config, kind, kinds)
    if kind not in FAMILIES:
        raise UnsupportedModel(f"architecture '{kind}' is not supported; supported are {', '.join(sorted(FAMILIES))}")
    if kinds and "full_attention" not in kinds:
        raise UnsupportedModel(
            f"every layer of this {kind} model is of kind 'sliding_attention' and keeps no more than its window of "
            f"{config.sliding_window} tokens: there is nothing to evict"
        )
    _check_rope(config, kind)
    _check_sizes(config, kind, kinds)
    query_heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // query_heads
    heads = getattr(config, "num_key_value_heads", None) or query_heads
    window = getattr(config, "sliding_window", None)
    window = None if window is None else min(window, _MOST)
    shapes = tuple(LayerShape(heads, dim, window if k == "sliding_attention" else None) for k in kinds)
    return Geometry(query_heads, shapes, min(int(config.max_position_embeddings), _MOST))


def _layer_kinds(config: Any, layers: int) -> list[str]:
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return list(kinds)
    window = getattr(config, "sliding_window", None)
    sliding = window and getattr(config, "use_sliding_window", True)
    return ["sliding_attention" if sliding else "full_attention"] * layers


def _check_layers(config: Any, kind: str, kinds: Sequence[str]) -> None:
    for index, layer_kind in enumerate(kinds):
        if layer_kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(
                f"layer {index} of this {kind} model is of kind '{layer_kind}', which kvz cannot store; "
                "only full_attention and sliding_attention layers can be"
            )
    if shared := getattr(config, "num_kv_shared_layers", 0):
        raise UnsupportedModel(
            f"the last {shared} layers of this {kind} model share keys and values with layers before them "
            "(num_kv_shared_layers), which kvz cannot store"
        )
    if getattr(config, "attention_k_eq_v", False):
        raise UnsupportedModel(
            f"this {kind} model has layers whose values are their keys (attention_k_eq_v), which kvz cannot store"
        )
    if getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModel(f"this {kind} model attends in both directions: its keys cannot be kept for a question")


def _check_sizes(config: Any, kind: str, kinds: Sequence[str]) -> None:
    """Raise UnsupportedModel for sizes that no model has, and for layer kinds that the family does not go by."""
    if not kinds:
        raise UnsupportedModel(f"this {kind} model has no layers (num_hidden_layers); its config.json is damaged")
    if "sliding_attention" not in kinds:
        return
    if kind not in _HYBRIDS:
        raise UnsupportedModel(
            f"layer {kinds.index('sliding_attention')} of this {kind} model is of kind 'sliding_attention' in "
            f"layer_types, which {kind} models do not go by: its config.json is damaged"
        )
    if (config.sliding_window or 0) < 1:
        raise UnsupportedModel(f"this {kind} model's sliding_window is {config.sliding_window}; it must be 1 or more")


def _check_rope(config: Any, kind: str) -> None:
    """Raise UnsupportedModel if keys depend on the length of the text; a hybrid model has one rope for each kind."""
    parameters = getattr(config, "rope_parameters", None) or {}
    ropes = [p for p in parameters.values() if isinstance(p, dict)] or [parameters]
    for rope in ropes:
        name = rope.get("rope_type", "default")
        if name in _LENGTH_DEPENDENT_ROPE:
            raise UnsupportedModel(
                f"this {kind} model has '{name}' position embeddings, whose keys depend on the length of the whole "
                "text; keys computed once cannot be kept"
            )
