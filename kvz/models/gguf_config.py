"""A GGUF file's metadata as a config.json: every key that changes the result is in it, or is refused by its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvz.errors import ModelError, UnsupportedModel

__all__ = ["Metadata", "config_of"]

_FREQ_BASE = 10_000.0  # of a file that has none: Llama 2 and the converters of its time leave it out
_HARMLESS = ("rope.scaling.finetuned", "tensor_data_layout")
_LLAMA3_LENGTH = 8192  # what Llama 3.1 to 3.3 were trained on before they were stretched


@dataclass(frozen=True)
class Metadata:
    """`values` by key, with the architecture left out of its own keys; remembers which were asked for."""

    architecture: str
    values: Mapping[str, Any]
    _asked: set[str] = field(default_factory=set)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `<architecture>.<key>`; one that is the same for every layer counts as one."""
        self._asked.add(key)
        value = self.values.get(f"{self.architecture}.{key}")
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        return default if value is None else value

    def number(self, key: str, default: float | None = None) -> Any:
        """A number that must be there, or has a default. Raises ModelError."""
        value = self.get(key, default)
        if value is None:
            raise ModelError(f"its metadata has no {self.architecture}.{key}; the file is damaged or not complete")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UnsupportedModel(f"{self.architecture}.{key} is {str(value)[:60]}, where kvz can use one number only")
        return value

    def token(self, name: str) -> int | None:
        """The id of a special token, or None."""
        value = self.values.get(f"tokenizer.ggml.{name}_token_id")
        return None if value is None else int(value)

    def refuse_unknown(self) -> None:
        """Raise UnsupportedModel for a key of the architecture that nobody asked for; one that is 0 is off."""
        prefix = f"{self.architecture}."
        for key, value in self.values.items():
            known = key.removeprefix(prefix) in {*self._asked, *_HARMLESS}
            if key.startswith(prefix) and not known and value not in (0, "", []):
                raise UnsupportedModel(f"its metadata has {key} ({str(value)[:60]}), which kvz does not know")


def config_of(
    metadata: Metadata, tensors: Mapping[str, np.ndarray | None], say: Callable[[str], None]
) -> dict[str, Any]:
    """The config.json of a GGUF file. `tensors`: those it has, with the values of its `rope_*` ones.

    `say` is told what the file leaves to a default. Raises ModelError for keys that are missing, UnsupportedModel for
    what kvz does not know, both by name.
    """
    family = _FAMILIES.get(metadata.architecture)
    if family is None:
        raise UnsupportedModel(
            f"kvz cannot read GGUF files of architecture '{metadata.architecture}'; it reads {', '.join(_FAMILIES)}"
        )
    common = _common(metadata, tensors)
    config = common | family(metadata, tensors, common, say)
    _refuse_others(metadata, config)
    return config


def _common(metadata: Metadata, tensors: Mapping[str, Any]) -> dict[str, Any]:
    heads, hidden = metadata.number("attention.head_count"), metadata.number("embedding_length")
    tokens = metadata.values.get("tokenizer.ggml.tokens", [])
    ends = [i for i in map(metadata.token, ("eos", "eot", "eom")) if i is not None]
    return {
        "hidden_size": hidden,
        "intermediate_size": metadata.number("feed_forward_length"),
        "num_hidden_layers": metadata.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.number("attention.head_count_kv", heads),
        "head_dim": metadata.number("attention.key_length", hidden // max(heads, 1)),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": metadata.number("context_length"),
        "vocab_size": metadata.number("vocab_size", len(tokens)),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": metadata.token("bos"),
        "eos_token_id": list(dict.fromkeys(ends)) if len(set(ends)) > 1 else next(iter(ends), None),
        "pad_token_id": metadata.token("padding"),
        "dtype": "bfloat16",
    }


def _llama(
    metadata: Metadata, tensors: Mapping[str, Any], common: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    _whole_heads_turn(metadata, common)
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "rope_parameters": _rope(metadata, say, tensors.get("rope_freqs.weight"), common["head_dim"]),
        "attention_bias": _has(tensors, ("attn_q", "attn_k", "attn_v", "attn_output")),
        "mlp_bias": _has(tensors, ("ffn_gate", "ffn_up", "ffn_down")),
    }


def _qwen2(
    metadata: Metadata, tensors: Mapping[str, Any], common: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    _whole_heads_turn(metadata, common)
    return {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "rope_parameters": _rope(metadata, say),
    } | _usual_heads(common)


def _qwen3(
    metadata: Metadata, tensors: Mapping[str, Any], common: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    _whole_heads_turn(metadata, common)
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "rope_parameters": _rope(metadata, say),
        "attention_bias": _has(tensors, ("attn_q", "attn_k", "attn_v", "attn_output")),
    }


def _gemma3(
    metadata: Metadata, tensors: Mapping[str, Any], common: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """Only layers that see everything are stretched; Gemma 3 27B scales queries by its hidden size a head."""
    _whole_heads_turn(metadata, common)
    layers, heads = common["num_hidden_layers"], common["num_attention_heads"]
    size = common["hidden_size"] // heads if layers == 62 else common["head_dim"]
    scale = metadata.get("attention.scale")
    sliding = {"rope_type": "default", "rope_theta": metadata.number("rope.freq_base_swa", 10_000.0)}
    return {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "rope_parameters": {"full_attention": _rope(metadata, say), "sliding_attention": sliding},
        "sliding_window": metadata.number("attention.sliding_window"),
        "layer_types": _layer_types(metadata.get("attention.sliding_window_pattern", 6), layers),
        "query_pre_attn_scalar": round(scale**-2) if scale else size,
        "attention_bias": _has(tensors, ("attn_q", "attn_k", "attn_v", "attn_output")),
    }


def _phi3(
    metadata: Metadata, tensors: Mapping[str, Any], common: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    for name in ("rope_factors_long.weight", "rope_factors_short.weight"):
        if name in tensors:
            raise UnsupportedModel(
                f"it has {name} ('longrope' position embeddings), whose keys depend on the length of the whole text; "
                "keys computed once cannot be kept"
            )
    metadata.get("rope.scaling.original_context_length")  # the context length again, where nothing is stretched
    turned = metadata.number("rope.dimension_count", common["head_dim"])
    rope = _rope(metadata, say) | {"partial_rotary_factor": turned / common["head_dim"]}
    return {
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "rope_parameters": rope,
        "sliding_window": _window(metadata, common),
    } | _usual_heads(common)


_Family = Callable[[Metadata, Mapping[str, Any], Mapping[str, Any], Callable[[str], None]], dict[str, Any]]
_FAMILIES: dict[str, _Family] = {"gemma3": _gemma3, "llama": _llama, "phi3": _phi3, "qwen2": _qwen2, "qwen3": _qwen3}
"""GGUF's `general.architecture` (Mistral and SmolLM2 are "llama") -> what is its own in the config."""


def _has(tensors: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether any layer has a bias of these."""
    return any(f".{name}.bias" in tensor for tensor in tensors for name in names)


def _usual_heads(common: Mapping[str, Any]) -> dict[str, Any]:
    """`head_dim` for a family whose configs only have one where it is not the hidden size's share."""
    usual = common["head_dim"] == common["hidden_size"] // common["num_attention_heads"]
    return {"head_dim": None} if usual else {}


def _window(metadata: Metadata, common: Mapping[str, Any]) -> int | None:
    """The sliding window of every layer, unless it is off or as long as the context."""
    window = metadata.number("attention.sliding_window", 0)
    return window if 0 < window < common["max_position_embeddings"] else None


def _layer_types(pattern: Any, layers: int) -> list[str]:
    """`pattern`: every how many layers one sees everything, or of each layer whether it slides."""
    if isinstance(pattern, list):
        slides = pattern
    elif isinstance(pattern, bool):  # a list of the same for every layer
        slides = [pattern] * layers
    else:
        slides = [pattern == 0 or bool((index + 1) % pattern) for index in range(layers)]
    return ["sliding_attention" if slide else "full_attention" for slide in slides[:layers]]


def _whole_heads_turn(metadata: Metadata, common: Mapping[str, Any]) -> None:
    turned = metadata.number("rope.dimension_count", common["head_dim"])
    if turned != common["head_dim"]:
        raise UnsupportedModel(
            f"{metadata.architecture}.rope.dimension_count is {turned} and heads are of {common['head_dim']}: "
            f"kvz cannot rotate a part of each head in a model of this architecture"
        )


def _refuse_others(metadata: Metadata, config: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for what no family here has: other heads of values, windows, scales, experts."""
    name, dim = metadata.architecture, config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    if metadata.number("attention.value_length", dim) != dim:
        raise UnsupportedModel(f"{name}.attention.value_length is not its key_length, {dim}, which kvz cannot store")
    if "sliding_window" not in config and (window := _window(metadata, config)):
        raise UnsupportedModel(f"{name}.attention.sliding_window is {window}, which kvz does not know in {name} models")
    if "query_pre_attn_scalar" not in config:
        scale = metadata.number("attention.scale", 0)
        if scale and not math.isclose(scale, dim**-0.5, rel_tol=1e-5):
            raise UnsupportedModel(f"{name}.attention.scale is {scale}, which kvz does not know in {name} models")
    if metadata.get("attention.causal") is False:
        raise UnsupportedModel(f"{name}.attention.causal is false: its keys cannot be kept for a question")
    metadata.refuse_unknown()


def _rope(
    metadata: Metadata, say: Callable[[str], None], factors: np.ndarray | None = None, head_dim: int = 0
) -> dict[str, Any]:
    """The `rope_parameters` of layers that see everything; `factors [head_dim/2]` are those of rope_freqs.weight."""
    if metadata.get("rope.freq_base") is None:
        say(f"the GGUF file has no {metadata.architecture}.rope.freq_base; taking {_FREQ_BASE:.0f}, as llama.cpp does")
    base = {"rope_theta": float(metadata.number("rope.freq_base", _FREQ_BASE))}
    factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 0)) or 1
    kind = metadata.get("rope.scaling.type", "linear")  # as llama.cpp takes a factor without a type
    if factors is not None and not np.all(factors == 1):
        if kind != "none" and factor != 1:
            raise UnsupportedModel(f"it has both rope_freqs.weight and rope.scaling.factor {factor}")
        return base | _llama3(metadata, factors, base["rope_theta"], head_dim)
    if kind == "none" or factor == 1:
        return base | {"rope_type": "default"}
    if kind == "linear":
        return base | {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return base | _yarn(metadata, factor)
    raise UnsupportedModel(f"{metadata.architecture}.rope.scaling.type is '{kind}', which kvz does not know")


def _yarn(metadata: Metadata, factor: float) -> dict[str, Any]:
    rope = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": metadata.number(
            "rope.scaling.original_context_length", metadata.number("context_length")
        ),
    }
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if value := metadata.get(f"rope.scaling.{key}"):
            rope[name] = value
    if (attention := metadata.number("rope.scaling.attn_factor", 1)) != 1:
        rope["attention_factor"] = attention * (0.1 * math.log(factor) + 1)
    for key in ("yarn_ext_factor", "yarn_attn_factor"):
        if (value := metadata.number(f"rope.scaling.{key}", 1)) != 1:
            raise UnsupportedModel(f"rope.scaling.{key} is {value}, which kvz does not know")
    return rope


def _llama3(metadata: Metadata, factors: np.ndarray, base: float, head_dim: int) -> dict[str, Any]:
    """Llama 3.1's scaling, which a file has as what each frequency is divided by: only the largest of them varies."""
    length = metadata.number("rope.scaling.original_context_length", _LLAMA3_LENGTH)
    factor = float(factors.max())
    turns = length / (2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim))
    share = np.clip((turns - 1) / 3, 0, 1)
    if factors.shape != turns.shape or not np.allclose(factors, 1 / ((1 - share) / factor + share), rtol=1e-4):
        raise UnsupportedModel("its rope_freqs.weight is not that of a Llama 3.1, which is the one that kvz knows")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": length,
    }
