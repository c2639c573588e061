"""What an archive's manifest says of a compression that has been done."""

from __future__ import annotations

from torch import Tensor

from kvz.documents import Document
from kvz.excerpt import Excerpt
from kvz.format.manifest import (
    CompressionInfo,
    CreatorInfo,
    LayerInfo,
    Manifest,
    ModelInfo,
    PagesInfo,
    PlanesInfo,
    PromptInfo,
    QuestionInfo,
    SourceInfo,
    TokenizerInfo,
)
from kvz.models.language_model import LanguageModel
from kvz.prompt import Frame, Seam
from kvz.recipe import Recipe
from kvz.scoring.budget import Budget
from kvz.scoring.method import Setting
from kvz.version import __version__

__all__ = ["Parameters", "manifest_of", "parameters_of"]

Parameters = dict[str, int | float | str | None]


def manifest_of(
    source: Document,
    model: LanguageModel,
    recipe: Recipe,
    frame: Frame,
    parameters: Parameters,
    excerpt: Excerpt,
    kept: Tensor,
    budget: Budget,
) -> Manifest:
    """The manifest of an archive that keeps `kept [N,S]` of a `budget` of an `excerpt`."""
    of_rows, geometry = kept.sum(1).tolist(), model.geometry
    counts = tuple(tuple(of_rows[geometry.rows(layer)]) for layer in range(geometry.layers))
    prints = model.identity.fingerprints
    return Manifest(
        model=ModelInfo(
            id=model.source.id,
            revision=model.source.revision,
            architecture=model.identity.architecture,
            fingerprint=prints.model,
            dtype=model.dtype_name,
            query_heads=geometry.query_heads,
            max_positions=geometry.max_positions,
            layers=tuple(LayerInfo(s.kind, s.kv_heads, s.head_dim, s.window) for s in geometry.shapes),
        ),
        tokenizer=TokenizerInfo(prints.tokenizer, prints.template),
        prompt=PromptInfo(
            frame=frame.kind,
            prefix_tokens=len(frame.prefix_ids),
            context_tokens=kept.shape[1],
            system=recipe.system,
            question=_question(frame.seam),
        ),
        source=SourceInfo(
            name=source.name,
            sha256=source.sha256,
            bytes=source.size,
            text_included=recipe.include_text,
            truncated=recipe.truncate if excerpt.dropped else None,
            dropped_tokens=excerpt.dropped,
            dropped_estimated=excerpt.estimated,
            newlines_replaced=source.newlines,
        ),
        compression=CompressionInfo(
            method=recipe.method.name,
            parameters=parameters,
            allocation=recipe.allocation.name,
            allocation_parameters={**recipe.allocation.parameters(), **recipe.guarantees()},
            ratio=budget.ratio,
            budget=budget.tokens,
            pairs_kept=int(kept.sum()),
            pairs_total=kept.numel(),
            kept=counts,
        ),
        creator=CreatorInfo("kvz", __version__),
        pages=PagesInfo(recipe.index.page_size, recipe.index.page_bits) if recipe.index.page_size else None,
        planes=PlanesInfo(recipe.index.planes) if recipe.index.planes else None,
    )


def _question(seam: Seam) -> QuestionInfo:
    return QuestionInfo(seam.before, seam.after_ids, seam.stop_ids, seam.stop_texts, seam.continues)


def parameters_of(recipe: Recipe, model: LanguageModel, frame: Frame, length: int) -> Parameters:
    """The method's parameters as the manifest has them: a question is a text, which may be left out."""
    setting = Setting(model, frame, length, recipe.budget.of(1, length))
    parameters = {**recipe.method.parameters(), **recipe.method.provenance(setting, recipe.budget)}
    if not recipe.include_text and parameters.get("query"):
        parameters["query"] = "(left out)"
    return parameters
