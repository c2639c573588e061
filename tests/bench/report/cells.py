"""Made-up cells of a benchmark: numbers that follow from the method and the length, so that tests can say them."""

from __future__ import annotations

from typing import Any

from kvz.bench.report.cell import Cell

METHODS: tuple[tuple[str, float | None, int | None], ...] = (
    ("kvzip@0.3", 0.3, None),
    ("kvzip@0.5", 0.5, None),
    ("snapkv@0.3", 0.3, None),
    ("snapkv@0.5", 0.5, None),
    ("kvzip@0.3/lowbit@256", 0.3, 256),
    ("kvzip@0.3/lowbit@512", 0.3, 512),
    ("rocketkv@256", None, 256),
    ("full", None, None),
)


def make_cell(
    task: str = "qa",
    length: int = 4096,
    method: str = "kvzip@0.3",
    ratio: float | None = 0.3,
    budget: int | None = None,
    score: float = 0.5,
    **more: Any,
) -> Cell:
    """A cell with everything measured."""
    share = ratio or (0.2 if budget else 1.0)
    cell: dict[str, Any] = {
        "task": task,
        "length": length,
        "protocol": "one question",
        "method": method,
        "ratio": ratio,
        "budget": budget,
        "score": score,
        "score_low": score - 0.05,
        "score_high": score + 0.03,
        "kl": None if method == "full" else 0.1 / share,
        "agreement": None if method == "full" else 0.9,
        "kv_bytes": int(23040 * length * share),
        "step_bytes": int(23040 * (budget or length * share)),
        "read_share": min(1.0, budget / length if budget else share),
        "seconds": {
            "prefill": length / 400,
            "score": 0.0 if method == "full" else length / 300,
            "write": 0.2,
            "load": 0.1,
            "first_token": 0.5,
            "token": 0.02 + 1e-6 * length * share,
        },
        "peak_bytes": 1_000_000_000,
        "facts": [],
        **more,
    }
    return Cell(**cell)  # type: ignore[typeddict-item]


def make_cells() -> list[Cell]:
    """Three tasks at three lengths for every method, needles among them."""
    cells = []
    for at, task in enumerate(("qa", "needle", "key-value")):
        for length in (2048, 4096, 8192):
            for number, (method, ratio, budget) in enumerate(METHODS):
                score = round(0.95 - 0.07 * ((number + at) % 7) - length / 60000 + 0.1 * (ratio or 0), 4)
                facts = [
                    {"depth": depth, "length": length, "score": float((number + int(4 * depth)) % 4 > 0)}
                    for depth in (0, 0.25, 0.5, 0.75, 1)
                ]
                more = {"facts": facts} if task == "needle" else {}
                cells.append(make_cell(task, length, method, ratio, budget, score, **more))
    return cells
