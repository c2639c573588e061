"""What is measured of a cell, against the archive commands and against transformers."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import kvz
from kvz.bench.aggregate import cell_of
from kvz.bench.cell_run import Part, measure, measure_expanded
from kvz.bench.methods import FULL, parse_methods
from kvz.bench.metrics import ANY_FOUND
from kvz.bench.plan import Planned
from kvz.bench.prefilled import Impossible, Prefilled, check_room
from kvz.bench.repeat_kv import repeat_kv_reading
from kvz.bench.tasks.task import Question, Sample
from kvz.bench.teacher import Teacher, agreement_of
from kvz.config import Decoding
from kvz.decode.conversation import Conversation
from kvz.decode.policies.quest import Quest
from kvz.models.language_model import LanguageModel, load_model
from kvz.scoring.snapkv import SnapKV
from tests.conftest import TEXT
from tests.near import NETWORK, assert_near, forward_terms, rounding
from tests.tiny import make_model_folder

QUESTIONS = ("Where is the key?", "Who keeps the ledger?")
SAMPLE = Sample(TEXT, tuple(Question(text, ("clock",)) for text in QUESTIONS), {"depth": 0.5, "length": 200})
NEW = 9


@pytest.fixture(scope="module")
def prefilled(tiny: LanguageModel) -> Prefilled:
    return Prefilled(tiny, SAMPLE, NEW)


def planned(spec: str, protocol: str) -> Planned:
    [method] = parse_methods([spec])
    return Planned("own", 200, protocol, method, 1)


def measured(prefilled: Prefilled, spec: str, protocol: str = "multi-query") -> Part:
    return measure(prefilled, planned(spec, protocol), ANY_FOUND, stored=True)


@pytest.mark.parametrize("protocol", ["single-shot", "multi-query", "multi-turn"])
def test_all_pairs_agree_with_the_full_cache(prefilled: Prefilled, protocol: str) -> None:
    for spec in ("full", "kvzip@1", "snapkv@1"):
        part = measured(prefilled, spec, protocol)
        assert part["agreement"] == [1, 1]
        assert part["kl"] == pytest.approx([0, 0], abs=rounding(prefilled.model.identity.config.vocab_size))
        assert part["answers"] == measured(prefilled, "full", protocol)["answers"]
    few = measured(prefilled, "kvzip@0.1", protocol)
    assert min(few["kl"]) > 0.01
    assert few["kv_bytes"] < 0.3 * part["kv_bytes"]


def test_answers_are_those_of_archives(prefilled: Prefilled, tiny: LanguageModel) -> None:
    archive = kvz.compress(TEXT, tiny, ratio=0.3, method="kvzip")
    assert measured(prefilled, "kvzip@0.3")["answers"] == [archive.ask(text, NEW).text for text in QUESTIONS]
    session = archive.session(decoding=Decoding("hsa", 16))
    part = measured(prefilled, "kvzip@0.3/hsa@16")
    assert part["answers"] == [session.ask(text, NEW).text for text in QUESTIONS]
    pairs = session.ask(QUESTIONS[0], NEW).pairs_read
    assert part["step_bytes"] == pytest.approx(pairs * 2 * 16 * 4, abs=1)
    talk = Conversation(archive.session(decoding=Decoding()))
    assert measured(prefilled, "kvzip@0.3", "multi-turn")["answers"] == [talk.ask(text, NEW).text for text in QUESTIONS]


def test_the_share_of_pairs_that_a_token_reads(prefilled: Prefilled) -> None:
    """Prefix and chosen tokens, of all that the full cache has; not what is looked at to choose."""
    tokens, prefix = len(prefilled.context.ids), prefilled.context.prefix
    shares = {spec: measured(prefilled, spec)["read_share"] for spec in ("full", "exact-topk@64", "hsa@64", "hsa@9999")}
    assert shares["full"] == shares["hsa@9999"] == 1
    assert shares["exact-topk@64"] == pytest.approx((prefix + 64) / (prefix + tokens), abs=1e-6)
    assert shares["hsa@64"] == pytest.approx((prefix + 32) / (prefix + tokens), abs=1e-6)
    kept = measured(prefilled, "kvzip-uniform@0.5")["read_share"]
    assert kept == pytest.approx((prefix + round(tokens / 2)) / (prefix + tokens), abs=1e-6)
    fewer = measured(prefilled, "kvzip-uniform@0.5/exact-topk@64")["read_share"]
    assert fewer == pytest.approx(shares["exact-topk@64"], abs=1e-6)


def test_what_a_policy_makes_to_choose_by_is_stored_and_timed(
    prefilled: Prefilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, heads, full = len(prefilled.context.ids), 2 * 3, measured(prefilled, "full")
    quest, exact = measured(prefilled, "quest@64"), measured(prefilled, "exact-topk@64")
    assert quest["kv_bytes"] == full["kv_bytes"] + heads * math.ceil(tokens / 16) * 2 * 16 * 4  # both bounds, float32
    assert exact["kv_bytes"] == full["kv_bytes"]
    keys, prefix = tokens * 16 * 4, prefilled.context.prefix * 2 * 16 * 4
    assert exact["step_bytes"] == heads * (keys + 64 * 16 * 4 + prefix)
    several = measured(prefilled, "rocketkv-mt@16", "multi-turn")
    assert several["kv_bytes"] > full["kv_bytes"] + heads * 16 * (2 * 16 * 4 + 4)  # copies of what is open
    prepare = Quest.prepare_layer

    def slowly(*arguments: Any) -> None:
        time.sleep(0.1)
        prepare(*arguments)

    monkeypatch.setattr(Quest, "prepare_layer", slowly)
    assert measured(prefilled, "quest@64")["seconds"]["write"] > 0.3 > quest["seconds"]["write"]


def test_a_question_is_seen_in_single_shot_only(prefilled: Prefilled, tiny: LanguageModel) -> None:
    unseen = kvz.compress(TEXT, tiny, ratio=0.3, method="snapkv")
    assert measured(prefilled, "snapkv@0.3")["answers"] == [unseen.ask(text, NEW).text for text in QUESTIONS]
    seen = [kvz.compress(TEXT, tiny, ratio=0.3, method=SnapKV(query=text)).ask(text, NEW).text for text in QUESTIONS]
    assert measured(prefilled, "snapkv@0.3", "single-shot")["answers"] == seen
    first = Conversation(kvz.compress(TEXT, tiny, ratio=0.3, method=SnapKV(query=QUESTIONS[0])).session())
    assert measured(prefilled, "snapkv@0.3", "multi-turn")["answers"] == [first.ask(t, NEW).text for t in QUESTIONS]


def test_a_conversation_is_what_transformers_reads(
    prefilled: Prefilled, tiny: LanguageModel, tiny_folder: Path
) -> None:
    network = transformers.AutoModelForCausalLM.from_pretrained(str(tiny_folder), dtype=torch.float64).eval()
    [talk] = prefilled.talks(True)
    ids = [*prefilled.context.frame.prefix_ids, *prefilled.context.ids]
    for (question, answer), told in zip(talk.script, talk.log_probs, strict=True):
        ids += [*question, *answer]
        logits = network(torch.tensor([ids])).logits[0, -len(answer) - 1 :]
        assert_near(told, logits.log_softmax(-1), forward_terms(tiny.identity.config, len(ids)), size=NETWORK)


def test_turns_are_those_of_the_conversation_where_a_text_ends_answers(tmp_path: Path) -> None:
    """Without a chat template; what ends an answer is cut, here and where the conversation goes on."""
    model = load_model(str(make_model_folder(tmp_path, template=None)), "cpu", "float32")
    questions = ("Where?", "Why?")
    prefilled = Prefilled(model, Sample(TEXT, tuple(Question(text, ("clock",)) for text in questions)), 12)
    text = model.tokenizer.decode(prefilled.session(prefilled.whole[0]).ask(questions[0], 12).ids)
    stop = next(c for c in text[2:] if c not in ("\ufffd", *text[:2]))
    frame = prefilled.context.frame
    cut = replace(frame, seam=replace(frame.seam, stop_texts=(stop,)))
    prefilled.context = replace(prefilled.context, frame=cut)
    conversation = Conversation(prefilled.session(prefilled.whole[0]))
    answers = [conversation.ask(question, 12) for question in questions]
    assert answers[0].stop == "end"
    [talk] = prefilled.talks(True)
    script = [token for turn in talk.script for ids in turn for token in ids]
    encode = model.tokenizer.encode_plain
    assert stop not in model.tokenizer.decode(talk.script[0][1])
    assert script[: conversation.history] == [
        *encode(f"\n\nQuestion: {questions[0]}\nAnswer:"),
        *answers[0].ids[: answers[0].ids.index(encode(stop)[0])],
        *encode(f"\n\nQuestion: {questions[1]}\nAnswer:"),
        *talk.script[1][1],
    ]
    assert len(script) == conversation.history
    teacher = prefilled.teacher(prefilled.whole[0], prefilled.session(prefilled.whole[0]).reading, True)
    teacher.read(talk.script)
    length = conversation._tail.length
    for layer in range(model.geometry.layers):
        ours, theirs = (tail._keys[layer][:, :, :length] for tail in (teacher._tail, conversation._tail))
        assert_near(ours, theirs, forward_terms(model.identity.config, len(TEXT)), size=NETWORK)


def test_agreement_by_hand() -> None:
    full = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]).log()
    ours = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]]).log()
    same, divergence = agreement_of(full, ours)
    assert same == 0.5
    assert divergence == pytest.approx((0.5 * math.log(2) + 0.25 * math.log(0.5)) / 2)


def test_expanded_keys_and_values_give_the_same(prefilled: Prefilled, tiny: LanguageModel) -> None:
    cache = prefilled.whole[0]
    [one] = Teacher(tiny, cache, repeat_kv_reading(cache)).read(prefilled.talks(False)[0].script)
    assert_near(
        one, prefilled.talks(False)[0].log_probs[0], forward_terms(tiny.identity.config, len(TEXT)), size=NETWORK
    )
    full = measured(prefilled, "full")
    expanded = measure_expanded(prefilled, full)
    assert expanded["answers"] == full["answers"]
    assert expanded["step_bytes"] == 3 * full["step_bytes"]  # query heads for each KV head
    assert expanded["seconds"]["token"] > 0


def test_a_cell_is_the_mean_over_contexts(prefilled: Prefilled) -> None:
    part = {**measured(prefilled, "full"), "facts": SAMPLE.facts}
    given = ([1.0, 1.0], 7), ([0.0, 1.0], 9), ([0.5, 0.5], 8)
    parts = [{**part, "scores": scores, "peak_bytes": peak} for scores, peak in given]
    cell = cell_of(planned("full", "multi-query"), parts, weight_bytes=1000, bandwidth=2e12)
    assert cell["score"] == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert (cell["score_low"], cell["score_high"]) == (0, 1), "4.303 * 0.2887 / sqrt(3) to either side"
    assert cell["floor_seconds"] == pytest.approx((1000 + part["step_bytes"]) / 2e12)
    slow = cell_of(planned("full", "multi-query"), parts, weight_bytes=1000, bandwidth=1.0)
    assert "floor_seconds" not in slow  # a step took less
    assert [fact["score"] for fact in cell["facts"]] == [1, 0.5, 0.5]
    assert {"prefill", "score", "write", "load", "first_token", "token"} == set(cell["seconds"])
    assert cell["peak_bytes"] == 9
    one = cell_of(planned("full", "multi-query"), [{**part, "scores": [1.0]}], 1, 1.0)
    assert "score_low" not in one


def test_what_does_not_fit_is_impossible(tiny: LanguageModel, prefilled: Prefilled) -> None:
    check_room(tiny, SAMPLE, NEW, turns=True)
    with pytest.raises(Impossible, match="4096"):
        check_room(tiny, SAMPLE, 4000, turns=False)
    with pytest.raises(Impossible, match="too small"):
        measured(prefilled, "snapkv@0.01")
    with pytest.raises(Impossible, match="calibrate"):
        measured(prefilled, "duo@0.5")
    assert FULL.recipe().method.name == "full"
