"""The geometry of a model's KV cache, as its config has it; what cannot be stored is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvz.errors import UnsupportedModel
from kvz.geometry import Geometry, LayerShape
from kvz.models.families import FAMILIES

if TYPE_CHECKING:
    from kvz.models.config_file import ModelConfig

__all__ = ["geometry_of"]

_MOST = 2**31  # of positions, and of a window, that a manifest can hold
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def geometry_of(config: ModelConfig) -> Geometry:
    """The geometry of a model's cache.

    Raises UnsupportedModel, by name, for layers that are neither full nor sliding attention, for layers that share
    keys and values, for position embeddings that change with the length of the text, and for sizes that no model has.
    """
    kind, kinds = config.model_type, _layer_kinds(config)
    _check_layers(config, kind, kinds)
    if kinds and "full_attention" not in kinds:
        raise UnsupportedModel(
            f"every layer of this {kind} model is of kind 'sliding_attention' and keeps no more than its window of "
            f"{config.sliding_window} tokens: there is nothing to evict"
        )
    _check_rope(config, kind)
    _check_sizes(config, kind, kinds)
    query_heads = config.num_attention_heads
    dim = config.head_dim or config.hidden_size // query_heads
    heads = config.num_key_value_heads or query_heads
    window = None if config.sliding_window is None else min(config.sliding_window, _MOST)
    shapes = tuple(LayerShape(heads, dim, window if k == "sliding_attention" else None) for k in kinds)
    return Geometry(query_heads, shapes, min(config.max_position_embeddings, _MOST))


def _layer_kinds(config: ModelConfig) -> list[str]:
    if config.layer_types:
        return config.layer_types
    sliding = config.sliding_window and config.use_sliding_window is not False
    return ["sliding_attention" if sliding else "full_attention"] * config.num_hidden_layers


def _check_layers(config: ModelConfig, kind: str, kinds: Sequence[str]) -> None:
    for index, layer_kind in enumerate(kinds):
        if layer_kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(
                f"layer {index} of this {kind} model is of kind '{layer_kind}', which kvz cannot store; "
                "only full_attention and sliding_attention layers can be"
            )
    if config.num_kv_shared_layers:
        raise UnsupportedModel(
            f"the last {config.num_kv_shared_layers} layers of this {kind} model share keys and values with layers "
            "before them (num_kv_shared_layers), which kvz cannot store"
        )
    if config.attention_k_eq_v:
        raise UnsupportedModel(
            f"this {kind} model has layers whose values are their keys (attention_k_eq_v), which kvz cannot store"
        )
    if config.use_bidirectional_attention:
        raise UnsupportedModel(f"this {kind} model attends in both directions: its keys cannot be kept for a question")


def _check_sizes(config: ModelConfig, kind: str, kinds: Sequence[str]) -> None:
    """Raise UnsupportedModel for sizes that no model has, and for layer kinds that the family does not go by."""
    if config.num_hidden_layers < 1:
        raise UnsupportedModel(f"this {kind} model has no layers (num_hidden_layers); its config.json is damaged")
    if len(kinds) != config.num_hidden_layers:
        raise UnsupportedModel(
            f"this {kind} model has {config.num_hidden_layers} layers (num_hidden_layers) and {len(kinds)} "
            "layer_types; its config.json is damaged"
        )
    if config.num_attention_heads < 1 or config.num_attention_heads % (config.num_key_value_heads or 1):
        raise UnsupportedModel(
            f"this {kind} model has {config.num_attention_heads} query heads (num_attention_heads) and "
            f"{config.num_key_value_heads} KV heads (num_key_value_heads); its config.json is damaged"
        )
    if "sliding_attention" not in kinds:
        return
    if not FAMILIES[kind].mixed_layers:
        raise UnsupportedModel(
            f"layer {kinds.index('sliding_attention')} of this {kind} model is of kind 'sliding_attention' in "
            f"layer_types, which {kind} models do not go by: its config.json is damaged"
        )
    if (config.sliding_window or 0) < 1:
        raise UnsupportedModel(f"this {kind} model's sliding_window is {config.sliding_window}; it must be 1 or more")


def _check_rope(config: ModelConfig, kind: str) -> None:
    """Raise UnsupportedModel if keys depend on the length of the text; a hybrid model has one rope for each kind."""
    by_kind = [part for part in config.rope_parameters.values() if isinstance(part, dict)]
    if by_kind and not FAMILIES[kind].mixed_layers:
        raise UnsupportedModel(f"rope_parameters of this {kind} model go by kinds of layers, which {kind} has not")
    for rope in by_kind or [config.rope_parameters]:
        name = rope.get("rope_type", "default")
        if name in _LENGTH_DEPENDENT_ROPE:
            raise UnsupportedModel(
                f"this {kind} model has '{name}' position embeddings, whose keys depend on the length of the whole "
                "text; keys computed once cannot be kept"
            )
        if kind == "phi3" and name != "default":
            raise UnsupportedModel(f"this phi3 model has '{name}' position embeddings, which phi3 models do not have")
