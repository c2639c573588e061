"""What of a document goes into an archive: all of it, or a part where the model has too few positions."""

from __future__ import annotations

from dataclasses import dataclass

from kvz.errors import DocumentError, ModelError
from kvz.models.language_model import LanguageModel
from kvz.models.tokenizer import Tokenizer
from kvz.prompt import Frame, context_ids, truncate_ids

__all__ = ["Excerpt", "excerpt_of"]

_COUNTED = 1 << 20  # characters of a text that is encoded to its end, so that its tokens are counted and not estimated
_RESERVE = 512  # positions that --truncate leaves for question and answer, at most an eighth of the model's


@dataclass(frozen=True)
class Excerpt:
    """Ids of a document, and how many tokens were left out; `estimated` where these were never encoded."""

    ids: list[int]
    dropped: int = 0
    estimated: bool = False


def excerpt_of(model: LanguageModel, frame: Frame, text: str, truncate: str | None) -> Excerpt:
    """The document's ids, its `truncate` part left out if it is too long.

    Of a huge text only what is needed is encoded. Raises DocumentError if it does not fit and nothing may be left out,
    or cannot be encoded.
    """
    positions = model.geometry.max_positions
    around = len(frame.prefix_ids) + len(frame.seam.after_ids)
    question = len(frame.seam.opening.ids(model.tokenizer, "")) + 1
    room = positions - around - question - 1  # a question of one token, and an answer of one
    limit = room - min(_RESERVE, positions // 8)
    try:
        begun = _beginning(model.tokenizer, frame, text, room)
        if begun.complete and len(begun.ids) <= room:
            return Excerpt(begun.ids)
        if (room if truncate is None else limit) < 1:
            raise DocumentError(
                f"the chat template and system text are {around} tokens and leave no room in the model's {positions} "
                "positions; give a shorter --system, or a model with a longer context"
            )
        if truncate is None:
            raise _too_long(begun, positions, around)
        return _cut(model.tokenizer, frame, text, begun, limit, truncate)
    except ModelError as error:
        raise DocumentError(f"the document cannot be encoded: {error}") from error


@dataclass(frozen=True)
class _Beginning:
    """Ids of a text's beginning; `total` tokens of all of it, an estimate unless that is `complete`."""

    ids: list[int]
    total: int
    complete: bool


def _beginning(tokenizer: Tokenizer, frame: Frame, text: str, room: int) -> _Beginning:
    """All ids of a text, or of a huge one more than `room` of them."""
    opening = frame.opening
    whole, before = opening.before + text, len(opening.before)
    ids: list[int] = []
    for piece, end in tokenizer.pieces(whole, opening.continues):
        ids += piece
        if len(text) > _COUNTED and len(ids) > room and end < len(whole):
            total = round(len(ids) * len(text) / (end - before))
            return _Beginning(ids, total, complete=False)
    return _Beginning(ids, len(ids), complete=True)


def _cut(tokenizer: Tokenizer, frame: Frame, text: str, begun: _Beginning, limit: int, part: str) -> Excerpt:
    """`limit` ids of a text that has more."""
    ids = begun.ids
    if not begun.complete:
        last = {"tail": 0, "middle": limit // 2}.get(part, limit)
        end = tokenizer.end_of(text, last) if last else ([], len(text))
        if end is not None:
            first = limit - last
            dropped = max(1, begun.total - limit)
            return Excerpt([*ids[:first], *end[0][len(end[0]) - last :]], dropped, estimated=True)
        ids = context_ids(tokenizer, frame, text)
    return Excerpt(truncate_ids(ids, limit, part), len(ids) - limit)


def _too_long(begun: _Beginning, positions: int, around: int) -> DocumentError:
    tokens = str(begun.total) if begun.complete else f"about {begun.total}"
    return DocumentError(
        f"the document is {tokens} tokens and the model has {positions} positions ({around} go to the chat template "
        "and system text); give a shorter one, --truncate head|middle|tail, or a model with a longer context"
    )
