"""RMS norms of a network in one launch each: transformers' take eight, and a decode step on a GPU has two a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kvz.kernels.rms_norm import plain_rms_norm, rms_norm

__all__ = ["FusedNorm", "can_fuse", "fuse_norms"]


class FusedNorm(nn.Module):
    """What takes the place of a model's own norm, with the same weight."""

    def __init__(self, weight: nn.Parameter, eps: float, centred: bool) -> None:
        super().__init__()
        self.weight, self.eps, self.centred = weight, eps, centred

    def forward(self, rows: Tensor) -> Tensor:
        """`rows [...,D]` -> `[...,D]`."""
        if torch.compiler.is_compiling():  # the compiler fuses the plain form with what is around it
            return plain_rms_norm(rows, self.weight, self.eps, self.centred)
        return rms_norm(rows, self.weight, self.eps, self.centred)


def can_fuse(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel serves a model of this dtype on this device."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


@torch.inference_mode()
def fuse_norms(network: nn.Module) -> int:
    """Put a fused norm in the place of each norm that is known to do the same; returns how many were replaced."""
    replaced = 0
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if (fused := _fused(child)) is not None:
                setattr(parent, name, fused)
                replaced += 1
    return replaced


def _fused(norm: nn.Module) -> FusedNorm | None:
    """The fused form of a norm; None if it is another kind of module, or does not do what it looks like."""
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weight = getattr(norm, "weight", None)
    if (
        not type(norm).__name__.endswith("RMSNorm")
        or not isinstance(eps, float)
        or not isinstance(weight, nn.Parameter)
    ):
        return None
    rows = torch.linspace(-3, 4, weight.numel(), dtype=weight.dtype, device=weight.device)[None]
    for centred in (False, True):
        if torch.equal(plain_rms_norm(rows, weight, eps, centred), norm(rows)):
            return FusedNorm(weight, eps, centred)
    return None
