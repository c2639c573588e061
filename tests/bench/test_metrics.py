"""Each metric on fifty pairs, against its published definition written once more, in another way."""

from __future__ import annotations

import itertools
import json
import string
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import pytest

from kvz.bench.metrics import ALL_FOUND, METRICS, Classification, FirstLine
from kvz.bench.tasks.task import Question
from kvz.errors import UsageError

PAIRS = [json.loads(line) for line in Path(__file__).with_name("metric_pairs.jsonl").read_text("utf-8").splitlines()]
"""Fifty of each metric, with scores by the published definitions: SQuAD's, LongBench's, RULER's, SCBench's, GSM8K's."""
TEXT = "the a An ship, Sails north. Again and the ship's captain (old) counts 7 gulls 12 times; 7 nets torn"
WORDS = TEXT.split()


def texts(seed: int, most: int = 8) -> list[tuple[str, str]]:
    """Fifty pairs of a prediction and an answer with words in common."""
    draw = Random(seed)
    return [tuple(" ".join(draw.choices(WORDS, k=draw.randint(0, most))) for _ in range(2)) for _ in range(50)]


def words_of(text: str) -> list[str]:
    """SQuAD's normalisation, letter by letter."""
    kept = "".join(letter.lower() for letter in text if letter not in string.punctuation)
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def stands_in(prediction: str, answer: str) -> bool:
    """Whether the answer is in a prediction in Latin letters, and no letter or digit goes on at either end."""
    text, wanted = f" {prediction.lower()} ", answer.lower()
    ends = [(i, i + len(wanted)) for i in range(1, len(text)) if text[i:].startswith(wanted)]
    return any(not text[i - 1 : i + 1].isalnum() and not text[j - 1 : j + 1].isalnum() for i, j in ends)


def f1(prediction: str, answer: str) -> float:
    ours, theirs, same = words_of(prediction), words_of(answer), 0
    left = list(theirs)
    for word in ours:
        if word in left:
            left.remove(word)
            same += 1
    if not same:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def numbers_of(text: str) -> list[str]:
    return ["".join(run) for digits, run in itertools.groupby(text, str.isdigit) if digits]


def share_of(prediction: str, number: str) -> float:
    found = numbers_of(prediction)
    return sum(n == number for n in found) / max(1, len(found))


def longest(a: str | list[str], b: str | list[str]) -> int:
    """Length of the longest common subsequence, by its recursion."""

    @cache
    def at(i: int, j: int) -> int:
        if i == len(a) or j == len(b):
            return 0
        return 1 + at(i + 1, j + 1) if a[i] == b[j] else max(at(i + 1, j), at(i, j + 1))

    return at(0, 0)


@pytest.mark.parametrize("name", [*METRICS, "accuracy"])
def test_scores_are_the_written_ones(name: str):
    pairs = [pair for pair in PAIRS if pair["metric"] == name]
    assert len(pairs) == 50
    assert 0.2 < sum(pair["score"] for pair in pairs) / 50 < 0.8, "the pairs tell little apart"
    for pair in pairs:
        metric = Classification(tuple(pair["classes"])) if name == "accuracy" else METRICS[name]
        got = metric.score(pair["prediction"], Question("", tuple(pair["answers"])))
        assert got == pytest.approx(pair["score"], abs=2e-6), pair


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("f1", f1),
        ("exact-match", lambda p, a: float(words_of(p) == words_of(a))),
        ("any-found", lambda p, a: float(stands_in(p, a))),
    ],
)
def test_metrics_of_words(name: str, definition: Callable[[str, str], float]):
    pairs = texts(1) + texts(2, 2)
    wanted = [definition(prediction, answer) for prediction, answer in pairs]
    assert [METRICS[name].score(p, Question("", (a,))) for p, a in pairs] == pytest.approx(wanted)
    assert len(set(wanted)) > 1, "the pairs tell nothing apart"
    for (prediction, answer), (_, other) in itertools.pairwise(pairs):
        both = Question("", (answer, other))
        assert METRICS[name].score(prediction, both) == pytest.approx(
            max(definition(prediction, answer), definition(prediction, other))
        )


def test_all_found_is_the_share_of_answers():
    draw = Random(3)
    for prediction, _ in texts(3):
        answers = tuple(draw.choices(WORDS, k=4))
        there = [answer for answer in answers if stands_in(prediction, answer)]
        assert ALL_FOUND.score(prediction, Question("", answers)) == len(there) / 4
    assert ALL_FOUND.score("It is 41 and FORTY.", Question("", ("41", "forty", "42"))) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("answer", "prediction", "found"),
    [
        ("4711", "It is 47117.", False),
        ("4711", "It is 14711.", False),
        ("4711", "It is 4711.", True),
        ("4711", "_4711_, (4711)", True),
        ("4711", "A4711 or 4711B", False),
        ("4711", "It is 4,711.", True),
        ("4711", "It is 4'711.", True),
        ("4711", "It is 4\u202f711, or 4 711.", True),
        ("4,711", "It is 4711.", True),
        ("1234567", "1.234.567 inhabitants", True),
        ("711", "It is 4,711.", False),
        ("4711", "It is 4711.5.", False),
        ("4711", "It is 0.4711.", False),
        ("18", "It costs $18.00.", True),
        ("2.5", "It costs 12.5, or 2.55.", False),
        ("2.50", "It costs 2.50.", True),
        ("1998", "On 14.03.1998.", True),
        ("2", "1,2,3", True),
        ("12", "12%", True),
        ("-5", "It is -5.", True),
        ("ship", "The shipment sails", False),
        ("ship", "The ship's captain", True),
        ("cafe", "cafe\u0301s", False),
        ("C++", "In C++.", True),
        ("кот", "который", False),
        ("кот", "Это кот.", True),
        ("東京", "首都は東京です", True),
        ("4711", "番号は4711です", True),
        ("서울", "서울은 수도이다", True),
        ("กรุงเทพ", "ที่กรุงเทพมหานคร", True),
        ("القاهرة", "والقاهرة", True),
        ("٤٧١١", "٤٧١١٧", False),
    ],
)
def test_an_answer_is_found_as_words_and_numbers_of_their_own(answer: str, prediction: str, found: bool):
    for name in ("any-found", "all-found", "found-as-written"):
        assert METRICS[name].score(prediction, Question("", (answer,))) == found, name


def test_count_is_the_share_of_numbers():
    for prediction, _ in texts(4):
        for number in ("7", "12"):
            assert METRICS["count"].score(prediction, Question("", (number,))) == share_of(prediction, number)
    assert METRICS["count"].score("7 or 12, no: 7", Question("", ("7",))) == pytest.approx(2 / 3)


def test_retrieval_is_the_share_of_numbers_that_are_the_paragraphs():
    for prediction, _ in texts(5):
        asked = Question("", ("Paragraph 12",))
        assert METRICS["retrieval"].score(prediction, asked) == share_of(prediction, "12")
    assert METRICS["retrieval"].score("Paragraph 12", Question("", ("Paragraph 2",))) == 0
    assert METRICS["retrieval"].score("2", Question("", ("none",))) == 0


def test_classification_counts_named_classes_but_not_parts_of_the_right_one():
    classes = ("number", "other number", "date", "place", "other place")
    metric, draw = Classification(classes), Random(6)
    scores = set()
    for _ in range(50):
        prediction = "It is a " + " or a ".join(draw.choices(classes, k=draw.randint(1, 3)))
        right = draw.choice(classes)
        named = {name for name in classes if name in prediction} - {
            name for name in classes if name != right and name in right
        }
        wanted = 1 / len(named) if right in named else 0.0
        assert metric.score(prediction, Question("", (right,))) == wanted
        scores.add(wanted)
    assert scores >= {0.0, 0.5, 1.0}
    assert metric.score("other number", Question("", ("other number",))) == 1
    assert metric.score("other number", Question("", ("number",))) == 0.5
    odd = Classification(("plac", "place", "other place"))
    assert odd.score("other place", Question("", ("other place",))) == 0.5, "LongBench's loop passes over place"
    assert metric.score("nothing of it", Question("", ("date",))) == 0


def test_code_similarity_is_that_of_edits_without_replacement():
    """Levenshtein's ratio: twice the common subsequence over both lengths, in whole per cent."""
    lines = ["x = y + 1", "return x", "for i in range(n):", "self.total += value", "yield from rows", "", "y = x"]
    draw, scores = Random(7), set()
    for _ in range(50):
        a, b = draw.choice(lines), draw.choice(lines) + draw.choice(["", " ", ")"])
        wanted = 2 * longest(a, b) / (len(a) + len(b)) if a or b else 1.0
        got = METRICS["code-similarity"].score(a, Question("", (b,)))
        assert abs(got - wanted) <= 0.005 + 1e-9
        assert got * 100 == pytest.approx(round(got * 100), abs=1e-9)
        scores.add(got)
    assert len(scores) > 10
    fenced = "\n```python\n# the sum\n// the same\nreturn x\nreturn y"
    assert METRICS["code-similarity"].score(fenced, Question("", ("return x",))) == 1
    assert METRICS["code-similarity"].score("# only this", Question("", ("return x",))) == 0


def test_rouge_is_the_f_measure_of_the_longest_common_subsequence():
    """Of one sentence without a word twice, the union of subsequences is the longest one, whichever is found."""
    words, draw, scores = sorted(set(WORDS) - {"north."}), Random(8), set()
    for _ in range(50):
        ours, theirs = (draw.sample(words, draw.randint(1, len(words))) for _ in range(2))
        common = longest(ours, theirs)
        precision, recall = common / len(ours), common / len(theirs)
        wanted = 2 * precision * recall / (precision + recall) if common else 0.0
        got = METRICS["rouge-l"].score(" ".join(ours), Question("", (" ".join(theirs),)))
        assert got == pytest.approx(wanted, abs=1e-6)
        scores.add(got)
    assert len(scores) > 10


def test_rouge_joins_the_subsequences_of_sentences():
    """ROUGE's own example: of w1..w5, two sentences hold w1 w2 and w1 w3 w5; their union is four of five words."""
    score = METRICS["rouge-l"].score("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", Question("", ("w1 w2 w3 w4 w5",)))
    recall, precision = 4 / 5, 4 / 8  # the package counts each word once: the eight are w1 w2 w3 w5 w6 w7 w8 w9
    assert score == pytest.approx(2 * recall * precision / (recall + precision), abs=1e-6)


@pytest.mark.parametrize("prediction", ["", ".", " ".join(f"w{n}" for n in range(3000))])
def test_rouge_is_nothing_where_the_package_cannot_compute_it(prediction: str):
    """No sentence, or one that its recursion is not deep enough for; LongBench counts both as 0."""
    assert METRICS["rouge-l"].score(prediction, Question("", ("w0 w1",))) == 0


def test_number_compares_the_last_number():
    draw = Random(9)
    for _ in range(50):
        first, last, answer = (draw.choice([7, 12, 1234, 1234567, -5, 2.5]) for _ in range(3))
        prediction = f"First {first:,}, so the answer is ${last:,}."
        wanted = float(last == answer)
        assert METRICS["number"].score(prediction, Question("", (str(answer),))) == wanted
    cases = [("18.00", "18", 1), ("10-5", "5", 1), ("it is -5", "5", 0), ("none", "5", 0), ("1,000", "1000", 1)]
    for prediction, answer, wanted in cases:
        assert METRICS["number"].score(prediction, Question("", (answer,))) == wanted


def test_the_first_line_alone_is_scored():
    metric = FirstLine(METRICS["exact-match"])
    assert metric.name == "exact-match"
    assert metric.score("\n\nThe date\nQuestion: what else?", Question("", ("date",))) == 1
    assert metric.score("no\ndate", Question("", ("date",))) == 0


@pytest.mark.parametrize(("name", "package"), [("rouge-l", "rouge"), ("code-similarity", "rapidfuzz")])
def test_a_missing_package_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"{package}; pip install 'kvz\[bench\]'"):
        METRICS[name].score("a", Question("", ("a",)))
