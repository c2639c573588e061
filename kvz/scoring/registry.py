"""The scoring methods by name. A new one is one file here and one line below."""

from __future__ import annotations

from collections.abc import Callable

from kvz.errors import UsageError
from kvz.scoring.controls import RandomPairs, Recent
from kvz.scoring.h2o import H2O
from kvz.scoring.kvzip import KVzip
from kvz.scoring.kvzip_plus import KVzipPlus
from kvz.scoring.method import ScoringMethod
from kvz.scoring.snapkv import SnapKV

__all__ = ["METHODS", "make_method"]

METHODS: dict[str, Callable[..., ScoringMethod]] = {
    "kvzip": KVzip,
    "kvzip+": KVzipPlus,
    "snapkv": SnapKV,
    "h2o": H2O,
    "recent": Recent,
    "random": RandomPairs,
}


def make_method(name: str, **options: int | float | str) -> ScoringMethod:
    """The method called `name` with its options; raises UsageError if there is none or it takes no such option."""
    if name not in METHODS:
        raise UsageError(f"no method '{name}'; there are: {', '.join(METHODS)}")
    try:
        return METHODS[name](**options)
    except TypeError as error:
        raise UsageError(f"method '{name}' does not take {', '.join(options)}") from error
