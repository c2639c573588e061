"""Tiny GGUF files: model folders of tests/tiny.py written as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3",
    "phi3": "phi3",
}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
F32 = gguf.GGMLQuantizationType.F32


def write_gguf(
    path: Path,
    family: str,
    folder: Path,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
    kind: gguf.GGMLQuantizationType = F32,
) -> Path:
    """Write the model in `folder` to `path`; `keys` and `tensors` replace what would be written, None leaves it out.

    Keys without a dot in front are of the architecture: "rope.freq_base"; others begin with one: ".general.type".
    """
    architecture = ARCHITECTURES[family]
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_keys(family, config), **_tokenizer_keys(family, folder), **(keys or {})}.items():
        if value is not None:
            _add(writer, key[1:] if key.startswith(".") else f"{architecture}.{key}", value)
    written = {**_tensors(family, folder, config), **(tensors or {})}
    for name, tensor in written.items():
        if tensor is not None:
            own = kind if tensor.ndim > 1 else F32
            writer.add_tensor(name, gguf.quants.quantize(tensor.astype(np.float32), own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _keys(family: str, config: dict[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    keys = {
        ".general.name": "tiny",
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
    }
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if family in ("qwen3", "gemma3"):
        keys |= {"attention.key_length": dim, "attention.value_length": dim}
    if family in ("llama", "mistral"):
        keys |= {"rope.dimension_count": dim, "vocab_size": config["vocab_size"]}
    if family == "phi3":
        keys |= {"rope.dimension_count": int(dim * rope["partial_rotary_factor"]), "attention.sliding_window": 0}
    if family == "gemma3":
        keys |= {"attention.sliding_window": config["sliding_window"]}
    return keys


def _tokenizer_keys(family: str, folder: Path) -> dict[str, Any]:
    """A vocabulary of control tokens and bytes, without merges: as Gemma spells bytes, or as the others do."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if family == "gemma3":
        tokens = [*tokens[:3], *(f"<0x{byte:02X}>" for byte in range(256))]
    return {
        ".tokenizer.ggml.model": "llama" if family == "gemma3" else "gpt2",
        ".tokenizer.ggml.pre": "default",
        ".tokenizer.ggml.tokens": tokens,
        ".tokenizer.ggml.token_type": [3, 3, 3, *[6 if family == "gemma3" else 1] * 256],
        ".tokenizer.ggml.scores": [0.0] * len(tokens),
        ".tokenizer.ggml.eos_token_id": 2,
        ".tokenizer.ggml.padding_token_id": 0,
        ".tokenizer.ggml.unknown_token_id": 0,
        ".tokenizer.ggml.add_bos_token": False,
        ".tokenizer.chat_template": (folder / "chat_template.jinja").read_text(),
    }


def _tensors(family: str, folder: Path, config: dict[str, Any]) -> dict[str, np.ndarray]:
    names = {**_NAMES, **(_GEMMA_NAMES if family == "gemma3" else {})}
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    out = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        stem, _, kind = name.rpartition(".")
        layer, _, inner = stem.removeprefix("model.layers.").partition(".")
        short = names[inner] if layer.isdigit() else names[stem]
        array = tensor.float().numpy()
        if ARCHITECTURES[family] == "llama" and short in heads:
            array = _permuted(array, heads[short])
        if family == "gemma3" and short.endswith("norm"):
            array = array + 1
        out[f"blk.{layer}.{short}.{kind}" if layer.isdigit() else f"{short}.{kind}"] = array
    return out


def _permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rotary halves of each head interleaved, as llama.cpp rotates them."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
