"""kvz calibrate: the head scores of a model, computed once, imported or exported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from kvz.cli import console
from kvz.cli.options import DeviceOption, JsonOption, ModelOption, QuietOption
from kvz.errors import UsageError

if TYPE_CHECKING:
    from kvz.models.identity import ModelIdentity
    from kvz.progress import Progress
    from kvz.scoring.head_scores import HeadScores

__all__ = ["calibrate"]


def calibrate(
    model: ModelOption = None,
    text: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE", help="Natural text to score the heads with, - for stdin. [default: one of ours]"),
    ] = None,
    import_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--import", metavar="FILE", help="Take the scores from a .safetensors or DuoAttention .tsv file."),
    ] = None,
    export_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--export", metavar="FILE", help="Write the model's scores to a .safetensors or .tsv file as well."
        ),
    ] = None,
    device: DeviceOption = "auto",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "float32",
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Compute scores that are there already, and replace an exported file.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a model's heads once, so that --method kvzip-head and duo compress without a scoring pass.

    The scores go to the cache folder, under the model's fingerprint.
    """
    if text is not None and import_file is not None:
        raise UsageError("--text computes scores and --import takes them from a file; give one of the two")
    from kvz.format.atomic import check_target
    from kvz.models.identity import identify_model
    from kvz.scoring.head_scores import check_suffix

    if export_file is not None:
        check_suffix(export_file)
        check_target(export_file, overwrite=force)
    progress = console.terminal_progress(quiet)
    identity = identify_model(model, progress.say)
    scores, stored, done = _scores(identity, text, import_file, device, dtype, force, progress)
    if export_file is not None:
        scores.write(export_file, overwrite=force)
    summary = _summary(scores, stored, identity, export_file)
    if as_json:
        console.emit_json(summary)
    if not quiet:
        console.note(f"head scores of {identity.source.id} {done}: {stored}")
        if export_file is not None:
            console.note(f"  written to {export_file}")


def _scores(
    identity: ModelIdentity,
    text: str | None,
    import_file: Path | None,
    device: str,
    dtype: str,
    force: bool,
    progress: Progress,
) -> tuple[HeadScores, Path, str]:
    """The scores, where they are stored, and in a word how they came there."""
    from kvz.scoring.head_scores import KVZIP, load_head_scores, stored_path

    if import_file is not None:
        found = load_head_scores(import_file)
        found.check(identity, str(import_file))
        stored = stored_path(identity, found.kind)
        found.store(identity)
        return found, stored, "imported"
    stored = stored_path(identity, KVZIP)
    if stored.is_file() and text is None and not force:
        found = load_head_scores(stored)
        found.check(identity, str(stored))
        return found, stored, "are there already (-f computes them again)"
    from kvz.documents import read_document
    from kvz.models.language_model import load_weights
    from kvz.scoring.calibration import calibrate as compute
    from kvz.scoring.calibration import calibration_text

    chosen = calibration_text() if text is None else read_document(text).text
    try:
        found = compute(load_weights(identity, device, dtype), chosen, progress)
    finally:
        progress.finish()
    found.store(identity)
    return found, stored, "computed"


def _summary(scores: HeadScores, stored: Path, identity: ModelIdentity, export: Path | None) -> dict[str, Any]:
    rows = scores.scores.tolist()
    return {
        "model": identity.source.id,
        "fingerprint": identity.fingerprints.model,
        "kind": scores.kind,
        "stored": str(stored),
        "exported": None if export is None else str(export),
        "scores": [[None if value != value else value for value in row] for row in rows],
    }
