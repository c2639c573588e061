"""kvz calibrate: the head scores of a model, computed once, imported or exported."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from kvz.cli import console
from kvz.cli.options import DeviceOption, JsonOption, ModelOption, QuietOption
from kvz.cli.targets import check_output
from kvz.documents import read_document
from kvz.errors import UsageError
from kvz.models.placement import check_placement
from kvz.models.source import check_model
from kvz.scoring.head_score_file import check_suffix, check_there

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
    again: Annotated[bool, typer.Option("--again", help="Compute the scores even if they are there already.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing --export file.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a model's heads once, so that --method kvzip-head and duo compress without a scoring pass.

    The scores go to the cache folder, under the model's fingerprint.
    """
    computing = {"--text": text is not None, "--again": again, "--device": device != "auto"}
    computing["--dtype"] = dtype != "float32"
    if import_file is not None and any(computing.values()):
        named = next(option for option, given in computing.items() if given)
        raise UsageError(f"{named} is for computing scores and --import takes them from a file; give one of the two")
    if force and export_file is None:
        raise UsageError("--force replaces the file of --export, which is not given (--again computes scores again)")
    check_placement(device, dtype)
    if export_file is not None:
        check_suffix(export_file)
        check_output(export_file, force)
    if import_file is not None:
        check_there(import_file)
    check_model(model)
    chosen = None if text is None else read_document(text).text
    from kvz.models.identity import identify_model

    progress = console.terminal_progress(quiet)
    identity = identify_model(model, progress.say)
    if import_file is not None:
        scores, done = _imported(identity, import_file), "imported"
    else:
        scores, done = _scores(identity, chosen, again, device, dtype, progress)
    if export_file is not None:
        scores.write(export_file, overwrite=force)
    summary = _summary(scores, identity, export_file)
    if as_json:
        console.emit_json(summary)
    if not quiet:
        console.note(f"head scores of {identity.source.id} {done}: {summary['stored'] or 'shipped with kvz'}")
        if export_file is not None:
            console.note(f"  written to {export_file}")


def _imported(identity: ModelIdentity, file: Path) -> HeadScores:
    from kvz.scoring.head_scores import load_head_scores

    found = load_head_scores(file)
    found.check(identity, str(file))
    found.store(identity)
    return found.of(identity)


def _scores(
    identity: ModelIdentity, text: str | None, again: bool, device: str, dtype: str, progress: Progress
) -> tuple[HeadScores, str]:
    """The scores, and in a word how they came there."""
    from kvz.scoring.head_score_file import KVZIP
    from kvz.scoring.head_scores import check_store, own_head_scores

    if text is None and not again:
        own = own_head_scores(identity, (KVZIP,))
        if own is not None:
            return own, "are there already (--again computes them anew)"
    replaced = ", in place of others" if check_store(identity, KVZIP).is_file() else ""
    from kvz.models.language_model import load_weights
    from kvz.scoring.calibration import calibrate as compute
    from kvz.scoring.calibration import calibration_text

    chosen = calibration_text() if text is None else text
    try:
        found = compute(load_weights(identity, device, dtype), chosen, progress)
    finally:
        progress.finish()
    found.store(identity)
    return found, f"computed{replaced}"


def _summary(scores: HeadScores, identity: ModelIdentity, export: Path | None) -> dict[str, Any]:
    from kvz.scoring.head_scores import stored_path

    stored = stored_path(identity, scores.kind)
    return {
        "model": identity.source.id,
        "fingerprint": identity.fingerprints.model,
        "kind": scores.kind,
        "stored": str(stored) if stored.is_file() else None,
        "exported": None if export is None else str(export),
        "scores": [[value if math.isfinite(value) else None for value in row] for row in scores.scores.tolist()],
    }
