"""The fidelity benchmark on a tiny model: its measures against their definitions, and its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from kvz.bench.fidelity import main
from kvz.bench.fidelity_report import interval
from kvz.bench.full_answers import Reader, ask_full
from kvz.bench.pages import fill_place
from kvz.bench.readings import read_articles, read_examples
from kvz.cache.ragged import evict
from kvz.errors import UsageError
from kvz.models.prefill import prefill
from kvz.prompt import make_frame, question_ids
from tests.conftest import EXAMPLES, TEXT
from tests.near import NETWORK, forward_terms, rounding


@pytest.fixture
def articles(tmp_path: Path) -> Path:
    def paragraph(number: int) -> dict[str, object]:
        asked = [{"question": f"What is {number}.{n}?", "answers": [{"text": f"the {n}th"}]} for n in range(4)]
        return {"context": f"{number}: {TEXT}", "qas": asked}

    data = [{"title": f"A{n}", "paragraphs": [paragraph(n), paragraph(n + 10)]} for n in range(3)]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return path


def test_articles_are_joined_and_their_questions_spread(articles):
    first, second = read_articles(articles, 0, 3, 2, 3)
    assert (first.name, second.name) == ("A0 + A1", "A2")
    assert [question for question, _ in first.questions[:3]] == ["What is 0.0?", "What is 0.2?", "What is 10.0?"]
    assert len(first.questions) == 6
    assert first.text.count(TEXT) == 4
    for bad in ("{", "{}", '{"data": [{"title": "x"}]}'):
        articles.write_text(bad)
        with pytest.raises(UsageError, match="SQuAD"):
            read_articles(articles, 0, 9, 1, 3)


def test_examples_have_ten_questions_each():
    assert [len(reading.questions) for reading in read_examples(EXAMPLES, 99)] == [10, 10, 10]


def test_measures_are_those_of_transformers_over_the_same_tokens(tiny, tiny_folder):
    """Full cache and pruned cache are the same: what is left to compare is the full cache's own likelihoods."""
    frame = make_frame(tiny.tokenizer, tiny.end_ids)
    ids = [*frame.prefix_ids, *tiny.tokenizer.encode_plain(TEXT)]
    full = prefill(tiny, ids)
    everything = torch.ones(6, len(ids) - len(frame.prefix_ids), dtype=torch.bool)
    cache = evict(full, everything, tiny.geometry, len(frame.prefix_ids))
    [answer] = ask_full(tiny, cache, frame.seam, [("Where is the key?", "behind the clock")])
    network = transformers.AutoModelForCausalLM.from_pretrained(str(tiny_folder), dtype=torch.float64).eval()
    asked = question_ids(tiny.tokenizer, frame.seam, "Where is the key?")
    out = network.generate(torch.tensor([ids + asked]), max_new_tokens=24, do_sample=False)[0, len(ids + asked) :]
    assert answer.ids == out.tolist()
    measured = Reader(tiny, cache).agreement(answer)
    assert (measured.tokens, measured.exact) == (1.0, 1.0)
    assert abs(measured.kl) < rounding(tiny.identity.config.vocab_size)
    for chosen, got in ((answer.ids, -measured.nll), (answer.gold, measured.gold)):
        logits = network(torch.tensor([ids + asked + chosen])).logits[0, -len(chosen) - 1 : -1]
        want = logits.log_softmax(-1)[torch.arange(len(chosen)), torch.tensor(chosen)].mean()
        assert got == pytest.approx(float(want), abs=rounding(forward_terms(network.config, len(ids)), 2 * NETWORK))


def test_a_run_prints_writes_and_refuses(tiny_folder, articles, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KVZ_CACHE", str(tmp_path / "cache"))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fidelity -->\nold\n<!-- /fidelity -->\nafter\n")
    line = ["--data", str(articles), "--articles", "0:2", "--questions", "2", "--model", str(tiny_folder)]
    line += ["--methods", "kvzip-rms;kvzip;snapkv;snapkv, one question", "--ratios", "1,0.1,0.01"]
    main([*line, "--json", str(tmp_path / "run.json"), "--into", str(page)])
    shown = capsys.readouterr().out
    result = json.loads((tmp_path / "run.json").read_text())
    assert len(result["cells"]) == 4 * 3
    for cell in result["cells"]:
        if cell["ratio"] == 1:
            assert all(asked["exact"] == 1 and abs(asked["kl"]) < 1e-4 for asked in cell["asked"])
            assert cell["bytes"] >= cell["full_bytes"]
        if cell["ratio"] == 0.1 and cell["method"] == "kvzip":
            assert cell["bytes"] < 0.2 * cell["full_bytes"]
            assert min(asked["kl"] for asked in cell["asked"]) > 0
    assert [c["method"] for c in result["cells"] if "refused" in c] == ["snapkv"]  # a question fills the other window
    assert "budget too small" in shown
    text = page.read_text()
    assert text.startswith("before\n<!-- fidelity -->\n")
    assert "\nold\n" not in text
    assert "| kvzip-rms | 100.0 | 100 |" in text
    main(["--from", str(tmp_path / "run.json")])
    assert capsys.readouterr().out == shown
    with pytest.raises(UsageError, match="no method 'best'"):
        main([*line[:-4], "--methods", "best"])
    with pytest.raises(UsageError, match="no place for 'x'"):
        fill_place(page, "x", [])


def test_an_interval_holds_the_mean_and_narrows_with_more_values():
    values = torch.randn(40, generator=torch.Generator().manual_seed(1)).tolist()
    mean, low, high = interval(values)
    assert low < mean < high
    assert interval(values) == (mean, low, high)
    _, lower, higher = interval(values * 9)
    assert higher - lower < (high - low) / 2
    assert interval([0.5] * 3) == (0.5, 0.5, 0.5)
