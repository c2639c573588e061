"""From a template to one HTML page: style and script inside, nothing fetched, every value escaped."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

__all__ = ["render_page"]

# Controls a page cannot hold get their picture; what could turn text around or is no character at all, U+FFFD.
_PICTURES: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd"),
    **dict.fromkeys([*range(0xD800, 0xE000), 0xFFFE, 0xFFFF], "\ufffd"),
}


def render_page(template: str, **values: Any) -> str:
    """A page of `templates/`; text in `values` is escaped, and a name that a template misses is an error.

    Control characters are shown as pictures, but for tabs and newlines.
    """
    environment = Environment(
        loader=PackageLoader("kvz", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["lines"] = _lines
    return environment.get_template(template).render(**values).translate(_PICTURES)


def _lines(text: str) -> Markup:
    """Escaped text whose newlines can be seen: the mark is drawn by the style, so that it is not copied."""
    return Markup(escape(text).replace("\n", Markup("<u></u>\n")))
