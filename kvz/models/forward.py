"""Calling a transformers network with a pair store in place of a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kvz.models.attention import PairStore

__all__ = ["network_inputs", "step_logits"]


def network_inputs(
    ids: Tensor, start: int, store: PairStore, dtype: torch.dtype, device: torch.device
) -> dict[str, Any]:
    """What a network is called with for `ids [n]`, whose first has RoPE position `start`."""
    positions = torch.arange(start, start + ids.shape[0], device=device)
    return {
        "input_ids": ids.to(device)[None],
        "position_ids": positions[None],
        # A finished 4-D mask is passed on as it is: transformers then builds none, and the store needs none.
        "attention_mask": torch.zeros(1, 1, 1, 1, dtype=dtype, device=device),
        "use_cache": False,
        "pair_store": store,
    }


def step_logits(
    network: nn.Module, ids: Tensor, positions: Tensor, store: PairStore, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Logits after one token each of B sequences, `ids, positions [B]`: `[B,vocabulary]` float32."""
    inputs = network_inputs(ids, 0, store, dtype, device)
    inputs |= {"input_ids": ids.to(device)[:, None], "position_ids": positions.to(device)[:, None]}
    logits: Tensor = network(**inputs).logits[:, 0].float()
    return logits
