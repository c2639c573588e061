"""Compressing: text -> prompt -> prefill -> scores -> budget -> ragged cache -> archive."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from kvz.archive import Archive
from kvz.cache.ragged import evict
from kvz.documents import Document, document_from_text, read_document
from kvz.errors import DocumentError, ModelError, UsageError
from kvz.format.manifest import (
    CompressionInfo,
    CreatorInfo,
    LayerInfo,
    Manifest,
    ModelInfo,
    PromptInfo,
    QuestionInfo,
    SourceInfo,
    TokenizerInfo,
)
from kvz.models.language_model import LanguageModel, load_model
from kvz.models.prefill import prefill
from kvz.progress import Progress, Timings
from kvz.prompt import Frame, check_part, make_frame, truncate_ids
from kvz.scoring.allocation import Allocation, Nonuniform, make_allocation, select
from kvz.scoring.budget import Budget
from kvz.scoring.kvzip import KVzip
from kvz.scoring.method import Context, ScoringMethod
from kvz.scoring.registry import make_method
from kvz.version import __version__

__all__ = ["Recipe", "compress", "compress_document"]

_LIKE_A_PATH = re.compile(r"^\S*/\S*$|\.[A-Za-z]\w{0,4}$")
_FEW_POSITIONS = 128
_RESERVE = 512  # positions that --truncate leaves for question and answer, at most an eighth of the model's


@dataclass(frozen=True)
class Recipe:
    """Everything that shapes an archive besides the document and the model."""

    budget: Budget
    method: ScoringMethod = field(default_factory=KVzip)
    allocation: Allocation = field(default_factory=Nonuniform)
    keep_recent: int = 0
    system: str | None = None
    truncate: str | None = None
    include_text: bool = True

    def __post_init__(self) -> None:
        """Raise UsageError for a truncation that does not exist, or a negative count."""
        if self.keep_recent < 0:
            raise UsageError(f"cannot keep the {self.keep_recent} most recent tokens; give 0 or more")
        if self.truncate is not None:
            check_part(self.truncate)


def compress(
    document: str | Path,
    model: str | Path | LanguageModel | None = None,
    ratio: float | None = None,
    budget: int | None = None,
    method: str | ScoringMethod = "kvzip",
    allocation: str = "nonuniform",
    floor: float | None = None,
    keep_recent: int = 0,
    system: str | None = None,
    truncate: str | None = None,
    include_text: bool = True,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
) -> Archive:
    """Compress a document into an archive.

    `document` is a path, or the text itself: a string is taken for a path if a file of that name exists, and refused
    if it looks like a path to one that does not. `model` is a hub id, a folder, a `.gguf` file, a loaded model, or None
    for the embedded default. `ratio` is the share of context pairs KEPT (0.3 if neither it nor `budget`, pairs a head
    on average, is given). Raises a KvzError.
    """
    progress = progress or Progress()
    source = _document(document)
    recipe = Recipe(
        budget=Budget.of_options(ratio, budget),
        method=make_method(method) if isinstance(method, str) else method,
        allocation=make_allocation(allocation, **({} if floor is None else {"floor": floor})),
        keep_recent=keep_recent,
        system=system,
        truncate=truncate,
        include_text=include_text,
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
    ids, dropped = _context_ids(source, model, frame, recipe.truncate)
    prompt = [*frame.prefix_ids, *ids]
    shape = (model.geometry.layers, model.geometry.kv_heads[0], len(ids))
    recent = _recent(recipe, shape)
    _warn(model, recent, ids, len(prompt), progress)
    progress.start("prefill", len(prompt), "tokens")
    with timings.phase("prefill"):
        full = prefill(model, prompt, done=progress.advance)
    context = Context(frame, tuple(ids), full)
    scores = None
    if recent < len(ids):
        progress.start("score", len(ids), "tokens")
        with timings.phase("score"):
            scores = recipe.method.score(model, context, progress.advance)
    progress.start("evict", model.geometry.layers, "layers")
    with timings.phase("evict"):
        kept = _select(scores, recipe, recent, shape)
        cache = evict(full, kept, context.prefix, lambda layer: progress.advance(1))
    progress.finish()
    manifest = _manifest(source, model, recipe, frame, len(ids), dropped, kept)
    token_ids = torch.tensor(prompt, dtype=torch.int32) if recipe.include_text else None
    return Archive(manifest, cache, token_ids, timings.seconds, model)


def _warn(model: LanguageModel, recent: int, ids: list[int], used: int, progress: Progress) -> None:
    left = model.geometry.max_positions - used
    if recent == len(ids):
        progress.say("the budget, or what is kept in any case, covers the whole context: nothing is scored or evicted")
    if left < _FEW_POSITIONS:
        progress.say(f"only {left} of the model's positions are left for a question and its answer")


def _recent(recipe: Recipe, shape: tuple[int, int, int]) -> int:
    """How many of the last tokens every head keeps, for a cache of `shape` (L, H, S); S if nothing can be evicted.

    Raises UsageError if the budget is too small, before any work is done.
    """
    length = shape[2]
    recent = max(recipe.keep_recent, recipe.method.recent(recipe.budget.of(1, length), length))
    heads = shape[0] * shape[1]
    covered = recipe.budget.of(1, length) == length and recipe.budget.of(heads, length) == heads * length
    if recent >= length or covered:  # both counts: an allocation rounds either over a head or over all of them
        return length
    recipe.allocation.counts(shape, recipe.budget, recent)
    return recent


def _select(scores: Tensor | None, recipe: Recipe, recent: int, shape: tuple[int, int, int]) -> Tensor:
    """The pairs to keep, bool `[L,H,S]`; all where nothing had to be scored."""
    if scores is None:
        return torch.ones(shape, dtype=torch.bool)
    return select(scores, recipe.budget, recipe.allocation, recent)


def _document(document: str | Path) -> Document:
    if isinstance(document, Path):
        return read_document(document)
    one_line = "\n" not in document and 0 < len(document) < 1024
    if one_line and _is_file(document):
        return read_document(document)
    if one_line and _LIKE_A_PATH.search(document):
        raise DocumentError(f"no such document: {document} (to compress these very characters, add a line break)")
    return document_from_text(document)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long for a name, or a character no name can have
        return False


def _context_ids(source: Document, model: LanguageModel, frame: Frame, truncate: str | None) -> tuple[list[int], int]:
    """Ids of the document, cut if asked for, and how many were left out. Raises DocumentError if they do not fit."""
    positions = model.geometry.max_positions
    around = len(frame.prefix_ids) + len(frame.seam.after_ids)
    question = len(model.tokenizer.encode_plain(frame.seam.before)) + 1
    room = positions - around - question - 1  # a question of one token, and an answer of one
    longest = model.tokenizer.longest_token
    if truncate is None and len(source.text) // longest > room:  # known without encoding a huge text
        raise _too_long(f"at least {len(source.text) // longest}", positions, around)
    try:
        ids = model.tokenizer.encode_plain(source.text)
    except ModelError as error:
        raise DocumentError(f"the document cannot be encoded: {error}") from error
    if len(ids) <= room:
        return ids, 0
    limit = room - min(_RESERVE, positions // 8)
    if truncate is None or limit < 1:
        raise _too_long(str(len(ids)), positions, around)
    return truncate_ids(ids, limit, truncate), len(ids) - limit


def _too_long(tokens: str, positions: int, around: int) -> DocumentError:
    return DocumentError(
        f"the document is {tokens} tokens and the model has {positions} positions ({around} go to the chat template "
        "and system text); give a shorter one, --truncate head|middle|tail, or a model with a longer context"
    )


def _manifest(
    source: Document, model: LanguageModel, recipe: Recipe, frame: Frame, tokens: int, dropped: int, kept: Tensor
) -> Manifest:
    counts = tuple(tuple(row) for row in kept.sum(2).tolist())
    prints = model.identity.fingerprints
    return Manifest(
        model=ModelInfo(
            id=model.source.id,
            revision=model.source.revision,
            architecture=model.identity.architecture,
            fingerprint=prints.model,
            dtype=model.dtype_name,
            query_heads=model.geometry.query_heads,
            max_positions=model.geometry.max_positions,
            layers=tuple(LayerInfo("full", heads, dim) for heads, dim in model.geometry.shapes),
        ),
        tokenizer=TokenizerInfo(prints.tokenizer, prints.template),
        prompt=PromptInfo(
            frame=frame.kind,
            prefix_tokens=len(frame.prefix_ids),
            context_tokens=tokens,
            system=recipe.system,
            question=QuestionInfo(frame.seam.before, frame.seam.after_ids, frame.seam.stop_ids, frame.seam.stop_texts),
        ),
        source=SourceInfo(
            name=source.name,
            sha256=source.sha256,
            bytes=source.size,
            text_included=recipe.include_text,
            truncated=recipe.truncate if dropped else None,
            dropped_tokens=dropped,
        ),
        compression=CompressionInfo(
            method=recipe.method.name,
            parameters=dict(recipe.method.parameters()),
            allocation=recipe.allocation.name,
            allocation_parameters={**recipe.allocation.parameters(), "keep_recent": recipe.keep_recent},
            ratio=recipe.budget.ratio,
            budget=recipe.budget.tokens,
            pairs_kept=int(kept.sum()),
            pairs_total=kept.numel(),
            kept=counts,
        ),
        creator=CreatorInfo("kvz", __version__),
    )
