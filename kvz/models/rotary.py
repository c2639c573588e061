"""Rotary position embeddings (RoFormer, arXiv 2104.09864), and the scalings that models extend them by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvz.errors import UnsupportedModel

__all__ = ["Rotary", "rotate"]


@dataclass(frozen=True, eq=False)
class Rotary:
    """`frequencies [R/2]`, radians a token, float32, of the first R dimensions of a head; `scale` of cos and sin."""

    frequencies: Tensor
    scale: float = 1.0

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], head_dim: int, max_positions: int) -> Rotary:
        """The rotary embedding that a config's `rope_parameters` describe, for heads of `head_dim`.

        Raises UnsupportedModel for a type that is unknown, or whose keys change with the length of the text.
        """
        kind = parameters.get("rope_type", "default")
        if kind not in _KINDS:
            raise UnsupportedModel(
                f"this model has '{kind}' position embeddings, which kvz does not know; it knows {', '.join(_KINDS)}"
            )
        try:
            dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
            if dim % 2 and dim == head_dim:
                raise ValueError(f"{dim} dimensions cannot be turned in pairs")
            base = float(parameters["rope_theta"])
            plain = base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
            return _KINDS[kind](parameters, plain, max_positions)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            missing = f"{error} is missing" if isinstance(error, KeyError) else error
            raise UnsupportedModel(f"this model's '{kind}' position embeddings are damaged: {missing}") from error

    def to(self, device: torch.device) -> Rotary:
        """The same on another device."""
        return Rotary(self.frequencies.to(device), self.scale)

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of `positions [n]`: `[n,1,R/2]` each, computed in float32."""
        angles = positions.float()[:, None, None] * self.frequencies
        return (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)


def rotate(heads: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """`heads [n,H,D]` turned by `tables` of R/2 angles a token: dimension i with i + R/2; those from R on stay."""
    cos, sin = tables
    half = cos.shape[-1]
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def _default(parameters: Mapping[str, Any], plain: Tensor, max_positions: int) -> Rotary:
    return Rotary(1.0 / plain)


def _linear(parameters: Mapping[str, Any], plain: Tensor, max_positions: int) -> Rotary:
    return Rotary(1.0 / plain / float(parameters["factor"]))


def _llama3(parameters: Mapping[str, Any], plain: Tensor, max_positions: int) -> Rotary:
    """Llama 3.1: long waves are stretched by the factor, short ones stay, those between are mixed."""
    factor, low, high = (float(parameters[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = parameters.get("original_max_position_embeddings") or max_positions
    frequencies = 1.0 / plain
    waves = 2 * math.pi / frequencies
    share = ((original / waves - low) / (high - low)).clamp(0, 1)
    return Rotary((1 - share) * frequencies / factor + share * frequencies)


def _yarn(parameters: Mapping[str, Any], plain: Tensor, max_positions: int) -> Rotary:
    """YaRN (arXiv 2309.00071): dimensions that turn often stay, those that turn seldom are stretched."""
    original = parameters.get("original_max_position_embeddings") or max_positions
    factor = float(parameters.get("factor") or max_positions / original)
    pairs, base = plain.numel(), float(parameters["rope_theta"])

    def dimension(turns: float) -> float:
        """The dimension that turns so many times over the original length."""
        return 2 * pairs * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = dimension(parameters.get("beta_fast") or 32)
    high = dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    stretched = ((torch.arange(pairs, dtype=torch.float32) - low) / ((high - low) or 0.001)).clamp(0, 1)
    frequencies = 1.0 / (factor * plain) * stretched + 1.0 / plain * (1 - stretched)
    return Rotary(frequencies, _yarn_scale(parameters, factor))


def _yarn_scale(parameters: Mapping[str, Any], factor: float) -> float:
    if (given := parameters.get("attention_factor")) is not None:
        return float(given)

    def of(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    wide, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return of(wide) / of(all_dims) if wide and all_dims else of(1.0)


_KINDS: dict[str, Callable[[Mapping[str, Any], Tensor, int], Rotary]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
