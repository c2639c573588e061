"""Fingerprints: short hashes that tell whether an archive and a model belong together.

They are taken from the model's files, so they do not depend on the dtype it is loaded in or on where it lies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from safetensors import safe_open

from kvz.models.config_file import ModelConfig
from kvz.models.tokenizer import Tokenizer
from kvz.models.weights import weight_files

__all__ = ["Fingerprints", "fingerprints_of"]

_CONFIG_KEYS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "hidden_act",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "use_sliding_window",
)
_HYBRID_KEYS = ("layer_types", "query_pre_attn_scalar", "partial_rotary_factor")
_PROBE = "The quick brown fox, 1234567890 — naïve café.\n\n\tdef f(x):\n    return x  # 数据 🙂\n"
_SAMPLES = 16


@dataclass(frozen=True)
class Fingerprints:
    """Hex digests (xxh3-128) of a model's weights and geometry, its tokenizer, and its chat template."""

    model: str
    tokenizer: str
    template: str


def fingerprints_of(config: ModelConfig, folder: Path, tokenizer: Tokenizer) -> Fingerprints:
    """Fingerprints of the model in `folder`."""
    return Fingerprints(
        model=_digest(_config_text(config), *_weight_samples(folder)),
        tokenizer=_digest(*_tokenizer_parts(tokenizer)),
        template=_digest((tokenizer.template or "").encode()),
    )


def _config_text(config: ModelConfig) -> bytes:
    """What in a config shapes keys and values, in a canonical form."""
    shaping = {key: getattr(config, key) for key in _CONFIG_KEYS}
    shaping |= {key: value for key in _HYBRID_KEYS if (value := getattr(config, key)) is not None}
    rope = config.rope_parameters
    shaping["rope"] = {key: rope[key] for key in sorted(rope) if rope[key] is not None}
    return json.dumps(shaping, sort_keys=True).encode()


def _weight_samples(folder: Path) -> list[bytes]:
    """Name, shape and 16 values from the middle of every tensor, as float32: exact copies in another dtype agree."""
    samples: dict[str, bytes] = {}
    for path in weight_files(folder):
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dict
                part = file.get_slice(name)
                shape = list(part.get_shape())
                row = part[shape[0] // 2] if len(shape) > 1 else part[:_SAMPLES] if shape else torch.zeros(1)
                values = row.reshape(-1)[:_SAMPLES].float().contiguous()
                samples[name] = f"{name}{shape}".encode() + values.numpy().tobytes()
    return [samples[name] for name in sorted(samples)]


def _tokenizer_parts(tokenizer: Tokenizer) -> list[bytes]:
    vocabulary = sorted(tokenizer.vocabulary.items(), key=lambda item: (item[1], item[0]))
    return [json.dumps(vocabulary).encode(), json.dumps(tokenizer.encode_plain(_PROBE)).encode()]


def _digest(*parts: bytes) -> str:
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
