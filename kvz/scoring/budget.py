"""How many pairs to keep.

A budget counts context pairs only: the protected prefix is kept in every head beside it.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from fractions import Fraction

from kvz.defaults import RATIO
from kvz.errors import UsageError

__all__ = ["Budget"]


@dataclass(frozen=True)
class Budget:
    """How many context pairs to keep: a `ratio` of all of them, or `tokens` pairs a head on average.

    Raises UsageError unless exactly one of the two is given and is in range.
    """

    ratio: float | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.tokens is None):
            raise UsageError("give either a ratio (-r) or a budget of tokens a head (--budget), not both or none")
        self._make_plain()
        if self.ratio is not None and not (math.isfinite(self.ratio) and 0 < self.ratio <= 1):
            raise UsageError(f"ratio {self.ratio:g} is not the share of pairs to keep: give a number in (0, 1]")
        if self.tokens is not None and self.tokens < 1:
            raise UsageError(f"budget of {self.tokens} tokens a head keeps nothing: give 1 or more")

    def _make_plain(self) -> None:
        """Turn numbers of other libraries into Python's own, which a manifest can hold."""
        if isinstance(self.ratio, bool) or isinstance(self.tokens, bool):
            raise UsageError("a budget is a number, not true or false")
        try:
            if self.ratio is not None:
                object.__setattr__(self, "ratio", float(self.ratio))
            if self.tokens is not None:
                object.__setattr__(self, "tokens", operator.index(self.tokens))
        except (TypeError, ValueError) as error:
            raise UsageError(f"a ratio is a number, and a budget a whole number of tokens: {error}") from error

    @classmethod
    def of_options(cls, ratio: float | None, tokens: int | None) -> Budget:
        """The budget a user gave, or the default ratio."""
        return cls(RATIO if ratio is None and tokens is None else ratio, tokens)

    def of(self, heads: int, tokens: int) -> int:
        """Pairs to keep of `heads` heads (over any number of layers) with `tokens` context tokens each."""
        if self.ratio is not None:
            return round(Fraction(str(self.ratio)) * heads * tokens)  # exact: 0.3 is three tenths
        assert self.tokens is not None
        return heads * min(self.tokens, tokens)

    def __str__(self) -> str:
        return f"ratio {self.ratio:g}" if self.ratio is not None else f"budget {self.tokens}"
