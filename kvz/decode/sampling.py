"""Choosing the next token from logits: greedy, or sampled with temperature, top-k and top-p."""

from __future__ import annotations

import secrets

import torch
from torch import Tensor

from kvz.config import Sampling
from kvz.errors import DecodeError

__all__ = ["NOT_A_NUMBER", "Sampler", "checked", "choose_rows", "not_finite", "uniform"]

NOT_A_NUMBER = -1
"""What `choose_rows` chooses from logits of which the largest is not finite."""

_COLDEST, _HOTTEST = 1e-30, 1e30  # float32 can still divide by them


class Sampler:
    """Draws tokens: a seed and the number of a token decide its draw, on every device, alone and beside others."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.seed = secrets.randbits(63) if sampling.seed is None else sampling.seed

    def choose(self, logits: Tensor, number: int) -> int:
        """The id of an answer's token `number`, for `logits [vocabulary]`; DecodeError if the largest is not finite."""
        numbers, seeds = (torch.tensor([value], device=logits.device) for value in (number, self.seed))
        return checked(int(choose_rows(logits[None], self.sampling, seeds, numbers)))


def choose_rows(logits: Tensor, sampling: Sampling, seeds: Tensor, numbers: Tensor) -> Tensor:
    """Token ids `[B]` for `logits [B,vocabulary]` float32; NOT_A_NUMBER where the largest is not finite.

    `seeds, numbers [B]` int64 are those of each answer and of its token. The host is not asked, so that a CUDA graph
    can hold it.
    """
    largest, best = logits.max(-1)  # NaN counts as largest
    if sampling.temperature > 0:
        scaled = (logits - largest[:, None]) / _divisor(sampling.temperature)
        kept = _top_p(_top_k(scaled, sampling.top_k), sampling.top_p)
        total = torch.softmax(kept.double(), -1).cumsum(-1)
        drawn = uniform(seeds, numbers)[:, None] * total[:, -1:]
        best = torch.searchsorted(total, drawn, right=True)[:, 0].clamp_max(logits.shape[-1] - 1)
    return torch.where(torch.isfinite(largest), best, NOT_A_NUMBER)


def uniform(seeds: Tensor, numbers: Tensor) -> Tensor:
    """Numbers in [0, 1) `[B]` float64 that seeds and numbers `[B]` int64 decide: two rounds of SplitMix64."""
    mixed = _mixed(_mixed(seeds) + numbers)
    return _shifted(mixed, 11).double() * 2.0**-53


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's output function (Steele, Lea and Flood, OOPSLA 2014) of each int64, which wraps around."""
    x = x - 0x61C8864680B583EB  # plus 0x9E3779B97F4A7C15
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def checked(token: int) -> int:
    """A token that `choose_rows` chose; raises DecodeError where it could choose none."""
    if token == NOT_A_NUMBER:
        raise not_finite()
    return token


def not_finite() -> DecodeError:
    """What is raised where the largest logit is not finite: all are -inf, one is infinite, or one is NaN."""
    return DecodeError(
        "the model's logits are not finite (NaN or infinite); try kvz verify, or compress again with another --dtype, "
        "such as float32"
    )


def _divisor(temperature: float) -> float:
    """What logits are divided by; an infinite one would make NaN of those that are -inf."""
    return float(min(max(temperature, _COLDEST), _HOTTEST))


def _top_k(logits: Tensor, k: int | None) -> Tensor:
    """All but the k largest logits at -inf."""
    if k is None or k >= logits.shape[-1]:
        return logits
    values, indices = torch.topk(logits, k)
    return torch.full_like(logits, float("-inf")).scatter(-1, indices, values)


def _top_p(logits: Tensor, p: float | None) -> Tensor:
    """All but the smallest set of logits whose probability reaches p at -inf; the largest always stays."""
    if p is None:
        return logits
    values, order = torch.sort(logits, descending=True, stable=True)
    probabilities = torch.softmax(values, -1)
    outside = probabilities.cumsum(-1) - probabilities >= float(p)
    return logits.scatter(-1, order, values.masked_fill(outside, float("-inf")))
