"""How an answer is scored, from 0 to 1.

Each metric follows a published definition, named in its docstring. rouge and rapidfuzz, from the `bench` extra, are
imported when they are used.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from kvz.bench.found import stands_in
from kvz.errors import UsageError

if TYPE_CHECKING:
    from kvz.bench.tasks.task import Question

__all__ = [
    "ALL_FOUND",
    "ANY_FOUND",
    "FOUND_AS_WRITTEN",
    "METRICS",
    "AllFound",
    "BestOf",
    "Classification",
    "FirstLine",
    "Metric",
]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER = re.compile(r"(?:(?<!\w)[-−])?\d[\d,]*(?:\.\d+)?(?:[eE][-+−]?\d{1,3}(?!\w))?")


class Metric(Protocol):
    """Scores what was answered to a question."""

    @property
    def name(self) -> str:
        """For a report."""

    def score(self, prediction: str, question: Question) -> float:
        """From 0 to 1."""


@dataclass(frozen=True)
class BestOf:
    """The best score against any of the answers; `one` scores a prediction against one answer."""

    name: str
    one: Callable[[str, str], float]

    def score(self, prediction: str, question: Question) -> float:
        """From 0 to 1; 0 where there are no answers."""
        return max((self.one(prediction, answer) for answer in question.answers), default=0.0)


@dataclass(frozen=True)
class AllFound:
    """The share of the answers that stand in the prediction, whatever their case.

    RULER's `string_match_all`, but that an answer is whole words and numbers.
    """

    name: str = "all-found"

    def score(self, prediction: str, question: Question) -> float:
        """From 0 to 1; 0 where there are no answers."""
        found = sum(found_in(prediction, answer) for answer in question.answers)
        return found / len(question.answers) if question.answers else 0.0


@dataclass(frozen=True)
class Classification:
    """One over the number of classes named, if the right one is among them (LongBench's `classification_score`).

    A class that is named only because it is part of the right one's name is taken out. LongBench's own code takes
    them out of the list that it goes through, so that the class after each of them is passed over and stays; scores
    are to be comparable with its tables, and so it is here.
    """

    classes: tuple[str, ...]
    name: str = "accuracy"

    def score(self, prediction: str, question: Question) -> float:
        """From 0 to 1; the best over the answers."""
        return max((self._one(prediction, answer) for answer in question.answers), default=0.0)

    def _one(self, prediction: str, answer: str) -> float:
        named = [name for name in self.classes if name in prediction]
        at = 0
        while at < len(named):
            if named[at] in answer and named[at] != answer:
                del named[at]
            at += 1
        return 1.0 / len(named) if answer in named else 0.0


@dataclass(frozen=True)
class FirstLine:
    """Another metric on the prediction's first line: LongBench cuts few-shot answers there."""

    metric: Metric

    @property
    def name(self) -> str:
        """The other metric's."""
        return self.metric.name

    def score(self, prediction: str, question: Question) -> float:
        """From 0 to 1."""
        return self.metric.score(prediction.lstrip("\n").split("\n")[0], question)


def normalised(text: str) -> str:
    """Lower case, without punctuation, English articles and surplus white space (SQuAD v1.1's evaluation)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Whether they are the same once normalised (SQuAD v1.1)."""
    return float(normalised(prediction) == normalised(answer))


def token_f1(prediction: str, answer: str) -> float:
    """F1 of the words they share once normalised (SQuAD v1.1; LongBench's `qa_f1_score`)."""
    ours, theirs = normalised(prediction).split(), normalised(answer).split()
    same = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * same / (len(ours) + len(theirs)) if same else 0.0


def found_in(prediction: str, answer: str) -> float:
    """Whether the answer stands in the prediction, whatever its case (RULER's `string_match_part`, of whole words)."""
    return float(stands_in(prediction.lower(), answer.lower()))


def found_as_written(prediction: str, answer: str) -> float:
    """Whether the answer stands in the prediction, in the same case (SCBench's score of look-ups, of whole words)."""
    return float(stands_in(prediction, answer))


def rouge_l(prediction: str, answer: str) -> float:
    """ROUGE-L, F measure, of the package rouge, and 0 where that cannot compute it (LongBench's `rouge_score`)."""
    try:
        from rouge import Rouge
    except ImportError:
        raise UsageError("ROUGE-L needs the package rouge; pip install 'kvz[bench]'") from None
    try:
        return float(Rouge(metrics=["rouge-l"]).get_scores(prediction, answer)[0]["rouge-l"]["f"])
    except (ValueError, RecursionError):  # an empty text, or a sentence of some hundred words
        return 0.0


def code_similarity(prediction: str, answer: str) -> float:
    """Edit similarity, in whole per cent, of the first line without comment or fence (LongBench's `code_sim_score`)."""
    try:
        from rapidfuzz import fuzz
    except ImportError:
        raise UsageError("code similarity needs the package rapidfuzz; pip install 'kvz[bench]'") from None
    lines = prediction.lstrip("\n").split("\n")
    code = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return round(fuzz.ratio(code, answer)) / 100


def count_share(prediction: str, answer: str) -> float:
    """The share of the prediction's numbers that are the answer (LongBench's `count_score`)."""
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(answer) / len(numbers) if numbers else 0.0


def retrieval_share(prediction: str, answer: str) -> float:
    """The share of the prediction's numbers that are the answer's paragraph (LongBench's `retrieval_score`)."""
    paragraph = re.search(r"Paragraph (\d+)", answer)
    return count_share(prediction, paragraph[1]) if paragraph else 0.0


def last_number(prediction: str, answer: str) -> float:
    """Whether the last number is that of the answer (as GSM8K is commonly scored).

    A number is digits with commas between them, decimals, an exponent as in 1e3, and a minus, - or −, that follows no
    letter or digit.
    """
    ours, theirs = _NUMBER.findall(prediction), _NUMBER.findall(answer)
    return float(bool(ours and theirs) and _value(ours[-1]) == _value(theirs[-1]))


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", "").replace("−", "-"))


ALL_FOUND = AllFound()
ANY_FOUND = BestOf("any-found", found_in)
FOUND_AS_WRITTEN = BestOf("found-as-written", found_as_written)
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        ALL_FOUND,
        ANY_FOUND,
        FOUND_AS_WRITTEN,
        BestOf("f1", token_f1),
        BestOf("exact-match", exact_match),
        BestOf("rouge-l", rouge_l),
        BestOf("code-similarity", code_similarity),
        BestOf("retrieval", retrieval_share),
        BestOf("count", count_share),
        BestOf("number", last_number),
    )
}
"""Those that need nothing but a prediction and its answers, by name."""
