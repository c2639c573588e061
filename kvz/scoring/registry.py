"""The scoring methods by name. A new one is one file here and one line below."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields

from kvz.errors import UsageError
from kvz.scoring.adakv import AdaKV
from kvz.scoring.controls import Full, RandomPairs, Recent
from kvz.scoring.h2o import H2O
from kvz.scoring.head_methods import DuoAttention, KVzipHead
from kvz.scoring.kvzip import KVzip
from kvz.scoring.kvzip_plus import KVzipPlus
from kvz.scoring.kvzip_rms import KVzipRMS
from kvz.scoring.method import ScoringMethod
from kvz.scoring.pyramidkv import PyramidKV
from kvz.scoring.rocketkv import RocketKV
from kvz.scoring.snapkv import SnapKV

__all__ = ["METHODS", "make_method", "method_options"]

METHODS: dict[str, Callable[..., ScoringMethod]] = {
    "kvzip-rms": KVzipRMS,
    "kvzip": KVzip,
    "kvzip+": KVzipPlus,
    "kvzip-head": KVzipHead,
    "snapkv": SnapKV,
    "pyramidkv": PyramidKV,
    "adakv": AdaKV,
    "rocketkv": RocketKV,
    "h2o": H2O,
    "duo": DuoAttention,
    "recent": Recent,
    "random": RandomPairs,
    "full": Full,
}


def make_method(name: str, **options: int | float | str) -> ScoringMethod:
    """The method called `name` with its options; raises UsageError if there is none or it takes no such option."""
    if name not in METHODS:
        raise UsageError(f"no method '{name}'; there are: {', '.join(METHODS)}")
    if unknown := sorted(options.keys() - set(method_options(name))):
        others = ", ".join(_takers(unknown)) or "none"
        raise UsageError(f"method '{name}' does not take {', '.join(unknown)} (what does: {others})")
    return METHODS[name](**options)


def method_options(name: str) -> tuple[str, ...]:
    """Names of the options that a method takes."""
    return tuple(field.name for field in fields(METHODS[name]))  # type: ignore[arg-type]


def _takers(options: Iterable[str]) -> list[str]:
    """The methods that take all of some options."""
    return [name for name in METHODS if set(options) <= set(method_options(name))]
