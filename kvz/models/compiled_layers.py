"""Decode steps of a GPU model through torch's compiler: what is small in a layer is fused into few launches.

Norms, rotary embeddings, activations and sums between the matrix products are some twenty launches a layer in
transformers' code; compiled, they are a handful. Attention, which is kvz's own, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from kvz.errors import UsageError
from kvz.models.attention import hide_attention_from_compiler

__all__ = ["CompiledForward", "check_compiles", "compile_layers"]


class CompiledForward:
    """A layer's forward pass: compiled for one token a sequence, as it was for more."""

    def __init__(self, plain: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        self._plain, self._compiled = plain, compiled

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """`hidden_states [B,n,hidden]` -> the same shape. Prefills have many lengths, each to be compiled anew."""
        forward = self._compiled if hidden_states.shape[1] == 1 else self._plain
        return forward(hidden_states, *args, **kwargs)


def check_compiles(device: torch.device) -> None:
    """Raise UsageError unless compiled steps are of use on `device`."""
    if device.type != "cuda":
        raise UsageError(f"steps are compiled for GPUs; on {device.type} compiled ones are slower: leave --compile out")
    if find_spec("triton") is None:
        raise UsageError(
            "torch compiles for a GPU with Triton, which is not installed: install it, or leave --compile out"
        )


def compile_layers(network: nn.Module, backend: str = "inductor") -> None:
    """Let each decoder layer of a network compile its steps, when the first one comes: that takes tens of seconds.

    Layers share what is compiled. Answers may differ by rounding: fused parts round less often. `backend` is one that
    `torch.compile` has.
    """
    hide_attention_from_compiler()
    body: Any = network.base_model
    for layer in body.layers:
        plain = layer.forward
        if not isinstance(plain, CompiledForward):
            layer.forward = CompiledForward(plain, torch.compile(plain, backend=backend))
