"""How generated tokens read an archive: a policy and its budget, and the pair store they make for a question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from kvz.cache.ragged import RaggedCache
from kvz.config import AUTO, DENSE, Decoding
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

__all__ = ["MAKERS", "Readers", "Reading", "dense_reading", "reading_of", "sparse_reading"]

_AUTO_SELECTS = "lowbit"
Maker = Callable[[str, RaggedCache, int, int], "Reading"]


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


def reading_of(decoding: Decoding, cache: RaggedCache, prefix: int) -> Reading:
    """How an archive is read: sparsely if any head is longer than the budget. Looks at the archive once."""
    if decoding.budget is None or _longest(cache) - prefix <= decoding.budget:
        return dense_reading(cache)
    name = _AUTO_SELECTS if decoding.policy == AUTO else decoding.policy
    if decoding.page_size is not None:
        return sparse_reading(name, cache, prefix, HSA(decoding.budget, decoding.page_size))
    return MAKERS[name](name, cache, prefix, decoding.budget)


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


MAKERS: dict[str, Maker] = {
    "lowbit": _chosen_by(LowBit),
    "hsa": _chosen_by(HSA),
    "quest": _chosen_by(Quest),
    "sparq": _chosen_by(SparQ),
    "exact-topk": _chosen_by(ExactTopK),
    "rocketkv-mt": rocket_mt_reading,
}
"""The sparse policies by name. A new one is one file in `policies/`, one line here and its name in `kvz.config`."""


def _longest(cache: RaggedCache) -> int:
    """Pairs of the longest head of a full layer, prefix included."""
    return max(last - first for x in cache.layers if x.window is None for first, last in pairwise(x.bounds))
