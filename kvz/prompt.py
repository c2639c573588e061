"""The seam between document and question: chat template -> context prefix, question suffix.

The template is rendered once, around marks that stand for the document and the question, and cut at the marks. Only
the template's own pieces may hold control tokens; document, question and system text are always plain text. Ids are
fixed piece by piece and joined as ids, so no token ever forms across a seam. A piece after another is encoded as
text that goes on: joined, the ids are those of the whole text wherever no token of it crosses a seam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvz.errors import ModelError, QuestionError, UsageError
from kvz.models.tokenizer import Tokenizer

__all__ = [
    "Frame",
    "Opening",
    "Seam",
    "Turn",
    "check_instruction",
    "check_part",
    "check_question",
    "check_system",
    "context_ids",
    "is_text",
    "later_ids",
    "make_frame",
    "make_turn",
    "question_ids",
    "repeat_ids",
    "truncate_ids",
    "turn_ids",
]

_DOCUMENT, _QUESTION, _ANSWER = "@@kvz:document@@", "@@kvz:question@@", "@@kvz:answer@@"
_LATER = "@@kvz:later@@"
_SYSTEM = "@@kvz:system@@"
_PROBE = "a"  # stands for a user's text, to see how it begins
_INSTRUCTIONS = {
    "repeat": (
        "Repeat the previous context exactly.",
        "Repeat the part of the previous context exactly, starting with ",
    ),
    "reproduce": ("Reproduce the text above word for word.", "Reproduce the text above word for word, starting from "),
    "copy": ("Write a copy of the document.", "Go on with a copy of the document, after "),
}
"""Wordings of KVzip's instruction, for the first chunk and for later ones, which quote the chunk before."""
_ANY_QUESTION = (
    "Summarize the text above. List the main facts, names, dates and numbers in it. Explain why they matter. "
    "Compare them. Then answer the following question about it:"
)
_OVERLAP = 8  # tokens of the previous chunk that a later instruction quotes

_TRUNCATIONS = ("head", "middle", "tail")


@dataclass(frozen=True)
class Opening:
    """How a user's text begins: as the ids of `before` + text, a text of its own unless it `continues` another."""

    before: str = ""
    continues: bool = False

    def ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Ids of `text` as plain text."""
        return tokenizer.encode_plain(self.before + text, self.continues)


@dataclass(frozen=True)
class Seam:
    """How a question is appended to a context and where its answer ends.

    A question becomes the ids of `before` + question as plain text, which `continues` the context (in archives of
    format 1.1 and before it does not), then `after_ids`. The answer ends at any of `stop_ids`, or before any of
    `stop_texts`.
    """

    before: str
    after_ids: tuple[int, ...]
    stop_ids: tuple[int, ...]
    stop_texts: tuple[str, ...] = ()
    continues: bool = False

    @property
    def opening(self) -> Opening:
        """How a question begins."""
        return Opening(self.before, self.continues)


@dataclass(frozen=True)
class Turn:
    """What stands around a later question of a conversation: `between_ids` after an answer, `after_ids` at its end."""

    between_ids: tuple[int, ...]
    opening: Opening
    after_ids: tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """What stands around a document: `prefix_ids` before it and the seam after it. `kind` is "chat" or "plain".

    `opening` says how the document begins.
    """

    kind: str
    prefix_ids: tuple[int, ...]
    seam: Seam
    opening: Opening = Opening()


def make_frame(tokenizer: Tokenizer, end_ids: frozenset[int], system: str | None = None) -> Frame:
    """The frame of a model's chat template, or a plain "Question/Answer" frame where it has none.

    `system` replaces the template's own system text. Raises UsageError if the template takes none, and ModelError if
    it cannot be cut.
    """
    check_system(system)
    if tokenizer.template is None:
        return _plain_frame(tokenizer, end_ids, system)
    question = {"role": "user", "content": f"{_DOCUMENT}\n\n{_QUESTION}"}
    answer = {"role": "assistant", "content": _ANSWER}
    if system is None:
        text = _render(tokenizer, [question], add_generation_prompt=True)
    else:
        text = _render_with_system(tokenizer, question)
    prefix, before, after = _cut(text, _DOCUMENT, _QUESTION)
    _, end = _cut(_render(tokenizer, [question, answer], add_generation_prompt=False), _ANSWER)
    turn_end = next((i for i in tokenizer.encode_template(end) if i in tokenizer.control_ids), None)
    stops = end_ids if turn_end is None else end_ids | {turn_end}
    after_ids = tuple(tokenizer.encode_template(after, continues=True))
    seam = Seam(before, after_ids, tuple(sorted(stops)), continues=True)
    prefix_ids, opening = _begun(tokenizer, prefix, system)
    return Frame("chat", tuple(prefix_ids), seam, opening)


def make_turn(tokenizer: Tokenizer, seam: Seam) -> Turn:
    """How a conversation over a context with this seam goes on. Raises ModelError if the template cannot be cut."""
    if tokenizer.template is None:
        return Turn((), seam.opening, seam.after_ids)
    messages = [
        {"role": "user", "content": f"{_DOCUMENT}\n\n{_QUESTION}"},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": _LATER},
    ]
    text = _render(tokenizer, messages, add_generation_prompt=True)
    _, between, after = _cut(text, _ANSWER, _LATER)
    between_ids, opening = _up_to_user(tokenizer, between, continues=True)
    return Turn(tuple(between_ids), opening, tuple(tokenizer.encode_template(after, continues=True)))


def context_ids(tokenizer: Tokenizer, frame: Frame, text: str, most: int | None = None) -> list[int]:
    """Ids of a document in its frame, or the first `most` of them, without encoding much more.

    Raises ModelError if it holds a control token that cannot be spelled out.
    """
    ids: list[int] = []
    for piece, _ in tokenizer.pieces(frame.opening.before + text, frame.opening.continues):
        ids += piece
        if most is not None and len(ids) >= most:
            break
    return ids[:most]


def later_ids(tokenizer: Tokenizer, turn: Turn, question: str) -> list[int]:
    """Ids that follow an answer when `question` is asked next; raises QuestionError if it is blank or not text."""
    return [*turn.between_ids, *_asked(tokenizer, turn.opening, question), *turn.after_ids]


def question_ids(tokenizer: Tokenizer, seam: Seam, question: str) -> list[int]:
    """Ids that follow the context when `question` is asked; raises QuestionError if it is blank or not text."""
    return [*_asked(tokenizer, seam.opening, question), *seam.after_ids]


def _asked(tokenizer: Tokenizer, opening: Opening, question: str) -> list[int]:
    text = check_question(question)
    try:
        return opening.ids(tokenizer, text)
    except ModelError as error:
        raise QuestionError(f"the question cannot be asked: {error}") from error


def check_system(system: str | None) -> None:
    """Raise UsageError for system text that is not text."""
    if system is not None and not is_text(system):
        raise UsageError("the system text is not valid text (it holds bytes that are not UTF-8)")


def check_question(question: str) -> str:
    """The question without space around it; raises QuestionError if it is blank or not text."""
    if not isinstance(question, str):
        raise QuestionError(f"a question is one string, not a {type(question).__name__}; ask several one by one")
    text = question.strip()
    if not text:
        raise QuestionError("the question is empty")
    if not is_text(text):
        raise QuestionError("the question is not valid text (it holds bytes that are not UTF-8)")
    return text


def is_text(text: str) -> bool:
    """Whether a string can be written as UTF-8: arguments that are not arrive with lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def repeat_ids(
    tokenizer: Tokenizer, seam: Seam, context: Sequence[int], start: int, end: int, instruction: str = "repeat"
) -> list[int]:
    """KVzip's repeat input for context[start:end]: instruction, the template's turn, and the chunk's own ids."""
    first, later = _INSTRUCTIONS[instruction]
    asked = tokenizer.encode_plain(f"\n\n{later if start else first}", continues=True)
    quoted = context[max(0, start - _OVERLAP) : start]
    return [*asked, *quoted, *seam.after_ids, *context[start:end]]


def turn_ids(tokenizer: Tokenizer, seam: Seam) -> list[int]:
    """Ids of a question that asks for nothing in particular, with the turn of the template around it."""
    return question_ids(tokenizer, seam, _ANY_QUESTION)


def check_instruction(name: str) -> None:
    """Raise UsageError unless there is a wording of that name."""
    if name not in _INSTRUCTIONS:
        raise UsageError(f"no instruction '{name}'; give one of {', '.join(_INSTRUCTIONS)}")


def truncate_ids(ids: Sequence[int], limit: int, part: str) -> list[int]:
    """`ids` cut to `limit` by leaving out their head, middle or tail."""
    check_part(part)
    if len(ids) <= limit:
        return list(ids)
    if part == "head":
        return list(ids[len(ids) - limit :])
    if part == "tail":
        return list(ids[:limit])
    first = (limit + 1) // 2
    return [*ids[:first], *ids[len(ids) - (limit - first) :]]


def check_part(part: str) -> None:
    """Raise UsageError unless `part` is one that can be left out."""
    if part not in _TRUNCATIONS:
        raise UsageError(f"cannot truncate the '{part}'; give one of {', '.join(_TRUNCATIONS)}")


def _plain_frame(tokenizer: Tokenizer, end_ids: frozenset[int], system: str | None) -> Frame:
    prefix = tokenizer.begin_ids + (tokenizer.encode_plain(f"{system}\n\n") if system else [])
    seam = Seam(
        before="\n\nQuestion: ",
        after_ids=tuple(tokenizer.encode_plain("\nAnswer:", continues=True)),
        stop_ids=tuple(sorted(end_ids)),
        stop_texts=("\n\n", "\nQuestion:"),
        continues=True,
    )
    return Frame("plain", tuple(prefix), seam, Opening(continues=bool(system)))


def _begun(tokenizer: Tokenizer, prefix: str, system: str | None) -> tuple[list[int], Opening]:
    """Ids of the template's text before the document, the system text in its place as plain text; the opening."""
    if system is None:
        return _up_to_user(tokenizer, prefix)
    head, _, rest = prefix.partition(_SYSTEM)
    head_ids, opening = _up_to_user(tokenizer, head)
    rest_ids, last = _up_to_user(tokenizer, rest, continues=True)
    return [*head_ids, *opening.ids(tokenizer, system), *rest_ids], last


def _up_to_user(tokenizer: Tokenizer, text: str, continues: bool = False) -> tuple[list[int], Opening]:
    """Ids of a template's text up to a user's text, and how that one begins.

    A tokenizer that puts blanks before texts is asked where it puts one here. A blank that ends the template's text
    belongs to the first word after it.
    """
    if tokenizer.puts_blank:
        whole = tokenizer.encode_template(text + _PROBE, continues)
        for own, opening in (
            (tokenizer.encode_plain(_PROBE), Opening(" ", continues=True) if text.endswith(" ") else Opening()),
            (tokenizer.encode_plain(_PROBE, continues=True), Opening(continues=True)),
        ):
            if whole[-len(own) :] == own:
                return whole[: -len(own)], opening
    return tokenizer.encode_template(text, continues), Opening(continues=True)


def _render_with_system(tokenizer: Tokenizer, question: dict[str, str]) -> str:
    messages = [{"role": "system", "content": _SYSTEM}, question]
    try:
        text = tokenizer.render(messages, add_generation_prompt=True)
    except Exception as error:
        raise UsageError(f"the model's chat template takes no system text ({error}); leave --system out") from error
    if text.partition(_DOCUMENT)[0].count(_SYSTEM) != 1:
        raise UsageError("the model's chat template ignores system text; leave --system out")
    return text


def _render(tokenizer: Tokenizer, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
    try:
        return tokenizer.render(messages, add_generation_prompt)
    except Exception as error:
        raise ModelError(f"the model's chat template cannot be rendered: {error}") from error


def _cut(text: str, *marks: str) -> list[str]:
    pieces = []
    for mark in marks:
        if text.count(mark) != 1:
            raise ModelError(f"the model's chat template shows a message {text.count(mark)} times; it must be once")
        piece, _, text = text.partition(mark)
        pieces.append(piece)
    return [*pieces, text]
