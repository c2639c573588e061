"""The tokenizer of an archive, for commands that only show its text: nothing is fetched for them."""

from __future__ import annotations

from collections.abc import Sequence

from kvz.archive import identity_of
from kvz.errors import ArchiveMismatch, KvzError, ModelError
from kvz.format.manifest import Manifest
from kvz.models.presence import is_present
from kvz.models.tokenizer import Tokenizer
from kvz.progress import Progress

__all__ = ["find_tokenizer"]


def find_tokenizer(
    manifest: Manifest, ids: Sequence[int], model: str | None, progress: Progress
) -> tuple[Tokenizer | None, str]:
    """The tokenizer that gave an archive its `ids`; or None, and why its text cannot be shown.

    Raises ModelError or ArchiveMismatch if `model`, which a user named, cannot decode them.
    """
    info = manifest.model
    if model is None and not is_present(info.id, info.revision):
        return None, f"the model {info.id} is not on this machine (say with -m where it is)"
    try:
        return _tokenizer(manifest, ids, model, progress), ""
    except KvzError as error:
        if model is not None:
            raise
        return None, str(error)


def _tokenizer(manifest: Manifest, ids: Sequence[int], model: str | None, progress: Progress) -> Tokenizer:
    identity = identity_of(manifest, model, progress)
    if identity.fingerprints.tokenizer != manifest.tokenizer.fingerprint:
        raise ArchiveMismatch(
            f"the tokenizer of {identity.source.id} is not that of {manifest.model.id}, "
            "which the archive was made with; give that model with -m"
        )
    if not all(0 <= token < identity.vocabulary_size for token in ids):
        raise ModelError(f"the archive has token ids that {identity.source.id} does not know")
    return identity.tokenizer
