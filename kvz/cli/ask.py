"""kvz ask: questions to an archive."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from kvz.cache.index_plan import check_page_size
from kvz.cli import console
from kvz.cli.answers import PlainAnswer, answer_json, failure_json, show_answer, statistics
from kvz.cli.decode_options import (
    BudgetOption,
    MaxNewTokensOption,
    MmapOption,
    NoVerifyOption,
    PageSizeOption,
    PolicyOption,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
)
from kvz.cli.open_session import OpenedArchive, open_session
from kvz.cli.options import ArchivePath, DeviceOption, JsonOption, ModelOption, QuietOption
from kvz.cli.questions import Question, Questions, read_questions
from kvz.cli.signals import raise_lost
from kvz.config import Decoding, Sampling, check_max_new_tokens
from kvz.defaults import MAX_NEW_TOKENS
from kvz.errors import ArchiveError, QuestionError, UsageError

if TYPE_CHECKING:
    from kvz.decode.conversation import Conversation
    from kvz.decode.session import Session

__all__ = ["ask"]

_THAI = "\u0e00"  # scripts before it put spaces between words; of those after it, many do not


def ask(
    archive: ArchivePath,
    questions: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="QUESTION", help="One or more questions, each answered on its own."),
    ] = None,
    file: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--questions", metavar="FILE", help="Questions from a file, - for stdin: lines, or JSONL."),
    ] = None,
    turns: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE", help="The same, as the turns of one conversation: each sees those before it."),
    ] = None,
    model: ModelOption = None,
    max_new_tokens: MaxNewTokensOption = MAX_NEW_TOKENS,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    seed: SeedOption = None,
    policy: PolicyOption = "auto",
    budget: BudgetOption = None,
    page_size: PageSizeOption = None,
    batch_size: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="Questions answered side by side, their answers shown when complete; auto: as many as there are and "
            "as memory allows, up to 16.",
        ),
    ] = "1",
    device: DeviceOption = "auto",
    no_verify: NoVerifyOption = False,
    mmap: MmapOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Ask an archive one or more questions; each starts from the archive alone.

    Answers go to stdout, one after another, as they are written. Statistics go to stderr.
    """
    if turns is not None and (questions or file is not None):
        raise UsageError("--turns has its own questions; leave the others out")
    slots = _slots(batch_size)
    if turns is not None and slots != 1:
        raise UsageError("the turns of a conversation wait for each other; leave --batch-size out")
    decoding = Decoding(policy, budget, check_page_size(page_size))
    settings = _Settings(max_new_tokens, Sampling(temperature, top_p, top_k, seed), as_json, quiet)
    check_max_new_tokens(max_new_tokens)
    asked = read_questions(questions or [], file if turns is None else turns)
    _refuse_mistakes(archive, asked, as_json)
    if questions and asked.several and not quiet and all(_is_word(q.text) for q in asked.known):
        console.note(f"kvz: {len(asked.known)} questions of one word each; a question of several words needs quotes")
    opened = OpenedArchive.of_options(archive, not no_verify, mmap, model, device)
    from kvz.decode.conversation import Conversation
    from kvz.decode.engine import MOST_SEQUENCES

    session = open_session(opened, decoding, console.terminal_progress(quiet))
    if slots != 1 and asked.several:
        most = slots or (MOST_SEQUENCES if session.reading.batched else 1)
        failed = _ask_together(session, asked, len(asked.look_ahead(most)), policy == "auto", settings)
    else:
        asker = session if turns is None else Conversation(session)
        failed = sum(not _ask_alone(asker, question, settings, asked.several) for question in asked)
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Settings:
    """What is the same for every question."""

    limit: int
    sampling: Sampling
    as_json: bool
    quiet: bool


def _slots(batch_size: str) -> int | None:
    """Questions to answer side by side; None for as many as fit."""
    if batch_size == "auto":
        return None
    if not (batch_size.isascii() and batch_size.isdigit() and int(batch_size[:6]) >= 1 and len(batch_size) < 6):
        raise UsageError(f"batch size '{batch_size}': give auto, or 1 or more questions")
    return int(batch_size)


def _is_word(text: str) -> bool:
    """Whether a question is one word of a script that puts spaces between words."""
    return len(text.split()) < 2 and all(letter < _THAI for letter in text)


def _refuse_mistakes(archive: str, asked: Questions, as_json: bool) -> None:
    """Refuse what can only be meant otherwise, before anything is loaded."""
    if archive == "-":
        raise UsageError("an archive cannot come through a pipe; give a file")
    if not os.path.exists(archive):
        if any(q.text.endswith(".kvz") and os.path.exists(q.text) for q in asked.known):
            raise UsageError(f"no such archive: {archive}; the archive comes first, then the question")
        raise ArchiveError(f"no such archive: {archive}")
    if any(q.text == "-" for q in asked.known):
        raise UsageError("to read questions from standard input, give --questions -")
    if not asked.several and not asked.known[0].text.strip():
        error = QuestionError("the question is empty")
        if as_json:
            console.emit_json(failure_json(asked.known[0], error))
        raise error


def _ask_alone(asker: Session | Conversation, question: Question, settings: _Settings, several: bool) -> bool:
    """Ask one question and print what comes of it as it comes; False if it could not be asked."""
    _announce(question, settings, several)
    plain = PlainAnswer()

    def stream(piece: str) -> None:
        raise_lost()
        if not settings.as_json:
            plain.write(piece)

    try:
        answer = asker.ask(question.text, settings.limit, settings.sampling, stream)
    except QuestionError as error:
        _report(question, error, settings.as_json, several)
        return False
    except BaseException:  # a signal's too: what is said of it gets a line of its own
        plain.end_line()
        raise
    if settings.as_json:
        console.emit_json(answer_json(question, answer))
    else:
        plain.end()
        if not settings.quiet:
            console.note(statistics(answer))
    return True


def _ask_together(session: Session, asked: Questions, size: int, free: bool, settings: _Settings) -> int:
    """Ask questions side by side and print answers in their order; how many could not be asked.

    `free` to choose how the archive is read, what is less to read for all of them is chosen. A pipe is read as far as
    there is room, and where it cannot be used, that is said after the answers to what came before.
    """
    reading = session.reading_together(size) if free and size > 1 else session.reading
    if reading.policy != session.policy and not settings.quiet:
        console.note("kvz: read once for all the batch, all pairs are less than what each question would choose")
    waiting: deque[Question] = deque()
    broken: list[QuestionError] = []

    def texts() -> Iterator[str]:
        try:
            for question in asked:
                waiting.append(question)
                yield question.text
        except QuestionError as error:
            broken.append(error)

    failed = 0
    for answer in session.ask_all(texts(), settings.limit, settings.sampling, size, reading):
        raise_lost()
        question = waiting.popleft()
        _announce(question, settings, several=True)
        if isinstance(answer, QuestionError):
            failed += 1
            _report(question, answer, settings.as_json, several=True)
        else:
            show_answer(question, answer, settings.as_json, settings.quiet)
    if broken:
        raise broken[0]
    return failed


def _announce(question: Question, settings: _Settings, several: bool) -> None:
    """Say which of several questions is being answered."""
    if several and not settings.as_json and not settings.quiet:
        console.note(f"[{question.id}] {question.text}")


def _report(question: Question, error: QuestionError, as_json: bool, several: bool) -> None:
    """Say that a question could not be asked; a single one ends the command."""
    if as_json:
        console.emit_json(failure_json(question, error))
    if not several:
        raise error
    console.note(f"kvz: question {question.id}: {error}")
