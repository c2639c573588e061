"""A session: one archive, one model, any number of questions, each starting from the archive as it is on disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count, islice
from typing import TypeVar

from kvz.argument_types import Kind, check_types
from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.cache.upload import upload
from kvz.config import Decoding, Sampling, check_max_new_tokens
from kvz.decode.decoding import Reading, dense_reading, reading_of
from kvz.decode.engine import MOST_SEQUENCES, Engine
from kvz.decode.sequence import Answer, AnswerText, Sequence
from kvz.decode.step.decoder import StepDecoder
from kvz.defaults import MAX_NEW_TOKENS
from kvz.errors import KvzError, QuestionError, UsageError
from kvz.models.language_model import LanguageModel
from kvz.prompt import Seam, question_ids

__all__ = ["Answer", "Session", "check_asking", "check_decoding"]

Left = TypeVar("Left")


class Session:
    """Asks questions of a pruned cache. Asking A, B, A gives A's answer twice (greedy, or with a seed)."""

    def __init__(
        self,
        model: LanguageModel,
        cache: RaggedCache,
        seam: Seam,
        prefix: int = 0,
        decoding: Decoding | None = None,
        check_archive: Callable[[], None] = lambda: None,
    ) -> None:
        """`cache` must come from `model`; `seam` and `prefix` (tokens) are those of the archive.

        `check_archive` raises ArchiveError if `cache` is no longer what it was; it is called before and after each
        question, unless the cache is copied to a GPU.
        """
        self.model = model
        self.cache = upload(cache, model.device)
        self._check_archive = check_archive
        self.seam = seam
        self.prefix = prefix
        self.graphs = model.device.type == "cuda"
        """Whether answers come from a recorded step, where their policy has one; elsewhere than on a GPU, it gains
        nothing."""
        self.reading = self.read(decoding or Decoding())
        # What questions leave for later ones, to be taken out in one step: threads may ask at once.
        self._engines: deque[Engine] = deque(maxlen=1)
        self._decoders: deque[tuple[tuple[Reading, Sampling], StepDecoder]] = deque(maxlen=1)

    @property
    def archive_nbytes(self) -> int:
        """Bytes of the archive in memory, its index among them."""
        return self.cache.nbytes + self.cache.index_nbytes

    @property
    def policy(self) -> str:
        """How generated tokens read the archive; "dense" also where a budget covers every head."""
        return self.reading.policy

    def read(self, decoding: Decoding) -> Reading:
        """Another way to read this archive."""
        check_decoding(decoding)
        return reading_of(decoding, self.cache, self.prefix)

    def reading_together(self, questions: int) -> Reading:
        """How a batch of so many questions reads least: as one question does, or densely, once for all."""
        dense = dense_reading(self.cache)
        less = self.reading.batched and questions * self.reading.read().nbytes <= dense.read().nbytes
        return self.reading if less else dense

    def ask(
        self,
        question: str,
        max_new_tokens: int = MAX_NEW_TOKENS,
        sampling: Sampling | None = None,
        stream: Callable[[str], None] = lambda piece: None,
    ) -> Answer:
        """Answer one question; `stream` receives the text in pieces as it is settled.

        Raises QuestionError if the question is empty or does not fit into the model's positions, ArchiveError if the
        archive's file was changed in place.
        """
        check_asking(question, max_new_tokens, sampling, stream)
        self.check_archive()
        return self.answer(self.sequence(self.ids_of(question), max_new_tokens, sampling, stream))

    def ask_all(
        self,
        questions: Iterable[str],
        max_new_tokens: int = MAX_NEW_TOKENS,
        sampling: Sampling | None = None,
        size: int | None = None,
        reading: Reading | None = None,
    ) -> Iterator[Answer | QuestionError]:
        """The answers to `questions` in their order, `size` of them in a batch (None: as many as are worth it,
        or one where they cannot be answered together), each as soon as it and all before it are complete.

        Questions enter as soon as there is a place, and are asked for no sooner. One that cannot be asked gives its
        error in its place, and the others go on. While there are places, the next question is waited for. `reading` is
        the session's unless it is given. Raises UsageError if the questions are one string, the size is less than 1, or
        the policy answers one question at a time, and in its place what stops the answers, such as a DecodeError.
        """
        check_asking("", max_new_tokens, sampling)
        check_types(reading=(reading, Kind((Reading,), "a session's reading") | None))
        if isinstance(questions, str) or not isinstance(questions, Iterable):
            raise UsageError("ask_all takes a list of questions; ask takes one")
        reading = reading or self.reading
        size = (MOST_SEQUENCES if reading.batched else 1) if size is None else size
        if type(size) is not int or size < 1:
            raise UsageError(f"a batch of {size!r} questions: give 1 or more")
        if size > 1 and not reading.batched:
            raise UsageError(f"policy '{reading.policy}' answers one question at a time: give a batch size of 1")
        return self._answers(iter(questions), size, max_new_tokens, sampling, reading)

    def _answers(
        self, questions: Iterator[str], size: int, max_new_tokens: int, sampling: Sampling | None, reading: Reading
    ) -> Iterator[Answer | QuestionError]:
        engine, numbers = Engine(self.model, size, self.graphs), count()
        done: dict[int, Answer | KvzError] = {}
        order: dict[Sequence, int] = {}
        following, more = 0, True
        while more or engine.unfinished:
            places = size - engine.unfinished
            entering = list(islice(questions, places))
            more = more and len(entering) == places
            for question in entering:
                number = next(numbers)
                try:
                    self.check_archive()
                    sequence = self.sequence(self.ids_of(question), max_new_tokens, sampling, reading=reading)
                    order[engine.add(sequence)] = number
                except QuestionError as error:
                    done[number] = error
            for sequence in engine.step():
                done[order.pop(sequence)] = sequence.error or self._finished(sequence)
            while following in done:
                answer = done.pop(following)
                if not isinstance(answer, Answer | QuestionError):
                    raise answer
                yield answer
                following += 1

    def check_archive(self) -> None:
        """Raise ArchiveError if the archive is mapped from a file that was changed in place."""
        if self.model.device.type != "cuda":
            self._check_archive()

    def ids_of(self, question: str) -> list[int]:
        """Ids of a question as it follows the context; QuestionError if it is empty, or too long for the model."""
        self.room(len(str(question)) // self.model.tokenizer.longest_token, "at least ")
        return question_ids(self.model.tokenizer, self.seam, question)

    def sequence(
        self,
        ids: list[int],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        stream: Callable[[str], None] = lambda piece: None,
        reading: Reading | None = None,
        tail: Tail | None = None,
    ) -> Sequence:
        """A question of `ids`, after the tokens of `tail`; raises QuestionError if no position is left for an answer.

        `reading` is the session's unless it is given.
        """
        check_max_new_tokens(max_new_tokens)
        room = self.room(len(ids), history=tail.length if tail else 0)
        at_limit = "length" if max_new_tokens <= room else "full"
        answer = AnswerText(self.model.tokenizer, self.seam, min(max_new_tokens, room), at_limit)
        return Sequence(reading or self.reading, ids, answer, sampling, stream, tail)

    def answer(self, sequence: Sequence) -> Answer:
        """Run a sequence to its end. What an exception interrupts, a KeyboardInterrupt among them, stops there."""
        if self.graphs and sequence.reading.steps is not None:
            self._answer_by_steps(sequence)
        else:
            engine = _taken(self._engines) or Engine(self.model, graphs=False)
            try:
                engine.add(sequence)
                for _ in engine.run():
                    pass
            finally:
                engine.abort(sequence)
                self._engines.append(engine)
        return self._finished(sequence)

    def _answer_by_steps(self, sequence: Sequence) -> None:
        """The same by steps that do not wait for the host; the decoder is taken out while it is in use."""
        kept = _taken(self._decoders)
        wanted = sequence.reading, replace(sequence.sampler.sampling, seed=None)
        decoder = kept[1] if kept is not None and kept[0] == wanted else None
        del kept  # freed before another one is made
        decoder = decoder or StepDecoder(self.model, *wanted)
        decoder.answer(sequence, None if sequence.owns_tail else sequence.tail)
        self._decoders.append((wanted, decoder))

    def _finished(self, sequence: Sequence) -> Answer:
        if sequence.error is not None:
            raise sequence.error
        self.check_archive()
        return sequence.finished(self.archive_nbytes)

    def room(self, tokens: int, measure: str = "", history: int = 0) -> int:
        """Positions left for an answer after a question of so many tokens; QuestionError if there are none."""
        positions = self.model.geometry.max_positions
        left = positions - self.cache.logical_length - history
        if tokens >= left:
            talk = f" and {history} tokens of conversation" if history else ""
            raise QuestionError(
                f"the question is {measure}{tokens} tokens and only {left} of the model's {positions} positions are "
                f"left after the context of {self.cache.logical_length}{talk}; ask something shorter"
            )
        return left - tokens


def _taken(left: deque[Left]) -> Left | None:
    """What was left last, taken out; None if there is nothing. Of several threads, one gets it."""
    try:
        return left.pop()
    except IndexError:
        return None


def check_asking(
    question: str,
    max_new_tokens: int,
    sampling: Sampling | None,
    stream: Callable[[str], None] = lambda piece: None,
) -> None:
    """Raise QuestionError for a question that is no string, UsageError for other arguments of a wrong type."""
    if not isinstance(question, str):
        raise QuestionError(f"a question is one string, not a {type(question).__name__}; ask several one by one")
    check_max_new_tokens(max_new_tokens)
    check_types(
        sampling=(sampling, Kind((Sampling,), "a kvz.Sampling") | None),
        stream=(stream, Kind((Callable,), "a function of a piece of text")),  # type: ignore[arg-type]
    )


def check_decoding(decoding: Decoding) -> None:
    """Raise UsageError for what is no Decoding, such as a policy's name."""
    check_types(decoding=(decoding, Kind((Decoding,), "a kvz.Decoding")))
