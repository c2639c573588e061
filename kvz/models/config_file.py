"""What a model's config.json says, in the terms that its family has today, with what it leaves out filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvz.errors import ModelError, UnsupportedModel
from kvz.models.families import FAMILIES, Family

__all__ = ["ModelConfig", "read_config"]

Number = int | float

_UNKNOWN = ("per_layer_config", "configuration_files")  # they change what the other fields mean
_SLIDING_BY_SWITCH = ("qwen2", "qwen3", "qwen3_moe")
_HEAD_DIM_BY_WIDTH = ("llama", "mistral")
_KEEPS_ROTARY_SHARE = ("gemma3_text", "phi3")
_OWN_LENGTH = ("llama3", "longrope", "yarn")  # ropes that go by the length before they were stretched
_GEMMA_THETA, _GEMMA_LOCAL_THETA = 1_000_000.0, 10_000.0


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of config.json that kvz uses, as transformers has them after loading; None is one that is not there.

    Numbers are as the file has them, since archives hold a fingerprint of them.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str | None = None
    hidden_activation: str | None = None
    max_position_embeddings: int
    rms_norm_eps: Number
    rope_parameters: dict[str, Any]
    partial_rotary_factor: Number | None = None
    tie_word_embeddings: bool
    architectures: list[str] | None = None
    eos_token_id: int | list[int] | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    layer_types: list[str] | None = None
    no_rope_layers: list[int] | None = None
    query_pre_attn_scalar: Number | None = None
    attn_logit_softcapping: Number | None = None
    final_logit_softcapping: Number | None = None
    use_bidirectional_attention: bool | None = None
    attention_k_eq_v: bool | None = None
    num_kv_shared_layers: int | None = None
    quantization_config: Any = None
    attention_multiplier: Number = 1
    embedding_multiplier: Number = 1
    residual_multiplier: Number = 1
    logits_scaling: Number = 1
    num_local_experts: int = 0
    num_experts_per_tok: int = 0
    norm_topk_prob: bool = False
    moe_intermediate_size: int = 0
    mlp_only_layers: tuple[int, ...] = ()
    decoder_sparse_step: int = 1

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """The config that these fields of a config.json make.

        Raises UnsupportedModel, by name, for another architecture and for a field that kvz does not know and that
        changes what the others mean; ModelError for values that no config has.
        """
        kind = fields.get("model_type")
        if kind == "mistral" and "layer_types" in fields:
            kind = "ministral"  # a family of its own under the same name
        if not isinstance(kind, str) or kind not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise UnsupportedModel(f"architecture {kind!r} is not supported; supported are {known}")
        for name in _UNKNOWN:
            if fields.get(name):
                raise UnsupportedModel(f"this {kind} model has {name} in its config.json, which kvz does not know")
        try:
            return msgspec.convert(_completed(kind, FAMILIES[kind], fields), cls)
        except msgspec.ValidationError as error:
            raise ModelError(f"config.json of a {kind} model has a wrong value: {error}") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise ModelError(f"config.json of a {kind} model is damaged ({type(error).__name__}: {error})") from error


def read_config(folder: Path) -> ModelConfig:
    """The config of the model in `folder`. Raises ModelError or UnsupportedModel."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}; copy or fetch the model again") from error
    return ModelConfig.from_fields(fields)


def _completed(kind: str, family: Family, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with the family's defaults, and what follows from them."""
    given = {k: fields[k] for k in ModelConfig.__struct_fields__ if k in fields}
    known = {**family.defaults, **{k: v for k, v in given.items() if v is not None or k in family.defaults}}
    known["model_type"] = kind
    experts = "num_local_experts" in family.defaults and "num_experts" in fields
    if experts and (kind == "mixtral" or "num_local_experts" not in fields):  # a file may have both
        known["num_local_experts"] = fields["num_experts"]
    if known.get("mlp_only_layers", ()) is None:
        known["mlp_only_layers"] = []
    if known.get("num_key_value_heads") is None:
        known["num_key_value_heads"] = known["num_attention_heads"]
    if kind in _HEAD_DIM_BY_WIDTH and known.get("head_dim") is None:
        known["head_dim"] = known["hidden_size"] // known["num_attention_heads"]
    if kind in _SLIDING_BY_SWITCH and not known["use_sliding_window"]:
        known["sliding_window"] = None
    if kind == "smollm3" and known.get("no_rope_layers") is None:
        interval = fields.get("no_rope_layer_interval", 4)
        known["no_rope_layers"] = [int((i + 1) % interval != 0) for i in range(known["num_hidden_layers"])]
    if known.get("layer_types") is None:
        known["layer_types"] = _layer_types(kind, known, fields)
    if kind not in _KEEPS_ROTARY_SHARE:
        known.pop("partial_rotary_factor", None)
    known["rope_parameters"] = _rope(kind, family, known, fields)
    return known


def _layer_types(kind: str, known: Mapping[str, Any], fields: Mapping[str, Any]) -> list[str] | None:
    """The kinds of layers of a family that has several; None for the others."""
    layers = range(known["num_hidden_layers"])
    if kind == "gemma3_text":
        pattern = fields.get("sliding_window_pattern", 6)
        slides = [bool((i + 1) % pattern) for i in layers]
    elif kind in ("qwen2", "qwen3"):
        slides = [known["sliding_window"] is not None and i >= fields.get("max_window_layers", 28) for i in layers]
    elif kind == "smollm3":
        window = known["use_sliding_window"] and known.get("sliding_window") is not None
        slides = [bool(window and not known["no_rope_layers"][i]) for i in layers]
    else:
        return None
    return ["sliding_attention" if each else "full_attention" for each in slides]


def _rope(kind: str, family: Family, known: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` as new files have them, also from `rope_scaling` and `rope_theta` of old ones."""
    if kind == "gemma3_text":
        return _gemma_rope(known, fields)
    rope = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
    added = {"rope_theta": fields.get("rope_theta", family.rope_theta)}
    if kind == "phi3":
        added["partial_rotary_factor"] = fields.get("partial_rotary_factor", 1.0)
    elif fields.get("partial_rotary_factor") is not None:
        added["partial_rotary_factor"] = fields["partial_rotary_factor"]
    kinds = [key for key in rope if key in known["layer_types"]] if family.mixed_layers else []
    for key in kinds:
        rope[key] = None if rope[key] is None else {**added, **rope[key]}
    rope = _standard(rope if kinds else {**added, **rope}, kinds, known)
    if kind == "phi3" and rope["rope_type"] in ("su", "yarn"):
        rope["rope_type"] = "longrope"
    return rope


def _gemma_rope(known: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    plain = {"rope_type": "default"}
    given = fields.get("rope_parameters")
    rope = {"full_attention": plain, "sliding_attention": plain} if given is None else dict(given)
    if (scaling := fields.get("rope_scaling")) is not None:
        rope["full_attention"] = {**rope["full_attention"], **scaling}
    bases = {
        "full_attention": fields.get("rope_theta", _GEMMA_THETA),
        "sliding_attention": fields.get("rope_local_base_freq", _GEMMA_LOCAL_THETA),
    }
    for key, base in bases.items():
        rope[key] = {"rope_theta": base, **(plain if rope.get(key) is None else rope[key])}
    return _standard(rope, [key for key in rope if key in known["layer_types"]], known)


def _standard(rope: dict[str, Any], kinds: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Each rope with its type and, where that goes by it, the length before it was stretched."""
    for part in [rope[kind] for kind in kinds if rope[kind] is not None] if kinds else [rope]:
        part.setdefault("rope_type", part.get("type", "default"))
        if part["rope_type"] in _OWN_LENGTH:
            part.setdefault("original_max_position_embeddings", known["max_position_embeddings"])
    return rope
