"""LongBench's English and code sets, from files in its layout, scored as it scores them.

Reads its JSONL: `input`, `context`, `answers`, `dataset` and, for `trec`, `all_classes`. The metric and the length of
an answer by data set, and the middle cut out of long contexts, are LongBench's (Bai et al., 2024, arXiv 2308.14508);
the wordings are our own, and what is asked comes after the context.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvz.bench.metrics import METRICS, Classification, FirstLine, Metric
from kvz.bench.tasks.loaded import Loaded
from kvz.bench.tasks.rows import Row, read_rows
from kvz.bench.tasks.task import Question, Sample
from kvz.errors import UsageError

__all__ = ["SETS", "Set", "load_longbench"]

_F1, _ROUGE, _CODE = METRICS["f1"], METRICS["rouge-l"], METRICS["code-similarity"]
_SHORT = "Answer in as few words as you can, without an explanation."


@dataclass(frozen=True)
class Set:
    """A data set: what stands before its context, what is asked (`{input}` is the row's), and how that is scored."""

    before: str
    asked: str
    new_tokens: int
    metric: Callable[[tuple[str, ...]], Metric]
    """From the classes that the rows name; all but one set name none."""
    asks_itself: bool = False
    """Whether what is asked stands without the row's `input`, which is blank in some of these sets."""

    def sample(self, row: Row) -> Sample:
        """What a row of it asks. Raises UsageError."""
        given = row.text("input") if self.asks_itself else row.filled("input")
        text = self.asked.replace("{input}", given).strip()
        context = row.filled("context")
        context = f"{self.before}\n\n{context}" if self.before else context
        return Sample(context, (Question(text, row.texts("answers")),))


def load_longbench(name: str, source: Path) -> Loaded:
    """The task over a file of one of LongBench's sets. Raises UsageError, naming the line."""
    rows = read_rows(source)
    dataset = rows[0].text("dataset")
    chosen = _set(dataset, rows[0])
    for row in rows:
        if row.text("dataset") != dataset:
            raise UsageError(
                f"{row.where}: its data set is not {dataset}, as in the lines before; give a file for each"
            )
    classes = tuple(dict.fromkeys(text for row in rows if row.has("all_classes") for text in row.texts("all_classes")))
    try:
        metric = chosen.metric(classes)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
    samples = tuple(map(chosen.sample, rows))
    licence = f"{source.name}, LongBench's {dataset}"
    return Loaded(f"{name}-{dataset}", metric, samples, chosen.new_tokens, licence, cut=True)


def _set(name: str, row: Row) -> Set:
    if name in SETS:
        return SETS[name]
    near = difflib.get_close_matches(name, SETS, 3) or SETS
    raise UsageError(f"{row.where}: the data set {name} is not one of those known here, such as {', '.join(near)}")


def _accuracy(classes: tuple[str, ...]) -> Metric:
    if not classes:
        raise UsageError('no row has "all_classes", without which this data set of LongBench cannot be scored')
    return FirstLine(Classification(classes))


def _passages(new_tokens: int = 32) -> Set:
    asked = f"Use the passages above. {_SHORT}\n\nQuestion: {{input}}"
    return Set("These are passages from several pages.", asked, new_tokens, lambda _: _F1)


def _summary(kind: str) -> Set:
    asked = "Write a summary of the text above, about one page long."
    return Set(f"This is {kind}.", asked, 512, lambda _: _ROUGE, asks_itself=True)


def _code() -> Set:
    asked = "{input}\n\nWrite the line of code that comes next, and nothing else."
    return Set("", asked, 64, lambda _: _CODE, asks_itself=True)


SETS: dict[str, Set] = {
    "narrativeqa": Set("This is a story or a script.", f"{_SHORT}\n\nQuestion: {{input}}", 128, lambda _: _F1),
    "qasper": Set(
        "This is a scientific article.",
        f'{_SHORT} Write "unanswerable" if the article does not say, and "yes" or "no" if that is what is asked.'
        "\n\nQuestion: {input}",
        128,
        lambda _: _F1,
    ),
    "multifieldqa_en": Set("", f"{_SHORT}\n\nQuestion: {{input}}", 64, lambda _: _F1),
    "hotpotqa": _passages(),
    "2wikimqa": _passages(),
    "musique": _passages(),
    "gov_report": _summary("a report by an office of the government"),
    "qmsum": Set(
        "This is the transcript of a meeting.",
        "Answer from the transcript, in one sentence or a few.\n\n{input}",
        512,
        lambda _: _ROUGE,
    ),
    "multi_news": _summary("the news of several papers on one matter"),
    "trec": Set(
        "These are questions and their types.",
        "Which type is this question? Write the type only, as in the examples.\n\n{input}",
        64,
        _accuracy,
    ),
    "triviaqa": Set(
        "These are passages, each with a question and its answer.",
        "Answer the question on this passage as in the examples, with the answer only.\n\n{input}",
        32,
        lambda _: FirstLine(_F1),
    ),
    "samsum": Set(
        "These are conversations and their summaries.",
        "Sum up this conversation in a few short sentences, as in the examples.\n\n{input}",
        128,
        lambda _: FirstLine(_ROUGE),
    ),
    "passage_count": Set(
        "These are numbered paragraphs, some of which stand here more than once.",
        "How many different paragraphs are there? Write the number only. {input}",
        32,
        lambda _: METRICS["count"],
        asks_itself=True,
    ),
    "passage_retrieval_en": Set(
        "These are thirty numbered paragraphs.",
        'Which paragraph does this summary belong to? Answer in the form "Paragraph 1".\n\n{input}',
        32,
        lambda _: METRICS["retrieval"],
    ),
    "lcc": _code(),
    "repobench-p": _code(),
}
"""By the name that LongBench gives them in `dataset`."""
