"""What kvz compress says when it is done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvz import wording
from kvz.cli import console

if TYPE_CHECKING:
    from kvz.archive import Archive

__all__ = ["print_summary", "summary_of"]


def summary_of(archive: Archive, target: Path | None, written: int, phases: dict[str, float]) -> dict[str, Any]:
    """The facts, as --json prints them. Sliding layers never hold more than their window, in the full cache either."""
    manifest = archive.manifest
    info, prompt = manifest.compression, manifest.prompt
    itemsize = archive.cache.layers[0].keys.element_size()
    full = sum(
        2 * x.kv_heads * x.head_dim * min(manifest.logical_length, (x.window or 2**62) - 1) * itemsize
        for x in manifest.model.layers
    )
    return {
        "archive": "-" if target is None else str(target),
        "document": manifest.source.name,
        "model": manifest.model.id,
        "dtype": manifest.model.dtype,
        "context_tokens": prompt.context_tokens,
        "prefix_tokens": prompt.prefix_tokens,
        "dropped_tokens": manifest.source.dropped_tokens,
        "dropped_estimated": manifest.source.dropped_estimated,
        "newlines_replaced": manifest.source.newlines_replaced,
        "truncated": manifest.source.truncated,
        "pairs_kept": info.pairs_kept,
        "pairs_total": info.pairs_total,
        "kv_bytes_full": full,
        "kv_bytes_kept": archive.cache.nbytes,
        "file_bytes": written,
        "seconds": {name: round(value, 3) for name, value in phases.items()},
    }


def print_summary(summary: dict[str, Any]) -> None:
    """The facts for a reader, on stderr."""
    kept, total = summary["pairs_kept"], summary["pairs_total"]
    if summary["dropped_tokens"]:
        dropped = wording.quantity(summary["dropped_tokens"], summary["dropped_estimated"])
        console.note(f"kvz: {dropped} tokens of the document's {summary['truncated']} were left out")
    if summary["context_tokens"] < 32:
        console.note("kvz: the document is so short that compressing it gains nothing")
    console.note(
        f"{summary['archive']}: {wording.quantity(summary['context_tokens'])} tokens, "
        f"{wording.quantity(kept)} of {wording.quantity(total)} pairs kept ({100 * kept / total:.1f} %)"
    )
    console.note(
        f"  KV cache {wording.size(summary['kv_bytes_full'])} -> {wording.size(summary['kv_bytes_kept'])}, "
        f"file {wording.size(summary['file_bytes'])} ({summary['dtype']}, {summary['model']})"
    )
    console.note("  " + ", ".join(f"{name} {wording.seconds(value)}" for name, value in summary["seconds"].items()))
