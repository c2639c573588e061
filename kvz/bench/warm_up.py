"""First calls made before anything is timed: they compile kernels and allocate what they keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from kvz.bench.cell_run import answer_expanded
from kvz.bench.interrupts import check_interrupt
from kvz.bench.methods import Method
from kvz.bench.prefilled import Prefilled
from kvz.bench.tasks.task import Question, Sample
from kvz.models.language_model import LanguageModel

__all__ = ["warm_up"]

_TEXT = "A few words to begin with, and then some more of them. " * 10
_LEAST = 16  # pairs a step


@torch.inference_mode()
def warm_up(model: LanguageModel, methods: Sequence[Method], interrupted: Callable[[], bool]) -> None:
    """Let each way of compressing and of reading answer a question about a short text."""
    question = Question("What is this?", ("words",))
    prefilled = Prefilled(model, Sample(_TEXT, (question,)), 3)
    prefilled.talks(False)
    for method in dict.fromkeys(_small(method) for method in methods):
        try:
            if method.expands:
                answer_expanded(prefilled)
                continue
            made = prefilled.made(method, question.text)
            prefilled.session(made.cache, method).ask(question.text, 3)
        except Exception as error:  # found again where it is recorded
            check_interrupt(error, interrupted)


def _small(method: Method) -> Method:
    """The method with numbers that suit a short text, so that it does give up pairs and choose among the others."""
    budget = None if method.budget is None else _LEAST
    return replace(method, label="", budget=budget, ratio=0.5 if method.evicts else None, keep=None)
