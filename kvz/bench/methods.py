"""What is compared: how an archive is compressed, and how the tokens of an answer read it.

A method is written `NAME`, `NAME@NUMBER`, or `COMPRESS@NUMBER/POLICY@BUDGET`. After a name that compresses, a number up
to 1 is the share of pairs kept and a larger one the pairs a head that are kept; after a name that reads sparsely it is
the pairs a head that a step reads. A number that is left out is each of those given for all methods.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvz.bench.method_numbers import BUDGET, Numbers, share_of, split_number, whole_pairs
from kvz.cache.index_plan import NO_INDEX, PAGE, PLANES, IndexPlan
from kvz.config import DENSE, POLICIES, Decoding
from kvz.defaults import METHOD
from kvz.errors import UsageError
from kvz.recipe import Recipe, make_recipe
from kvz.scoring.registry import METHODS, method_options

__all__ = ["BUDGET", "FULL", "REPEAT_KV", "Method", "method_names", "numbers_left_out", "parse_methods", "same_methods"]

_FULL = "full"
_INDEXES = {"lowbit": PLANES, "hsa": IndexPlan(planes=0, page_size=PAGE)}


@dataclass(frozen=True)
class Method:
    """A compression and a way to read what is left.

    `compress` is a scoring method that keeps the share `ratio` of all pairs or `keep` pairs a head (for "rocketkv":
    what suits steps of so many); `policy` reads `budget` pairs a head in a step. `expands` repeats keys and values for
    each query head before it attends them: a baseline for speed alone.
    """

    label: str
    compress: str = _FULL
    ratio: float | None = None
    keep: int | None = None
    allocation: str | None = None
    policy: str = DENSE
    budget: int | None = None
    expands: bool = False

    @property
    def takes_question(self) -> bool:
        """Whether its scores can depend on a question."""
        return "query" in method_options(self.compress)

    @property
    def needs_question(self) -> bool:
        """Whether its paper has no way to do without one."""
        return self.compress == "rocketkv"

    @property
    def evicts(self) -> bool:
        """Whether pairs are given up for good."""
        return self.compress != _FULL

    def recipe(self, question: str | None = None) -> Recipe:
        """How an archive is made for it; `question` is used where it can be. Raises UsageError."""
        options: dict[str, Any] = {"query": question} if question is not None and self.takes_question else {}
        index = _INDEXES.get(self.policy, NO_INDEX)
        return make_recipe(self.ratio, self.keep, self.compress, self.allocation, index=index, **options)

    def decoding(self) -> Decoding:
        """How it reads an archive. Raises UsageError."""
        return Decoding(self.policy, self.budget)


FULL = Method(_FULL)
REPEAT_KV = Method("full@repeat-kv", expands=True)


@dataclass(frozen=True)
class _Named:
    """A name's compression and policy, and what its number says: "share", "step", or nothing."""

    compress: str = _FULL
    policy: str = DENSE
    allocation: str | None = None
    number: str | None = "share"


_NAMES: dict[str, _Named] = {
    **{name: _Named(name) for name in METHODS},
    _FULL: _Named(number=None),
    "default": _Named(METHOD),
    "kvzip-uniform": _Named("kvzip", allocation="uniform"),
    **{name: _Named(policy=name, number="step") for name in POLICIES},
    "rocketkv": _Named("rocketkv", policy="hsa", number="step"),
}
_COMPRESSIONS = {
    **{name: named for name, named in _NAMES.items() if named.number != "step"},
    "rocketkv": _Named("rocketkv"),
}


def method_names() -> tuple[str, ...]:
    """The names that a method can have."""
    return tuple(_NAMES)


def parse_methods(specs: Iterable[str], ratios: Sequence[float] = (), budgets: Sequence[int] = ()) -> list[Method]:
    """The methods that are named, each once, in order.

    Those that compress take the `ratios`, or, if there are budgets but no ratios, the budgets as pairs a head kept.
    Raises UsageError for names that do not exist, with the nearest that do, and for numbers that make no sense.
    """
    named = _named_methods(specs, ratios, budgets)
    for method, _ in named:
        method.recipe()
        method.decoding()
    return [method for method, first in named if method is first]


def same_methods(specs: Iterable[str], ratios: Sequence[float] = (), budgets: Sequence[int] = ()) -> dict[str, str]:
    """Labels that mean what a label before them means, such as default@0.3 and kvzip-rms@0.3; that one is measured."""
    named = _named_methods(specs, ratios, budgets)
    return {method.label: first.label for method, first in named if method.label != first.label}


def _named_methods(
    specs: Iterable[str], ratios: Sequence[float], budgets: Sequence[int]
) -> list[tuple[Method, Method]]:
    """The methods that are named, each with the first one that is the same."""
    given = Numbers(tuple(ratios), tuple(budgets))
    first: dict[Method, Method] = {}
    found = [method for spec in specs for method in _parse(spec.strip(), given)]
    return [(method, first.setdefault(replace(method, label=""), method)) for method in found]


def numbers_left_out(specs: Iterable[str]) -> set[str]:
    """Which numbers some of the methods leave to those given for all: "share", "step". Raises UsageError."""
    left = set()
    for spec in specs:
        first, slash, second = spec.strip().partition("/")
        name, number = split_number(first)
        named = (_COMPRESSIONS if slash else _NAMES).get(name)
        if named is not None and named.number is not None and number is None:
            left.add(named.number)
        if slash and split_number(second)[1] is None:
            left.add("step")
    return left


def _parse(spec: str, given: Numbers) -> list[Method]:
    left, slash, right = spec.partition("/")
    if not slash:
        name, number = split_number(left)
        named = _NAMES.get(name) or _unknown("method", name, _NAMES)
        return [_alone(name, named, value, spec) for value in _values(named, number, given, spec)]
    name, number = split_number(left)
    policy, budget = split_number(right)
    named = _COMPRESSIONS.get(name) or _unknown("compression", name, _COMPRESSIONS)
    if policy not in POLICIES:
        _unknown("policy", policy, POLICIES)
    budgets = [budget] if budget is not None else given.steps
    pairs = itertools.product(_values(named, number, given, spec), budgets)
    return [_combined(name, named, value, policy, whole_pairs(step, spec), spec) for value, step in pairs]


def _alone(name: str, named: _Named, value: str, spec: str) -> Method:
    if named.number == "step":
        step = whole_pairs(value, spec)
        kept = step if named.compress != _FULL else None
        return Method(f"{name}@{step}", named.compress, keep=kept, policy=named.policy, budget=step)
    ratio, keep, shown = share_of(value, spec)
    return Method(f"{name}{shown}", named.compress, ratio, keep, named.allocation, named.policy)


def _combined(name: str, named: _Named, value: str, policy: str, step: int, spec: str) -> Method:
    ratio, keep, shown = share_of(value, spec)
    label = f"{name}{shown}/{policy}@{step}"
    return Method(label, named.compress, ratio, keep, named.allocation, policy, step)


def _values(named: _Named, number: str | None, given: Numbers, spec: str) -> Sequence[str]:
    """The numbers to use; one that is empty for a name that takes none."""
    if named.number is None:
        if number is not None:
            raise UsageError(f"method '{spec}': full keeps every pair and takes no number")
        return [""]
    if number is not None:
        return [number]
    return given.steps if named.number == "step" else given.shares


def _unknown(kind: str, name: str, there: Iterable[str]) -> _Named:
    near = difflib.get_close_matches(name, list(there), 3) or list(there)
    raise UsageError(f"there is no {kind} '{name}'; there is {', '.join(near)}")
