"""Teacher forcing: what a cache would say at each token of answers that the full cache gave."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kvz.bench.full_answers import Reader
from kvz.errors import DecodeError

__all__ = ["Script", "Teacher", "agreement_of"]

Script = Sequence[tuple[Sequence[int], Sequence[int]]]
"""The ids of questions and of their answers, in the order in which they follow the context."""

_MOST = 64  # tokens of an answer that are compared: a row of the vocabulary's size is held for each


class Teacher(Reader):
    """Reads an archive, and gives the log-probabilities of each next token of a script."""

    def read(self, script: Script) -> list[Tensor]:
        """Log-probabilities `[n+1,V]` for each answer of n tokens (its first 64): of each token, and of what follows.

        The tail must have room for all of the script.
        """
        self._tail.reset()
        told = []
        for question, answer in script:
            compared, rest = list(answer[:_MOST]), list(answer[_MOST:])
            first = self._feed(list(question), 1, self._question)
            others = self._feed(compared, len(compared), self._answer)
            self._feed(rest, 1, self._answer)
            told.append(torch.cat([first, others]))
        return told


def agreement_of(full: Tensor, ours: Tensor) -> tuple[float, float]:
    """The share of positions at which two caches have the same likeliest token, and the mean KL(full || ours) in nats.

    Both are log-probabilities `[n,V]`. Raises DecodeError if the divergence is not a finite number.
    """
    same = (full.argmax(1) == ours.argmax(1)).float().mean()
    divergence = float((full.exp() * (full - ours)).sum(1).mean())
    if not math.isfinite(divergence):
        raise DecodeError("the divergence from the full cache is not a finite number")
    return float(same), max(0.0, divergence)
