"""The picture of policies: divergence from the full cache against the pairs that a token reads of a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvz.bench.policies_report import pairs_of, rows_of, values_of
from kvz.errors import UsageError

__all__ = ["draw"]


def draw(result: dict[str, Any], path: Path) -> None:
    """A panel for each archive that all policies were measured on. Raises UsageError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("drawing needs matplotlib: pip install 'kvz[bench]'") from error
    archives = [archive for archive, policy in rows_of(result) if policy == "dense"]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, archive in zip(figure.subplots(1, len(archives), sharey=True), archives, strict=True):
        for other, policy in rows_of(result, "questions"):
            if policy == "dense" or other not in (archive, "rocketkv, one question"):
                continue
            name, style = (policy, "-") if other == archive else ("rocketkv", ":")
            points = [_point(result, other, policy, budget) for budget in result["budgets"]]
            axes.plot([x for x, _ in points], [y for _, y in points], style, marker="o", markersize=3, label=name)
        dense = values_of(result, "questions", archive, "dense", None, "kl")
        if (mean := sum(dense) / len(dense)) > 0:
            axes.axhline(mean, color="black", linestyle="--", linewidth=0.8, label="dense")
        axes.set(title=f"archive: {archive}", xlabel="pairs read of a head by a token", xscale="log", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.axes[0].set_ylabel("KL to the full cache, nats a token")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _point(result: dict[str, Any], archive: str, policy: str, budget: int) -> tuple[float, float]:
    values = values_of(result, "questions", archive, policy, budget, "kl")
    return pairs_of(result, "questions", archive, policy, budget), sum(values) / len(values)
