"""The turns of a chat as they are asked and shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvz.cli import console
from kvz.cli.answers import PlainAnswer, answer_json, failure_json, statistics
from kvz.cli.questions import Question
from kvz.cli.signals import is_final, raise_lost
from kvz.errors import KvzError, OutputError, QuestionError

if TYPE_CHECKING:
    from kvz.config import Sampling
    from kvz.decode.conversation import Conversation
    from kvz.decode.sequence import Answer

__all__ = ["Talk", "outlives"]


class Talk:
    """Asks the turns of one chat; `turns` are the questions and answers so far, `failed` counts those that failed."""

    def __init__(self, conversation: Conversation, limit: int, sampling: Sampling, as_json: bool, quiet: bool) -> None:
        self.conversation = conversation
        self.turns: list[tuple[str, str]] = []
        self.failed = 0
        self._asked = 0
        self._limit, self._sampling = limit, sampling
        self._as_json, self._quiet = as_json, quiet

    def turn(self, text: str) -> None:
        """Ask the next question. What ends its answer early does not end the chat where that `outlives` it."""
        self._asked += 1
        question, plain = Question(self._asked, text), PlainAnswer()
        said: list[str] = []
        before = self.conversation.turns

        def stream(piece: str) -> None:
            raise_lost()
            said.append(piece)
            if not self._as_json:
                plain.write(piece)

        try:
            answer = self.conversation.ask(text, self._limit, self._sampling, stream)
        except QuestionError as error:
            hint = "; /reset forgets the turns before" if self.conversation.turns else ""
            self._report(question, error, hint)
        except BaseException as error:  # a signal's too: what is said of it gets a line of its own
            plain.end_line()
            if not outlives(error):
                raise
            kept = self.conversation.turns > before
            if kept:
                self.turns.append((text, "".join(said).strip()))
            if isinstance(error, KvzError):
                self._report(question, error)
            elif not self._quiet:
                console.note("kvz: answer stopped" if kept else "kvz: question taken back")
        else:
            self.turns.append((text, answer.text))
            self._show(question, answer, plain)

    def _show(self, question: Question, answer: Answer, plain: PlainAnswer) -> None:
        """The end of an answer that was streamed, or all of it as JSON."""
        if self._as_json:
            console.emit_json(answer_json(question, answer))
            return
        plain.end()
        if not self._quiet:
            console.note(statistics(answer))

    def _report(self, question: Question, error: KvzError, hint: str = "") -> None:
        """Say that a turn failed."""
        self.failed += 1
        if self._as_json:
            console.emit_json(failure_json(question, error))
        console.note(f"kvz: {error}{hint}")


def outlives(error: BaseException) -> bool:
    """Whether a chat goes on after `error`: in a terminal, after Ctrl-C, and kvz's own errors but those of output.

    SIGTERM ends it in any case; Ctrl-C is forgotten.
    """
    if not sys.stdin.isatty() or isinstance(error, OutputError):
        return False
    return isinstance(error, KvzError | KeyboardInterrupt) and not is_final()
