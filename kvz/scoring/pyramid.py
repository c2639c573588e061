"""PyramidKV's allocation (arXiv 2406.02069): budgets that fall linearly from the first layer to the last."""

from __future__ import annotations

from dataclasses import dataclass

from kvz.scoring.allocation import Allocation, Demand, Group, Uniform

__all__ = ["Pyramid"]

_LEAST_PART = 20  # the last layer's budget is this part of the mean


@dataclass(frozen=True)
class Pyramid(Allocation):
    """Layer l of L keeps max - l (max - min) / (L - 1) pairs a head beside the protected ones.

    With B the mean budget less the protected pairs, min = B // 20 and max = 2 B - min. The paper rounds the step down,
    which keeps more than the budget; here each layer is rounded, so that the total is exact. Where the context is too
    short for the largest layer, every head keeps the same number.
    """

    @property
    def name(self) -> str:
        return "pyramid"

    def groups(self, demand: Demand) -> list[Group]:
        """One group a head."""
        uniform = Uniform().groups(demand)  # says if the budget is too small
        protected = int(demand.protected.sum())
        mean = demand.per_head - protected
        layers = sorted(set(demand.row_layers))
        counts = self.counts(mean, len(layers), 0 if protected else 1)
        if protected + counts[0] > demand.length:
            return uniform
        of_layer = {layer: protected + count for layer, count in zip(layers, counts, strict=True)}
        sizes = [of_layer[layer] for layer in demand.row_layers]
        return [Group(row, row + 1, size, min(size, demand.least)) for row, size in enumerate(sizes)]

    @staticmethod
    def counts(mean: int, layers: int, least: int) -> list[int]:
        """Pairs a head of each layer, `mean` on average, no fewer than `least`."""
        smallest = max(least, mean // _LEAST_PART)
        largest = 2 * mean - smallest
        if layers == 1:
            return [mean]
        steps = [(layer * (largest - smallest), layers - 1) for layer in range(layers)]
        # Down in the first half, up in the second: the parts that are rounded away cancel.
        return [largest - (n // d if 2 * layer < layers else -(-n // d)) for layer, (n, d) in enumerate(steps)]
