"""The 95 % interval of a mean score of few contexts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

__all__ = ["mean_interval", "t_quantile"]

_SHARE = 0.95


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the mean of `values` in 0..1, by Student's t; None for fewer than two values.

    Where values are 0 or 1 alone it holds the true mean in 87 % of cases or more, whatever that mean is.

    Where all values are the same, which is no sign of certainty where they are few, it is Wilson's (JASA 22, 1927) for
    as many trials.
    """
    count = len(values)
    if count < 2:
        return None
    mean = fmean(values)
    if (spread := stdev(values)) == 0:
        return _wilson(mean, count)
    reach = t_quantile((1 + _SHARE) / 2, count - 1) * spread / math.sqrt(count)
    return max(0.0, mean - reach), min(1.0, mean + reach)


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t: exact for 1 and 2 degrees of freedom, else good to 1 % in the tails used here.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        tail = 4 * probability * (1 - probability)
        return 2 * (probability - 0.5) * math.sqrt(2 / tail)
    z = NormalDist().inv_cdf(probability)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def _wilson(mean: float, count: int) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + _SHARE) / 2)
    centre = (mean + z**2 / (2 * count)) / (1 + z**2 / count)
    reach = z / (1 + z**2 / count) * math.sqrt(mean * (1 - mean) / count + z**2 / (4 * count**2))
    return max(0.0, centre - reach), min(1.0, centre + reach)
