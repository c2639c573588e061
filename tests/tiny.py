"""Tiny random models of every family, saved as real model folders, with a byte-level tokenizer and a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from kvz.models.tokenizer import Tokenizer as OwnTokenizer
from kvz.models.tokenizer_parts import TokenizerParts

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MAX_POSITIONS = 4096

FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "gemma3",
    "smollm3",
    "granite",
    "olmo2",
    "qwen3_moe",
    "mixtral",
)
_CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM"),
    "granite": ("GraniteConfig", "GraniteForCausalLM"),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM"),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM"),
}
GEMMA_WINDOW = 24
_OPTIONS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "sliding_window": GEMMA_WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 9,  # a scale that is not 1 / sqrt(head_dim)
        "tie_word_embeddings": False,  # tied, most answers repeat one token
    },
    "smollm3": {"tie_word_embeddings": False, "no_rope_layers": [1, 1, 0]},
    "granite": {
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 4.0,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def make_tokenizer(template: str | None = CHAT_TEMPLATE, extra: tuple[str, ...] = ()) -> Any:
    """A tokenizer whose plain tokens are single bytes; `extra` are added, non-special tokens like <think>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*CONTROL, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.add_tokens(list(extra))
    tokenizer.chat_template = template
    return tokenizer


def wrapped(tokenizer: Any) -> OwnTokenizer:
    """kvz's tokenizer around one of transformers."""
    return OwnTokenizer(TokenizerParts.from_transformers(tokenizer))


def make_model_folder(
    folder: Path,
    family: str = "llama",
    query_heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 16,
    layers: int = 3,
    seed: int = 0,
    template: str | None = CHAT_TEMPLATE,
    extra: tuple[str, ...] = (),
    **config_options: Any,
) -> Path:
    """Save a random float32 model and its tokenizer to `folder` and return it."""
    config_class, model_class = (getattr(transformers, name) for name in _CLASSES[family])
    tokenizer = make_tokenizer(template, extra)
    options = {
        "vocab_size": len(tokenizer),
        "hidden_size": query_heads * head_dim,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": MAX_POSITIONS,
        "sliding_window": None,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.2,  # attention that is far from flat
        **_OPTIONS.get(family, {}),
        **config_options,
    }
    torch.manual_seed(seed)
    model = model_class(config_class(**options)).float().eval()
    for name, parameter in model.named_parameters():
        if family == "gemma3" and "norm" in name:
            torch.nn.init.normal_(parameter, std=0.2)  # zeros otherwise, which hide what a norm's weights do
        if family == "qwen3_moe" and "mlp.gate." in name:
            torch.nn.init.normal_(parameter, std=0.2)  # zeros otherwise, and every expert is as good
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
