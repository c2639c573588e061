"""Decode steps of a GPU model through torch's compiler: what is small in a layer is fused into few launches.

Norms, rotary embeddings, activations and sums between the matrix products are some twenty launches a layer in
transformers' code; compiled, they are a handful. Attention, which is kvz's own, stays as it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from kvz.errors import UsageError
from kvz.models.attention import OPAQUE_ATTENTION_NAME, register_opaque_attention

__all__ = ["CompiledForward", "check_compiles", "compile_layers"]

_OLDEST = (7, 0)  # compute capability of the GPUs that Triton compiles for


class CompiledForward:
    """A layer's forward pass: compiled for one token a sequence, as it was for more."""

    def __init__(self, layer: nn.Module, compiled: Callable[..., Any]) -> None:
        """`compiled` takes the layer, then what its forward pass takes."""
        self._layer = weakref.ref(layer)  # which has this as its forward: a model is freed when it is dropped
        self._plain, self._compiled = type(layer).forward, compiled

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """`hidden_states [B,n,hidden]` -> the same shape. Prefills have many lengths, each to be compiled anew."""
        forward = self._compiled if hidden_states.shape[1] == 1 else self._plain
        return forward(self._layer(), hidden_states, *args, **kwargs)


def check_compiles(device: torch.device) -> None:
    """Raise UsageError unless steps can be compiled for `device`."""
    if device.type != "cuda":
        raise UsageError(f"steps are compiled for GPUs of NVIDIA's, not for {device.type}: leave --compile out")
    if find_spec("triton") is None:
        raise UsageError(
            "torch compiles for a GPU with Triton, which is not installed: install it, or leave --compile out"
        )
    if torch.version.cuda is not None and torch.cuda.get_device_capability(device) < _OLDEST:
        raise UsageError(f"{torch.cuda.get_device_name(device)} is too old for Triton: leave --compile out")


def compile_layers(network: nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
    """Let each decoder layer of a network compile its steps, when the first one comes: that takes tens of seconds.

    Layers of a kind share what is compiled. Answers may differ by rounding: fused parts round less often. `backend` is
    one of `torch.compile`.
    """
    register_opaque_attention()
    network.set_attn_implementation(OPAQUE_ATTENTION_NAME)  # type: ignore[operator]
    body: Any = network.base_model
    compiled = {kind: torch.compile(kind.forward, backend=backend) for kind in {type(layer) for layer in body.layers}}
    for layer in body.layers:
        if not isinstance(layer.forward, CompiledForward):
            layer.forward = CompiledForward(layer, compiled[type(layer)])
