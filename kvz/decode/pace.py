"""How fast the tokens of an answer come."""

from __future__ import annotations

import statistics
import time

__all__ = ["Pace"]


class Pace:
    """The wall time of an answer's tokens, from when it is made, which is when the question is given."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._came: list[float] = []

    def mark(self) -> None:
        """A token has come."""
        self._came.append(time.perf_counter())

    @property
    def first_token_seconds(self) -> float:
        """Seconds to the first token, which must have come."""
        return self._came[0] - self._began

    @property
    def token_seconds(self) -> float | None:
        """Median seconds of the tokens after the first, None if there is none.

        No mean: the first of them may wait for kernels that are loaded or compiled once. Of two, the quicker counts.
        """
        steps = [after - before for before, after in zip(self._came, self._came[1:], strict=False)]
        return statistics.median_low(steps) if steps else None
