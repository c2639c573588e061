"""Exact-TopK: the tokens of the largest true weights; what every selection is measured against."""

from __future__ import annotations

import torch

from kvz.cache.ragged import RaggedCache
from kvz.decode.policies.selection import Head, Selection, Selector

__all__ = ["ExactTopK"]


class ExactTopK(Selector):
    """The whole budget goes to tokens; choosing them, which reads every key, is not charged."""

    def prepare(self, cache: RaggedCache, prefix: int) -> None:
        """Nothing: scores come from the keys themselves."""

    def choose(self, head: Head) -> Selection:
        scores = (head.query.float() @ head.keys.float().t()) * head.scale
        ranked = torch.softmax(scores, 1).mean(0)
        return Selection(ranked.topk(min(len(ranked), self.budget)).indices, 0.0)
