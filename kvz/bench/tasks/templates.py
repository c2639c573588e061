"""How questions of a file are worded when they are asked: templates by name, and a task whose questions follow one."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from kvz.bench.metrics import Metric
from kvz.bench.tasks.task import Counter, Sample, Task
from kvz.errors import UsageError

__all__ = ["TEMPLATES", "Worded", "worded"]

TEMPLATES = {
    "plain": "{question}",
    "short-answer": "{question}\nAnswer in as few words as you can, without an explanation.",
    "longbench": "Answer this question from the text above: the answer alone, and no other words.\n\n"
    "Question: {question}\nAnswer:",
    "step-by-step": "{question}\nWork it out step by step, as in the examples, and end with the number.",
}
"""By name; `{question}` is the file's. "longbench" is laid out as LongBench's questions about one document are."""


@dataclass(frozen=True)
class Worded:
    """A task, the questions of which are put into a template."""

    task: Task
    template: str

    @property
    def name(self) -> str:
        """The task's."""
        return self.task.name

    @property
    def metric(self) -> Metric:
        """The task's."""
        return self.task.metric

    @property
    def shared(self) -> bool:
        """Whether several questions are asked of one context."""
        return self.task.shared

    @property
    def turns(self) -> bool:
        """Whether a context's questions are turns of one conversation."""
        return self.task.turns

    @property
    def new_tokens(self) -> int:
        """How long an answer may be, in tokens."""
        return self.task.new_tokens

    @property
    def licence(self) -> str:
        """Where the task's text comes from."""
        return self.task.licence

    def samples(self, counter: Counter, tokens: int, count: int, seed: int) -> list[Sample]:
        """The task's, with each question in the template. Raises UsageError."""
        return [self._worded(sample) for sample in self.task.samples(counter, tokens, count, seed)]

    def _worded(self, sample: Sample) -> Sample:
        template = TEMPLATES[self.template]
        asked = (replace(asked, text=template.replace("{question}", asked.text)) for asked in sample.questions)
        return replace(sample, questions=tuple(asked))


def worded(task: Task, template: str) -> Task:
    """The task with its questions in the template of that name. Raises UsageError if there is none."""
    if template not in TEMPLATES:
        near = difflib.get_close_matches(template, TEMPLATES, 3) or TEMPLATES
        raise UsageError(f"there is no template {template}; there is {', '.join(near)}")
    return Worded(task, template)
