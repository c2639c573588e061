"""How generated tokens read an archive: a policy and its budget, and the pair store they make for a question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.decode.archive_store import ArchiveStore
from kvz.decode.policies.dense import ArchiveReader, DenseReader
from kvz.decode.policies.exact_topk import ExactTopK
from kvz.decode.policies.hsa import HSA
from kvz.decode.policies.lowbit import LowBit
from kvz.decode.policies.quest import Quest
from kvz.decode.policies.selection import Selector
from kvz.decode.policies.sparq import SparQ
from kvz.decode.policies.sparse import SparseReader
from kvz.errors import UsageError

__all__ = ["AUTO", "DENSE", "SELECTORS", "Decoding", "Reading", "dense_reading", "sparse_reading"]

AUTO, DENSE = "auto", "dense"
_AUTO_SELECTS = "lowbit"
_LEAST = 16  # pairs a step: fewer select next to nothing

SELECTORS: dict[str, Callable[..., Selector]] = {
    "hsa": HSA,
    "lowbit": LowBit,
    "quest": Quest,
    "sparq": SparQ,
    "exact-topk": ExactTopK,
}
"""The sparse policies by name. A new one is one file in `policies/` and one line here."""


@dataclass(frozen=True)
class Decoding:
    """A `policy` ("auto", "dense" or one of SELECTORS), and the `budget` of a sparse one, in pairs a head and step.

    "auto" is dense without a budget. Raises UsageError for a policy that does not exist, a budget that is too small, a
    sparse policy without a budget, and a budget with "dense".
    """

    policy: str = AUTO
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in (AUTO, DENSE, *SELECTORS):
            raise UsageError(f"no policy '{self.policy}'; there are: {', '.join((AUTO, DENSE, *SELECTORS))}")
        if self.policy == DENSE and self.budget is not None:
            raise UsageError("policy 'dense' reads every pair; leave the budget out")
        if self.policy in SELECTORS and self.budget is None:
            raise UsageError(f"policy '{self.policy}' needs a budget: pairs of each head to read in a step (--budget)")
        if self.budget is not None and self.budget < _LEAST:
            raise UsageError(f"a budget of {self.budget} pairs a step selects next to nothing: give {_LEAST} or more")

    def reading(self, cache: RaggedCache, prefix: int) -> Reading:
        """How an archive is read: sparsely if any head is longer than the budget. Looks at the archive once."""
        if self.budget is None or _longest(cache) - prefix <= self.budget:
            return dense_reading(cache)
        name = _AUTO_SELECTS if self.policy == AUTO else self.policy
        return sparse_reading(name, cache, prefix, SELECTORS[name](self.budget))


@dataclass(frozen=True, eq=False)
class Reading:
    """An archive and how it is read: by `question` for a question's tokens, by `tokens` for those of an answer.

    `policy` names what is really done.
    """

    policy: str
    cache: RaggedCache
    question: ArchiveReader
    tokens: ArchiveReader

    @cached_property
    def pairs_read(self) -> float:
        """Pairs that a token of an answer reads, over all layers and heads, with what it takes to choose them."""
        return sum(self.tokens.read(layer) for layer in range(len(self.cache.layers)))

    def store(self, tail: Tail) -> ArchiveStore:
        """The pair store of one question."""
        return ArchiveStore(self.cache, tail, self.question, self.tokens)


def dense_reading(cache: RaggedCache) -> Reading:
    """Every token reads everything."""
    dense = DenseReader(cache)
    return Reading(DENSE, cache, dense, dense)


def sparse_reading(name: str, cache: RaggedCache, prefix: int, selector: Selector) -> Reading:
    """The tokens of answers read what `selector`, which is prepared here, chooses for them."""
    selector.prepare(cache, prefix)
    dense = DenseReader(cache)
    return Reading(name, cache, dense, SparseReader(cache, prefix, selector, dense))


def _longest(cache: RaggedCache) -> int:
    """Pairs of the longest head of a full layer, prefix included."""
    return max(last - first for x in cache.layers if x.window is None for first, last in pairwise(x.bounds))
