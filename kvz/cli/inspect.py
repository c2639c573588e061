"""kvz inspect: what is inside an archive. Reads the header only, and imports neither torch nor numpy."""

from __future__ import annotations

from typing import Any

import msgspec

from kvz.cli import console
from kvz.cli.options import ArchivePath, JsonOption
from kvz.format.manifest import Manifest
from kvz.format.reader import ArchiveFile, archive_bytes, open_archive

__all__ = ["inspect"]


def inspect(archive: ArchivePath, as_json: JsonOption = False) -> None:
    """Show what is inside an archive: document, model, what was kept in each layer and head, and sizes."""
    opened = open_archive(archive)
    if as_json:
        console.emit_json(_as_json(opened))
        return
    for line in [*_facts(opened), "", *_chart(opened.manifest)]:
        console.emit(console.printable(line))


def _as_json(opened: ArchiveFile) -> dict[str, Any]:
    return {
        "archive": str(opened.path),
        "file_bytes": opened.header.file_size,
        "format_version": opened.header.metadata["kvz_version"],
        "bytes": archive_bytes(opened.header),
        "manifest": msgspec.to_builtins(opened.manifest),
    }


def _facts(opened: ArchiveFile) -> list[str]:
    m = opened.manifest
    info = m.compression
    share = f"-r {info.ratio:g}" if info.ratio is not None else f"--budget {info.budget}"
    options = " ".join(f"{key}={value}" for key, value in info.parameters.items())
    sharing = " ".join(f"{key}={value}" for key, value in info.allocation_parameters.items())
    sizes = archive_bytes(opened.header)
    cut = f", {m.source.truncated} cut by {console.quantity(m.source.dropped_tokens)}" if m.source.truncated else ""
    rows = {
        "archive": f"{opened.path} ({console.size(opened.header.file_size)}, "
        f"format {opened.header.metadata['kvz_version']}, by {m.creator.name} {m.creator.version})",
        "document": f"{m.source.name} ({console.size(m.source.bytes)}, sha256 {m.source.sha256[:16]}...)",
        "text": "token ids included: the text can be read back" if m.source.text_included else "left out",
        "tokens": f"{m.prompt.prefix_tokens} prefix + {console.quantity(m.prompt.context_tokens)} context{cut}",
        "model": f"{m.model.id} ({m.model.architecture}, {m.model.dtype}"
        + (f", revision {m.model.revision[:12]})" if m.model.revision else ")"),
        "geometry": f"{len(m.model.layers)} layers, {m.model.query_heads} query heads, {_heads(m)}",
        "frame": m.prompt.frame + (" with its own system text" if m.prompt.system is not None else ""),
        "method": f"{info.method} {options}, {info.allocation} {sharing} {share}",
        "kept": f"{console.quantity(info.pairs_kept)} of {console.quantity(info.pairs_total)} pairs "
        f"({100 * info.pairs_kept / info.pairs_total:.1f} %)",
        "index": _index(m),
        "bytes": ", ".join(f"{kind} {console.size(n)}" for kind, n in sizes.items()),
        "prints": f"model {m.model.fingerprint[:12]}, tokenizer {m.tokenizer.fingerprint[:12]}, "
        f"template {m.tokenizer.template_fingerprint[:12]}",
    }
    return [f"{name:>9}  {value}" for name, value in rows.items()]


def _index(manifest: Manifest) -> str:
    """What sparse decoding has to choose pairs by."""
    planes, pages = manifest.planes, manifest.pages
    kinds = [f"{planes.bits} bit planes"] if planes is not None else []
    if pages is not None:
        kinds.append(f"bounds of pages of {pages.size}" + (" in 8 bits" if pages.bits == 8 else ""))
    return ", ".join(kinds) or "none"


def _heads(manifest: Manifest) -> str:
    """KV heads of the layers, each shape once."""
    kinds = {(x.kv_heads, x.head_dim): None for x in manifest.model.layers}
    shapes = " or ".join(f"{heads} KV heads of {dim}" for heads, dim in kinds)
    sliding = sum(x.window is not None for x in manifest.model.layers)
    return shapes + (f"; {sliding} of the layers are sliding" if sliding else "")


def _chart(manifest: Manifest) -> list[str]:
    context = manifest.prompt.context_tokens
    lines = ["    layer  share kept" + " " * 28 + "each head, %"]
    for index, row in enumerate(manifest.compression.kept):
        if not row:
            lines.append(f"{index:>9}  sliding: the last {console.quantity(manifest.head_lengths(index)[0])} tokens")
            continue
        share = sum(row) / (context * len(row))
        heads = " ".join(f"{100 * kept / context:5.1f}" for kept in row)
        lines.append(f"{index:>9}  {console.bar(share):<30} {100 * share:5.1f}  {heads}")
    return lines
