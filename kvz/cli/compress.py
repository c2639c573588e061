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

from kvz.cache.index_plan import make_index_plan
from kvz.cli import console
from kvz.cli.arguments import as_text
from kvz.cli.compress_summary import print_summary, summary_of
from kvz.cli.method_options import (
    ChunkOption,
    HeadScoresOption,
    InstructionOption,
    KernelOption,
    QueryOption,
    SeedOption,
    SinkOption,
    TurnOption,
    WeightOption,
    WindowOption,
)
from kvz.cli.options import DeviceOption, JsonOption, ModelOption, QuietOption
from kvz.cli.targets import check_output
from kvz.defaults import METHOD
from kvz.documents import read_document
from kvz.errors import DocumentError, OutputError, UsageError
from kvz.models.placement import check_placement
from kvz.models.source import check_model
from kvz.recipe import make_recipe
from kvz.scoring.head_score_file import check_there
from kvz.scoring.spans import parse_span

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
        typer.Option(
            metavar="N",
            help="In place of -r: pairs to keep in each head, on average; rocketkv: pairs that a step is to read.",
        ),
    ] = None,
    output: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--output", "-o", metavar="OUT", help="Archive to write, - for stdout. [default: DOC with .kvz]"),
    ] = None,
    model: ModelOption = None,
    method: Annotated[
        str,
        typer.Option(
            help="Scoring method: kvzip-rms, kvzip, kvzip+, kvzip-head, snapkv, pyramidkv, adakv, rocketkv, h2o, duo, "
            "recent, random, full."
        ),
    ] = METHOD,
    allocation: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="NAME",
            help="How the budget is shared: nonuniform (best pairs anywhere), uniform (same per head), adakv (same per "
            "layer), pyramid (less in later layers), head (whole heads). [default: the method's own]",
        ),
    ] = None,
    floor: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(metavar="ALPHA", help="nonuniform, adakv: least share of a uniform budget that each head keeps."),
    ] = None,
    keep_recent: Annotated[
        int, typer.Option(metavar="N", help="Keep the document's last N tokens in every head; they count.")
    ] = 0,
    protect: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="A:B",
            help="Keep the document's tokens A to B (a Python slice) in every head; they count. May be repeated.",
        ),
    ] = None,
    protect_text: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="TEXT", help="The same for every occurrence of TEXT in the document."),
    ] = None,
    chunk: ChunkOption = None,
    instruction: InstructionOption = None,
    weight: WeightOption = None,
    turn: TurnOption = None,
    window: WindowOption = None,
    kernel: KernelOption = None,
    query: QueryOption = None,
    sink: SinkOption = None,
    head_scores: HeadScoresOption = None,
    seed: SeedOption = None,
    system: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="TEXT", help="System text in place of the chat template's own."),
    ] = None,
    truncate: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="PART", help="If the document is too long, leave out its head, middle or tail."),
    ] = None,
    keep_newlines: Annotated[
        bool, typer.Option("--keep-newlines", help="Keep line ends CR LF and CR, which are read as LF otherwise.")
    ] = False,
    index: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="KINDS", help="Indexes for sparse decoding to store: planes (default), pages, planes,pages or none."
        ),
    ] = None,
    page_size: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="N", help="--index pages: tokens a page; auto is 4."),
    ] = None,
    page_bits: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            metavar="N", help="--index pages: 16, bounds in the pairs' dtype (default), or 8, rounded outward."
        ),
    ] = None,
    offload: Annotated[
        bool, typer.Option("--offload", help="Keep the full cache in main memory while a GPU computes.")
    ] = False,
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
    check_placement(device, dtype, offload)
    options = {
        "chunk": chunk,
        "instruction": instruction,
        "weight": weight,
        "turn": turn,
        "window": window,
        "kernel": kernel,
        "query": None if query is None else as_text(query),
        "sink": sink,
        "head_scores": head_scores,
        "seed": seed,
    }
    recipe = make_recipe(
        ratio=ratio,
        budget=budget,
        method=method,
        allocation=allocation,
        floor=floor,
        keep_recent=keep_recent,
        protect=(*map(parse_span, protect or ()), *map(as_text, protect_text or ())),
        system=None if system is None else as_text(system),
        truncate=truncate,
        include_text=not omit_text,
        offload=offload,
        index=make_index_plan(index, page_size, page_bits),
        **{name: value for name, value in options.items() if value is not None},
    )
    if target is not None:
        check_output(target, force, "for a pipe give -o -")  # after wrong usage, which --force would not help
    if head_scores is not None:
        check_there(Path(head_scores))
    check_model(model)
    source = read_document(document, keep_newlines)
    from kvz.compression import compress_document
    from kvz.models.language_model import load_model

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
    summary = summary_of(archive, target, written, {"load": load_seconds, **archive.seconds, "write": write_seconds})
    if as_json:
        console.emit_json(summary)
    if not quiet:
        print_summary(summary)


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
        raise DocumentError(f"'{document}' is not a document; give a text file, or - for standard input")
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
