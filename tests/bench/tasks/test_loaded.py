"""Tasks read from files: what is asked is what the file says, within the length, and a bad line is named."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kvz.bench.metrics import METRICS
from kvz.bench.tasks.longbench import SETS
from kvz.bench.tasks.registry import make_task, needs_data, takes_texts, task_names
from kvz.bench.tasks.scbench import SETS as SCBENCH_SETS
from kvz.bench.tasks.task import Question
from kvz.errors import UsageError
from tests.bench.tasks.conftest import filler, words, write_lines


def gsm8k_row(number: int) -> dict[str, str]:
    note = f"<<{number}+1000={number + 1000}>>"
    working = f"{number}+1000 = {note}{number + 1000}, more than 3 < 4.\n#### {number + 1000:,}"
    return {"question": f"How much is {number} and 1000?", "answer": working}


def test_gsm8k_shows_sums_and_asks_others(tmp_path):
    task = make_task("gsm8k", write_lines(tmp_path / "sums.jsonl", [gsm8k_row(n) for n in range(100, 160)]))
    samples = task.samples(words, 200, 5, 0)
    assert samples == task.samples(words, 200, 5, 0)
    assert len({question.text for sample in samples for question in sample.questions}) == 5 * 8
    for sample in samples:
        assert 150 < sample.facts["length"] == words(sample.context) <= 200
        assert sample.facts["examples"] == sample.context.count("Question:")
        assert "<<" not in sample.context
        assert sample.context.count("more than 3 < 4.") == sample.facts["examples"]
        assert not re.search(r"\b(\d+)\+1000 = (?!1\1\b)", sample.context), "the results stay"
        shown = set(re.findall(r"How much is (\d+)", sample.context))
        for question in sample.questions:
            [number] = re.findall(r"How much is (\d+)", question.text)
            assert number not in shown
            assert question.answers == (f"{int(number) + 1000:,}",)
            assert task.metric.score(f"So it is {int(number) + 1000}.", question) == 1
    with pytest.raises(UsageError, match="no worked example has 5 tokens"):
        task.samples(words, 5, 1, 0)


def longbench_row(dataset: str, **fields: Any) -> dict[str, Any]:
    row = {"input": "What now?", "context": filler(1, 300), "answers": ["p1w3"], "dataset": dataset}
    return {**row, "all_classes": None, **fields}


@pytest.mark.parametrize("dataset", sorted(SETS))
def test_longbench_sets_have_their_layout(dataset, tmp_path):
    fields = {"trec": {"all_classes": ["date", "place"], "answers": ["date"]}}.get(dataset, {})
    if dataset == "passage_retrieval_en":
        fields = {"answers": ["Paragraph 7"]}
    elif dataset == "passage_count":
        fields = {"answers": ["7"]}
    task = make_task("longbench", write_lines(tmp_path / "set.jsonl", [longbench_row(dataset, **fields)] * 2))
    assert task.name == f"longbench-{dataset}"
    whole, cut = (task.samples(words, tokens, 1, 0)[0] for tokens in (400, 120))
    assert filler(1, 300) in whole.context
    assert cut.context[:30] == whole.context[:30]
    assert cut.context[-30:] == whole.context[-30:]
    assert 110 <= cut.facts["length"] == words(cut.context) <= 120
    summary = dataset in ("gov_report", "multi_news")
    assert ("What now?" in whole.questions[0].text) != summary
    right = task.metric.score(f"{whole.questions[0].answers[0]}", whole.questions[0])
    assert right == pytest.approx(1, abs=1e-6)
    assert task.metric.score("no idea of it", whole.questions[0]) == 0


LONGBENCH = {
    "f1": "narrativeqa qasper multifieldqa_en hotpotqa 2wikimqa musique triviaqa",
    "rouge-l": "gov_report qmsum multi_news samsum",
    "accuracy": "trec",
    "count": "passage_count",
    "retrieval": "passage_retrieval_en",
    "code-similarity": "lcc repobench-p",
}


def test_longbench_metrics_are_those_of_its_table():
    table = {dataset: name for name, datasets in LONGBENCH.items() for dataset in datasets.split()}
    assert {dataset: entry.metric(("x",)).name for dataset, entry in SETS.items()} == table


def test_longbench_refuses_what_it_does_not_know(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [longbench_row("qaspr")])
    with pytest.raises(UsageError, match=r"line 1: the data set qaspr is not .* such as qasper"):
        make_task("longbench", path)
    path = write_lines(path, [longbench_row("qasper"), longbench_row("lcc")])
    with pytest.raises(UsageError, match="line 2: its data set is not qasper"):
        make_task("longbench", path)
    path = write_lines(path, [longbench_row("trec")])
    with pytest.raises(UsageError, match=r'a\.jsonl: no row has "all_classes", without which'):
        make_task("longbench", path)


def test_ruler_files_are_split_before_their_last_line(tmp_path):
    (tmp_path / "qa_1").mkdir()
    rows = [{"input": "Read this.\n\nOne two three.\nWhat is two?", "outputs": ["a", "b"], "length": 9}]
    apart = [{"context": "One.", "question": "What?", "answer": ["a", "b"], "task": "niah_single_1"}]
    plain = make_task("ruler", write_lines(tmp_path / "validation.jsonl", rows))
    asked = make_task("ruler", write_lines(tmp_path / "qa_1" / "validation.jsonl", rows))
    split = make_task("ruler", write_lines(tmp_path / "apart.jsonl", apart))
    [sample], [other] = plain.samples(words, 50, 3, 0), split.samples(words, 50, 3, 0)
    assert sample.context == "Read this.\n\nOne two three."
    assert (sample.questions[0].text, sample.questions[0].answers) == ("What is two?", ("a", "b"))
    assert (other.context, other.questions[0].text, other.questions[0].answers) == ("One.", "What?", ("a", "b"))
    assert plain.metric.score("A", sample.questions[0]) == split.metric.score("a", other.questions[0]) == 0.5
    assert asked.metric.score("b", sample.questions[0]) == 1
    with pytest.raises(UsageError, match=r"line 1: .* its last line should be the question"):
        make_task("ruler", write_lines(tmp_path / "b.jsonl", [{"input": "What?", "outputs": ["a"]}]))


def ruler_row(**fields: Any) -> dict[str, Any]:
    return {"context": "One.", "question": "What?", "answer": ["a", "b"], **fields}


def test_a_file_of_several_ruler_tasks_is_scored_row_by_row(tmp_path):
    tasks = ("niah_multivalue", "qa_1", "vt", "qa_squad", "cwe", "qa", "fwe")
    rows = [ruler_row(task=task, context=task) for task in tasks]
    for order in (rows, rows[::-1]):
        task = make_task("ruler", write_lines(tmp_path / "all.jsonl", order))
        scores = {s.context: task.metric.score("It is b.", s.questions[0]) for s in task.samples(words, 50, 9, 0)}
        assert scores == {name: 1 if name in ("qa_1", "qa_squad", "qa") else 0.5 for name in tasks}
        assert task.metric.name == "ruler"
    only = make_task("ruler", write_lines(tmp_path / "qa_1.jsonl", [ruler_row(task="vt")]))
    assert only.metric.name == "all-found", "a row's own word comes before the file's name"
    for rows, line in (([ruler_row(task="vt"), ruler_row()], 2), ([ruler_row(), ruler_row(task="qa_1")], 1)):
        with pytest.raises(UsageError, match=rf'line {line}: no "task" in it, though other rows have one'):
            make_task("ruler", write_lines(tmp_path / "some.jsonl", rows))
    with pytest.raises(UsageError, match='line 1: "task" is not a text'):
        make_task("ruler", write_lines(tmp_path / "some.jsonl", [ruler_row(task=1)]))


def test_scbench_files_are_turns(tmp_path):
    turns = [{"input": "First?", "answer": "one"}, {"input": "Second?", "answer": ["two", "zwei"]}]
    task = make_task("scbench", write_lines(tmp_path / "scbench_kv.jsonl", [{"context": "C", "multi_turns": turns}]))
    [sample] = task.samples(words, 50, 1, 0)
    assert (task.name, task.turns, task.shared, task.new_tokens) == ("scbench-kv", True, True, 150)
    assert [(q.text, q.answers) for q in sample.questions] == [("First?", ("one",)), ("Second?", ("two", "zwei"))]
    assert task.metric.score("It is one.", sample.questions[0]) == 1
    assert task.metric.score("It is One.", sample.questions[0]) == 0, "SCBench looks for a value as it is written"
    folded = {name: row[0].score("ONE", Question("", ("one",))) for name, row in SCBENCH_SETS.items()}
    assert folded == {"kv": 0, "kv_hard": 0, "hashhop": 0, "prefix_suffix": 0, "qa_eng": 1, "many_shot": 1, "vt": 1}
    with pytest.raises(UsageError, match=r"no set of SCBench known here .* kv"):
        make_task("scbench", tmp_path / "scbench_kw.jsonl")
    bad = write_lines(tmp_path / "scbench_vt.jsonl", [{"context": "C", "multi_turns": [turns[0], {"input": "x"}]}])
    with pytest.raises(UsageError, match='line 1, multi_turns 2: no "answer" in it'):
        make_task("scbench", bad)


def own_row(**fields: Any) -> dict[str, Any]:
    return {
        "context": "The key is blue.",
        "questions": ["Which key?", "Why?"],
        "answers": ["blue", ["so", "no"]],
    } | fields


def test_a_task_of_ones_own(tmp_path):
    rows = [own_row(), own_row(context=filler(0, 90), answers=[7, "x"]), own_row(context="Short.")]
    task = make_task("own", write_lines(tmp_path / "mine.jsonl", rows))
    assert (task.shared, task.turns, task.licence, task.metric.name) == (True, False, "mine.jsonl", "any-found")
    samples = task.samples(words, 50, 9, 0)
    assert sorted(sample.context for sample in samples) == ["Short.", "The key is blue."], "one is too long"
    assert samples[0].questions[1].answers == ("so", "no")
    assert {sample.facts["length"] for sample in samples} == {1, 4}
    assert any(q.answers == ("7",) for s in task.samples(words, 99, 9, 0) for q in s.questions)
    assert len({task.samples(words, 99, 1, seed)[0].context for seed in range(20)}) == 3
    with pytest.raises(UsageError, match="no context in the file has 0 tokens or fewer"):
        task.samples(words, 0, 1, 0)
    named = make_task("own", write_lines(tmp_path / "f1.jsonl", [own_row(metric="f1")] * 2))
    assert named.metric is METRICS["f1"]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (own_row(context=3), '"context" is not a text'),
        (own_row(context=" "), '"context" is blank'),
        ({"context": "x", "answers": ["y"]}, 'no "questions" in it'),
        (own_row(questions=[]), '"questions" is not a text, nor a list with texts in it'),
        (own_row(answers="blue"), '"answers" is not a list with something in it'),
        (own_row(answers=["blue"]), "2 questions and 1 answers; give one for each"),
        (own_row(answers=["blue", []]), "answer 2 is not a text, nor a list"),
        (own_row(answers=["blue", [True]]), "answer 2 is not a text, nor a list"),
        (own_row(questions=["Which key?", " "]), '"questions" has a blank text in it'),
        (own_row(answers=["blue", ""]), "answer 2 is blank"),
        (own_row(answers=["blue", ["no", "\t"]]), "answer 2 has a blank text in it"),
        (
            own_row(questions=["Which key?", "W\ud83dhy?"]),
            '"questions" has half a character (\\ud83d) in it, at charact',
        ),
        (own_row(context="a\nb\0"), '"context" has a NUL character in it, at character 4; take it out'),
        (own_row(metric="f1"), "its metric is f1, that of the lines before any-found; use one"),
        (["not", "an", "object"], "not a JSON object"),
    ],
)
def test_a_bad_line_of_ones_own_is_named(tmp_path, bad, said):
    path = write_lines(tmp_path / "mine.jsonl", [own_row(), bad])
    with pytest.raises(UsageError, match=re.escape(f"{path}, line 2: {said}")):
        make_task("own", path)


@pytest.mark.parametrize("name", ["gsm8k", "longbench", "ruler", "own"])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\n{]\n", "line 2: not JSON; the file holds one object a line"),
        (b"[]", "line 1: not a JSON object"),
        (b"\n\n", "holds no rows"),
        (b"\xff{}", "is not UTF-8 at byte 0"),
        (b"{}", "line 1: no "),
        (b'{"input": ' + b"9" * 5000 + b"}", "line 1: not JSON"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, name, data, said):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=re.escape(said)):
        make_task(name, path)


def test_bad_sums_are_named(tmp_path):
    rows = [*map(gsm8k_row, range(9)), {"question": "x", "answer": "no number"}]
    with pytest.raises(UsageError, match='line 10: "answer" does not end in #### and a number'):
        make_task("gsm8k", write_lines(tmp_path / "a.jsonl", rows))
    with pytest.raises(UsageError, match="holds 8 sums; more than 8 are needed"):
        make_task("gsm8k", write_lines(tmp_path / "a.jsonl", rows[:8]))


def test_what_is_not_there_is_said(tmp_path):
    for name in filter(needs_data, task_names()):
        with pytest.raises(UsageError, match=f"the task {name} is read from a file; name it with --data"):
            make_task(name)
    with pytest.raises(UsageError, match="no such file of data"):
        make_task("own", tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="cannot read"):
        make_task("own", tmp_path)
    with pytest.raises(UsageError, match=r"there is no task nedle; there is needle"):
        make_task("nedle")
    with pytest.raises(UsageError, match=r"there is no task zzz; there is gsm8k, key-value, .*squad"):
        make_task("zzz")


def test_texts_are_for_the_tasks_that_take_them(tmp_path):
    (tmp_path / "a.txt").write_text("Only this sentence is here. And this one.")
    for name in filter(takes_texts, task_names()):
        task = make_task(name, texts=tmp_path)
        [sample] = task.samples(words, 600, 1, 0)
        assert sample.context.count("Only this sentence is here.") > 20
        assert task.licence == f"made here; text around it: the texts in {tmp_path.name}"
    assert not any(needs_data(name) and takes_texts(name) for name in task_names())


def test_a_hub_is_asked_for_what_is_no_file(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"no such file: some/set; .* pip install 'kvz\[data\]'"):
        make_task("own", Path("some/set"))

    def load(name: str, config: str | None) -> dict[str, list[dict[str, Any]]]:
        if name == "some/unreachable":
            raise ConnectionError("no route\nand more")
        if name.startswith("some/empty"):
            return {} if name == "some/empty" else {"train": [own_row()], "validation": []}
        assert (name, config) == ("some/set", "part")
        return {"train": [{}], "test": [own_row()]}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load))
    assert make_task("own", Path("some/set:part")).samples(words, 9, 1, 0)[0].context == "The key is blue."
    with pytest.raises(UsageError, match="cannot load the data set some/unreachable from the hub: no route; give a l"):
        make_task("own", Path("some/unreachable"))
    for task in filter(needs_data, task_names()):
        if task != "scbench":  # which goes by the name
            with pytest.raises(UsageError, match="the data set some/empty has no split; give another"):
                make_task(task, Path("some/empty"))
            with pytest.raises(UsageError, match="the data set some/empty-split holds no rows in its split validation"):
                make_task(task, Path("some/empty-split"))
