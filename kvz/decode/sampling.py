"""Choosing the next token from logits: greedy, or sampled with temperature, top-k and top-p."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from kvz.errors import DecodeError, UsageError

__all__ = ["NOT_A_NUMBER", "DeviceSampler", "Sampler", "Sampling", "checked", "not_finite"]

NOT_A_NUMBER = -1
"""What a `DeviceSampler` chooses from logits of which the largest is not finite."""

_COLDEST, _HOTTEST = 1e-30, 1e30  # float32 can still divide by them


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


class Sampler:
    """Draws tokens; one a question, so that a seed gives the same answer whatever was asked before."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def choose(self, logits: Tensor) -> int:
        """The next token's id for `logits [vocabulary]` float32; raises DecodeError if the largest is not finite."""
        settings = self._sampling
        best = int(logits.argmax())  # NaN counts as largest
        if not torch.isfinite(logits[best]):
            raise not_finite()
        if settings.temperature == 0:
            return best
        scaled = (logits - logits[best]).cpu() / _divisor(settings.temperature)
        kept = _top_p(_top_k(scaled, settings.top_k), settings.top_p)
        return int(torch.multinomial(torch.softmax(kept, -1), 1, generator=self._generator))


class DeviceSampler:
    """Draws tokens on the device for several questions at once; the host is not asked, and a CUDA graph can hold it.

    A seed gives the same answers on the same device, but not those of a `Sampler`.
    """

    def __init__(self, sampling: Sampling, device: torch.device) -> None:
        self._sampling = sampling
        self.generator = torch.Generator(device)
        self.generator.seed()
        self.restart(sampling.seed)

    def restart(self, seed: int | None) -> None:
        """Draw anew from a seed, if there is one: before every question, so that none depends on those before."""
        if seed is not None:
            self.generator.manual_seed(seed)

    def choose(self, logits: Tensor) -> Tensor:
        """The next tokens' ids `[B]` for `logits [B,vocabulary]` float32; NOT_A_NUMBER if the largest is not finite."""
        settings = self._sampling
        largest, best = logits.max(-1)  # NaN counts as largest
        if settings.temperature > 0:
            scaled = (logits - largest[:, None]) / _divisor(settings.temperature)
            kept = _top_p(_top_k(scaled, settings.top_k), settings.top_p)
            # The largest of p / e, e exponential, is a draw from p: what multinomial does, without asking the device.
            noise = torch.empty_like(kept).exponential_(generator=self.generator)
            best = (torch.softmax(kept, -1) / noise).argmax(-1)
        return torch.where(torch.isfinite(largest), best, NOT_A_NUMBER)


def checked(token: int) -> int:
    """A token that a `DeviceSampler` chose; raises DecodeError where it could choose none."""
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
