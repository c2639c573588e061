"""kvz inspect: what is inside an archive. Without -v and --html it reads the header alone, without torch and numpy."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import msgspec
import typer

from kvz import wording
from kvz.cli import console
from kvz.cli.inspect_html import find_target, write_html
from kvz.cli.options import ArchivePath, JsonOption, ModelOption
from kvz.errors import UsageError
from kvz.format.manifest import Manifest
from kvz.format.reader import ArchiveFile, archive_bytes, open_archive
from kvz.models.source import check_model

__all__ = ["inspect"]

_SHOWN = 300  # characters of the beginning and of the end of a long text


def inspect(
    archive: ArchivePath,
    as_json: JsonOption = False,
    html: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="FILE",
            help="Write a page to FILE, - for stdout: all this, and the text shaded by how many heads kept each token.",
        ),
    ] = None,
    model: ModelOption = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing FILE.")] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Also the text before the document: system text, and dates of a template."
        ),
    ] = False,
) -> None:
    """Show what is inside an archive: document, model, what was kept in each layer and head, and sizes.

    Text is decoded with the tokenizer of the model in the archive if it is on this machine, or of -m.
    """
    if html is not None and as_json:
        raise UsageError("give --html or --json, not both")
    if html is None and force:
        raise UsageError("--force is for --html FILE, which is not given")
    if html is None and not verbose and model is not None:
        raise UsageError("-m is for --html FILE and -v, which are not given")
    opened = open_archive(archive)
    target = None if html is None else find_target(opened, html, force)
    if model is not None:
        check_model(model)
    more = _prefix(opened, model) if verbose else {}
    if html is not None:
        write_html(opened, _facts(opened) | _shown(more), target, model, force)
        return
    if as_json:
        console.emit_json(_as_json(opened) | {name: text for name, (text, _) in more.items()})
        return
    facts = [f"{name:>9}  {value}" for name, value in (_facts(opened) | _shown(more)).items()]
    for line in [*facts, "", *_chart(opened.manifest)]:
        console.emit(wording.printable(line))


def _prefix(opened: ArchiveFile, model: str | None) -> dict[str, tuple[str | None, str]]:
    from kvz.cli.inspect_prefix import prefix_of

    return {"prefix": prefix_of(opened, model)}


def _shown(more: dict[str, tuple[str | None, str]]) -> dict[str, str]:
    """Texts as facts; of one that cannot be shown, the reason."""
    return {name: f"not shown: {why}" if text is None else _cut(text) or "none" for name, (text, why) in more.items()}


def _cut(text: str) -> str:
    """`text` for a line: what is between the beginning and the end of a long one is counted, not shown."""
    left_out = len(text) - 2 * _SHOWN
    if left_out <= 0:
        return text
    return f"{text[:_SHOWN]} ... ({wording.quantity(left_out)} characters) ... {text[-_SHOWN:]}"


def _as_json(opened: ArchiveFile) -> dict[str, Any]:
    return {
        "archive": str(opened.path),
        "file_bytes": opened.header.file_size,
        "format_version": opened.header.metadata["kvz_version"],
        "bytes": archive_bytes(opened.header),
        "manifest": msgspec.to_builtins(opened.manifest),
    }


def _facts(opened: ArchiveFile) -> dict[str, str]:
    m = opened.manifest
    info = m.compression
    share = f"-r {info.ratio:g}" if info.ratio is not None else f"--budget {info.budget}"
    options = " ".join(f"{key}={value}" for key, value in info.parameters.items())
    sharing = " ".join(f"{key}={value}" for key, value in info.allocation_parameters.items())
    sizes = archive_bytes(opened.header)
    newlines = m.source.newlines_replaced
    replaced = f", {wording.quantity(newlines)} line ends read as LF" if newlines else ""
    dropped = wording.quantity(m.source.dropped_tokens, m.source.dropped_estimated)
    cut = f", {m.source.truncated} cut by {dropped}" if m.source.truncated else ""
    return {
        "archive": f"{opened.path} ({wording.size(opened.header.file_size)}, "
        f"format {opened.header.metadata['kvz_version']}, by {m.creator.name} {m.creator.version})",
        "document": f"{m.source.name} ({wording.size(m.source.bytes)}, sha256 {m.source.sha256[:16]}...{replaced})",
        "text": "token ids included: the text can be read back" if m.source.text_included else "left out",
        "tokens": f"{m.prompt.prefix_tokens} prefix + {wording.quantity(m.prompt.context_tokens)} context{cut}",
        "model": f"{m.model.id} ({m.model.architecture}, {m.model.dtype}"
        + (f", revision {m.model.revision[:12]})" if m.model.revision else ")"),
        "geometry": f"{len(m.model.layers)} layers, {m.model.query_heads} query heads, {_heads(m)}",
        "frame": m.prompt.frame + (" with its own system text" if m.prompt.system is not None else ""),
        "method": f"{info.method} {options}, {info.allocation} {sharing} {share}",
        "kept": f"{wording.quantity(info.pairs_kept)} of {wording.quantity(info.pairs_total)} pairs "
        f"({100 * info.pairs_kept / info.pairs_total:.1f} %)",
        "index": _index(m),
        "bytes": ", ".join(f"{kind} {wording.size(n)}" for kind, n in sizes.items()),
        "prints": f"model {m.model.fingerprint[:12]}, tokenizer {m.tokenizer.fingerprint[:12]}, "
        f"template {m.tokenizer.template_fingerprint[:12]}",
    }


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
            lines.append(f"{index:>9}  sliding: the last {wording.quantity(manifest.head_lengths(index)[0])} tokens")
            continue
        share = sum(row) / (context * len(row))
        heads = " ".join(f"{100 * kept / context:5.1f}" for kept in row)
        lines.append(f"{index:>9}  {console.bar(share):<30} {100 * share:5.1f}  {heads}")
    return lines
