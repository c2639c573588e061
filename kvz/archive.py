"""An archive in memory: a manifest, a pruned cache, and a model to ask it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache
from kvz.decode.sampling import Sampling
from kvz.decode.session import MAX_NEW_TOKENS, Answer, Session
from kvz.errors import ArchiveError, ArchiveMismatch, CorruptArchive, ModelError
from kvz.format.manifest import Manifest
from kvz.format.reader import open_archive
from kvz.format.tensors import read_cache
from kvz.format.writer import write_archive
from kvz.models.language_model import LanguageModel, load_model
from kvz.progress import Progress
from kvz.prompt import Seam

__all__ = ["Archive", "check_model", "load"]


@dataclass
class Archive:
    """A compressed document. Made by `kvz.compress` or `kvz.load`.

    `seconds` has the wall time of each phase of compressing, and is empty for a loaded archive.
    """

    manifest: Manifest
    cache: RaggedCache
    token_ids: Tensor | None
    seconds: dict[str, float] = field(default_factory=dict)
    _model: LanguageModel | None = None
    _session: Session | None = None

    def ask(
        self,
        question: str,
        max_new_tokens: int = MAX_NEW_TOKENS,
        sampling: Sampling | None = None,
        stream: Callable[[str], None] = lambda piece: None,
    ) -> Answer:
        """Answer a question about the document; the model named in the manifest is loaded on first use.

        Raises QuestionError, ModelError or ArchiveMismatch.
        """
        return self.session().ask(question, max_new_tokens, sampling, stream)

    def session(self, model: LanguageModel | None = None) -> Session:
        """The session that questions go through, with `model` if given, else the one used before or in the manifest.

        Raises ArchiveMismatch if the archive was not made with that model.
        """
        if model is not None and model is not self._model:
            self._model, self._session = model, None
        if self._model is None:
            self._model = model_of(self.manifest)
        if self._session is None:
            check_model(self.manifest, self._model)
            self._session = Session(self._model, self.cache, seam_of(self.manifest))
        return self._session

    def save(self, path: str | Path, overwrite: bool = False, progress: Progress | None = None) -> int:
        """Write a `.kvz` file, atomically; returns its size in bytes. Raises OutputError."""
        progress = progress or Progress()
        progress.start("write", self.cache.nbytes, "B")
        size = write_archive(Path(path), self.manifest, self.cache, self.token_ids, overwrite, progress.advance)
        progress.finish()
        return size


def load(path: str | Path, verify: bool = True) -> Archive:
    """Load a `.kvz` file, memory-mapped. `verify=False` skips the checksums of the tensors, not those of the header.

    Raises ArchiveError, CorruptArchive or ArchiveVersion.
    """
    file = open_archive(path)
    if verify:
        for _ in file.verify_checksums():
            pass
    cache, token_ids = read_cache(file, torch.device("cpu"))
    return Archive(file.manifest, cache, token_ids)


def model_of(
    manifest: Manifest,
    name: str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> LanguageModel:
    """Load the model an archive was made with, or `name` in its place, in the archive's own dtype."""
    info, say = manifest.model, (progress or Progress()).say
    if name is not None:
        return load_model(name, device, info.dtype, say)
    try:
        return load_model(f"{info.id}@{info.revision}" if info.revision else info.id, device, info.dtype, say)
    except ModelError as error:
        raise ModelError(
            f"the archive was made with {info.id}; {error}; say with -m where that model is now"
        ) from error


def check_model(manifest: Manifest, model: LanguageModel) -> None:
    """Raise ArchiveMismatch, naming what differs, unless `model` is the one the archive was made with."""
    ours, theirs = model.fingerprints, manifest
    differing = []
    if ours.model != theirs.model.fingerprint:
        same_kind = model.architecture == theirs.model.architecture
        differing.append("the weights" if same_kind else f"the model ({model.architecture})")
    if ours.tokenizer != theirs.tokenizer.fingerprint:
        differing.append("the tokenizer")
    if ours.template != theirs.tokenizer.template_fingerprint:
        differing.append("the chat template")
    if str(model.dtype).removeprefix("torch.") != theirs.model.dtype:
        raise ArchiveError(f"the archive holds {theirs.model.dtype}, the model was loaded as {model.dtype}; match them")
    if [(layer.kv_heads, layer.head_dim) for layer in theirs.model.layers] != model.geometry.shapes:
        differing.append("the layers' geometry")
    if any(i >= model.vocabulary_size for i in theirs.prompt.question.after_ids):
        raise CorruptArchive("the manifest's question ids are outside the model's vocabulary; the archive is damaged")
    if differing:
        raise ArchiveMismatch(
            f"this archive was made with {theirs.model.id} ({theirs.model.architecture}); "
            f"{' and '.join(differing)} of {model.source.id} differ: ask with the model it was made with (-m)"
        )


def seam_of(manifest: Manifest) -> Seam:
    """How questions are appended to this archive."""
    question = manifest.prompt.question
    return Seam(question.before, question.after_ids, question.stop_ids, question.stop_texts)
