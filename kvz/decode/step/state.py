"""What changes from step to step, on the device: tokens, positions, lengths, and the tails' memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvz.cache.tail import Tail
from kvz.geometry import LayerShape
from kvz.kernels.decode_plan import TailPairs

__all__ = ["StepState"]


@dataclass(frozen=True, eq=False)
class StepState:
    """B questions. `ids [B]` are the tokens that the next step feeds, at `positions [B]`; both int64. `chosen [B]` are
    those that the last step chose: the same but where logits were NaN.

    `seeds, numbers [B]` int64 decide the draws of the next tokens: each answer's seed, and the token's number in it.
    `past [B]` int32 are the tokens in each tail, `seen [B]` int32 one more: what the new token sees of it.
    `keys, values` are the tails of each layer, `[B,H,capacity,D]`. All are written in place, and never replaced.
    """

    ids: Tensor
    chosen: Tensor
    positions: Tensor
    seeds: Tensor
    numbers: Tensor
    past: Tensor
    seen: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def make(
        cls, shapes: Sequence[LayerShape], batch: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> StepState:
        """Empty, with room for `capacity` tokens a question."""
        sizes = [(batch, shape.kv_heads, capacity, shape.head_dim) for shape in shapes]
        # Zeros: what is not yet written takes part in plain products, with weight zero, and must hold numbers.
        keys, values = (tuple(torch.zeros(s, dtype=dtype, device=device) for s in sizes) for _ in range(2))
        words = [torch.zeros(batch, dtype=torch.int64, device=device) for _ in range(5)]
        past, seen = (torch.zeros(batch, dtype=torch.int32, device=device) for _ in range(2))
        ids, chosen, positions, seeds, numbers = words
        return cls(ids, chosen, positions, seeds, numbers, past, seen, keys, values)

    @property
    def capacity(self) -> int:
        """Tokens that a tail has room for."""
        return self.keys[0].shape[2]

    @property
    def batch(self) -> int:
        """Questions."""
        return len(self.ids)

    def row(self, index: int) -> Tail:
        """One question's tail, empty, in this memory: what the question's own tokens are read into."""
        return Tail.over(list(self.keys), list(self.values), index)

    def begin(
        self, ids: Sequence[int], lengths: Sequence[int], start: int, seeds: Sequence[int], numbers: Sequence[int]
    ) -> None:
        """The last tokens of the answers, after tails of so many tokens, whose first has position `start`; the next
        tokens have these `seeds` and `numbers`."""
        device = self.ids.device
        self.seeds.copy_(torch.tensor(seeds, device=device))
        self.numbers.copy_(torch.tensor(numbers, device=device))
        self.ids.copy_(torch.tensor(ids, device=device))
        past = torch.tensor(lengths, device=device)
        self.past.copy_(past)
        self.seen.copy_(past + 1)
        self.positions.copy_(past + start)

    def write(self, layer: int, key: Tensor, value: Tensor) -> TailPairs:
        """Store `key, value [B,H,1,D]` of the new tokens; returns the tails with them."""
        keys, values = self.keys[layer], self.values[layer]
        at = self.past.long()[:, None, None, None].expand(-1, key.shape[1], 1, key.shape[3])
        keys.scatter_(2, at, key)
        values.scatter_(2, at, value)
        return TailPairs(keys, values, self.past)

    def advance(self, ids: Tensor) -> None:
        """Make the new tokens count; `ids [B]` are fed next. NOT_A_NUMBER, which no model takes, is fed as token 0."""
        self.chosen.copy_(ids)
        self.ids.copy_(ids.clamp_min(0))
        for counter in (self.positions, self.numbers, self.past, self.seen):
            counter.add_(1)
