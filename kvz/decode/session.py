"""A session: one archive, one model, any number of questions, each starting from the archive as it is on disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from kvz.argument_types import Kind, check_types
from kvz.cache.ragged import RaggedCache
from kvz.cache.tail import Tail
from kvz.cache.upload import upload
from kvz.decode.decoding import Decoding, Reading, dense_reading
from kvz.decode.run import Answer, Growing, Run
from kvz.decode.sampling import Sampling
from kvz.decode.step.decoder import StepDecoder
from kvz.defaults import MAX_NEW_TOKENS
from kvz.errors import QuestionError, UsageError
from kvz.models.language_model import LanguageModel
from kvz.prompt import Seam, question_ids

__all__ = ["Answer", "Session", "check_asking", "check_decoding", "check_max_new_tokens"]

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
        self.reading = self.read(decoding or Decoding())
        self._tails: deque[Tail] = deque(maxlen=1)  # what questions leave for later ones, to be taken out in one step
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
        return decoding.reading(self.cache, self.prefix)

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
        ids = self.ids_of(question)
        growing = self.growing(len(ids), max_new_tokens, sampling)
        if self.goes_by_steps(self.reading, sampling):
            return self.answer_by_steps(ids, growing, self.reading, sampling, stream)
        tail = self._fresh_tail(len(ids) + growing.limit)
        answer = self.answer(ids, growing, tail, self.reading, stream)
        self._tails.append(tail)
        return answer

    def ask_all(
        self,
        questions: Sequence[str],
        max_new_tokens: int = MAX_NEW_TOKENS,
        sampling: Sampling | None = None,
        size: int | None = None,
        reading: Reading | None = None,
    ) -> Iterator[Answer | QuestionError]:
        """The answers to `questions` in their order, `size` of them in a batch (None: as many as memory allows,
        or one where they cannot be answered together).

        A question that cannot be asked gives its error in its place. `reading` is the session's unless it is given.
        Raises UsageError if the questions are one string, or the size is less than 1.
        """
        from kvz.decode.batch import ask_batch, automatic_size, check_size  # which need sessions themselves

        check_asking("", max_new_tokens, sampling)
        check_types(reading=(reading, Kind((Reading,), "a session's reading") | None))
        if isinstance(questions, str) or not isinstance(questions, Sequence):
            raise UsageError("ask_all takes a list of questions; ask takes one")
        if not questions:
            return iter(())
        if size is None:
            size = automatic_size(self, questions, max_new_tokens, reading)
        check_size(size)
        return ask_batch(self, questions, min(size, len(questions)), max_new_tokens, sampling, reading)

    def check_archive(self) -> None:
        """Raise ArchiveError if the archive is mapped from a file that was changed in place."""
        if not self._on_gpu():
            self._check_archive()

    def ids_of(self, question: str) -> list[int]:
        """Ids of a question as it follows the context; QuestionError if it is empty, or too long for the model."""
        self.room(len(str(question)) // self.model.tokenizer.longest_token, "at least ")
        return question_ids(self.model.tokenizer, self.seam, question)

    def growing(self, tokens: int, max_new_tokens: int, sampling: Sampling | None = None, history: int = 0) -> Growing:
        """An answer to a question of `tokens`; raises QuestionError if no position is left for one."""
        check_max_new_tokens(max_new_tokens)
        room = self.room(tokens, history=history)
        at_limit = "length" if max_new_tokens <= room else "full"
        return Growing(self.model, self.seam, min(max_new_tokens, room), at_limit, sampling)

    def answer(
        self, ids: list[int], growing: Growing, tail: Tail, reading: Reading, stream: Callable[[str], None]
    ) -> Answer:
        """The answer to a question of `ids`, whose pairs and the answer's go to the end of `tail`."""
        store = reading.store(tail)
        run = Run(self.model, store, tail, self.cache.logical_length)
        seconds = run.answer(ids, growing, stream)
        return self._made(ids, growing, seconds, tail.nbytes, reading.policy, store.pairs_read)

    def goes_by_steps(self, reading: Reading, sampling: Sampling | None) -> bool:
        """Whether an answer is made by steps that do not wait for the host.

        One with a seed is not: in a batch the host draws for each question, and a seed gives one answer in both.
        """
        seeded = sampling is not None and sampling.seed is not None
        return self._on_gpu() and reading.steps is not None and not seeded

    def answer_by_steps(
        self,
        ids: list[int],
        growing: Growing,
        reading: Reading,
        sampling: Sampling | None,
        stream: Callable[[str], None],
        history: Tail | None = None,
    ) -> Answer:
        """The same by such steps, for a sampling without a seed, after the tokens of `history`.

        The decoder is taken out while it is in use.
        """
        kept = _taken(self._decoders)
        wanted = (reading, sampling or Sampling())
        decoder = kept[1] if kept is not None and kept[0] == wanted else None
        del kept  # freed before another one is made
        decoder = decoder or StepDecoder(self.model, *wanted)
        took = decoder.answer(ids, growing, stream, history=history)
        self._decoders.append((wanted, decoder))
        seconds = took.first_token_seconds, took.token_seconds
        tail_bytes = took.tail_bytes + (history.nbytes if history else 0)
        return self._made(ids, growing, seconds, tail_bytes, reading.policy, reading.pairs_read())

    def _on_gpu(self) -> bool:
        return self.model.device.type == "cuda"

    def _made(
        self,
        ids: list[int],
        growing: Growing,
        seconds: tuple[float, float | None],
        tail_bytes: int,
        policy: str,
        pairs: float,
    ) -> Answer:
        self.check_archive()
        return Answer(
            text=growing.text,
            ids=tuple(growing.ids),
            context_tokens=self.cache.logical_length,
            question_tokens=len(ids),
            stop=str(growing.stop),
            first_token_seconds=seconds[0],
            token_seconds=seconds[1],
            kv_bytes=self.archive_nbytes + tail_bytes,
            policy=policy,
            pairs_read=None if seconds[1] is None else pairs,
        )

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

    def _fresh_tail(self, tokens: int) -> Tail:
        """An empty tail for `tokens` or more: the one of the question before, unless that is being used or too small.

        Taken out of the session until the answer is complete, so that questions from several threads do not mix.
        """
        tail = _taken(self._tails)
        if tail is not None and tail.capacity >= tokens:
            tail.reset()
            return tail
        del tail  # freed before a larger one is allocated
        return Tail(self.model.geometry.shapes, tokens, self.model.dtype, self.model.device)


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


def check_max_new_tokens(count: int) -> None:
    """Raise UsageError unless `count` is a length that an answer can have."""
    if type(count) is not int or count < 1:
        raise UsageError(f"max new tokens {count!r}: give a whole number, 1 or more")
