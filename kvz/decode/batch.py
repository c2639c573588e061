"""Many questions over one archive in one batch: each in a slot of its own, the archive's pairs read once for all.

Questions enter free slots as soon as there are any, all of them in one pass, and then grow a token a step together with
the others. Answers are given back in the order of the questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch

from kvz.cache.tail import Tail
from kvz.decode.archive_store import ArchiveStore, read_of
from kvz.decode.batch_slots import batch_slots
from kvz.decode.decoding import Reading
from kvz.decode.pace import Pace
from kvz.decode.questions_store import QuestionsStore
from kvz.decode.run import Answer, Growing, Run
from kvz.decode.sampling import Sampling
from kvz.decode.session import Session
from kvz.errors import QuestionError, UsageError
from kvz.memory import free_bytes

__all__ = ["MOST_SLOTS", "ask_batch", "automatic_size", "check_size"]

MOST_SLOTS = 16  # slots that are worth it: beyond, a step costs as much more as it does more
_PASS = 1024  # tokens of questions that are read together
Key = TypeVar("Key")


@dataclass(eq=False)
class _Slot:
    """A question being answered: its place in the order, and what it took so far."""

    number: int
    growing: Growing
    asked: int
    pace: Pace


def automatic_size(
    session: Session, questions: Sequence[str], max_new_tokens: int, reading: Reading | None = None
) -> int:
    """Slots for these questions and answers of up to `max_new_tokens`, in half of the free memory.

    `reading` is the session's unless it is given. What is no string counts as if it were: it is refused when asked.
    """
    if not (reading or session.reading).batched:
        return 1
    model = session.model
    longest = max(len(str(question).encode("utf-8", "replace")) for question in questions)  # a token is a byte or more
    around = len(session.seam.opening.ids(model.tokenizer, "")) + len(session.seam.after_ids)
    tokens = min(longest + around + max_new_tokens, model.geometry.max_positions)
    slot = tokens * sum(2 * s.kv_heads * s.head_dim for s in model.geometry.shapes) * model.dtype.itemsize
    free = free_bytes(model.device)
    return max(1, min(MOST_SLOTS, len(questions), free // 4 // slot))  # twice: while slots grow, the old ones are there


def check_size(size: int) -> None:
    """Raise UsageError unless `size` is a number of questions that a batch can have."""
    if type(size) is not int or size < 1:
        raise UsageError(f"a batch of {size!r} questions: give 1 or more")


def ask_batch(
    session: Session,
    questions: Iterable[str],
    size: int,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    reading: Reading | None = None,
) -> Iterator[Answer | QuestionError]:
    """The answers to `questions` in their order, each as soon as it and all before it are complete.

    A question that cannot be asked gives its error in its place, and the others go on. Raises UsageError if the
    session's policy answers one question at a time.
    """
    reading = reading or session.reading
    check_size(size)
    if size > 1 and not reading.batched:
        raise UsageError(f"policy '{reading.policy}' answers one question at a time: give a batch size of 1")
    return _answers(_Batch(session, reading, size, max_new_tokens, sampling), questions, size)


def _answers(batch: _Batch, questions: Iterable[str], size: int) -> Iterator[Answer | QuestionError]:
    waiting = enumerate(questions)
    done: dict[int, Answer | QuestionError] = {}
    following, more = 0, True
    while more or batch.slots:
        free = list(islice(waiting, size - len(batch.slots)))
        more = more and bool(free or len(batch.slots) == size)
        done.update(batch.enter(free) if free else batch.step())
        while following in done:
            yield done.pop(following)
            following += 1


class _Batch:
    """The slots in use, `slots[i]` in row i of the tails."""

    def __init__(
        self, session: Session, reading: Reading, size: int, max_new_tokens: int, sampling: Sampling | None
    ) -> None:
        self._reading = reading
        self.slots: list[_Slot] = []
        self._session = session
        self._max_new_tokens = max_new_tokens
        self._sampling = sampling
        self._readers = reading.readers()
        self._tails = batch_slots(session.model, reading, self._readers[1], size, sampling)

    def enter(self, questions: Sequence[tuple[int, str]]) -> dict[int, Answer | QuestionError]:
        """Read numbered questions into the next slots, in one pass if they are not long; what that completes."""
        self._session.check_archive()
        failed: dict[int, Answer | QuestionError] = {}
        asked: list[tuple[_Slot, list[int]]] = []
        for number, question in questions:
            try:
                ids = self._session.ids_of(question)
                growing = self._session.growing(len(ids), self._max_new_tokens, self._sampling)
                asked.append((_Slot(number, growing, len(ids), Pace()), ids))
            except QuestionError as error:
                failed[number] = error
        while asked:
            together = _fitting(asked)
            self._read(asked[:together])
            asked = asked[together:]
        return failed | self._complete()

    def _read(self, asked: Sequence[tuple[_Slot, list[int]]]) -> None:
        """Read questions laid end to end; one that is too long for a pass comes alone, and in parts."""
        session, start = self._session, self._session.cache.logical_length
        rooms = [len(ids) + min(self._max_new_tokens, session.room(len(ids))) for _, ids in asked]
        self._tails.reserve(max(rooms))
        tails = [self._tails.open(room) for room in rooms]
        lengths = [len(ids) for _, ids in asked]
        if len(asked) == 1:
            store = self._questions(tails, lengths)
            logits = Run(session.model, store, tails[0], start).feed(asked[0][1])[None]
        else:
            ids = torch.tensor([i for _, own in asked for i in own])
            positions = torch.cat([torch.arange(start, start + n) for n in lengths])
            store = self._questions(tails, lengths)
            logits = session.model.logits_at(ids, positions, store, torch.tensor(lengths).cumsum(0) - 1)
            for tail, length in zip(tails, lengths, strict=True):
                tail.advance(length)
        for (slot, _), row in zip(asked, logits, strict=True):
            slot.growing.take(row)
            slot.pace.mark()
            self.slots.append(slot)

    def _questions(self, tails: Sequence[Tail], lengths: Sequence[int]) -> QuestionsStore:
        """The pair store of questions laid end to end, of so many tokens, into a tail each."""
        cache, question = self._session.cache, self._readers[0]
        return QuestionsStore([ArchiveStore(cache, tail, *self._readers) for tail in tails], lengths, question)

    def step(self) -> dict[int, Answer | QuestionError]:
        """One token more for every slot; the answers that this completes."""
        if not self.slots:
            return {}
        self._tails.grow([slot.growing for slot in self.slots])
        for slot in self.slots:
            slot.pace.mark()
        return self._complete()

    def _complete(self) -> dict[int, Answer | QuestionError]:
        """Take the slots out whose answer has ended."""
        ended: dict[int, Answer | QuestionError] = {}
        for row in reversed(range(len(self.slots))):
            slot = self.slots[row]
            if slot.growing.stop is not None:
                ended[slot.number] = self._answer(slot, self._tails.bytes_of(row))
                self._tails.close(row)
                self.slots[row] = self.slots[-1]
                self.slots.pop()
        return ended

    def _answer(self, slot: _Slot, nbytes: int) -> Answer:
        session, seconds = self._session, slot.pace.token_seconds
        session.check_archive()
        return Answer(
            text=slot.growing.text,
            ids=tuple(slot.growing.ids),
            context_tokens=session.cache.logical_length,
            question_tokens=slot.asked,
            stop=str(slot.growing.stop),
            first_token_seconds=slot.pace.first_token_seconds,
            token_seconds=seconds,
            kv_bytes=session.archive_nbytes + nbytes,
            policy=self._reading.policy,
            pairs_read=read_of(session.cache, self._readers[1]).pairs if seconds is not None else None,
        )


def _fitting(asked: Sequence[tuple[_Slot, list[int]]]) -> int:
    """How many of the first questions go into one pass: one at least."""
    total, count = 0, 0
    for _, ids in asked:
        total += len(ids)
        if total > _PASS and count:
            break
        count += 1
    return count
