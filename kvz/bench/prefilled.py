"""A context that is prefilled once, and what all methods share of it: the full cache, its answers, and scores.

The scores of a compression are computed once, whatever its ratios, and once for each question where they depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kvz.bench.full_context import everything, prefill_context, pruned
from kvz.bench.methods import Method
from kvz.bench.peak import watched
from kvz.bench.tasks.task import Question, Sample
from kvz.bench.teacher import Script, Teacher
from kvz.cache.index import with_index
from kvz.cache.ragged import RaggedCache
from kvz.decode.conversation import Conversation
from kvz.decode.decoding import Reading, dense_reading
from kvz.decode.sequence import Answer, AnswerText
from kvz.decode.session import Session
from kvz.demand import demand_of
from kvz.errors import KvzError
from kvz.models.language_model import LanguageModel
from kvz.prompt import Seam, context_ids, later_ids, make_frame, make_turn, question_ids
from kvz.recipe import Recipe
from kvz.scoring.allocation import Demand
from kvz.scoring.method import ScoringMethod
from kvz.scoring.selection import select

__all__ = ["Impossible", "Made", "Prefilled", "Scored", "Talk", "check_room"]


class Impossible(Exception):
    """A cell cannot be measured, for a reason that is known before its work is done."""


@dataclass(frozen=True, eq=False)
class Made:
    """A compressed cache, what it was made by, and the seconds of evicting."""

    cache: RaggedCache
    recipe: Recipe
    demand: Demand
    kept: Tensor
    evict_seconds: float


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of all pairs, the seconds that they took, and by how many bytes memory rose, if that is known."""

    scores: Tensor
    seconds: float
    rise: int | None


@dataclass(frozen=True, eq=False)
class Talk:
    """Questions, asked one after another, and what the full cache said.

    `script` has the ids of each question and answer, `log_probs` the full cache's `[n+1,V]` for each answer. `rise` is
    by how many bytes memory rose while they were answered, if that is known.
    """

    questions: tuple[Question, ...]
    answers: tuple[Answer, ...]
    script: Script
    log_probs: tuple[Tensor, ...]
    rise: int | None


class Prefilled:
    """A sample's context, prefilled; everything else is computed when it is asked for, and kept."""

    def __init__(self, model: LanguageModel, sample: Sample, new_tokens: int) -> None:
        """`new_tokens` is the longest answer, in tokens."""
        self.model = model
        self.sample = sample
        self.new_tokens = new_tokens
        self.context, self.prefill_seconds = prefill_context(model, sample.context)
        self._scores: dict[ScoringMethod, Scored] = {}
        self._talks: dict[bool, list[Talk]] = {}

    @cached_property
    def whole(self) -> tuple[RaggedCache, float]:
        """The full cache as an archive has it, and the seconds of making it."""
        began = time.perf_counter()
        return everything(self.model, self.context), time.perf_counter() - began

    def talks(self, turns: bool) -> list[Talk]:
        """What is asked: one conversation if the questions are `turns`, else each question alone."""
        if turns not in self._talks:
            session = self.session(self.whole[0])
            questions = self.sample.questions
            groups = [questions] if turns else [(question,) for question in questions]
            self._talks[turns] = [self._talk(session, group, turns) for group in groups]
        return self._talks[turns]

    def session(self, cache: RaggedCache, method: Method | None = None) -> Session:
        """A session over an archive of this context, which reads it as the method does, else densely."""
        decoding = None if method is None or method.expands else method.decoding()
        return Session(self.model, cache, self.context.frame.seam, self.context.prefix, decoding)

    def demand(self, method: Method, question: str | None) -> tuple[Recipe, Demand]:
        """What the method wants of this context. Raises Impossible if it cannot have it."""
        try:
            recipe = method.recipe(question)
            return recipe, demand_of(recipe, self.model, self.context.frame, self.context.ids)
        except KvzError as error:
            raise Impossible(str(error)) from error

    @torch.inference_mode()
    def scored(self, method: Method, question: str | None) -> Scored | None:
        """The scores that a method chooses by, computed once; None where it chooses nothing. Raises Impossible."""
        recipe, demand = self.demand(method, question)
        return None if demand.keeps_everything else self._score(recipe.method)

    @torch.inference_mode()
    def made(self, method: Method, question: str | None) -> Made:
        """The archive that a method makes, with the `question` known, if any. Raises Impossible."""
        recipe, demand = self.demand(method, question)
        if demand.keeps_everything:
            cache, evict_seconds = self.whole
            kept = torch.ones(demand.rows, demand.length, dtype=torch.bool)
        else:
            scores = self._score(recipe.method).scores
            began = time.perf_counter()
            kept = select(scores, demand, recipe.allocation)
            cache = pruned(self.model, self.context, kept)
            evict_seconds = time.perf_counter() - began
        began = time.perf_counter()
        cache = with_index(cache, self.context.prefix, recipe.index)
        evict_seconds += time.perf_counter() - began
        return Made(cache, recipe, demand, kept, evict_seconds)

    def teacher(self, cache: RaggedCache, reading: Reading, turns: bool) -> Teacher:
        """Reads an archive for agreement with the full cache."""
        return Teacher(self.model, cache, reading, _room_for(talk.script for talk in self.talks(turns)))

    def _score(self, method: ScoringMethod) -> Scored:
        if method not in self._scores:
            with watched(self.model.device) as rise:
                began = time.perf_counter()
                scores = method.score(self.model, self.context, lambda tokens: None)
                self._scores[method] = Scored(scores, time.perf_counter() - began, rise())
        return self._scores[method]

    @torch.inference_mode()
    def _talk(self, session: Session, questions: Sequence[Question], turns: bool) -> Talk:
        asker = Conversation(session) if turns else session
        with watched(self.model.device) as risen:
            answers = tuple(asker.ask(question.text, self.new_tokens) for question in questions)
            rise = risen()
        turn = make_turn(self.model.tokenizer, session.seam) if turns else None
        script = []
        for number, (question, answer) in enumerate(zip(questions, answers, strict=True)):
            if number and turn is not None:
                ids = later_ids(self.model.tokenizer, turn, question.text)
            else:
                ids = question_ids(self.model.tokenizer, session.seam, question.text)
            script.append((ids, _said(self.model, session.seam, answer)))
        teacher = Teacher(self.model, session.cache, dense_reading(session.cache), _room_for([script]))
        return Talk(tuple(questions), answers, script, tuple(teacher.read(script)), rise)


def _said(model: LanguageModel, seam: Seam, answer: Answer) -> list[int]:
    """An answer's ids without those of a text that ended it: what a conversation goes on from."""
    text = AnswerText(model.tokenizer, seam, len(answer.ids) + 1, "length")
    for token in answer.ids:
        text.accept(token)
    return text.said


def _room_for(scripts: Iterable[Script]) -> int:
    """Tokens of the longest script, and one more."""
    return 1 + max((sum(len(q) + len(a) for q, a in script) for script in scripts), default=0)


def check_room(model: LanguageModel, sample: Sample, new_tokens: int, turns: bool) -> None:
    """Raise Impossible unless the context, its questions and their answers fit into the model's positions."""
    tokenizer = model.tokenizer
    frame = make_frame(tokenizer, model.end_ids)
    prompt = len(frame.prefix_ids) + len(context_ids(tokenizer, frame, sample.context))
    asked = [len(question_ids(tokenizer, frame.seam, question.text)) + new_tokens for question in sample.questions]
    needed = prompt + (sum(asked) if turns else max(asked))
    if turns:
        between = make_turn(tokenizer, frame.seam)
        needed += len(sample.questions) * (len(between.between_ids) + len(between.after_ids))
    if needed > model.geometry.max_positions:
        raise Impossible(
            f"a context of {prompt} tokens with its questions and answers needs {needed} positions; "
            f"the model has {model.geometry.max_positions}"
        )
