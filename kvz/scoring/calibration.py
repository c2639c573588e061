"""Calibration: KVzip's scores of one long text, reduced to one score for each head (arXiv 2505.23416)."""

from __future__ import annotations

from importlib.resources import files

from torch import Tensor

from kvz.errors import DocumentError
from kvz.models.language_model import LanguageModel
from kvz.models.prefill import prefill
from kvz.progress import Progress
from kvz.prompt import context_ids, make_frame
from kvz.scoring.head_score_file import KVZIP
from kvz.scoring.head_scores import HeadScores
from kvz.scoring.kvzip import KVzip
from kvz.scoring.method import Context
from kvz.scoring.selection import check_finite

__all__ = ["calibrate", "calibration_text"]

_FEW = 512  # tokens


def calibration_text() -> str:
    """The text that heads are scored with unless another one is given."""
    return (files("kvz.scoring") / "calibration.txt").read_text(encoding="utf-8")


def calibrate(model: LanguageModel, text: str, progress: Progress | None = None) -> HeadScores:
    """Score the heads of a model: of each, the largest score of any of its pairs over `text`.

    A text longer than the model's positions allow is cut at its end. Raises DocumentError if it is
    blank, and ScoringError if a score is NaN or infinite.
    """
    progress = progress or Progress()
    frame = make_frame(model.tokenizer, model.end_ids)
    # The repeat input has positions after the text's own: as many again, or a chunk's.
    room = model.geometry.max_positions - len(frame.prefix_ids) - len(frame.seam.after_ids)
    ids = context_ids(model.tokenizer, frame, text, max(1, room // 2, room - 2 * KVzip().chunk))
    if not text.strip():
        raise DocumentError("the text to calibrate with is blank")
    prompt = [*frame.prefix_ids, *ids]
    progress.start("prefill", len(prompt), "tokens")
    context = Context(frame, tuple(ids), prefill(model, prompt, done=progress.advance))
    progress.start("score", len(ids), "tokens")
    scores = KVzip().score(model, context, progress.advance)
    check_finite(scores, model.geometry.row_layers)
    rows: Tensor = scores.amax(1)
    progress.finish()
    if len(ids) < _FEW:
        progress.say(f"only {len(ids)} tokens: heads scored with a text of a few thousand are told apart better")
    prints = model.identity.fingerprints
    return HeadScores.of_rows(rows, model.geometry, KVZIP, prints.model, model.source.id)
