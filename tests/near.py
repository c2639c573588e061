"""How far rounding may move a result: the one tolerance of all tests that compare floats."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["LOGITS", "NETWORK", "assert_near", "assert_shares_near", "forward_terms", "rounding"]

LOGITS = 4.0
"""The size of logits in tests with normal numbers: an exponential makes their error relative, so enlarged."""
NETWORK = 8.0
"""By what the layers of a tiny model, whose weights are large, enlarge an error."""

_SHARE = 1e-3  # smaller shares of attention are compared with less relative precision
_DEVIATIONS = 8  # so rare that no seed, no order of a sum and no processor gets there
_TINY = torch.finfo(torch.float32).tiny  # below it, processors may round to zero


def rounding(terms: int, size: float = 1.0) -> float:
    """The relative error allowed to a float32 result that sums `terms` products, over all sums on the way to it.

    Each addition rounds by up to half an epsilon, up or down, and n of them stray by the root of n, whatever the order
    in which a processor takes them. `size` is by what the error is enlarged: the size of the logits where an
    exponential follows, NETWORK where layers do.
    """
    return _DEVIATIONS * torch.finfo(torch.float32).eps * math.sqrt(terms) * size


def assert_near(
    got: Tensor,
    want: Tensor,
    terms: int,
    *,
    size: float = 1.0,
    floor: float = 1.0,
    rounds: int = 1,
    dtype: torch.dtype | None = None,
) -> None:
    """`got` is `want` up to the rounding of `terms` products, and of `rounds` results to `dtype` (that of `got`).

    What is allowed is relative to `|want| + floor`: `floor` is the size of numbers whose sum `want` is, and which may
    cancel out: 1 for normal numbers, 0 for sums of what is positive.
    """
    __tracebackhide__ = True
    limit = rounding(terms, size) + rounds * torch.finfo(dtype or got.dtype).eps
    torch.testing.assert_close(got.double(), want.double(), rtol=limit, atol=limit * floor + _TINY)


def assert_shares_near(got: Tensor, want: Tensor, config: Any, tokens: int) -> None:
    """Scores made of shares of attention, in a pass of a model of this config over `tokens` tokens."""
    __tracebackhide__ = True
    assert_near(got, want, forward_terms(config, tokens), size=NETWORK, floor=_SHARE)


def forward_terms(config: Any, tokens: int) -> int:
    """How many products a model of this config sums on the way to a number, in a pass over `tokens` tokens."""
    wide = 4 * config.hidden_size + config.intermediate_size + config.head_dim
    return int(config.num_hidden_layers * (wide + tokens))
