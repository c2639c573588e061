"""Types of the Python API's arguments, checked where a caller hands them in: later they would fail somewhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from numbers import Integral, Real

from kvz.errors import UsageError

__all__ = ["FLAG", "NUMBER", "PATH", "TEXT", "WHOLE", "Kind", "check_types"]


@dataclass(frozen=True)
class Kind:
    """Classes that an argument may be of, and what a message calls them. True and False are no numbers."""

    classes: tuple[type, ...]
    words: str
    optional: bool = False

    def __or__(self, other: None) -> Kind:
        """The same, or None."""
        return Kind(self.classes, f"{self.words}, or None", optional=True)

    def takes(self, value: object) -> bool:
        """Whether a value is of this kind."""
        if value is None:
            return self.optional
        return isinstance(value, self.classes) and (bool in self.classes or not isinstance(value, bool))


TEXT = Kind((str,), "a string")
FLAG = Kind((bool,), "True or False")
WHOLE = Kind((Integral,), "a whole number")
NUMBER = Kind((Real,), "a number")
PATH = Kind((str, os.PathLike), "a string or a path")


def check_types(**arguments: tuple[object, Kind]) -> None:
    """Raise UsageError for the first of the arguments, each a value and its kind, that is of another one."""
    for name, (value, kind) in arguments.items():
        if not kind.takes(value):
            given = "None" if value is None else f"of type {type(value).__name__}"
            raise UsageError(f"{name} is {given}; give {kind.words}")
