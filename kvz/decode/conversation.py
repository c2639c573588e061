"""A conversation: several turns over one archive, what was said before staying in the tail."""

from __future__ import annotations

from collections.abc import Callable

from kvz.argument_types import Kind, check_types
from kvz.cache.tail import Tail
from kvz.config import Decoding, Sampling
from kvz.decode.sequence import Answer, AnswerText
from kvz.decode.session import Session, check_asking
from kvz.defaults import MAX_NEW_TOKENS
from kvz.prompt import later_ids, make_turn

__all__ = ["Conversation"]

_CAPACITY = 512  # tokens of a new tail; it grows as the conversation does


class Conversation:
    """Turns that follow each other. The archive is never changed; `reset` returns to it.

    `history` counts the tokens of all turns so far, `turns` their questions.
    """

    def __init__(self, session: Session) -> None:
        """Raises ModelError if the model's chat template cannot be cut between two turns."""
        check_types(session=(session, Kind((Session,), "a kvz.Session")))
        self.turns = 0
        self._session = session
        self._turn = make_turn(session.model.tokenizer, session.seam)
        self._reading = session.reading
        self._tail = self._new_tail(_CAPACITY)
        self._unread: list[int] = []  # the end of the last answer that did not go through the model

    @property
    def history(self) -> int:
        """Tokens of the conversation so far, questions and answers."""
        return self._tail.length + len(self._unread)

    @property
    def kv_bytes(self) -> int:
        """Bytes of archive and history."""
        return self._session.archive_nbytes + self._tail.nbytes

    @property
    def positions_left(self) -> int:
        """Positions of the model that the turns to come can take."""
        session = self._session
        return session.model.geometry.max_positions - session.cache.logical_length - self.history

    @property
    def policy(self) -> str:
        """How the tokens of answers read the archive."""
        return self._reading.policy

    def read(self, decoding: Decoding) -> None:
        """Read the archive in another way from the next turn on."""
        self._reading = self._session.read(decoding)

    def reset(self) -> None:
        """Forget all turns."""
        self._tail.reset()
        self._unread = []
        self.turns = 0

    def ask(
        self,
        question: str,
        max_new_tokens: int = MAX_NEW_TOKENS,
        sampling: Sampling | None = None,
        stream: Callable[[str], None] = lambda piece: None,
    ) -> Answer:
        """Answer the next turn; what an exception interrupts counts as far as it was said.

        Raises QuestionError if the question is empty, or if it and the turns before leave no position for an answer.
        """
        check_asking(question, max_new_tokens, sampling, stream)
        session, before = self._session, self._tail.length
        session.check_archive()
        ids = session.ids_of(question)
        if self.turns:
            ids = self._unread + later_ids(session.model.tokenizer, self._turn, question)
        sequence = session.sequence(ids, max_new_tokens, sampling, stream, self._reading, self._tail)
        self._reserve(before + sequence.room)
        try:
            return session.answer(sequence)
        finally:
            self._close(sequence.answer, before, len(ids))

    def _close(self, answer: AnswerText, before: int, asked: int) -> None:
        """Note which tokens of the answer are in the tail; a question that was not answered at all is taken back."""
        read = self._tail.length - before - asked
        if read < 0 or (answer.stop is None and not answer.ids):
            self._tail.truncate(before)
            return
        said = answer.said
        self._tail.truncate(before + asked + len(said))
        self._unread = said[read:]
        self.turns += 1

    def _reserve(self, tokens: int) -> None:
        if tokens > self._tail.capacity:
            grown = self._new_tail(max(tokens, 2 * self._tail.capacity))
            grown.copy_from(self._tail)
            self._tail.take_over(grown)

    def _new_tail(self, tokens: int) -> Tail:
        model = self._session.model
        return Tail(model.geometry.shapes, tokens, model.dtype, model.device)
