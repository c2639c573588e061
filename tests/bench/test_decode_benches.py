"""The benches of policies, lengths and batches, on a tiny model: what they count is what was done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvz.bench.batch import main as batch
from kvz.bench.decode import main as decode
from kvz.bench.lookups import make_lookups, make_needles
from kvz.bench.policies import main as policies
from kvz.bench.policies_report import pairs_of, values_of
from kvz.errors import UsageError
from tests.tiny import make_model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("bench"), layers=2, max_position_embeddings=40000)


def test_policies_agree_better_with_more_budget(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {
        "data": [
            {
                "title": "Keys",
                "paragraphs": [
                    {
                        "context": "The key lies under the blue stone. " * 8,
                        "qas": [{"question": "Where is the key?", "answers": [{"text": "under the blue stone"}]}],
                    }
                ],
            }
        ]
    }
    (tmp_path / "data.json").write_text(json.dumps(data))
    page = tmp_path / "page.md"
    page.write_text("<!-- policies -->\n<!-- /policies -->\n")
    options = ["--model", str(folder), "--data", str(tmp_path / "data.json"), "--together", "1", "--questions", "1"]
    wanted = ["--budgets", "16,100000", "--policies", "hsa,lowbit,exact-topk"]
    policies([*options, *wanted, "--json", str(tmp_path / "r.json"), "--into", str(page)])
    result = json.loads((tmp_path / "r.json").read_text())
    for policy in ("hsa", "lowbit", "exact-topk"):
        few, all_of_it = (values_of(result, "questions", "full", policy, t, "kl") for t in (16, 100000))
        assert few[0] > all_of_it[0]
        assert all_of_it[0] == pytest.approx(0, abs=1e-5)
        assert pairs_of(result, "questions", "full", policy, 16) <= 17
    assert "lowbit" in page.read_text()
    policies(["--from", str(tmp_path / "r.json")])
    assert "t = 16" in capsys.readouterr().out


def test_lengths_and_batches(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decode(["--model", str(folder), "--lengths", "300", "--new", "2", "--policies", "hsa@32", "--dtype", "float32"])
    out = capsys.readouterr().out
    assert "hsa@32" in out
    assert "full (transformers)" in out
    decode(["--model", str(folder), "--tokens", "300", "--new", "2", "--dtype", "float32", "--ratio", "1"])
    [resident] = [row.split() for row in capsys.readouterr().out.splitlines() if row.startswith("resident KV")]
    assert float(resident[-2]) == pytest.approx(1, abs=0.15)  # all pairs are there, and their positions
    batch(["--model", str(folder), "--tokens", "300", "--questions", "3", "--sizes", "2", "--new", "3"])
    assert "3 of 3" in capsys.readouterr().out.splitlines()[-1]
    with pytest.raises(UsageError, match="ask for no more"):
        batch(["--model", str(folder), "--tokens", "300", "--questions", "3000"])


def test_made_contexts_hold_their_answers_and_are_the_same_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(f"Paragraph {n}." for n in range(30)))
    for make in (lambda: make_needles([tmp_path / "a.txt"], 5), lambda: make_lookups(50, 5)):
        reading = make()
        assert reading == make()
        assert len(reading.questions) == 5
        for question, answer in reading.questions:
            assert reading.text.count(answer.strip().removeprefix("The ")) == 1
            assert question.split(" of the ")[1].rstrip("?") in answer
    with pytest.raises(UsageError):
        make_needles([], 5)
