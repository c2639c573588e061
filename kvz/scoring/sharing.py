"""The allocations by name. A new one is one file here and one line below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from kvz.errors import UsageError
from kvz.scoring.allocation import AdaKV, Allocation, Nonuniform, Uniform
from kvz.scoring.head_allocation import Head
from kvz.scoring.pyramid import Pyramid

__all__ = ["ALLOCATIONS", "make_allocation"]

ALLOCATIONS: dict[str, Callable[..., Allocation]] = {
    "nonuniform": Nonuniform,
    "uniform": Uniform,
    "adakv": AdaKV,
    "pyramid": Pyramid,
    "head": Head,
}


def make_allocation(name: str, **options: float) -> Allocation:
    """The allocation called `name` with its options; raises UsageError if there is none or it takes no such option."""
    if name not in ALLOCATIONS:
        raise UsageError(f"no allocation '{name}'; there are: {', '.join(ALLOCATIONS)}")
    made = ALLOCATIONS[name]
    known = {field.name for field in fields(made)}  # type: ignore[arg-type]
    if unknown := sorted(options.keys() - known):
        raise UsageError(f"allocation '{name}' does not take {', '.join(unknown)}")
    return made(**options)
