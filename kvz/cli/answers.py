"""How answers are shown: plainly on stdout, or as JSON; their statistics on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvz import wording
from kvz.cli import console
from kvz.cli.questions import Question
from kvz.errors import KvzError

if TYPE_CHECKING:
    from kvz.decode.sequence import Answer
    from kvz.decode.session import Session
    from kvz.progress import Progress

__all__ = ["PlainAnswer", "answer_json", "failure_json", "say_compiling", "say_covered", "show_answer", "statistics"]


class PlainAnswer:
    """An answer as it streams: no space before it, one line break after it."""

    def __init__(self) -> None:
        self._begun = False
        self._held = ""

    def write(self, piece: str) -> None:
        """Show what is settled; white space at its end waits for what follows."""
        text = self._held + piece
        text = text if self._begun else text.lstrip()
        body = text.rstrip()
        self._held = text[len(body) :]
        if body:
            self._begun = True
            console.emit(body, end="")

    def end(self) -> None:
        """End the answer's line."""
        console.emit("")

    def end_line(self) -> None:
        """End the line of an answer that was cut short."""
        if self._begun:
            console.emit("")


def say_compiling(session: Session, progress: Progress) -> None:
    """Say to who waits at a terminal why the first answer on a machine takes longer."""
    from kvz.kernels.decode_step import is_to_be_compiled

    watched = sys.stderr is not None and sys.stderr.isatty()
    model = session.model
    group = model.geometry.query_heads // model.geometry.shapes[0].kv_heads
    if watched and is_to_be_compiled(model.device, session.policy, model.dtype, group):
        progress.say("compiling kernels for this machine, once: it takes some seconds")


def say_covered(budget: int | None, policy: str, say: Callable[[str], None]) -> bool:
    """Say that a budget has no effect, where an archive is read densely in spite of it; whether that was said."""
    covered = budget is not None and policy == "dense"
    if covered:
        say("the budget covers every head of the archive: all pairs are read")
    return covered


def show_answer(question: Question, answer: Answer, as_json: bool, quiet: bool) -> None:
    """An answer that is complete and was not streamed."""
    if as_json:
        console.emit_json(answer_json(question, answer))
    else:
        console.emit(answer.text)
        if not quiet:
            console.note(statistics(answer))


def failure_json(question: Question, error: KvzError) -> dict[str, Any]:
    """A question that could not be answered, as --json prints it."""
    return {"id": question.id, "question": question.text, "error": str(error)}


def answer_json(question: Question, answer: Answer) -> dict[str, Any]:
    """An answer as --json prints it."""
    return {
        "id": question.id,
        "question": question.text,
        "answer": answer.text,
        "stop": answer.stop,
        "context_tokens": answer.context_tokens,
        "question_tokens": answer.question_tokens,
        "new_tokens": answer.new_tokens,
        "first_token_seconds": round(answer.first_token_seconds, 4),
        "token_seconds": None if answer.token_seconds is None else round(answer.token_seconds, 4),
        "kv_bytes": answer.kv_bytes,
        "policy": answer.policy,
        "pairs_read": None if answer.pairs_read is None else round(answer.pairs_read, 1),
    }


def statistics(answer: Answer) -> str:
    """What an answer took, in a line."""
    rate = f", then {1 / answer.token_seconds:.1f} tokens/s" if answer.token_seconds else ""
    cut = {"end": "", "length": " (cut: --max-new-tokens)", "full": " (cut: no position left)"}[answer.stop]
    read = (
        f", {wording.quantity(round(answer.pairs_read))} pairs of all heads read a token" if answer.pairs_read else ""
    )
    sparse = f"; {answer.policy}{read}" if answer.policy != "dense" else ""
    held = f"{wording.size(answer.kv_bytes)} of KV{sparse}"
    return (
        f"  {answer.new_tokens} tokens{cut}, first after {wording.seconds(answer.first_token_seconds)}{rate}; "
        f"{wording.quantity(answer.context_tokens)} tokens of context reused, {held}"
    )
