"""A task whose samples were read from a file: they are chosen by seed, and kept to the length asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvz.bench.metrics import Metric
from kvz.bench.tasks.fit import shortened
from kvz.bench.tasks.task import Counter, Sample
from kvz.bench.tasks.words import generator
from kvz.errors import UsageError

__all__ = ["Loaded"]


@dataclass(frozen=True)
class Loaded:
    """Samples of a file. Longer contexts are left out, or lose their middle if `cut`, as LongBench has it."""

    name: str
    metric: Metric
    loaded: tuple[Sample, ...]
    new_tokens: int
    licence: str
    shared: bool = False
    turns: bool = False
    cut: bool = False

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """`count` of them, in an order drawn by the seed; `length` among their facts is what they have, or stand for.

        Raises UsageError if there is none.
        """
        order = generator(seed, self.name).sample(self.loaded, len(self.loaded))
        chosen: list[Sample] = []
        shortest: int | None = None
        for sample in order:
            if len(chosen) == count:
                break
            context = shortened(sample.context, counter, tokens) if self.cut else sample.context
            length = counter(context)
            shortest = length if shortest is None else min(shortest, length)
            if length <= tokens:
                chosen.append(replace(sample, context=context, facts={"length": length, **sample.facts}))
        if not chosen and count:
            raise UsageError(
                f"no context in the file has {tokens} tokens or fewer; allow longer ones: the shortest has {shortest}"
            )
        return chosen
