"""Many questions over one archive in one batch: each in a slot of its own, the archive's pairs read once for all.

A question enters a free slot as soon as there is one: it is read alone, and then grows a token a step together with
the others. Answers are given back in the order of the questions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from kvz.cache.slots import TailSlots
from kvz.decode.batch_store import BatchStore
from kvz.decode.decoding import Reading
from kvz.decode.run import Answer, Growing, Run
from kvz.decode.sampling import Sampling
from kvz.decode.session import Session
from kvz.errors import QuestionError, UsageError
from kvz.memory import free_bytes

__all__ = ["ask_batch", "automatic_size", "check_size"]

_MOST = 16  # slots that are worth it: beyond, a step costs as much more as it does more
_CAPACITY = 256  # tokens of a slot to begin with; slots grow
Key = TypeVar("Key")


@dataclass(eq=False)
class _Slot:
    """A question being answered: its place in the order, and what it took so far."""

    number: int
    growing: Growing
    asked: int
    began: float
    first: float = 0.0
    steps: int = 0


def automatic_size(session: Session, questions: Sequence[str], max_new_tokens: int) -> int:
    """Slots for these questions and answers of up to `max_new_tokens`, in half of the free memory."""
    if not session.reading.batched:
        return 1
    model = session.model
    longest = max(len(question.encode("utf-8", "replace")) for question in questions)  # a token has a byte or more
    around = len(model.tokenizer.encode_plain(session.seam.before)) + len(session.seam.after_ids)
    tokens = min(longest + around + max_new_tokens, model.geometry.max_positions)
    slot = tokens * sum(2 * s.kv_heads * s.head_dim for s in model.geometry.shapes) * model.dtype.itemsize
    free = free_bytes(model.device)
    return max(1, min(_MOST, len(questions), free // 4 // slot))  # twice: while slots grow, the old ones are there


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
        raise UsageError(f"policy '{reading.policy}' answers one question at a time; leave --batch-size out")
    return _answers(_Batch(session, reading, size, max_new_tokens, sampling), questions, size)


def _answers(batch: _Batch, questions: Iterable[str], size: int) -> Iterator[Answer | QuestionError]:
    waiting = enumerate(questions)
    done: dict[int, Answer | QuestionError] = {}
    following, more = 0, True
    while more or batch.slots:
        while more and len(batch.slots) < size:
            item = next(waiting, None)
            more = item is not None
            if item is not None:
                done.update(batch.enter(*item))
                break  # an answer that is complete is not kept waiting for the batch to fill
        if not more or len(batch.slots) == size:
            done.update(batch.step())
        while following in done:
            yield done.pop(following)
            following += 1


class _Batch:
    """The slots in use, `slots[i]` in row i of the tails."""

    def __init__(
        self, session: Session, reading: Reading, size: int, max_new_tokens: int, sampling: Sampling | None
    ) -> None:
        model = session.model
        self._reading = reading
        self.slots: list[_Slot] = []
        self._session = session
        self._max_new_tokens = max_new_tokens
        self._sampling = sampling
        self._tails = TailSlots(model.geometry.shapes, size, _CAPACITY, model.dtype, model.device)
        self._store = BatchStore(session.cache, self._tails, reading)

    def enter(self, number: int, question: str) -> dict[int, Answer | QuestionError]:
        """Read a question into the next slot; what that completes."""
        session, began = self._session, time.perf_counter()
        try:
            ids = session.ids_of(question)
            growing = session.growing(len(ids), self._max_new_tokens, self._sampling)
        except QuestionError as error:
            return {number: error}
        tail = self._tails.open(len(ids) + min(self._max_new_tokens, session.room(len(ids))))
        run = Run(session.model, self._store.question(tail), tail, session.cache.logical_length)
        slot = _Slot(number, growing, len(ids), began)
        growing.take(run.feed(ids))
        slot.first = time.perf_counter()
        self.slots.append(slot)
        return self._complete()

    def step(self) -> dict[int, Answer | QuestionError]:
        """One token more for every slot; the answers that this completes."""
        if not self.slots:
            return {}
        lengths = torch.tensor(self._tails.lengths)
        ids = torch.tensor([slot.growing.ids[-1] for slot in self.slots])
        logits = self._session.model.step(ids, self._session.cache.logical_length + lengths, self._store)
        self._tails.advance()
        for slot, row in zip(self.slots, logits, strict=True):
            slot.steps += 1
            slot.growing.take(row)
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
        session, now = self._session, time.perf_counter()
        return Answer(
            text=slot.growing.text,
            ids=tuple(slot.growing.ids),
            context_tokens=session.cache.logical_length,
            question_tokens=slot.asked,
            stop=str(slot.growing.stop),
            first_token_seconds=slot.first - slot.began,
            token_seconds=(now - slot.first) / slot.steps if slot.steps else None,
            kv_bytes=session.cache.nbytes + nbytes,
            policy=self._reading.policy,
            pairs_read=self._store.pairs_read if slot.steps else None,
        )
