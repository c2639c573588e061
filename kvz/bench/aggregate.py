"""From what each context gave to a cell of the report: means, an interval, sums of times."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, cast

from kvz.bench.cell_run import Part
from kvz.bench.mean_interval import mean_interval
from kvz.bench.plan import Planned
from kvz.bench.report.cell import Cell

__all__ = ["cell_of", "failed_cell", "skipped_cell"]

_PHASES = ("prefill", "score", "write", "load", "first_token", "token")


def cell_of(planned: Planned, parts: Sequence[Part], weight_bytes: int, bandwidth: float) -> Cell:
    """The cell that the parts of all contexts make; `bandwidth` in bytes a second.

    The score is the mean over contexts of the mean over a context's questions, its interval one over contexts, or
    over questions where there is but one context. Without two values there is none. A floor that a step was faster
    than is none, and left out.
    """
    scores = [fmean(part["scores"]) for part in parts]
    of_interval = scores if len(scores) > 1 else parts[0]["scores"]
    step = round(fmean(part["step_bytes"] for part in parts))
    cell = {
        **_named(planned),
        "score": round(fmean(scores), 6),
        **_bounds(of_interval),
        "kl": _mean_of(parts, "kl"),
        "agreement": _mean_of(parts, "agreement"),
        "kv_bytes": round(fmean(part["kv_bytes"] for part in parts)),
        "step_bytes": step,
        "read_share": _mean_share(parts),
        "peak_bytes": max((part["peak_bytes"] for part in parts if part["peak_bytes"] is not None), default=None),
        "seconds": _seconds(parts),
        "contexts": len(parts),
        "questions": sum(len(part["scores"]) for part in parts),
        "new_tokens": round(fmean(count for part in parts for count in part["new_tokens"]), 2),
        "policy": ", ".join(sorted({part["policy"] for part in parts})),
        "facts": [{**part["facts"], "score": fmean(part["scores"])} for part in parts if _is_needle(planned, part)],
    }
    floor = (weight_bytes + step) / bandwidth
    if floor <= cell["seconds"].get("token", floor):  # else memory was read faster than when it was measured
        cell["floor_seconds"] = floor
    if note := _note(planned, parts):
        cell["note"] = note
    return cast(Cell, cell)


def skipped_cell(planned: Planned, reason: str) -> Cell:
    """A cell that cannot be measured."""
    return cast(Cell, {**_named(planned), "skipped": _plain(reason)})


def failed_cell(planned: Planned, error: BaseException) -> Cell:
    """A cell whose measuring went wrong."""
    message = " ".join(str(error).split())[:500]
    return cast(
        Cell, {**_named(planned), "error": _plain(f"{type(error).__name__}: {message}" if message else repr(error))}
    )


def _plain(reason: str) -> str:
    """Text that a line of JSON can hold: names of files need not be any."""
    return reason.encode(errors="replace").decode()


def _named(planned: Planned) -> dict[str, Any]:
    method = planned.method
    return {
        "task": planned.task,
        "length": planned.length,
        "protocol": planned.protocol,
        "method": method.label,
        "ratio": method.ratio,
        "budget": method.keep if method.budget is None else method.budget,
    }


def _is_needle(planned: Planned, part: Part) -> bool:
    """Whether it belongs on a map of needles; the baseline for speed would only repeat the full cache's."""
    return "depth" in part["facts"] and not planned.method.expands


def _bounds(values: Sequence[float]) -> dict[str, float]:
    found = mean_interval(values)
    return {} if found is None else {"score_low": round(found[0], 6), "score_high": round(found[1], 6)}


def _mean_of(parts: Sequence[Part], name: str) -> float:
    return round(fmean(value for part in parts for value in part[name]), 6)


def _mean_share(parts: Sequence[Part]) -> float | None:
    """None where a context was measured before shares were."""
    shares = [part.get("read_share") for part in parts]
    return None if None in shares else round(fmean(cast(list[float], shares)), 6)


def _seconds(parts: Sequence[Part]) -> dict[str, float]:
    """The mean of each phase over the contexts that it was timed on."""
    of_phase = {name: [part["seconds"][name] for part in parts if name in part["seconds"]] for name in _PHASES}
    return {name: round(fmean(values), 6) for name, values in of_phase.items() if values}


def _note(planned: Planned, parts: Sequence[Part]) -> str | None:
    """What is to be said of a cell beside its numbers."""
    reasons = {
        "nothing is evicted: what is to be kept is the whole context": sum(part["whole"] for part in parts),
        "the budget covers every head of the archive, which is read densely": sum(
            planned.method.budget is not None and part["policy"] == "dense" for part in parts
        ),
    }
    said = [
        reason if count == len(parts) else f"in {count} of {len(parts)} contexts {reason}"
        for reason, count in reasons.items()
        if count
    ]
    return "; ".join(said) or None
