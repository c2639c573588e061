"""The families of models that kvz runs, and what their config.json means where it is silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FAMILIES", "Family"]


@dataclass(frozen=True)
class Family:
    """A family by its `title`; `defaults` are what a config.json without these fields means.

    `mixed_layers`: its layers may be of different kinds, as `layer_types` says. `rope_theta` is the base of its rotary
    embedding. Archives hold a fingerprint of these values, so none of them may change.
    """

    title: str
    defaults: Mapping[str, Any]
    mixed_layers: bool = False
    rope_theta: float = 10_000.0


_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
_MISTRAL = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_QWEN2 = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
}

FAMILIES: dict[str, Family] = {
    "gemma3_text": Family(
        "Gemma 3 (text)",
        {
            "vocab_size": 262_208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-6,
            "eos_token_id": 1,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "use_bidirectional_attention": False,
        },
        mixed_layers=True,
    ),
    "granite": Family(
        "Granite",
        {
            **_LLAMA,
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
        },
    ),
    "llama": Family("Llama and SmolLM2", _LLAMA),
    "mistral": Family("Mistral", {**_MISTRAL, "rms_norm_eps": 1e-6, "sliding_window": 4096}),
    "mixtral": Family(
        "Mixtral",
        {**_MISTRAL, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2},
        rope_theta=1_000_000.0,
    ),
    "olmo2": Family(
        "OLMo 2",
        {
            "vocab_size": 50304,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 50279,
            "tie_word_embeddings": False,
            "attention_bias": False,
        },
    ),
    "phi3": Family(
        "Phi-3 and Phi-4",
        {
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 32000,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2": Family("Qwen2 and Qwen2.5", _QWEN2, mixed_layers=True),
    "qwen3": Family("Qwen3", {**_QWEN2, "head_dim": 128, "attention_bias": False}, mixed_layers=True),
    "qwen3_moe": Family(
        "Qwen3-MoE",
        {
            **_QWEN2,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "num_local_experts": 128,
            "norm_topk_prob": False,
            "mlp_only_layers": None,
        },
    ),
    "smollm3": Family(
        "SmolLM3",
        {
            "vocab_size": 128_256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "hidden_act": "silu",
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "eos_token_id": 128_001,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "use_sliding_window": False,
        },
        rope_theta=2_000_000.0,
    ),
}
"""`model_type` of config.json -> the family."""
