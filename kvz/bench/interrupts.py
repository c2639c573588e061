"""Telling an interrupt from a failure: a library may put an error of its own in the place of Ctrl-C's."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["check_interrupt"]


def check_interrupt(error: BaseException, interrupted: Callable[[], bool]) -> None:
    """Raise KeyboardInterrupt if one is behind `error`, or if a signal has come."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    if interrupted():
        raise KeyboardInterrupt from error
