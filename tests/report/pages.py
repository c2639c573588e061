"""Reading pages back: well-formed or refused, nothing fetched, and the runs of tokens in them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "br", "link", "img", "input", "hr"}


@dataclass
class Element:
    """A tag, its attributes, and the text inside it, tags left out."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""
    open: bool = True


@dataclass
class Page(HTMLParser):
    """A page parsed strictly: every element is closed in its turn, no attribute or id occurs twice."""

    source: str
    elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[Element] = []
        self.feed(self.source)
        self.close()
        assert self._open == []
        ids = [element.attributes["id"] for element in self.elements if "id" in element.attributes]
        assert sorted(set(ids)) == sorted(ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Elements of a tag with these attributes; `css` is one of the words in class."""
        css = attributes.pop("css", None)
        return [
            e
            for e in self.elements
            if e.tag == tag
            and (css is None or css in (e.attributes.get("class") or "").split())
            and all(e.attributes.get(name) == value for name, value in attributes.items())
        ]

    @property
    def runs(self) -> list[tuple[int, int, int, str]]:
        """First token, number of tokens, heads and text of every run."""
        spans = [e for e in self.all("span") if "data-t" in e.attributes]
        return [(*(int(s.attributes[f"data-{key}"] or "") for key in "tnk"), s.text) for s in spans]  # type: ignore[misc]


def assert_nothing_fetched(source: str) -> None:
    """No script, style, picture or font from elsewhere; names of XML namespaces are no addresses."""
    page = Page(source)
    for element in page.elements:
        assert element.tag not in ("link", "img", "iframe", "object", "embed", "base")
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert (element.attributes.get(name) or "#").startswith("#")
    assert re.search(r"@import|url\((?!['\"]?#)", source) is None
