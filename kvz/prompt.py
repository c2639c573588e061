"""The seam between document and question: chat template -> context prefix, question suffix.

The template is rendered once, around marks that stand for the document and the question, and cut at the marks. Only
the template's own pieces may hold control tokens; document and question are always plain text. Ids are fixed piece by
piece and joined as ids, so no token ever forms across a seam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvz.errors import ModelError, QuestionError, UsageError
from kvz.models.tokenizer import Tokenizer

__all__ = ["TRUNCATIONS", "Frame", "Seam", "make_frame", "question_ids", "repeat_ids", "truncate_ids"]

_DOCUMENT, _QUESTION, _ANSWER = "@@kvz:document@@", "@@kvz:question@@", "@@kvz:answer@@"
_FIRST_INSTRUCTION = "\n\nRepeat the previous context exactly."
_LATER_INSTRUCTION = "\n\nRepeat the part of the previous context exactly, starting with "
_OVERLAP = 8  # tokens of the previous chunk that a later instruction quotes

TRUNCATIONS = ("head", "middle", "tail")


@dataclass(frozen=True)
class Seam:
    """How a question is appended to a context and where its answer ends.

    A question becomes the ids of `before` + question as plain text, then `after_ids`. The answer ends at any of
    `stop_ids`, or before any of `stop_texts`.
    """

    before: str
    after_ids: tuple[int, ...]
    stop_ids: tuple[int, ...]
    stop_texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Frame:
    """What stands around a document: `prefix_ids` before it and the seam after it. `kind` is "chat" or "plain"."""

    kind: str
    prefix_ids: tuple[int, ...]
    seam: Seam
    system: str | None


def make_frame(tokenizer: Tokenizer, end_ids: frozenset[int], system: str | None = None) -> Frame:
    """The frame of a model's chat template, or a plain "Question/Answer" frame where it has none.

    `system` replaces the template's own system text. Raises UsageError if the template takes none, and ModelError if
    it cannot be cut.
    """
    if system is not None and not is_text(system):
        raise UsageError("the system text is not valid text (it holds bytes that are not UTF-8)")
    if tokenizer.template is None:
        return _plain_frame(tokenizer, end_ids, system)
    head = [] if system is None else [{"role": "system", "content": system}]
    question = {"role": "user", "content": f"{_DOCUMENT}\n\n{_QUESTION}"}
    text = _render(tokenizer, [*head, question], add_generation_prompt=True, system=system)
    prefix, before, after = _cut(text, _DOCUMENT, _QUESTION)
    if system and system.strip() not in prefix:
        raise UsageError("the model's chat template ignores system text; leave --system out")
    answered = _render(
        tokenizer, [*head, question, {"role": "assistant", "content": _ANSWER}], add_generation_prompt=False
    )
    _, end = _cut(answered, _ANSWER)
    turn_end = next((i for i in tokenizer.encode_template(end) if i in tokenizer.control_ids), None)
    stops = end_ids if turn_end is None else end_ids | {turn_end}
    seam = Seam(before, tuple(tokenizer.encode_template(after)), tuple(sorted(stops)))
    return Frame("chat", tuple(tokenizer.encode_template(prefix)), seam, system)


def question_ids(tokenizer: Tokenizer, seam: Seam, question: str) -> list[int]:
    """Ids that follow the context when `question` is asked; raises QuestionError if it is blank or not text."""
    text = question.strip()
    if not text:
        raise QuestionError("the question is empty")
    if not is_text(text):
        raise QuestionError("the question is not valid text (it holds bytes that are not UTF-8)")
    return tokenizer.encode_plain(seam.before + text) + list(seam.after_ids)


def is_text(text: str) -> bool:
    """Whether a string can be written as UTF-8: arguments that are not arrive with lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def repeat_ids(tokenizer: Tokenizer, seam: Seam, context: Sequence[int], start: int, end: int) -> list[int]:
    """KVzip's repeat input for context[start:end]: instruction, the template's turn, and the chunk's own ids."""
    if start == 0:
        instruction = tokenizer.encode_plain(_FIRST_INSTRUCTION)
    else:
        instruction = [*tokenizer.encode_plain(_LATER_INSTRUCTION), *context[max(0, start - _OVERLAP) : start]]
    return [*instruction, *seam.after_ids, *context[start:end]]


def truncate_ids(ids: Sequence[int], limit: int, part: str) -> list[int]:
    """`ids` cut to `limit` by leaving out their head, middle or tail."""
    if part not in TRUNCATIONS:
        raise UsageError(f"cannot truncate the '{part}'; give one of {', '.join(TRUNCATIONS)}")
    if len(ids) <= limit:
        return list(ids)
    if part == "head":
        return list(ids[len(ids) - limit :])
    if part == "tail":
        return list(ids[:limit])
    first = (limit + 1) // 2
    return [*ids[:first], *ids[len(ids) - (limit - first) :]]


def _plain_frame(tokenizer: Tokenizer, end_ids: frozenset[int], system: str | None) -> Frame:
    prefix = tokenizer.begin_ids + (tokenizer.encode_plain(f"{system}\n\n") if system else [])
    seam = Seam(
        before="\n\nQuestion: ",
        after_ids=tuple(tokenizer.encode_plain("\nAnswer:")),
        stop_ids=tuple(sorted(end_ids)),
        stop_texts=("\n\n", "\nQuestion:"),
    )
    return Frame("plain", tuple(prefix), seam, system)


def _render(
    tokenizer: Tokenizer, messages: list[dict[str, str]], add_generation_prompt: bool, system: str | None = None
) -> str:
    try:
        return tokenizer.render(messages, add_generation_prompt)
    except Exception as error:
        if system is not None:
            raise UsageError(f"the model's chat template takes no system text ({error}); leave --system out") from error
        raise ModelError(f"the model's chat template cannot be rendered: {error}") from error


def _cut(text: str, *marks: str) -> list[str]:
    pieces = []
    for mark in marks:
        if text.count(mark) != 1:
            raise ModelError(f"the model's chat template shows a message {text.count(mark)} times; it must be once")
        piece, _, text = text.partition(mark)
        pieces.append(piece)
    return [*pieces, text]
