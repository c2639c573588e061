"""Compressing: text -> prompt -> prefill -> scores -> budget -> ragged cache -> archive."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from kvz.archive import Archive
from kvz.argument_types import FLAG, NUMBER, PATH, TEXT, WHOLE, Kind, check_types
from kvz.cache.index import with_index
from kvz.cache.index_plan import IndexPlan
from kvz.cache.ragged import evict
from kvz.defaults import METHOD
from kvz.demand import demand_of
from kvz.documents import Document, document_from_text, read_document
from kvz.errors import DocumentError, UsageError
from kvz.excerpt import excerpt_of
from kvz.manifest_of import manifest_of, parameters_of
from kvz.models.language_model import LanguageModel, load_model
from kvz.models.prefill import prefill
from kvz.progress import Progress, Timings
from kvz.prompt import make_frame
from kvz.recipe import Recipe, make_recipe
from kvz.scoring.allocation import Allocation
from kvz.scoring.method import Context, ScoringMethod
from kvz.scoring.selection import select

__all__ = ["compress", "compress_document"]

_LIKE_A_PATH = re.compile(r"^\S*/\S*$|\.[A-Za-z]\w{0,4}$")
_FEW_POSITIONS = 128


def compress(
    document: str | Path,
    model: str | Path | LanguageModel | None = None,
    ratio: float | None = None,
    budget: int | None = None,
    method: str | ScoringMethod = METHOD,
    allocation: str | Allocation | None = None,
    floor: float | None = None,
    keep_recent: int = 0,
    protect: str | Sequence[str | tuple[int | None, int | None]] = (),
    system: str | None = None,
    truncate: str | None = None,
    keep_newlines: bool = False,
    include_text: bool = True,
    offload: bool = False,
    index: IndexPlan | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
) -> Archive:
    """Compress a document into an archive.

    `document` is a path, or the text itself: a string is taken for a path if a file of that name exists, and refused
    if it looks like a path to one that does not. `model` is a hub id, a folder, a `.gguf` file, a loaded model, or None
    for the embedded default. `ratio` is the share of context pairs KEPT (0.3 if neither it nor `budget`, pairs a head
    on average, is given). `protect` names what every head keeps: ranges (start, end) of context tokens, or texts, each
    wherever it occurs. Line ends CR LF and CR are read as LF unless `keep_newlines`. `index` says which selection
    indexes are stored. Raises a KvzError.
    """
    check_types(
        document=(document, PATH),
        model=(model, Kind((str, os.PathLike, LanguageModel), "a name, a path or a loaded model") | None),
        ratio=(ratio, NUMBER | None),
        budget=(budget, WHOLE | None),
        method=(method, Kind((str, ScoringMethod), "a name or a kvz.scoring.method.ScoringMethod")),
        allocation=(allocation, Kind((str, Allocation), "a name or a kvz.scoring.allocation.Allocation") | None),
        floor=(floor, NUMBER | None),
        keep_recent=(keep_recent, WHOLE),
        protect=(protect, Kind((str, list, tuple), "a text, or a list of texts and of (start, end)")),
        system=(system, TEXT | None),
        truncate=(truncate, TEXT | None),
        include_text=(include_text, FLAG),
        keep_newlines=(keep_newlines, FLAG),
        offload=(offload, FLAG),
        index=(index, Kind((IndexPlan,), "a kvz.cache.index_plan.IndexPlan") | None),
        progress=(progress, Kind((Progress,), "a kvz.progress.Progress") | None),
    )
    progress = progress or Progress()
    source = _document(document if isinstance(document, str) else Path(document), keep_newlines)
    recipe = make_recipe(
        ratio=ratio,
        budget=budget,
        method=method,
        allocation=allocation,
        floor=None if floor is None else float(floor),
        keep_recent=int(keep_recent),
        protect=(protect,) if isinstance(protect, str) else tuple(protect),
        system=system,
        truncate=truncate,
        include_text=include_text,
        offload=offload,
        index=index,
    )
    if not isinstance(model, LanguageModel):
        model = load_model(model, device, dtype, progress.say)
    elif (device, dtype) != ("auto", "auto"):
        raise UsageError("device and dtype are those of the loaded model; give them to load_model")
    return compress_document(source, model, recipe, progress)


def compress_document(source: Document, model: LanguageModel, recipe: Recipe, progress: Progress) -> Archive:
    """`compress` with everything decided. The full cache is freed layer by layer as its survivors are copied out."""
    timings = Timings()
    frame = make_frame(model.tokenizer, model.end_ids, recipe.system)
    excerpt = excerpt_of(model, frame, source.text, recipe.truncate)
    ids = excerpt.ids
    prompt = [*frame.prefix_ids, *ids]
    demand = demand_of(recipe, model, frame, ids)
    whole = demand.keeps_everything
    parameters = parameters_of(recipe, model, frame, len(ids))
    _check_offload(recipe, model)
    _warn(model, whole, len(prompt), progress)
    if recipe.default and not whole and demand.budget != recipe.budget:
        said = f"every head keeps at least {demand.least} of the document's {len(ids)} tokens"
        progress.say(f"{said}: {demand.budget} in place of the default {recipe.budget}")
    _say_newlines(source, progress)
    progress.start("prefill", len(prompt), "tokens")
    with timings.phase("prefill"):
        slack = recipe.method.replayed(len(ids))
        full = prefill(model, prompt, done=progress.advance, offload=recipe.offload, slack=slack)
    kept = torch.ones(demand.rows, len(ids), dtype=torch.bool)
    if not whole:
        progress.start("score", len(ids), "tokens")
        with timings.phase("score"):
            scores = recipe.method.score(model, Context(frame, tuple(ids), full), progress.advance)
    progress.start("evict", model.geometry.layers, "layers")
    with timings.phase("evict"):
        if not whole:
            kept = select(scores, demand, recipe.allocation)
        cache = evict(full, kept, model.geometry, len(frame.prefix_ids), lambda layer: progress.advance(1))
        cache = with_index(cache, len(frame.prefix_ids), recipe.index)
    progress.finish()
    manifest = manifest_of(source, model, recipe, frame, parameters, excerpt, kept, demand.budget)
    token_ids = torch.tensor(prompt, dtype=torch.int32) if recipe.include_text else None
    return Archive(manifest, cache, token_ids, timings.seconds, model)


def _check_offload(recipe: Recipe, model: LanguageModel) -> None:
    if recipe.offload and model.device.type == "cpu":
        raise UsageError("--offload moves the cache of a GPU to main memory; the model is on the cpu: leave it out")


def _warn(model: LanguageModel, whole: bool, used: int, progress: Progress) -> None:
    left = model.geometry.max_positions - used
    if whole:
        progress.say("the budget, or what is kept in any case, covers the whole context: nothing is scored or evicted")
    if left < _FEW_POSITIONS:
        progress.say(f"only {left} of the model's positions are left for a question and its answer")


def _say_newlines(source: Document, progress: Progress) -> None:
    if source.newlines:
        lines = "1 line end" if source.newlines == 1 else f"{source.newlines:,} line ends"
        progress.say(f"{lines} CR LF or CR read as LF; --keep-newlines keeps them as they are")


def _document(document: str | Path, keep_newlines: bool) -> Document:
    if isinstance(document, Path):
        return read_document(document, keep_newlines)
    one_line = "\n" not in document and 0 < len(document) < 1024
    if one_line and _is_file(document):
        return read_document(document, keep_newlines)
    if one_line and _LIKE_A_PATH.search(document):
        raise DocumentError(f"no such document: {document} (to compress these very characters, add a line break)")
    return document_from_text(document, keep_newlines=keep_newlines)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long for a name, or a character no name can have
        return False
