"""The picture of scoring's cost against the length of the context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvz.errors import UsageError

__all__ = ["draw"]


def draw(result: dict[str, Any], path: Path) -> None:
    """Two panels, seconds and extra memory, a line for each method. Raises UsageError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("drawing needs matplotlib: pip install 'kvz[bench]'") from error
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    seconds, memory = figure.subplots(1, 2)
    rows = result["rows"]
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        tokens = [row["tokens"] for row in own]
        seconds.plot(tokens, [row["seconds"] for row in own], marker="o", markersize=3, label=name)
        memory.plot(tokens, [row["extra_bytes"] / 1e6 for row in own], marker="o", markersize=3, label=name)
    first = [row for row in rows if row["method"] == rows[0]["method"]]
    tokens = [row["tokens"] for row in first]
    seconds.plot(tokens, [row["prefill_seconds"] for row in first], color="black", linestyle=":", label="prefill")
    memory.plot(tokens, [row["cache_bytes"] / 1e6 for row in first], color="black", linestyle=":", label="full cache")
    for axes, title in ((seconds, "scoring, seconds"), (memory, "extra memory while scoring, MB")):
        axes.set(title=title, xlabel="tokens of context", xlim=(0, None), ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
