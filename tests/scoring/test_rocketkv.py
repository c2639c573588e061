"""RocketKV's first stage: SnapKV's scores with a wide kernel, and as many pairs as the paper's split says."""

from __future__ import annotations

import math

import pytest
import torch

from kvz.compression import compress
from kvz.decode.decoding import Decoding
from kvz.models.language_model import LanguageModel
from kvz.scoring.registry import make_method
from kvz.scoring.rocketkv import RocketKV
from kvz.scoring.snapkv import SnapKV
from tests.conftest import TEXT


@pytest.mark.parametrize("budget", [64, 128, 256])
def test_a_step_budget_keeps_what_the_papers_split_says(tiny: LanguageModel, budget: int) -> None:
    archive = compress(TEXT * 5, tiny, budget=budget, method="rocketkv")
    manifest = archive.manifest
    prefix, length = manifest.prompt.prefix_tokens, manifest.prompt.context_tokens
    total = prefix + length + 128
    c = total / budget
    capacity = int(total / c ** min(0.2 + 0.06 * math.log2(c), 0.8))
    kept = capacity - 128 - prefix
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
    session = archive.session(tiny, Decoding("rocketkv-mt", 64))
    seen: dict[int, torch.Tensor] = {}
    first = session.reading.question
    attend = type(first).attend

    def watch(layer, query, scale, beside):  # type: ignore[no-untyped-def]
        seen[layer] = query.clone()
        own.setdefault(layer, beside[1].clone())
        return attend(first, layer, query, scale, beside)

    own: dict[int, torch.Tensor] = {}
    first.attend = watch  # type: ignore[method-assign]
    question = "Where is the key, and who keeps it while the keeper is away on the island?"
    answer = session.ask(question, 6)
    prefix, length = archive.manifest.prompt.prefix_tokens, archive.manifest.prompt.context_tokens
    keep = first.kept(prefix + length, 16)  # type: ignore[attr-defined]
    for layer, query in seen.items():
        stored, chosen = archive.cache.layers[layer], first.chosen[layer]  # type: ignore[attr-defined]
        for head in range(2):
            keys = stored.keys[stored.bounds[head] : stored.bounds[head + 1]].double()
            logits = query[head].double() @ keys.T * 16**-0.5
            tail = own[layer].view(2, 3, -1)[head].double()
            whole = torch.logaddexp(torch.logsumexp(logits, -1), tail)
            sums = torch.exp(logits - whole[..., None])[:, -32:, prefix:].sum((0, 1))
            pooled = torch.nn.functional.max_pool1d(sums[None], 63, 1, 31)[0]
            least = pooled.topk(keep).values[-1]
            rows = chosen.positions[chosen.bounds[head] : chosen.bounds[head + 1]] - prefix
            assert rows[:prefix].tolist() == list(range(-prefix, 0))
            assert len(rows) == prefix + keep
            assert (pooled[rows[prefix:].long()] >= least * (1 - 1e-4)).all()
    assert answer.policy == "rocketkv-mt"
    assert answer.pairs_read is not None
    assert answer.pairs_read < 6 * (prefix + 66)
    assert session.ask(question, 6).ids == answer.ids
