"""RocketKV's first stage: SnapKV's scores with a wide kernel, and as many pairs as the paper's split says."""

from __future__ import annotations

import math

import pytest
import torch

from kvz.cache.index_plan import NO_INDEX, make_index_plan
from kvz.compression import compress
from kvz.config import Decoding
from kvz.decode.beside import Beside
from kvz.decode.budget import rocket_budget, rocket_kept
from kvz.decode.conversation import Conversation
from kvz.decode.engine import PASS_TOKENS
from kvz.decode.policies.dense import DenseReader
from kvz.decode.policies.rocket_mt import FirstStage
from kvz.models.language_model import LanguageModel
from kvz.scoring.registry import make_method
from kvz.scoring.rocketkv import RocketKV
from kvz.scoring.snapkv import SnapKV
from tests.conftest import TEXT
from tests.near import LOGITS, rounding


@pytest.mark.parametrize("budget", [64, 128, 256, 700])
def test_a_step_budget_keeps_what_the_papers_split_says(tiny: LanguageModel, budget: int) -> None:
    archive = compress(TEXT * 5, tiny, budget=budget, method="rocketkv")
    manifest = archive.manifest
    prefix, length = manifest.prompt.prefix_tokens, manifest.prompt.context_tokens
    total = prefix + length + 128
    c = total / budget
    capacity = int(total / c ** min(0.2 + 0.06 * math.log2(c), 0.8))
    kept = max(budget, capacity - 128 - prefix)
    assert {n for row in manifest.compression.kept for n in row} == {kept}
    assert manifest.compression.budget == kept
    assert manifest.compression.parameters["step_budget"] == budget
    assert archive.session(tiny, Decoding("hsa", budget)).ask("Where?", 5).new_tokens > 0


def test_scores_are_snapkvs_with_kernel_63_and_a_ratio_is_a_ratio(tiny: LanguageModel) -> None:
    question = "Where is the key?"
    ours = compress(TEXT * 3, tiny, ratio=0.4, method=RocketKV(query=question))
    snap = compress(TEXT * 3, tiny, ratio=0.4, method=SnapKV(kernel=63, query=question))
    for a, b in zip(ours.cache.layers, snap.cache.layers, strict=True):
        assert torch.equal(a.positions, b.positions)
    assert "step_budget" not in ours.manifest.compression.parameters
    assert make_method("rocketkv").parameters() == {"window": 32, "kernel": 63, "query": None}


def test_mt_lets_an_answer_choose_only_from_what_its_question_left_open(tiny: LanguageModel) -> None:
    """Against the formula: float64 weights of the question's last tokens over archive and question, pooled, ranked."""
    archive = compress(TEXT * 4, tiny, ratio=1.0)
    prefix = archive.manifest.prompt.prefix_tokens
    torch.manual_seed(0)
    dense = DenseReader(archive.cache)
    for tokens in (1, 20, 50):
        first = FirstStage(archive.cache, prefix, 64, dense)
        query, tail = torch.randn(2, 3, tokens, 16), (torch.randn(2, 3 * tokens, 16), torch.randn(2, 3 * tokens))
        first.attend(1, query, 0.25, Beside(lambda own=tail: own))  # type: ignore[misc]
        stored, chosen = archive.cache.layers[1], first.chosen[1]
        keep = first.kept(stored.bounds[1], 16)
        for head in range(2):
            keys = stored.keys[stored.bounds[head] : stored.bounds[head + 1]].double()
            logits = query[head].double() @ keys.T * 0.25
            whole = torch.logaddexp(torch.logsumexp(logits, -1), tail[1].view(2, 3, -1)[head].double())
            sums = torch.exp(logits - whole[..., None])[:, -32:, prefix:].sum((0, 1))
            pooled = torch.nn.functional.max_pool1d(sums[None], 63, 1, 31)[0]
            rows = chosen.positions[chosen.bounds[head] : chosen.bounds[head + 1]] - prefix
            assert rows[:prefix].tolist() == list(range(-prefix, 0))
            assert len(rows) == prefix + keep
            assert (
                pooled[rows[prefix:].long()] >= pooled.topk(keep).values[-1] * (1 - rounding(16 + 32, LOGITS))
            ).all()


def test_mt_keeps_questions_apart_that_are_asked_inside_each_other(tiny: LanguageModel) -> None:
    archive = compress(TEXT * 4, tiny, ratio=1.0)
    session = archive.session(tiny, Decoding("rocketkv-mt", 64))
    alone = session.ask("Where is the key, and who keeps it while the keeper is away?", 20)
    prefix = archive.manifest.prompt.prefix_tokens
    assert alone.policy == "rocketkv-mt"
    assert alone.pairs_read is not None
    assert 6 * (prefix + 40) < alone.pairs_read < 6 * (prefix + 66)
    asked = []

    def interrupt(piece: str) -> None:
        if not asked:
            asked.append(session.ask("When does the ferry leave?", 5))

    inside = session.ask("Where is the key, and who keeps it while the keeper is away?", 20, stream=interrupt)
    assert inside.ids == alone.ids
    talk = Conversation(session)
    assert talk.ask("Where is the key, and who keeps it while the keeper is away?", 20).ids == alone.ids
    assert talk.ask("Why?", 5).policy == "rocketkv-mt"


@pytest.mark.parametrize("length", [1025, 1030, 2049])
def test_the_last_part_of_a_long_question_is_long_too(tiny: LanguageModel, length: int) -> None:
    session = compress("x", tiny, ratio=1.0).session(tiny)
    sequence, parts = session.sequence([5] * length, 5), []
    while sequence.unfed:
        parts.append(len(sequence.following(PASS_TOKENS)))
        sequence.feed(parts[-1], torch.zeros(3))
    assert sum(parts) == length
    assert min(parts) > 500


@pytest.mark.parametrize("budget", [16, 32])
def test_small_budgets_leave_as_much_open_as_a_step_may_read(tiny: LanguageModel, budget: int) -> None:
    full = compress(TEXT * 5, tiny, ratio=1.0)
    answer = full.session(tiny, Decoding("rocketkv-mt", budget)).ask("Where is the key?", 5)
    assert answer.pairs_read is not None
    assert answer.pairs_read >= 6 * (full.manifest.prompt.prefix_tokens + budget // 2)
    assert rocket_kept(5000, budget, 64) >= budget


@pytest.mark.parametrize("budget", [48, 96, 200])
def test_storage_and_traffic_are_those_of_the_papers_formulas(tiny: LanguageModel, budget: int) -> None:
    """Measured bytes: pairs 1 / c^r of the full cache, bounds (2 of D values a page, of 2 D a pair) 1 / p of them."""
    text = TEXT * 14
    full = compress(text, tiny, ratio=1.0, index=NO_INDEX)
    prompt = full.manifest.logical_length
    split = rocket_budget(prompt, 128, budget, 16)
    archive = compress(text, tiny, budget=budget, method="rocketkv", index=make_index_plan("pages", split.page))
    total = prompt + 128
    c = total / budget
    r = min(0.2 + 0.06 * math.log2(c), 0.8)
    pairs, whole = (sum(x.keys.nbytes + x.values.nbytes for x in a.cache.layers) for a in (archive, full))
    bounds = sum(x.pages.nbytes for x in archive.cache.layers if x.pages is not None)
    assert pairs / (whole * total / prompt) == pytest.approx(1 / c**r, abs=129 / total)  # but for the answer's room
    prefix = archive.manifest.prompt.prefix_tokens
    pages = math.ceil((split.kept - prefix) / split.page)
    assert bounds == 6 * pages * 2 * 16 * 4
    reading = archive.session(tiny, Decoding("hsa", budget, split.page)).reading
    read = reading.pairs_read() / 6 - prefix
    assert read <= budget + 0.5  # the last page's bounds
    assert read >= 0.8 * budget  # dimensions and pages are whole numbers
    dims = max(1, min(16, int(16 * split.page * budget / (split.kept - prefix))))
    assert read == pytest.approx(pages * dims / 32 + budget // 2 // split.page * split.page)
