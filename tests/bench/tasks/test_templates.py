"""How a file's questions are worded, and needles of a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvz.bench.settings import make_settings
from kvz.bench.tasks.registry import make_task, needs_data, takes_template, task_names
from kvz.bench.tasks.templates import TEMPLATES
from kvz.errors import UsageError
from tests.bench.tasks.conftest import filler, words, write_lines


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "mine.jsonl", [{"context": "c {x}", "questions": ["A {b}?"], "answers": ["a"]}])


@pytest.mark.parametrize(
    ("template", "asked"),
    [
        (None, "A {b}?"),
        ("plain", "A {b}?"),
        ("short-answer", "A {b}?\nAnswer in as few words as you can, without an explanation."),
        ("step-by-step", "A {b}?\nWork it out step by step, as in the examples, and end with the number."),
        (
            "longbench",
            "Answer this question from the text above: the answer alone, and no other words.\n\n"
            "Question: A {b}?\nAnswer:",
        ),
    ],
)
def test_questions_are_put_into_the_template(own, template, asked):
    task = make_task("own", own, template=template)
    [sample] = task.samples(words, 50, 1, 0)
    assert (sample.context, sample.questions[0].text, sample.questions[0].answers) == ("c {x}", asked, ("a",))
    assert (task.name, task.metric.name, task.shared, task.turns, task.new_tokens, task.licence) == (
        "own", "any-found", False, False, 128, "mine.jsonl"
    )  # fmt: skip


def test_squad_asks_for_short_answers(tmp_path):
    path = tmp_path / "squad.json"
    qas = [{"question": "Why?", "answers": [{"text": "so"}]}]
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "It is so.", "qas": qas}]}]}))
    [sample] = make_task("squad", path).samples(words, 50, 1, 0)
    assert sample.questions[0].text == "Why?\nAnswer in as few words as you can, without an explanation."
    [sample] = make_task("squad", path, template="plain").samples(words, 50, 1, 0)
    assert sample.questions[0].text == "Why?"


def test_a_template_that_is_none_is_refused(own):
    with pytest.raises(UsageError, match="there is no template short-answr; there is short-answer"):
        make_task("own", own, template="short-answr")
    with pytest.raises(UsageError, match=r"--template is for gsm8k, .*squad; needle words questions its own way"):
        make_settings(tasks=["needle"], template="plain")
    assert {name for name in filter(needs_data, task_names()) if not takes_template(name)} == {"longbench"}
    command = Path(__file__).parents[3] / "docs" / "cli.md"
    assert ", ".join(TEMPLATES) in " ".join(command.read_text(encoding="utf-8").split())
    assert not any(takes_template(name) for name in task_names() if not needs_data(name))


NEEDLE = "The key of the mill is 42."


def needle_row(**fields: object) -> dict[str, object]:
    text = " ".join(f"Sentence {number} is here." for number in range(100))
    return {"haystack": text, "needle": NEEDLE, "question": "What is the key?", "answer": "42", **fields}


def test_needles_of_a_file_are_hidden_at_their_depths(tmp_path):
    rows = [needle_row(depth=depth) for depth in (0, 0.3, 1)]
    task = make_task("needle-file", write_lines(tmp_path / "needles.jsonl", rows))
    samples = sorted(task.samples(words, 500, 9, 0), key=lambda sample: float(sample.facts["depth"]))
    for sample, sentences in zip(samples, (0, 30, 100), strict=True):
        before, after = sample.context.split(NEEDLE)
        assert (before.count("Sentence"), after.count("Sentence")) == (sentences, 100 - sentences)
        assert sample.facts["depth"] == pytest.approx(sentences / 100, abs=0.011)
        assert sample.facts["length"] == words(sample.context) == 407
        assert task.metric.score("It is 42.", sample.questions[0]) == 1
    spread = make_task("needle-file", write_lines(tmp_path / "spread.jsonl", [needle_row()] * 5))
    depths = sorted(float(sample.facts["depth"]) for sample in spread.samples(words, 500, 9, 0))
    assert depths == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.011)


def test_a_needle_that_is_there_stays_where_it_is(tmp_path):
    context = f"{filler(0, 30)}. {NEEDLE} {filler(1, 10)}."
    row = {"context": context, "needle": NEEDLE, "retrieval_question": "Q?", "answers": ["42", "forty-two"]}
    path = write_lines(tmp_path / "needles.jsonl", [row | {"depth": 0, "length": 4000}])
    [sample] = make_task("needle-file", path).samples(words, 500, 1, 0)
    assert sample.context == context
    assert (sample.questions[0].text, sample.questions[0].answers) == ("Q?", ("42", "forty-two"))
    place = context.index(NEEDLE) / (len(context) - len(NEEDLE))
    assert sample.facts == {"depth": pytest.approx(place, abs=0.005), "length": 4000}


def test_part_of_a_longer_word_is_no_needle(tmp_path):
    text = "The code is 427.\n\n\n\n    And more follows."
    row = {"haystack": text, "needle": "The code is 42", "question": "Q?", "answer": "42", "depth": 1}
    [sample] = make_task("needle-file", write_lines(tmp_path / "needles.jsonl", [row])).samples(words, 500, 1, 0)
    assert sample.context == f"{text} The code is 42", "at its depth, the text as it was written"
    assert sample.facts["depth"] == 1
    chinese = "船离开港口。密码是四二。他笑了。"
    row = {"haystack": chinese, "needle": "密码是四二", "question": "Q?", "answer": "四二"}
    [sample] = make_task("needle-file", write_lines(tmp_path / "zh.jsonl", [row])).samples(len, 500, 1, 0)
    assert sample.context == chinese


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"needle": " "}, '"needle" is blank'),
        ({"depth": 1.5}, '"depth" is not a number from 0 to 1'),
        ({"depth": "deep"}, '"depth" is not a number from 0 to 1'),
        ({"depth": True}, '"depth" is not a number from 0 to 1'),
        ({"length": 0}, '"length" is not a number from 1 to 1e+09'),
        ({"haystack": None}, 'no "context" or "haystack" in it'),
        ({"question": None}, 'no "question" or "retrieval_question" in it'),
        ({"answer": ""}, '"answer" is blank'),
    ],
)
def test_a_bad_needle_is_named(tmp_path, fields, said):
    path = write_lines(tmp_path / "needles.jsonl", [needle_row(), needle_row(**fields)])
    with pytest.raises(UsageError, match=re.escape(f"{path}, line 2: {said}")):
        make_task("needle-file", path)
