"""The last pairs of a sliding-window layer: what new tokens can still see, and no more."""

from __future__ import annotations

import torch
from torch import Tensor

from kvz.kernels.sliding_attention import sliding_attention

__all__ = ["SlidingLayer"]


class SlidingLayer:
    """Keys and values `[H, held, D]` of the last tokens of one layer, in position order.

    Tokens see `window` keys, their own included, so window - 1 pairs are enough to go on; `slack` more are held for
    those who look at tokens before the last ones.
    """

    def __init__(self, keys: Tensor, values: Tensor, window: int, slack: int = 0) -> None:
        self.window = window
        self._held = window - 1 + slack
        self._keys = keys
        self._values = values
        self._trim()

    @property
    def keys(self) -> Tensor:
        """Keys `[H, held, D]`, held <= window - 1 + slack."""
        return self._keys

    @property
    def values(self) -> Tensor:
        """Values `[H, held, D]`."""
        return self._values

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of new tokens, `query [H,G,n,D]`, `key, value [H,n,D]`, -> `[H,G,n,D]`. Changes nothing."""
        keys, values = self._with(key, value)
        return sliding_attention(query, keys, values, scale, self.window)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Take up new pairs `[H,n,D]`, and forget those that are out of sight."""
        self._keys, self._values = self._with(key, value)
        self._trim()

    def before(self, last: int) -> SlidingLayer:
        """What tokens saw that are now the `last` ones held; they must lie within the slack."""
        count = self._keys.shape[1] - last
        return SlidingLayer(self._keys[:, :count], self._values[:, :count], self.window)

    def _with(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([self._keys, key], 1), torch.cat([self._values, value], 1)

    def _trim(self) -> None:
        if self._keys.shape[1] > self._held:
            first = self._keys.shape[1] - self._held
            self._keys = self._keys[:, first:].clone()
            self._values = self._values[:, first:].clone()
