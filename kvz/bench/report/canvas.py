"""Drawing with matplotlib: pictures that read on a light page and on a dark one, as SVG that can stand in HTML.

Lines and text in the page's own colour are drawn in a colour that nothing else has, which becomes `currentColor`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import escape

from kvz.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["INK", "Picture", "Style", "drawing", "legend", "panels", "picture_of", "styles_of"]

INK = "#010203"
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito, less black and yellow
_LINES = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX"
_ACROSS, _WIDTH = 3, 9.6  # panels in a row; inches
# In place of matplotlib's style element, which would hold for a whole page; the grey is for a picture by itself.
_ROOT = 'color="#808080" stroke-linejoin="round" stroke-linecap="butt" role="img"'
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Picture:
    """A figure: a name for its file, a title, what it shows, and the SVG element."""

    name: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Style:
    """How one series looks; they differ in more than colour."""

    color: str
    linestyle: str
    marker: str


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib set up for pictures, and as it was before at the end.

    Raises UsageError without matplotlib, or with one that cannot be imported.
    """
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise UsageError("drawing needs matplotlib: pip install 'kvz[bench]'") from error
    except Exception as error:  # a damaged or mismatched one raises what it likes
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(
            f"matplotlib cannot be imported ({reason}): pip install --force-reinstall matplotlib"
        ) from error
    with matplotlib.rc_context(_SETTINGS):
        yield


def styles_of(names: Sequence[str]) -> dict[str, Style]:
    """A look for each name."""
    return {
        name: Style(_COLOURS[i % len(_COLOURS)], _LINES[i // len(_COLOURS) % len(_LINES)], _MARKERS[i % len(_MARKERS)])
        for i, name in enumerate(names)
    }


def panels(count: int, height: float = 3.2, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, each `height` inches high, three in a row."""
    from matplotlib.figure import Figure

    across = min(count, _ACROSS)
    down = -(-count // across)
    figure = Figure(figsize=(_WIDTH if across > 1 else 0.65 * _WIDTH, height * down + 0.4), layout="constrained")
    axes = list(figure.subplots(down, across, sharey=sharey, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def legend(figure: Figure) -> None:
    """One legend for all panels, below them; the figure grows by it."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        columns = max(1, min(len(found), int(13 * figure.get_figwidth() / (8 + max(map(len, found))))))
        figure.set_figheight(figure.get_figheight() + 0.18 * -(-len(found) // columns))
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns)


def picture_of(figure: Figure, name: str, title: str, caption: str) -> Picture:
    """The figure as an SVG element whose ids begin with `name`, with its title for screen readers."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = out.getvalue()
    svg = re.sub(r"\s*<(metadata|style)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg).replace(INK, "currentColor")
    svg = svg.replace("<svg ", f'<svg {_ROOT} aria-label="{escape(title)}" ', 1)
    return Picture(name, title, caption, svg.strip())
