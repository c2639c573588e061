"""An archive in memory: a manifest, a pruned cache, and a model to ask it with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvz.argument_types import FLAG, PATH, Kind, check_types
from kvz.cache.ragged import RaggedCache
from kvz.config import Decoding, Sampling
from kvz.decode.session import Answer, Session, check_asking, check_decoding
from kvz.defaults import MAX_NEW_TOKENS
from kvz.errors import ArchiveMismatch, CorruptArchive
from kvz.format.manifest import Manifest
from kvz.format.open_file import OpenFile
from kvz.format.reader import ArchiveFile, read_archive
from kvz.format.tensors import read_cache
from kvz.format.writer import write_archive
from kvz.geometry import LayerShape
from kvz.models.identity import ModelIdentity, identify_model
from kvz.models.language_model import LanguageModel, load_weights
from kvz.models.recorded import of_recorded
from kvz.progress import Progress
from kvz.prompt import Seam

__all__ = ["Archive", "check_identity", "identity_of", "load", "load_opened", "model_of", "seam_of"]


@dataclass(eq=False)
class Archive:
    """A compressed document. Made by `kvz.compress` or `kvz.load`.

    `seconds` has the wall time of each phase of compressing, and is empty for a loaded archive. A pickle, and a copy,
    has no model: it is loaded again at the first question.
    """

    manifest: Manifest
    cache: RaggedCache
    token_ids: Tensor | None
    seconds: dict[str, float] = field(default_factory=dict)
    _model: LanguageModel | None = None
    _session: Session | None = None
    _mapped: OpenFile | None = None  # the file that the cache's tensors are a mapping of
    _opening: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __repr__(self) -> str:
        info = self.manifest.compression
        return (
            f"<Archive of {self.manifest.source.name!r}: {self.manifest.prompt.context_tokens} tokens, "
            f"{info.pairs_kept} of {info.pairs_total} pairs, {self.manifest.model.id}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": None, "_session": None, "_opening": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _opening=threading.Lock())

    def ask(
        self,
        question: str,
        max_new_tokens: int = MAX_NEW_TOKENS,
        sampling: Sampling | None = None,
        stream: Callable[[str], None] = lambda piece: None,
    ) -> Answer:
        """Answer a question about the document; the model named in the manifest is loaded on first use.

        Raises QuestionError, ModelError, ArchiveMismatch, or ArchiveError if a mapped file was changed in place.
        """
        check_asking(question, max_new_tokens, sampling, stream)  # before a model is loaded
        return self.session().ask(question, max_new_tokens, sampling, stream)

    def session(self, model: LanguageModel | None = None, decoding: Decoding | None = None) -> Session:
        """The session that questions go through, with `model` if given, else the one used before or in the manifest.

        `decoding` makes a new session that reads the archive so; `ask` goes through it from then on. Raises
        ArchiveMismatch if the archive was not made with that model.
        """
        check_types(model=(model, Kind((LanguageModel,), "a loaded model (kvz.load_model)") | None))
        if decoding is not None:
            check_decoding(decoding)
        with self._opening:  # several threads wait for one model, and each gets the session that it asked for
            chosen = model or self._model or model_of(self.manifest)
            session = self._session
            if session is None or chosen is not self._model or decoding is not None:
                session = self._new_session(chosen, decoding)
                self._model, self._session = chosen, session
            return session

    def _new_session(self, model: LanguageModel, decoding: Decoding | None) -> Session:
        check_dtype(self.manifest, model)
        check_identity(self.manifest, model.identity)
        prefix = self.manifest.prompt.prefix_tokens
        self.check_unchanged()
        session = Session(model, self.cache, seam_of(self.manifest), prefix, decoding, self.check_unchanged)
        self.check_unchanged()
        return session

    def check_unchanged(self) -> None:
        """Raise ArchiveError if the archive's file is mapped and was changed in place since it was loaded."""
        if self._mapped is not None:
            self._mapped.check_unchanged()

    def save(self, path: str | Path, overwrite: bool = False, progress: Progress | None = None) -> int:
        """Write a `.kvz` file, atomically; returns its size in bytes. Raises OutputError, or ArchiveError as `ask`."""
        check_types(
            path=(path, PATH),
            overwrite=(overwrite, FLAG),
            progress=(progress, Kind((Progress,), "a kvz.progress.Progress") | None),
        )
        progress = progress or Progress()

        def done(nbytes: int) -> None:
            self.check_unchanged()
            progress.advance(nbytes)

        progress.start("write", self.cache.nbytes, "B")
        try:
            return write_archive(Path(path), self.manifest, self.cache, self.token_ids, overwrite, done)
        finally:
            progress.finish()


def load(path: str | Path, verify: bool = True, mmap: bool | None = None) -> Archive:
    """Load a `.kvz` file. `verify=False` skips the checksums of the tensors, not those of the header.

    With `mmap` the file is mapped: it must not be changed in place while it is used, nor fail to be read. Without, it
    is read into memory. None maps it unless it lies on a network file system. Raises ArchiveError, CorruptArchive or
    ArchiveVersion.
    """
    check_types(path=(path, PATH), verify=(verify, FLAG), mmap=(mmap, FLAG | None))
    return load_opened(*read_archive(path, verify, mmap))


def load_opened(archive: ArchiveFile, data: memoryview | None) -> Archive:
    """An archive that has been opened, of its data section in memory; without `data` it is mapped. CorruptArchive."""
    cache, token_ids = read_cache(archive, torch.device("cpu"), data)
    return Archive(archive.manifest, cache, token_ids, _mapped=archive.file if data is None else None)


def model_of(
    manifest: Manifest,
    name: str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> LanguageModel:
    """Load the model an archive was made with, or `name` in its place, in the archive's own dtype.

    It is compared with the archive before its weights are loaded: raises ArchiveMismatch, ModelError.
    """
    identity = identity_of(manifest, name, progress)
    check_identity(manifest, identity)
    return load_weights(identity, device, manifest.model.dtype)


def identity_of(manifest: Manifest, name: str | None, progress: Progress | None = None) -> ModelIdentity:
    """The identity of `name`, or of the model that the manifest names."""
    say = (progress or Progress()).say
    return of_recorded(manifest, name, lambda found: identify_model(found, say))


def check_identity(manifest: Manifest, model: ModelIdentity) -> None:
    """Raise ArchiveMismatch, naming what differs, unless `model` is the one the archive was made with.

    Raises CorruptArchive if the manifest asks for ids that the model does not have.
    """
    theirs, ours = manifest, model.fingerprints
    same_kind = model.architecture == theirs.model.architecture
    geometry = tuple(LayerShape(layer.kv_heads, layer.head_dim, layer.window) for layer in theirs.model.layers)
    checks = {
        "the weights" if same_kind else f"the architecture ({model.architecture})": ours.model
        != theirs.model.fingerprint,
        "the tokenizer": ours.tokenizer != theirs.tokenizer.fingerprint,
        "the chat template": ours.template != theirs.tokenizer.template_fingerprint,
        "the layers' geometry": geometry != model.geometry.shapes,
    }
    if differing := [name for name, differs in checks.items() if differs]:
        older = (
            "; an archive made from this file when kvz still ignored some of a GGUF file's metadata (scaled positions, "
            "windows, head sizes) has to be made again"
        )
        raise ArchiveMismatch(
            f"this archive was made with {theirs.model.id} ({theirs.model.architecture}); "
            f"{' and '.join(differing)} of {model.source.id} differ: ask with the model it was made with (-m)"
            f"{older if theirs.model.id == model.source.id and theirs.model.id.endswith('.gguf') else ''}"
        )
    if any(i >= model.vocabulary_size for i in theirs.prompt.question.after_ids):
        raise CorruptArchive("the manifest's question ids are outside the model's vocabulary; the archive is damaged")


def check_dtype(manifest: Manifest, model: LanguageModel) -> None:
    """Raise ArchiveMismatch unless the model computes in the dtype of the archive's pairs."""
    if model.dtype_name != manifest.model.dtype:
        raise ArchiveMismatch(
            f"the archive holds {manifest.model.dtype} pairs and the model was loaded in {model.dtype_name}; "
            f"load it with dtype='{manifest.model.dtype}'"
        )


def seam_of(manifest: Manifest) -> Seam:
    """How questions are appended to this archive."""
    question = manifest.prompt.question
    return Seam(question.before, question.after_ids, question.stop_ids, question.stop_texts, question.continues)
