"""One method on one context: its answers, how they agree with the full cache's, its bytes and its times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kvz.bench.metrics import Metric
from kvz.bench.peak import most_of, watched
from kvz.bench.plan import Planned
from kvz.bench.prefilled import Made, Prefilled, Talk
from kvz.bench.repeat_kv import repeat_kv_reading
from kvz.bench.stored import stored_seconds
from kvz.bench.teacher import agreement_of
from kvz.cache.ragged import RaggedCache
from kvz.config import DENSE
from kvz.decode.conversation import Conversation
from kvz.decode.sequence import Answer
from kvz.decode.session import Session

__all__ = ["Part", "answer_expanded", "measure", "measure_expanded"]

Part = dict[str, Any]
"""What one context gave for a cell, as its line in samples.jsonl has it."""

_STEPS = 16  # tokens whose times the baseline of expanded keys and values is measured by


@dataclass
class _Asked:
    """What was asked of a method so far."""

    answers: list[Answer] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    policies: set[str] = field(default_factory=set)
    held: list[int] = field(default_factory=list)
    step_bytes: list[float] = field(default_factory=list)
    read_shares: list[float] = field(default_factory=list)
    score_seconds: list[float] = field(default_factory=list)
    prepare_seconds: list[float] = field(default_factory=list)
    peaks: list[int | None] = field(default_factory=list)


@torch.inference_mode()
def measure(prefilled: Prefilled, cell: Planned, metric: Metric, stored: bool) -> Part:
    """Measure one method on one context; `stored`: its archive is also written to a file and loaded, for the times.

    Raises Impossible, and whatever goes wrong.
    """
    method, asked = cell.method, _Asked()
    for question, talks in _archives(prefilled, cell):
        scored = prefilled.scored(method, question)
        asked.score_seconds.append(scored.seconds if scored else 0.0)
        asked.peaks += [scored.rise] if scored else []
        _ask(prefilled, cell, question, talks, metric, asked)
    first = asked.made[0]
    return {
        **_results(asked),
        "kv_bytes": max(asked.held),
        "step_bytes": round(statistics.fmean(asked.step_bytes)),
        "read_share": round(statistics.fmean(asked.read_shares), 6),
        "peak_bytes": most_of(asked.peaks),
        "whole": method.evicts and first.demand.keeps_everything,
        "policy": ", ".join(sorted(asked.policies)),
        "seconds": {
            "prefill": prefilled.prefill_seconds,
            "score": statistics.fmean(asked.score_seconds),
            **(_stored(prefilled, asked) if stored else {}),
            **_answer_seconds(asked.answers),
        },
    }


@torch.inference_mode()
def measure_expanded(prefilled: Prefilled, full: Part) -> Part:
    """The full cache's own results, with the time and bytes of steps that expand keys and values to query heads."""
    cache = prefilled.whole[0]
    with watched(prefilled.model.device) as risen:
        answer = answer_expanded(prefilled)
        rise = risen()
    heads = prefilled.model.geometry.query_heads
    step = 0.0
    for layer in cache.layers:  # those that slide are never expanded
        copies = heads / layer.heads if layer.window is None else 1
        step += (layer.keys.nbytes + layer.values.nbytes) * copies
    times = {name: value for name, value in full["seconds"].items() if name != "token"}
    if answer.token_seconds is not None:
        times["token"] = answer.token_seconds
    peak_bytes = None if rise is None else cache.nbytes + rise
    return {**full, "step_bytes": round(step), "peak_bytes": peak_bytes, "policy": answer.policy, "seconds": times}


@torch.inference_mode()
def answer_expanded(prefilled: Prefilled) -> Answer:
    """The first question's answer, its first tokens, from keys and values that are expanded to query heads."""
    cache = prefilled.whole[0]
    session, reading = prefilled.session(cache), repeat_kv_reading(cache)
    ids = session.ids_of(prefilled.sample.questions[0].text)
    return session.answer(session.sequence(ids, _STEPS, reading=reading))


def _archives(prefilled: Prefilled, cell: Planned) -> Iterator[tuple[str | None, list[Talk]]]:
    """The question that each archive is made with, if any, and what is asked of it."""
    talks = prefilled.talks(cell.turns)
    if cell.sees_questions:
        yield from ((talk.questions[0].text, [talk]) for talk in talks)
    elif cell.turns and cell.method.takes_question:
        yield talks[0].questions[0].text, talks
    else:
        yield None, talks


def _ask(
    prefilled: Prefilled, cell: Planned, question: str | None, talks: Sequence[Talk], metric: Metric, asked: _Asked
) -> None:
    session, answered = _served(prefilled, cell, question, talks, asked)
    teacher = prefilled.teacher(session.cache, session.reading, cell.turns)
    for talk, answers in zip(talks, answered, strict=True):
        for asks, answer, full, ours in zip(
            talk.questions, answers, talk.log_probs, teacher.read(talk.script), strict=True
        ):
            same, divergence = agreement_of(full, ours)
            asked.answers.append(answer)
            asked.scores.append(metric.score(answer.text, asks))
            asked.agreement.append(same)
            asked.kl.append(divergence)
        read = session.reading.read(teacher.tokens)
        asked.step_bytes.append(read.nbytes)
        asked.read_shares.append(_share(read.attended, prefilled.whole[0]))
        asked.held.append(session.archive_nbytes + teacher.tokens.held_nbytes)
    asked.policies.add(session.policy)


def _served(
    prefilled: Prefilled, cell: Planned, question: str | None, talks: Sequence[Talk], asked: _Asked
) -> tuple[Session, list[Sequence[Answer]]]:
    """A session over an archive that is made with a `question`, and its greedy answers.

    Memory is watched from evicting to the last answer. A full cache was there before, and is counted in addition.
    """
    whole = prefilled.whole[0].nbytes
    with watched(prefilled.model.device) as risen:
        made = prefilled.made(cell.method, question)
        began = time.perf_counter()
        session = prefilled.session(made.cache, cell.method)
        asked.prepare_seconds.append(time.perf_counter() - began)
        if known := not cell.method.evicts and session.policy == DENSE:  # the full cache's, which were given already
            answered: list[Sequence[Answer]] = [talk.answers for talk in talks]
        else:
            answered = [_answers(prefilled, session, talk, cell.turns) for talk in talks]
        rise = risen()
    rises = [rise, *(talk.rise for talk in talks if known)]
    there = whole if made.demand.keeps_everything else 0
    asked.peaks += [None if rise is None else rise + there for rise in rises]
    asked.made.append(made)
    return session, answered


def _share(attended: float, full: RaggedCache) -> float:
    """The share of the full cache's pairs that is attended; layers that slide are attended by all methods alike."""
    sliding = sum(layer.bounds[-1] for layer in full.layers if layer.window is not None)
    return (attended - sliding) / (sum(layer.bounds[-1] for layer in full.layers) - sliding)


def _answers(prefilled: Prefilled, session: Session, talk: Talk, turns: bool) -> Sequence[Answer]:
    asker = Conversation(session) if turns else session
    return [asker.ask(question.text, prefilled.new_tokens) for question in talk.questions]


def _results(asked: _Asked) -> Part:
    return {
        "scores": asked.scores,
        "agreement": [round(value, 6) for value in asked.agreement],
        "kl": [round(value, 6) for value in asked.kl],
        "answers": [answer.text for answer in asked.answers],
        "new_tokens": [answer.new_tokens for answer in asked.answers],
    }


def _stored(prefilled: Prefilled, asked: _Asked) -> dict[str, float]:
    """To evict, to make what a policy chooses by and to write the first archive; to load it."""
    seconds = stored_seconds(prefilled, asked.made[0])
    return {**seconds, "write": seconds["write"] + asked.prepare_seconds[0]} if seconds else {}


def _answer_seconds(answers: Sequence[Answer]) -> dict[str, float]:
    """Medians over answers: the first call of a kernel compiles it."""
    times = {"first_token": statistics.median(answer.first_token_seconds for answer in answers)}
    steps = [answer.token_seconds for answer in answers if answer.token_seconds is not None]
    return {**times, "token": statistics.median(steps)} if steps else times
