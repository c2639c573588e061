"""kvz compress: a document into an archive."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from kvz.cli import console
from kvz.cli.options import DeviceOption, JsonOption, ModelOption, QuietOption
from kvz.errors import OutputError, UsageError

if TYPE_CHECKING:
    from kvz.archive import Archive

__all__ = ["compress"]


def compress(
    document: Annotated[str, typer.Argument(metavar="DOC", help="A UTF-8 text file, or - for standard input.")],
    ratio: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--ratio", "-r", help="Share of the document's pairs to KEEP, in (0, 1]. [default: 0.3]"),
    ] = None,
    budget: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="N", help="In place of -r: pairs to keep in each head, on average."),
    ] = None,
    output: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--output", "-o", metavar="OUT", help="Archive to write, - for stdout. [default: DOC with .kvz]"),
    ] = None,
    model: ModelOption = None,
    method: Annotated[str, typer.Option(help="Scoring method: kvzip, kvzip+, snapkv, h2o, recent, random.")] = "kvzip",
    allocation: Annotated[
        str, typer.Option(help="How the budget is shared: nonuniform (best pairs anywhere) or uniform (same per head).")
    ] = "nonuniform",
    floor: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(metavar="ALPHA", help="Least share of a uniform budget that each head keeps (nonuniform only)."),
    ] = None,
    keep_recent: Annotated[
        int, typer.Option(metavar="N", help="Keep the document's last N tokens in every head; they count.")
    ] = 0,
    chunk: Annotated[Optional[int], typer.Option(help="kvzip, kvzip+: tokens repeated at a time.")] = None,  # noqa: UP045
    window: Annotated[Optional[int], typer.Option(help="snapkv: last tokens that score the others.")] = None,  # noqa: UP045
    kernel: Annotated[Optional[int], typer.Option(help="snapkv: positions max-pooled, odd.")] = None,  # noqa: UP045
    sink: Annotated[Optional[int], typer.Option(help="recent: first tokens that are kept.")] = None,  # noqa: UP045
    seed: Annotated[Optional[int], typer.Option(help="random: which pairs.")] = None,  # noqa: UP045
    system: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="TEXT", help="System text in place of the chat template's own."),
    ] = None,
    truncate: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="PART", help="If the document is too long, leave out its head, middle or tail."),
    ] = None,
    omit_text: Annotated[bool, typer.Option("--omit-text", help="Leave the token ids out of the archive.")] = False,
    device: DeviceOption = "auto",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing archive.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compress a document: prefill it, score its key/value pairs, keep the share -r, write an archive.

    -r is the share of pairs kept: -r 0.3 keeps 30 % and frees 70 %. The chat template's own tokens are kept beside it.
    """
    target = _target(document, output, as_json)
    from kvz.scoring.budget import Budget

    limits = Budget.of_options(ratio, budget)
    from kvz.documents import read_document
    from kvz.format.atomic import check_target

    source = read_document(document)
    if target is not None:
        check_target(target, overwrite=force)
    from kvz.compression import Recipe, compress_document
    from kvz.models.language_model import load_model
    from kvz.scoring.allocation import make_allocation
    from kvz.scoring.registry import make_method

    options = {"chunk": chunk, "window": window, "kernel": kernel, "sink": sink, "seed": seed}
    given = {name: value for name, value in options.items() if value is not None}
    shares = make_allocation(allocation, **({} if floor is None else {"floor": floor}))
    recipe = Recipe(limits, make_method(method, **given), shares, keep_recent, system, truncate, not omit_text)
    progress = console.terminal_progress(quiet)
    try:
        began = time.perf_counter()
        loaded = load_model(model, device, dtype, progress.say)
        load_seconds = time.perf_counter() - began
        archive = compress_document(source, loaded, recipe, progress)
        began = time.perf_counter()
        written = _write(archive, target, force, progress)
        write_seconds = time.perf_counter() - began
    finally:
        progress.finish()
    summary = _summary(archive, target, written, {"load": load_seconds, **archive.seconds, "write": write_seconds})
    if as_json:
        console.emit_json(summary)
    if not quiet:
        _print_summary(summary)


def _target(document: str, output: str | None, as_json: bool) -> Path | None:
    """The file to write, None for stdout."""
    if output == "-":
        if as_json:
            raise UsageError("--json and -o - both want stdout; give -o a file")
        if sys.stdout is None:
            raise OutputError("standard output is closed; give -o a file")
        if sys.stdout.isatty():
            raise UsageError("an archive is binary: send -o - into a pipe or a file, not to a terminal")
        return None
    if output is not None:
        if not output.strip():
            raise UsageError("-o is empty; give a file name, or - for stdout")
        if (
            document != "-"
            and os.path.exists(output)
            and os.path.exists(document)
            and os.path.samefile(document, output)
        ):
            raise UsageError(f"the output {output} is the document itself; give another name")
        return Path(output)
    if document == "-":
        raise UsageError("reading standard input: say where to write with -o OUT.kvz (or -o - for stdout)")
    path = Path(document)
    if not path.name:
        raise UsageError(f"'{document}' is not a document; give a text file, or - for standard input")
    if path.suffix == ".kvz":
        raise UsageError(f"{document} is already named .kvz; name the output with -o")
    return path.with_suffix(".kvz")


def _write(archive: Archive, target: Path | None, force: bool, progress: Any) -> int:
    if target is not None:
        return archive.save(target, force, progress)
    with tempfile.TemporaryDirectory(prefix="kvz-") as folder:
        path = Path(folder) / "out.kvz"
        written = archive.save(path, False, progress)
        with path.open("rb") as file:
            os.unlink(path)
            shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
        sys.stdout.buffer.flush()
    return written


def _summary(archive: Archive, target: Path | None, written: int, phases: dict[str, float]) -> dict[str, Any]:
    manifest = archive.manifest
    info, prompt = manifest.compression, manifest.prompt
    itemsize = archive.cache.layers[0].keys.element_size()
    full = sum(2 * x.kv_heads * x.head_dim for x in manifest.model.layers) * manifest.logical_length * itemsize
    return {
        "archive": "-" if target is None else str(target),
        "document": manifest.source.name,
        "model": manifest.model.id,
        "dtype": manifest.model.dtype,
        "context_tokens": prompt.context_tokens,
        "prefix_tokens": prompt.prefix_tokens,
        "dropped_tokens": manifest.source.dropped_tokens,
        "truncated": manifest.source.truncated,
        "pairs_kept": info.pairs_kept,
        "pairs_total": info.pairs_total,
        "kv_bytes_full": full,
        "kv_bytes_kept": archive.cache.nbytes,
        "file_bytes": written,
        "seconds": {name: round(value, 3) for name, value in phases.items()},
    }


def _print_summary(summary: dict[str, Any]) -> None:
    kept, total = summary["pairs_kept"], summary["pairs_total"]
    if summary["dropped_tokens"]:
        dropped = console.quantity(summary["dropped_tokens"])
        console.note(f"kvz: {dropped} tokens of the document's {summary['truncated']} were left out")
    if summary["context_tokens"] < 32:
        console.note("kvz: the document is so short that compressing it gains nothing")
    console.note(
        f"{summary['archive']}: {console.quantity(summary['context_tokens'])} tokens, "
        f"{console.quantity(kept)} of {console.quantity(total)} pairs kept ({100 * kept / total:.1f} %)"
    )
    console.note(
        f"  KV cache {console.size(summary['kv_bytes_full'])} -> {console.size(summary['kv_bytes_kept'])}, "
        f"file {console.size(summary['file_bytes'])} ({summary['dtype']}, {summary['model']})"
    )
    console.note("  " + ", ".join(f"{name} {console.seconds(value)}" for name, value in summary["seconds"].items()))
