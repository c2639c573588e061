"""kvz ask: questions to an archive."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from kvz.cli import console
from kvz.cli.options import ArchivePath, DeviceOption, JsonOption, ModelOption, QuietOption
from kvz.cli.questions import Question, read_questions
from kvz.defaults import MAX_NEW_TOKENS
from kvz.errors import ArchiveError, QuestionError, UsageError

if TYPE_CHECKING:
    from kvz.decode.sampling import Sampling
    from kvz.decode.session import Answer, Session

__all__ = ["ask"]


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
    model: ModelOption = None,
    max_new_tokens: Annotated[int, typer.Option(metavar="N", help="Longest answer, in tokens.")] = MAX_NEW_TOKENS,
    temperature: Annotated[float, typer.Option(help="0 is greedy; above it, answers are sampled.")] = 0.0,
    top_p: Annotated[Optional[float], typer.Option(help="Sample from this share of probability.")] = None,  # noqa: UP045
    top_k: Annotated[Optional[int], typer.Option(help="Sample from the K likeliest tokens.")] = None,  # noqa: UP045
    seed: Annotated[Optional[int], typer.Option(help="Makes sampling repeatable.")] = None,  # noqa: UP045
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How the answer's tokens read the archive: dense, hsa, quest, sparq, exact-topk; auto is hsa with a "
            "--budget, else dense.",
        ),
    ] = "auto",
    budget: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="N", help="Pairs of each head that a token of the answer may read; all of them without."),
    ] = None,
    device: DeviceOption = "auto",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not check the tensors' checksums.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Ask an archive one or more questions; each starts from the archive alone.

    Answers go to stdout, one after another, as they are written. Statistics go to stderr.
    """
    asked = read_questions(questions or [], file)
    _refuse_mistakes(archive, asked, as_json)
    if file is None and len(asked) > 1 and not quiet and not any(" " in q.text for q in asked):
        console.note(f"kvz: {len(asked)} questions of one word each; a question of several words needs quotes")
    from kvz.archive import load, model_of
    from kvz.decode.decoding import Decoding
    from kvz.decode.sampling import Sampling
    from kvz.decode.session import check_max_new_tokens

    decoding = Decoding(policy, budget)
    sampling = Sampling(temperature, top_p, top_k, seed)
    check_max_new_tokens(max_new_tokens)
    loaded = load(archive, verify=not no_verify)
    progress = console.terminal_progress(quiet)
    session = loaded.session(model_of(loaded.manifest, model, device, progress), decoding)
    if budget is not None and session.policy == "dense":
        progress.say("the budget covers every head of the archive: all pairs are read")
    failed = 0
    for question in asked:
        failed += not _answer(session, question, max_new_tokens, sampling, as_json, quiet, len(asked))
    if failed:
        raise typer.Exit(1)


def _refuse_mistakes(archive: str, asked: list[Question], as_json: bool) -> None:
    """Refuse what can only be meant otherwise, before anything is loaded."""
    if archive == "-":
        raise UsageError("an archive is memory-mapped and cannot come through a pipe; give a file")
    if not os.path.exists(archive):
        if any(q.text.endswith(".kvz") and os.path.exists(q.text) for q in asked):
            raise UsageError(f"no such archive: {archive}; the archive comes first, then the question")
        raise ArchiveError(f"no such archive: {archive}")
    if any(q.text == "-" for q in asked):
        raise UsageError("to read questions from standard input, give --questions -")
    if len(asked) == 1 and not asked[0].text.strip():
        error = QuestionError("the question is empty")
        if as_json:
            console.emit_json(_failed(asked[0], error))
        raise error


def _answer(
    session: Session, question: Question, limit: int, sampling: Sampling, as_json: bool, quiet: bool, count: int
) -> bool:
    """Ask one question and print what comes of it; False if it could not be asked."""
    if count > 1 and not as_json and not quiet:
        console.note(f"[{question.id}] {question.text}")
    pieces = _Plain()
    try:
        answer = session.ask(question.text, limit, sampling, (lambda piece: None) if as_json else pieces.write)
    except QuestionError as error:
        if as_json:
            console.emit_json(_failed(question, error))
        if count == 1:
            raise
        console.note(f"kvz: question {question.id}: {error}")
        return False
    except KeyboardInterrupt:
        pieces.end_line()
        raise
    if as_json:
        console.emit_json(_as_json(question, answer))
    else:
        pieces.end()
        if not quiet:
            console.note(_statistics(answer))
    return True


class _Plain:
    """An answer as it streams: no space before it, one line break after it."""

    def __init__(self) -> None:
        self._begun = False
        self._held = ""

    def write(self, piece: str) -> None:
        text = self._held + piece
        text = text if self._begun else text.lstrip()
        body = text.rstrip()
        self._held = text[len(body) :]
        if body:
            self._begun = True
            console.emit(body, end="")

    def end(self) -> None:
        console.emit("")

    def end_line(self) -> None:
        """End the line of an answer that was cut short."""
        if self._begun:
            console.emit("")


def _failed(question: Question, error: QuestionError) -> dict[str, Any]:
    return {"id": question.id, "question": question.text, "error": str(error)}


def _as_json(question: Question, answer: Answer) -> dict[str, Any]:
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


def _statistics(answer: Answer) -> str:
    rate = f", then {1 / answer.token_seconds:.1f} tokens/s" if answer.token_seconds else ""
    cut = {"end": "", "length": " (cut: --max-new-tokens)", "full": " (cut: no position left)"}[answer.stop]
    read = f", {console.quantity(round(answer.pairs_read))} pairs read a token" if answer.pairs_read else ""
    sparse = f"; {answer.policy}{read}" if answer.policy != "dense" else ""
    held = f"{console.size(answer.kv_bytes)} of KV{sparse}"
    return (
        f"  {answer.new_tokens} tokens{cut}, first after {console.seconds(answer.first_token_seconds)}{rate}; "
        f"{console.quantity(answer.context_tokens)} tokens of context reused, {held}"
    )
