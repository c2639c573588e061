"""What a user may say about answers: how tokens are chosen and how an archive is read. Imported without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from kvz.errors import UsageError

__all__ = ["AUTO", "DENSE", "PAGED", "POLICIES", "Decoding", "Sampling", "check_max_new_tokens"]

AUTO, DENSE, PAGED = "auto", "dense", "hsa"
POLICIES = ("lowbit", "hsa", "quest", "sparq", "exact-topk", "rocketkv-mt")
"""The sparse policies; `kvz.decode.decoding` makes them."""

_LEAST = 16  # pairs a step: fewer select next to nothing


@dataclass(frozen=True)
class Sampling:
    """Settings of a sampler; temperature 0 is greedy, and then the others must be left alone."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, number in (("temperature", self.temperature), ("top-p", 1 if self.top_p is None else self.top_p)):
            if isinstance(number, bool) or not isinstance(number, Real):
                raise UsageError(f"{name} {number!r}: give a number")
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature {self.temperature}: give 0 (greedy) or more")
        for name, value in (("top-k", self.top_k), ("seed", self.seed)):
            if value is not None and type(value) is not int:
                raise UsageError(f"{name} {value!r}: give a whole number")
        if self.temperature == 0 and (self.top_p, self.top_k, self.seed) != (None, None, None):
            raise UsageError("top-p, top-k and seed need a temperature above 0; greedy decoding has no use for them")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top-p {self.top_p}: give a share in (0, 1]")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top-k {self.top_k}: give 1 or more")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise UsageError(f"seed {self.seed}: give a number from 0 to 2**63 - 1")


@dataclass(frozen=True)
class Decoding:
    """A `policy` ("auto", "dense" or one of POLICIES), and the `budget` of a sparse one, in pairs a head and step.

    "auto" is dense without a budget. `page_size` is for "hsa": tokens a page, else those of the archive's index, or 4.
    Raises UsageError for a policy that does not exist, a budget that is too small, a sparse policy without a budget, a
    budget with "dense", and a page size for another policy.
    """

    policy: str = AUTO
    budget: int | None = None
    page_size: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in (AUTO, DENSE, *POLICIES):
            raise UsageError(f"no policy '{self.policy}'; there are: {', '.join((AUTO, DENSE, *POLICIES))}")
        if self.policy == DENSE and self.budget is not None:
            raise UsageError("policy 'dense' reads every pair; leave the budget out")
        if self.policy in POLICIES and self.budget is None:
            raise UsageError(f"policy '{self.policy}' needs a budget: pairs of each head to read in a step (--budget)")
        if self.budget is not None and type(self.budget) is not int:
            raise UsageError(f"budget {self.budget!r}: give a whole number of pairs")
        if self.page_size is not None and (type(self.page_size) is not int or self.page_size < 1):
            raise UsageError(f"page size {self.page_size!r}: give 1 token or more")
        if self.page_size is not None and self.policy != PAGED:
            raise UsageError(f"a page size is for policy '{PAGED}'; leave it out")
        if self.budget is not None and self.page_size is not None and self.page_size > self.budget // 2:
            raise UsageError(f"a page of {self.page_size} tokens does not fit into half the budget of {self.budget}")
        if self.budget is not None and self.budget < _LEAST:
            raise UsageError(f"a budget of {self.budget} pairs a step selects next to nothing: give {_LEAST} or more")


def check_max_new_tokens(count: int) -> None:
    """Raise UsageError unless `count` is a length that an answer can have."""
    if type(count) is not int or count < 1:
        raise UsageError(f"max new tokens {count!r}: give a whole number, 1 or more")
