"""The page of one archive: its facts, what each head kept, how many heads kept a token, and the text shaded by it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from kvz.archive import Archive
from kvz.report.kept import bins_of, heads_per_token, shares_of
from kvz.report.page import render_page
from kvz.report.shades import scale_of
from kvz.report.token_runs import blocks_of

__all__ = ["archive_page"]


def archive_page(archive: Archive, facts: Mapping[str, str], texts: Sequence[str] | None, no_text: str = "") -> str:
    """One HTML file. `facts` are shown as they are; `texts` has the text of each of the context's tokens.

    Where `texts` is None, tokens are dots, and the page says why in the words of `no_text`.
    """
    manifest = archive.manifest
    layers = shares_of(manifest)
    total = sum(len(layer.heads) for layer in layers)
    heads = heads_per_token(manifest, archive.cache)
    bins = bins_of(heads, total)
    return render_page(
        "archive.html",
        title=manifest.source.name,
        facts=facts,
        layers=layers,
        columns=max(len(layer.heads) for layer in layers),
        context=len(heads),
        prefix=manifest.prompt.prefix_tokens,
        total=total,
        heat=scale_of(head.share for layer in layers for head in layer.heads),
        bins=bins,
        most=max(found.tokens for found in bins),
        mean=sum(heads) / len(heads),
        median=statistics.median(heads),
        shades=scale_of([max(heads) / total]),
        blocks=blocks_of(heads, texts),
        has_text=texts is not None,
        no_text=no_text,
    )
