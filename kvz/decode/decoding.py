"""How generated tokens read an archive: a policy and its budget, and the pair store they make for a question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from kvz.cache.ragged import RaggedCache
from kvz.decode.policies.dense import ArchiveReader, DenseReader
from kvz.decode.policies.exact_topk import ExactTopK
from kvz.decode.policies.hsa import HSA
from kvz.decode.policies.lowbit import LowBit
from kvz.decode.policies.quest import Quest
from kvz.decode.policies.rocket_mt import FirstStage, SecondStage
from kvz.decode.policies.selection import Selector
from kvz.decode.policies.sparq import SparQ
from kvz.decode.policies.sparse import SparseReader
from kvz.decode.policies.traffic import Traffic
from kvz.decode.step.reader import DenseStep, SparseStep, StepReader, StepRoom, can_step
from kvz.errors import UsageError

__all__ = ["AUTO", "DENSE", "POLICIES", "Decoding", "Readers", "Reading", "dense_reading", "sparse_reading"]

AUTO, DENSE = "auto", "dense"
_AUTO_SELECTS, _PAGED = "lowbit", "hsa"
_LEAST = 16  # pairs a step: fewer select next to nothing
Maker = Callable[[str, RaggedCache, int, int], "Reading"]


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
        if self.page_size is not None and self.policy != _PAGED:
            raise UsageError(f"a page size is for policy '{_PAGED}'; leave it out")
        if self.budget is not None and self.page_size is not None and self.page_size > self.budget // 2:
            raise UsageError(f"a page of {self.page_size} tokens does not fit into half the budget of {self.budget}")
        if self.budget is not None and self.budget < _LEAST:
            raise UsageError(f"a budget of {self.budget} pairs a step selects next to nothing: give {_LEAST} or more")

    def reading(self, cache: RaggedCache, prefix: int) -> Reading:
        """How an archive is read: sparsely if any head is longer than the budget. Looks at the archive once."""
        if self.budget is None or _longest(cache) - prefix <= self.budget:
            return dense_reading(cache)
        name = _AUTO_SELECTS if self.policy == AUTO else self.policy
        if self.page_size is not None:
            return sparse_reading(name, cache, prefix, HSA(self.budget, self.page_size))
        return POLICIES[name](name, cache, prefix, self.budget)


Readers = tuple[ArchiveReader, ArchiveReader]


@dataclass(frozen=True, eq=False)
class Reading:
    """An archive and how it is read; `policy` names what is really done.

    `readers()` are what a question's tokens read the archive by, and those of its answer; they may be made for one
    question alone, and then it is not `batched` with others. `steps`, where there is such a way, makes what a step
    without the host reads it by.
    """

    policy: str
    cache: RaggedCache
    readers: Callable[[], Readers]
    batched: bool = True
    steps: Callable[[StepRoom], StepReader] | None = None

    def pairs_read(self) -> float:
        """Pairs that a token of an answer reads, over all layers and heads, as budgets count them."""
        return self.read().pairs

    def read(self, tokens: ArchiveReader | None = None) -> Traffic:
        """What a token of an answer reads, over all layers; `tokens` is its reader, where a question has its own."""
        reader = tokens or self.readers()[1]
        return Traffic.total(reader.read(layer) for layer in range(len(self.cache.layers)))


def dense_reading(cache: RaggedCache) -> Reading:
    """Every token reads everything."""
    dense = DenseReader(cache)
    return Reading(DENSE, cache, lambda: (dense, dense), steps=lambda room: DenseStep(cache, room))


def sparse_reading(name: str, cache: RaggedCache, prefix: int, selector: Selector) -> Reading:
    """The tokens of answers read what `selector`, which is prepared here, chooses for them."""
    selector.prepare(cache, prefix)
    dense = DenseReader(cache)
    sparse = SparseReader(cache, prefix, selector, dense)
    steps = (lambda room: SparseStep(cache, prefix, selector, room)) if can_step(selector) else None
    return Reading(name, cache, lambda: (dense, sparse), steps=steps)


def rocket_mt_reading(name: str, cache: RaggedCache, prefix: int, budget: int) -> Reading:
    """Each question says what the tokens of its answer may choose from."""
    dense = DenseReader(cache)

    def stages() -> Readers:
        first = FirstStage(cache, prefix, budget, dense)
        return first, SecondStage(first)

    return Reading(name, cache, stages, batched=False)


def _chosen_by(selector: Callable[[int], Selector]) -> Maker:
    return lambda name, cache, prefix, budget: sparse_reading(name, cache, prefix, selector(budget))


POLICIES: dict[str, Maker] = {
    "lowbit": _chosen_by(LowBit),
    "hsa": _chosen_by(HSA),
    "quest": _chosen_by(Quest),
    "sparq": _chosen_by(SparQ),
    "exact-topk": _chosen_by(ExactTopK),
    "rocketkv-mt": rocket_mt_reading,
}
"""The sparse policies by name. A new one is one file in `policies/` and one line here."""


def _longest(cache: RaggedCache) -> int:
    """Pairs of the longest head of a full layer, prefix included."""
    return max(last - first for x in cache.layers if x.window is None for first, last in pairwise(x.bounds))
