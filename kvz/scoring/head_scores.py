"""Scores of whole heads, computed once for a model: `[L,H]` float32, NaN where pairs are not evicted from.

A file of them is safetensors with the tensor `scores` and, as metadata, their kind and the model's fingerprint: scores
of another model are refused. Tables (`.tsv`, a row for each layer) can be read and written as well; the ones written
here say the same in a comment, DuoAttention's own (`full_attention_heads.tsv`) do not, so only their shape is checked.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from kvz.errors import ScoringError
from kvz.format.atomic import atomic_file, check_target, output_error
from kvz.geometry import Geometry
from kvz.models.cache_folder import cache_folder, optional_cache_folder
from kvz.models.identity import ModelIdentity
from kvz.scoring.head_score_file import DUO, KVZIP, TABLE, check_suffix, check_there

__all__ = [
    "HeadScores",
    "check_store",
    "find_head_scores",
    "load_head_scores",
    "own_head_scores",
    "stored_path",
]

_FORMAT = "kvz-head-scores"
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class HeadScores:
    """`scores [L,H]` float32 of the model with `fingerprint` (None: not said). `kind` is KVZIP or DUO."""

    scores: Tensor
    kind: str
    fingerprint: str | None
    model_id: str

    @classmethod
    def of_rows(cls, rows: Tensor, geometry: Geometry, kind: str, fingerprint: str, model_id: str) -> HeadScores:
        """From one score for each row of a score matrix, `rows [N]`."""
        scores = torch.full((geometry.layers, max(shape.kv_heads for shape in geometry.shapes)), math.nan)
        for layer, shape in enumerate(geometry.shapes):
            if shape.window is None:
                scores[layer, : shape.kv_heads] = rows[geometry.rows(layer)]
        return cls(scores, kind, fingerprint, model_id)

    def rows(self, geometry: Geometry) -> Tensor:
        """One score for each row of a score matrix: `[N]`."""
        full = [(layer, shape.kv_heads) for layer, shape in enumerate(geometry.shapes) if shape.window is None]
        return torch.cat([self.scores[layer, :heads] for layer, heads in full])

    def of(self, model: ModelIdentity) -> HeadScores:
        """The same scores as this model's own."""
        rows, prints = self.rows(model.geometry), model.fingerprints
        return HeadScores.of_rows(rows, model.geometry, self.kind, prints.model, model.source.id)

    def digest(self, geometry: Geometry) -> str:
        """SHA-256 of the rows, as little-endian float32: which scores an archive was made with."""
        return hashlib.sha256(self.rows(geometry).numpy().astype("<f4").tobytes()).hexdigest()

    def check(self, model: ModelIdentity, where: str) -> None:
        """Raise ScoringError unless these are scores of this model, finite for each of its heads."""
        geometry = model.geometry
        shape = (geometry.layers, max(layer.kv_heads for layer in geometry.shapes))
        if self.fingerprint not in (None, model.fingerprints.model):
            raise ScoringError(
                f"the head scores in {where} are those of {self.model_id}, not of {model.source.id}: "
                "compute them with kvz calibrate -m"
            )
        if tuple(self.scores.shape) != shape:
            raise ScoringError(
                f"the head scores in {where} are for {' x '.join(map(str, self.scores.shape))} heads, "
                f"{model.source.id} has {shape[0]} x {shape[1]}"
            )
        if not bool(torch.isfinite(self.rows(geometry)).all()):
            raise ScoringError(f"the head scores in {where} are not finite for every head")

    def write(self, path: Path, overwrite: bool = False) -> None:
        """Write to a `.safetensors` file, or as a table to a `.tsv` one. Raises OutputError or UsageError."""
        check_suffix(path)
        metadata = {"format": _FORMAT, "kind": self.kind, "model": self.model_id}
        if self.fingerprint is not None:
            metadata["fingerprint"] = self.fingerprint
        if path.suffix.lower() == TABLE:
            rows = ("\t".join(f"{value:.9g}" for value in row) for row in self.scores.tolist())
            data = "".join(f"{row}\n" for row in (f"# {json.dumps(metadata)}", *rows)).encode()
        else:
            data = save({"scores": self.scores.contiguous()}, metadata)
        with atomic_file(path, overwrite) as file:
            file.write(data)

    def store(self, model: ModelIdentity) -> None:
        """Write to the cache folder, as this model's. Raises OutputError."""
        self.of(model).write(check_store(model, self.kind), overwrite=True)


def check_store(model: ModelIdentity, kind: str) -> Path:
    """Where scores are going to be stored; raises OutputError if they cannot be."""
    path = stored_path(model, kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(path, error) from error
    check_target(path, overwrite=True)
    return path


def load_head_scores(path: Path) -> HeadScores:
    """Read a `.safetensors` or `.tsv` file of head scores; raises ScoringError."""
    check_there(path)
    return _from_table(path) if path.suffix.lower() == TABLE else _from_safetensors(path)


def stored_path(model: ModelIdentity, kind: str) -> Path:
    """Where the scores of a model lie in the cache folder once they have been computed or imported."""
    return cache_folder() / "head-scores" / f"{model.fingerprints.model}.{kind}.safetensors"


def find_head_scores(model: ModelIdentity, file: str | None, kinds: tuple[str, ...]) -> HeadScores:
    """The scores in `file`, or else the model's own: stored in the cache folder, or shipped with kvz.

    `kinds` are tried in order. Raises ScoringError if there are none, or if they are not this model's.
    """
    if file is not None:
        found = load_head_scores(Path(file))
        found.check(model, file)
        if found.kind not in kinds:
            raise ScoringError(f"{file} holds head scores of kind {found.kind}, not of kind {' or '.join(kinds)}")
        return found
    own = own_head_scores(model, kinds)
    if own is None:
        raise ScoringError(
            f"there are no head scores of {model.source.id}; compute them once with kvz calibrate -m {model.source.id}"
        )
    return own


def own_head_scores(model: ModelIdentity, kinds: tuple[str, ...]) -> HeadScores | None:
    """A model's scores, stored in the cache folder or shipped with kvz; None if there are none."""
    if optional_cache_folder() is not None:
        for kind in kinds:
            stored = stored_path(model, kind)
            if os.path.isfile(stored):  # which is false of what is out of reach
                return _stored(stored, model)
    shipped = files("kvz.scoring") / "shipped" / f"{model.fingerprints.model}.safetensors"
    if not shipped.is_file():
        return None
    with as_file(shipped) as path:
        return load_head_scores(path)


def _stored(path: Path, model: ModelIdentity) -> HeadScores:
    try:
        found = load_head_scores(path)
        found.check(model, str(path))
    except ScoringError as error:
        raise ScoringError(f"{error}; kvz calibrate --again -m {model.source.id} replaces them") from error
    return found


def _from_safetensors(path: Path) -> HeadScores:
    try:
        with safe_open(str(path), framework="pt") as opened:
            metadata = opened.metadata() or {}
            stored = opened.get_tensor("scores")
    except (SafetensorError, OSError) as error:
        raise ScoringError(f"{path} is no file of head scores: {error}") from error
    scores = stored.float() if stored.dtype in _DTYPES else torch.empty(0)
    if metadata.get("format") != _FORMAT or scores.dim() != 2:
        raise ScoringError(f"{path} is no file of head scores; kvz calibrate writes one")
    return _described(scores, metadata, path)


def _described(scores: Tensor, metadata: dict[str, str], path: Path) -> HeadScores:
    """Scores with what their file says of them; without a word they are DuoAttention's in a table, else KVzip's."""
    kind = metadata.get("kind", DUO if path.suffix.lower() == TABLE else KVZIP)
    if kind not in (KVZIP, DUO):  # it becomes part of a file's name
        raise ScoringError(f"{path} holds head scores of a kind unknown here; there are {KVZIP} and {DUO}")
    return HeadScores(scores, kind, metadata.get("fingerprint"), metadata.get("model", path.name))


def _from_table(path: Path) -> HeadScores:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = [[float(cell) for cell in line.split()] for line in lines if not line.startswith("#")]
        if len({len(row) for row in rows}) > 1:
            raise ValueError("its rows differ in length")
        scores = torch.tensor(rows, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ScoringError(f"{path} is no table of head scores, a row of numbers for each layer: {error}") from error
    if scores.dim() != 2:
        raise ScoringError(f"{path} is no table of head scores: it is empty")
    return _described(scores, _comment(lines[0]), path)


def _comment(line: str) -> dict[str, str]:
    """What a table written here says of itself in its first line; nothing of others."""
    try:
        found = json.loads(line.removeprefix("#")) if line.startswith("#") else {}
    except (ValueError, RecursionError):
        return {}
    ours = isinstance(found, dict) and found.get("format") == _FORMAT
    return {name: str(value) for name, value in found.items()} if ours else {}
