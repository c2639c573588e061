"""Which selection indexes an archive gets. Imported without torch."""

from __future__ import annotations

from dataclasses import dataclass

from kvz.errors import UsageError

__all__ = ["BITS", "NO_INDEX", "PAGE", "PLANES", "IndexPlan", "check_page_size", "make_index_plan"]

BITS = 3
"""Bit planes that are stored; what a step reads of them is up to its budget."""

PAGE = 4
"""Tokens a page unless a user says otherwise: the paper's pages have 2 to 5 at r = 0.3."""

_KINDS = ("planes", "pages", "none")
_MOST_TOKENS = 4096  # of a page: more would choose among next to nothing
_PAGE_BITS = (16, 8)


@dataclass(frozen=True)
class IndexPlan:
    """Which kinds of index an archive gets: `planes` bit planes a dimension (0: none), pages of `page_size` (0: none).

    `page_bits` 16 stores page bounds in the pairs' own dtype, 8 in a byte each, rounded outward.
    """

    planes: int = BITS
    page_size: int = 0
    page_bits: int = 16


PLANES = IndexPlan()
NO_INDEX = IndexPlan(planes=0)


def make_index_plan(
    index: str | None = None, page_size: str | int | None = None, page_bits: int | None = None
) -> IndexPlan:
    """The plan a user asks for: `index` names kinds, separated by commas; "none" is none, None is "planes".

    Raises UsageError for kinds that do not exist and page options without pages.
    """
    kinds = ["planes"] if index is None else [kind.strip() for kind in index.split(",")]
    if unknown := [kind for kind in kinds if kind not in _KINDS]:
        raise UsageError(f"no index '{unknown[0]}'; there are: {', '.join(_KINDS)}")
    if "none" in kinds and len(kinds) > 1:
        raise UsageError("index 'none' is none; leave the others out")
    if "pages" not in kinds and (page_size is not None or page_bits is not None):
        raise UsageError("page size and page bits are those of an index of pages; add --index pages")
    if page_bits not in (None, *_PAGE_BITS):
        raise UsageError(f"page bits {page_bits}: give 16 or 8")
    pages = check_page_size(page_size) or PAGE if "pages" in kinds else 0
    return IndexPlan(BITS if "planes" in kinds else 0, pages, page_bits or 16)


def check_page_size(given: str | int | None) -> int | None:
    """Tokens a page; None for "auto" and None. Raises UsageError."""
    if given is None or given == "auto":
        return None
    try:
        size = int(given)
    except ValueError:
        size = 0
    if not 1 <= size <= _MOST_TOKENS:
        raise UsageError(f"page size '{given}': give auto, or 1 to {_MOST_TOKENS} tokens")
    return size
