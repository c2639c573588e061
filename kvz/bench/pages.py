"""Writing measured tables into a page, between the comments that mark their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kvz.errors import UsageError

__all__ = ["fill_place"]


def fill_place(page: Path, name: str, lines: Sequence[str]) -> None:
    """Put `lines` between `<!-- name -->` and `<!-- /name -->`; raises UsageError if the page has no such place."""
    text = page.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not place.search(text):
        raise UsageError(f"{page} has no place for '{name}': put <!-- {name} --> and <!-- /{name} --> there")
    page.write_text(place.sub(lambda match: match[1] + "\n".join(lines) + "\n" + match[2], text), encoding="utf-8")
