"""Question answering over paragraphs: SQuAD's and HotpotQA's layouts, joined into contexts or hidden among others."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kvz.bench.metrics import METRICS
from kvz.bench.tasks.registry import make_task
from kvz.errors import UsageError
from tests.bench.tasks.conftest import filler, words


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    """Six articles of five paragraphs of 40 words, two questions each; one paragraph in five has none."""

    def paragraph(article: int, number: int) -> dict[str, Any]:
        text = filler(10 * article + number)
        answers = [{"text": text.split()[n], "answer_start": 0} for n in (3, 3, 7)]
        asked = [{"question": f"What of {article}.{number}.{n}?", "answers": answers} for n in range(2)]
        return {"context": text, "qas": [] if number == 4 else [*asked, {"question": "Impossible?", "answers": []}]}

    data = [{"title": f"T{a}", "paragraphs": [paragraph(a, n) for n in range(5)]} for a in range(6)]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return path


def test_squad_joins_whole_paragraphs_and_asks_of_all_of_them(squad):
    task = make_task("squad", squad)
    samples = task.samples(words, 290, 9, seed=1)
    assert len(samples) == 3, "two articles each, of six"
    assert task.shared
    assert task.metric is METRICS["f1"]
    seen: set[str] = set()
    for sample in samples:
        paragraphs = sample.context.split("\n\n")
        assert sample.facts["length"] == words(sample.context) == 280
        assert len(paragraphs) == 7
        assert len(sample.questions) == 10
        asked = {question.text for question in sample.questions}
        assert not asked & seen
        assert "Impossible?" not in asked
        seen |= asked
        for question in sample.questions:
            article, number = re.findall(r"\d+", question.text)[:2]
            own = filler(10 * int(article) + int(number))
            assert own in paragraphs
            assert question.answers == (own.split()[3], own.split()[7])
    assert task.samples(words, 290, 9, seed=1) == samples
    assert task.samples(words, 290, 9, seed=2) != samples
    assert task.samples(words, 290, 2, seed=1) == samples[:2]
    with pytest.raises(UsageError, match="no paragraph with questions has 30 tokens or fewer"):
        task.samples(words, 30, 1, 0)


@pytest.mark.parametrize("name", ["ruler-qa-1", "ruler-qa-2"])
def test_ruler_qa_puts_the_needed_paragraph_among_others(squad, name, counter):
    task = make_task(name, squad)
    samples = task.samples(words, 400, 5, seed=0)
    assert samples == task.samples(words, 400, 5, seed=0)
    depths = set()
    for sample in samples:
        assert abs(words(sample.context) - 400) <= 8
        article, number = re.findall(r"\d+", sample.questions[0].text)[:2]
        own = filler(10 * int(article) + int(number))
        documents = re.split(r"\n*Document \d+:\n", sample.context)[1:]
        assert documents.count(own) == 1
        assert len(set(documents)) == len(documents)
        at = sample.context.index(own) / len(sample.context)
        assert sample.facts["depth"] == pytest.approx(at, abs=0.005)
        depths.add(sample.facts["depth"])
        assert task.metric.score(f"It is {own.split()[7]}", sample.questions[0]) == 1
    assert len(depths) > 1
    with pytest.raises(UsageError, match=r"there is text for .* ask for shorter contexts"):
        task.samples(words, 4000, 1, 0)
    [sample] = task.samples(counter, 900, 1, 0)
    assert abs(counter(sample.context) - 900) <= 18


def test_ruler_qa_reads_hotpot(tmp_path):
    def item(number: int) -> dict[str, Any]:
        context = [[f"Title {number}.{n}", [f"First of {number}.{n}. ", filler(n, 20)]] for n in range(10)]
        facts = [[f"Title {number}.{n}", 0] for n in (2, 6)]
        return {"question": f"Q{number}?", "answer": "yes", "context": context, "supporting_facts": facts}

    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([item(n) for n in range(3)]))
    for sample in make_task("ruler-qa-2", path).samples(words, 300, 3, 0):
        number = sample.questions[0].text[1]
        assert all(f"Title {number}.{n}\nFirst of {number}.{n}. p{n}w0" in sample.context for n in (2, 6))
        assert abs(words(sample.context) - 300) <= 6
    path.write_text(json.dumps([item(0), {**item(1), "supporting_facts": [["Other", 0]]}]))
    with pytest.raises(UsageError, match=r"HotpotQA's layout: question 2: no paragraph is a supporting one"):
        make_task("ruler-qa-2", path)


def in_squad(questions: str) -> str:
    return f'{{"data": [{{"paragraphs": [{{"context": "a", "qas": {questions}}}]}}]}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"data": [\n{"paragraphs": [}', "line 2: not JSON"),
        ("[1]", 'no list "data"'),
        ('{"data": [{"paragraphs": []}, {"title": "x"}]}', "article 2 has no list"),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": []}, {"qas": []}]}]}',
            'article 1, paragraph 2: no "context"',
        ),
        ('{"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}', 'article 1, paragraph 1: "context" is not a text'),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": []}]}]}', "no question with an answer"),
        ('{"data": [{"paragraphs": ["x"]}]}', "article 1, paragraph 1 is not an object"),
        ('{"data": [{"paragraphs": [{"context": " ", "qas": []}]}]}', 'article 1, paragraph 1: "context" is blank'),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": "x"}]}]}', 'paragraph 1: "qas" is not a list'),
        (in_squad('["x"]'), "paragraph 1, question 1 is not an object"),
        (in_squad('[{"question": "", "answers": [{"text": "a"}]}]'), 'question 1: "question" is blank'),
        (in_squad('[{"question": "q", "answers": ["a"]}]'), "question 1, answer 1 is not an object"),
        (in_squad('[{"question": "q", "answers": [{"text": " "}]}]'), 'question 1, answer 1: "text" is blank'),
        (in_squad('[{"question": "q\\ud800", "answers": [{"text": "a"}]}]'), '"question" has half a character'),
        ('{"data": %s}' % ("9" * 5000), "not JSON (a number has too many digits)"),
        ('{"data": NaN}', "not JSON"),
    ],
)
def test_a_bad_squad_file_is_refused_by_place(tmp_path, text, said):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(said)):
        make_task("squad", path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"supporting_facts": "x"}, '"supporting_facts" is not a list'),
        ({"supporting_facts": ["x"]}, '"supporting_facts" 1 is not a title with a number'),
        ({"context": [["T", "x"]]}, '"context" 1 is not a title with a list of sentences'),
        ({"context": [["T", [5]]]}, '"context" 1 has a sentence that is not a text'),
        ({"context": [["T", ["a\0"]]]}, '"context" 1 has a NUL character in it, at character 2'),
        ({"question": "\n"}, '"question" is blank'),
        ({"answer": ""}, '"answer" is blank'),
    ],
)
def test_a_bad_hotpot_file_is_refused_by_place(tmp_path, fields, said):
    item = {"question": "Q?", "answer": "yes", "context": [["T", ["S."]]], "supporting_facts": [["T", 0]]}
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([item, {**item, **fields}]))
    with pytest.raises(UsageError, match=re.escape(f"{path} is not in HotpotQA's layout: question 2: {said}")):
        make_task("ruler-qa-2", path)
    path.write_text("[1]")
    with pytest.raises(UsageError, match="question 1 is not an object"):
        make_task("ruler-qa-2", path)


def test_a_hubs_rows_of_squad_are_gathered(monkeypatch):
    texts = [filler(n) for n in (0, 0, 1, 2)]
    rows = [
        {"title": "B" if n == 3 else "A", "context": text, "question": f"{n}?", "answers": {"text": [f"a{n}"]}}
        for n, text in enumerate(texts)
    ]
    load = types.SimpleNamespace(load_dataset=lambda name, config: {"validation": rows})
    monkeypatch.setitem(sys.modules, "datasets", load)
    [sample] = make_task("squad", Path("some/squad"), template="plain").samples(words, 120, 5, 0)
    assert sorted(sample.context.split("\n\n")) == sorted(set(texts))
    assert sorted((q.text, q.answers) for q in sample.questions) == [(f"{n}?", (f"a{n}",)) for n in range(4)]
    rows[1].pop("answers")
    with pytest.raises(UsageError, match='some/squad, validation row 2: no "answers" with a list'):
        make_task("squad", Path("some/squad"))
