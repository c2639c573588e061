"""The report as one HTML file, with every table and picture in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from kvz.bench.report.canvas import Picture
from kvz.bench.report.cell import Cell, problems_of
from kvz.bench.report.plots import draw_pictures
from kvz.bench.report.table import MEANINGS, blocks_of, summary_of
from kvz.errors import UsageError
from kvz.report.page import render_page

__all__ = ["report_page"]


def report_page(
    cells: Sequence[Cell],
    setup: Mapping[str, str],
    title: str = "Benchmark",
    pictures: Sequence[Picture] | None = None,
) -> str:
    """A page that needs nothing else. `setup` says what was measured on what: model, machine, date.

    `pictures` are those of the cells, where they have been drawn already. Without matplotlib it has none, and says what
    to install.
    """
    no_pictures = ""
    try:
        pictures = draw_pictures(cells) if pictures is None else pictures
    except UsageError as error:
        pictures, no_pictures = [], str(error)
    return render_page(
        "bench.html",
        title=title,
        setup=setup,
        summary=summary_of(cells),
        blocks=blocks_of(cells),
        pictures=[(picture, Markup(picture.svg)) for picture in pictures],
        no_pictures=no_pictures,
        problems=problems_of(cells),
        meanings=MEANINGS,
    )
