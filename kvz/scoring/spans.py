"""Spans of a document's tokens, as a user writes them. Imported without torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvz.errors import UsageError

__all__ = ["Span", "check_spans", "parse_span"]

Span = tuple[int | None, int | None]
"""Tokens start:end of the context, as a Python slice has them: negative from its end, None for its very ends."""

_SPAN = re.compile(r"(-?[0-9]{1,18})?:(-?[0-9]{1,18})?")


def parse_span(text: str) -> Span:
    """A span from its text, such as 0:64 or -100: ; raises UsageError."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is no span of tokens: write START:END, such as 0:64, or -100: for the last hundred")
    start, end = (None if part is None else int(part) for part in match.groups())
    return start, end


def check_spans(protect: Sequence[str | Span]) -> None:
    """Raise UsageError for an empty text and for what is neither a text nor two numbers."""
    for item in protect:
        if isinstance(item, str):
            if not item.strip():
                raise UsageError("the text to protect is empty")
        elif (
            not isinstance(item, (tuple, list))
            or len(item) != 2
            or not all(end is None or isinstance(end, int) for end in item)
        ):
            raise UsageError(f"protect: {item!r:.60} is no span of tokens: give (start, end), or a text")
