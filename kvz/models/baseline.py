"""transformers as it comes, with its own attention and its own full cache: what kvz is measured against."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kvz.models.quiet import quiet_transformers

__all__ = ["TransformersBaseline"]


class TransformersBaseline:
    """A model in transformers' default set-up (SDPA attention, DynamicCache), with a stopwatch on its parts.

    `attention_seconds` and `update_seconds` add up over calls: the attention function, and appending to the cache.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        from transformers import AutoModelForCausalLM

        self.attention_seconds = 0.0
        self.update_seconds = 0.0
        attention = self._register()
        with quiet_transformers():
            network = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype, attn_implementation=attention, local_files_only=True
            )
        self._network = network.to(device).eval()
        self._cache = self._new_cache()
        self._length = 0
        names = inspect.signature(self._network.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    @property
    def network(self) -> nn.Module:
        """The transformers model."""
        network: nn.Module = self._network
        return network

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values in the cache."""
        return sum(t.numel() * t.element_size() for layer in self._cache.layers for t in (layer.keys, layer.values))

    @torch.inference_mode()
    def feed(self, ids: Sequence[int]) -> Tensor:
        """Append tokens to the cache; logits after the last one, `[vocabulary]`."""
        out = self._network(torch.tensor([list(ids)]), **{self._cache_name: self._cache}, logits_to_keep=1)
        self._length += len(ids)
        logits: Tensor = out.logits[0, -1]
        return logits

    def _new_cache(self) -> Any:
        from transformers import DynamicCache

        baseline = self

        class TimedCache(DynamicCache):  # type: ignore[misc]
            def update(self, *args: Any, **kwargs: Any) -> Any:
                began = time.perf_counter()
                result = super().update(*args, **kwargs)
                baseline.update_seconds += time.perf_counter() - began
                return result

        return TimedCache(config=self._network.config)

    def _register(self) -> str:
        """A name, known to transformers, for SDPA with this object's stopwatch."""
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.masking_utils import sdpa_mask

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = sdpa_attention_forward(*args, **kwargs)
            self.attention_seconds += time.perf_counter() - began
            return result

        name = f"timed_sdpa_{id(self)}"
        AttentionInterface.register(name, timed)
        AttentionMaskInterface.register(name, sdpa_mask)
        return name
