"""What kvz knows of each family of models: one record of facts about its blocks. The forward pass is in `decoder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvz.errors import UnsupportedModel
from kvz.models.cache_geometry import geometry_of
from kvz.models.rotary import Rotary

if TYPE_CHECKING:
    from kvz.models.config_file import ModelConfig

__all__ = ["ARCHITECTURES", "Architecture", "Block", "Experts"]

_PARTLY_ROTATED = ("phi3",)
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu"}


@dataclass(frozen=True)
class Experts:
    """A router sends each token to `chosen` of `count` gated MLPs; their weights add up to 1 if `normalised`."""

    count: int
    chosen: int
    normalised: bool


@dataclass(frozen=True)
class Block:
    """One layer: heads of `head_dim`; `window`, the tokens seen (None: all); its `rotary` by name, if it has one."""

    query_heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    rotary: str | None
    intermediate: int
    experts: Experts | None = None


@dataclass(frozen=True, eq=False)
class Architecture:
    """All that a forward pass needs to know beside the weights.

    `pre_norm`: a norm before attention and MLP; `post_norm`: one on what each adds to the residual stream. `head_norm`
    is "head" for norms of queries and keys head by head, "all" for one over all heads, None without. Norms multiply by
    their weight, or by 1 + weight if `centred`. `scale` multiplies products of queries and keys, `embedding_scale` the
    embeddings, `residual_scale` what is added to the stream; logits are divided by `logit_divisor`. `biases` names the
    linear layers that have one: q, k, v, o, gate, up, down. `fused` are joint matrices in the file: "qkv", "gate_up".
    `expert_names` are those of router, experts, gate, up and down in the file.
    """

    family: str
    hidden: int
    vocabulary: int
    blocks: tuple[Block, ...]
    rotaries: Mapping[str, Rotary]
    eps: float
    scale: float
    tied: bool
    activation: str = "silu"
    pre_norm: bool = True
    post_norm: bool = False
    head_norm: str | None = None
    centred: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    biases: frozenset[str] = frozenset()
    fused: frozenset[str] = frozenset()
    expert_names: tuple[str, str, str, str, str] = ("mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj")

    @property
    def step_weights(self) -> int:
        """Weights of the matrix products of a step of one token; of experts, of those that are chosen."""
        total = self.hidden * self.vocabulary
        for block in self.blocks:
            total += 2 * self.hidden * block.head_dim * (block.query_heads + block.kv_heads)
            mlp = 3 * self.hidden * block.intermediate
            experts = block.experts
            total += mlp if experts is None else mlp * experts.chosen + self.hidden * experts.count
        return total

    @classmethod
    def from_config(cls, config: ModelConfig) -> Architecture:
        """The record of a model's config. Raises UnsupportedModel, which names what kvz does not know."""
        _check_weights(config)
        geometry_of(config)
        return ARCHITECTURES[config.model_type](_common(config), config)


def _check_weights(config: ModelConfig) -> None:
    """Raise UnsupportedModel for quantised weights: without their scales they are other weights."""
    quantised = config.quantization_config
    if quantised is None:
        return
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    raise UnsupportedModel(
        f"this model's weights are quantised (quantization_config: {method or 'of no method'}), which kvz cannot read; "
        "use the model in bfloat16, float16 or float32, or a GGUF file of it"
    )


def _common(config: ModelConfig) -> Architecture:
    """What configs of all families say in the same fields."""
    geometry = geometry_of(config)
    field = "hidden_activation" if config.model_type == "gemma3_text" else "hidden_act"
    activation = getattr(config, field)
    if activation not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"this {config.model_type} model's activation is '{activation}' ({field}), which kvz does not know; "
            f"it knows {', '.join(_ACTIVATIONS)}"
        )
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, name):
            raise UnsupportedModel(f"this {config.model_type} model caps its logits ({name}), which kvz does not do")
    dim = geometry.shapes[0].head_dim
    rotaries = _rotaries(config, dim, geometry.max_positions)
    blocks = tuple(
        Block(
            geometry.query_heads,
            shape.kv_heads,
            shape.head_dim,
            shape.window,
            ("full" if shape.window is None else "sliding") if len(rotaries) > 1 else next(iter(rotaries)),
            config.intermediate_size,
        )
        for shape in geometry.shapes
    )
    return Architecture(
        family=config.model_type,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        blocks=blocks,
        rotaries=rotaries,
        eps=config.rms_norm_eps,
        scale=dim**-0.5,
        tied=bool(config.tie_word_embeddings),
        activation=_ACTIVATIONS[activation],
        biases=_biases(config),
    )


def _rotaries(config: ModelConfig, dim: int, max_positions: int) -> dict[str, Rotary]:
    """By kind of layer where those differ, else one."""
    parameters = config.rope_parameters
    kinds = {"full_attention": "full", "sliding_attention": "sliding"}
    if any(kind in parameters for kind in kinds):
        found = {name: parameters[kind] for kind, name in kinds.items() if parameters.get(kind)}
    else:
        found = {"full": parameters}
    for each in found.values():
        if each.get("partial_rotary_factor", 1.0) != 1.0 and config.model_type not in _PARTLY_ROTATED:
            raise UnsupportedModel(
                f"this {config.model_type} model rotates a part of each head only (partial_rotary_factor), which its "
                "family does not: its config.json is damaged"
            )
    return {name: Rotary.from_parameters(each, dim, max_positions) for name, each in found.items()}


def _biases(config: ModelConfig) -> frozenset[str]:
    attention = ("q", "k", "v", "o") if config.attention_bias else ()
    mlp = ("gate", "up", "down") if config.mlp_bias else ()
    return frozenset((*attention, *mlp))


def _llama(common: Architecture, config: ModelConfig) -> Architecture:
    return common


def _qwen2(common: Architecture, config: ModelConfig) -> Architecture:
    return replace(common, biases=frozenset("qkv"))


def _qwen3(common: Architecture, config: ModelConfig) -> Architecture:
    return replace(common, head_norm="head")


def _gemma3(common: Architecture, config: ModelConfig) -> Architecture:
    if not config.query_pre_attn_scalar:
        raise UnsupportedModel(
            "query_pre_attn_scalar of this gemma3_text model is not there; its config.json is damaged"
        )
    return replace(
        common,
        head_norm="head",
        post_norm=True,
        centred=True,
        scale=config.query_pre_attn_scalar**-0.5,
        embedding_scale=config.hidden_size**0.5,
    )


def _phi3(common: Architecture, config: ModelConfig) -> Architecture:
    return replace(common, fused=frozenset(("qkv", "gate_up")))


def _smollm3(common: Architecture, config: ModelConfig) -> Architecture:
    turns = config.no_rope_layers or []
    if len(turns) < len(common.blocks):
        raise UnsupportedModel(f"no_rope_layers of this smollm3 model has {len(turns)} of {len(common.blocks)} layers")
    blocks = tuple(block if turns[i] else replace(block, rotary=None) for i, block in enumerate(common.blocks))
    return replace(common, blocks=blocks)


def _granite(common: Architecture, config: ModelConfig) -> Architecture:
    return replace(
        common,
        scale=float(config.attention_multiplier),
        embedding_scale=float(config.embedding_multiplier),
        residual_scale=float(config.residual_multiplier),
        logit_divisor=float(config.logits_scaling),
    )


def _olmo2(common: Architecture, config: ModelConfig) -> Architecture:
    return replace(common, pre_norm=False, post_norm=True, head_norm="all")


def _qwen3_moe(common: Architecture, config: ModelConfig) -> Architecture:
    experts = Experts(config.num_local_experts, config.num_experts_per_tok, bool(config.norm_topk_prob))
    blocks = tuple(
        replace(block, intermediate=config.moe_intermediate_size, experts=experts)
        if index not in config.mlp_only_layers and (index + 1) % config.decoder_sparse_step == 0
        else block
        for index, block in enumerate(common.blocks)
    )
    return replace(common, head_norm="head", blocks=blocks)


def _mixtral(common: Architecture, config: ModelConfig) -> Architecture:
    experts = Experts(config.num_local_experts, config.num_experts_per_tok, True)
    blocks = tuple(replace(block, experts=experts) for block in common.blocks)
    names = ("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2")
    return replace(common, blocks=blocks, expert_names=names)


ARCHITECTURES: dict[str, Callable[[Architecture, ModelConfig], Architecture]] = {
    "gemma3_text": _gemma3,
    "granite": _granite,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _smollm3,
}
"""`model_type` of config.json -> the record. A new family is one function and one line."""
