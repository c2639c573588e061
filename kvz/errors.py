"""Every error that kvz raises on purpose.

    KvzError                    exit status 1
    ├── UsageError              exit status 2: an argument is out of range or cannot apply
    │   └── BudgetTooSmall      for what every head keeps in any case
    ├── DocumentError           the document cannot be read, is empty, or is too long
    ├── QuestionError           the question is empty or does not fit
    ├── ModelError              the model cannot be found or loaded
    │   └── UnsupportedModel    the architecture or a kind of layer is not one kvz can store
    ├── ScoringError            scores are not numbers, or head scores cannot be read or are another model's
    ├── DecodeError             logits are not finite
    ├── ArchiveError            the archive cannot be read
    │   ├── CorruptArchive      truncated, a flipped byte, sizes that cannot be
    │   ├── ArchiveVersion      written by a newer major version
    │   └── ArchiveMismatch     made with another model, tokenizer or chat template
    └── OutputError             the output cannot be written

A message says what is wrong, where, and what to do about it, in one line.
"""

from __future__ import annotations

__all__ = [
    "ArchiveError",
    "ArchiveMismatch",
    "ArchiveVersion",
    "BudgetTooSmall",
    "CorruptArchive",
    "DecodeError",
    "DocumentError",
    "KvzError",
    "ModelError",
    "OutputError",
    "QuestionError",
    "ScoringError",
    "UnsupportedModel",
    "UsageError",
]


class KvzError(Exception):
    """Base of the tree; `exit_status` is what the command line returns."""

    exit_status = 1


class UsageError(KvzError):
    """An argument is out of range, or given where it cannot apply."""

    exit_status = 2


class BudgetTooSmall(UsageError):
    """The budget cannot give every head what it keeps in any case."""


class DocumentError(KvzError):
    """The document cannot be read, is empty, or is too long for the model."""


class QuestionError(KvzError):
    """The question is empty, or longer than the space left after the context."""


class ModelError(KvzError):
    """The model cannot be found, fetched or loaded."""


class UnsupportedModel(ModelError):
    """The architecture, or a kind of layer in it, is not one that kvz can store."""


class ScoringError(KvzError):
    """Scores came out as NaN or infinite, or head scores are missing, unreadable or those of another model."""


class DecodeError(KvzError):
    """The model's logits came out as NaN or infinite."""


class ArchiveError(KvzError):
    """The archive cannot be read."""


class CorruptArchive(ArchiveError):
    """The file is truncated, damaged, or not an archive at all."""


class ArchiveVersion(ArchiveError):
    """The archive was written by a newer major version of the format."""


class ArchiveMismatch(ArchiveError):
    """The archive was made with another model, tokenizer or chat template."""


class OutputError(KvzError):
    """The output cannot be written."""
