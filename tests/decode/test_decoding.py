"""Sessions with a policy and a budget."""

from __future__ import annotations

from itertools import pairwise

import pytest

import kvz
from kvz.compression import compress
from kvz.config import POLICIES, Decoding
from kvz.errors import UsageError
from kvz.models.language_model import load_model
from tests.conftest import TEXT
from tests.tiny import make_model_folder


@pytest.fixture(scope="module")
def archive(tiny):
    return compress(TEXT * 3, tiny, ratio=0.5)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers_within_its_budget(archive, tiny, policy):
    dense = archive.session(tiny, Decoding("dense")).ask("Where is the key?", 20)
    answer = archive.session(tiny, Decoding(policy, 64)).ask("Where is the key?", 20)
    prefix, heads = archive.manifest.prompt.prefix_tokens, 6
    assert answer.policy == policy
    assert answer.ids[0] == dense.ids[0]  # the question itself attends everything
    assert answer.pairs_read <= heads * (prefix + 64 + 2)
    assert answer.pairs_read < dense.pairs_read == archive.cache.pairs
    again = archive.session(tiny, Decoding(policy, 64)).ask("Where is the key?", 20)
    assert again.ids == answer.ids


@pytest.mark.parametrize("policy", ["auto", *POLICIES])
def test_a_budget_larger_than_the_archive_is_dense(archive, tiny, policy):
    session = archive.session(tiny, Decoding(policy, 5000))
    assert session.policy == "dense"
    dense = archive.session(tiny, Decoding()).ask("When does the ferry leave?", 20)
    assert session.ask("When does the ferry leave?", 20).ids == dense.ids


def test_auto_selects_only_with_a_budget(archive, tiny):
    assert archive.session(tiny, Decoding()).policy == "dense"
    assert archive.session(tiny, Decoding(budget=32)).policy == "lowbit"
    archive.session(tiny, Decoding(budget=32))
    assert archive.ask("Who?", 3).policy == "lowbit"  # the session made last


def test_sliding_layers_are_read_as_they_are(tmp_path):
    model = load_model(str(make_model_folder(tmp_path, "gemma3")), "cpu", "float32")
    archive = compress(TEXT * 2, model, ratio=0.5)
    prefix, layers = archive.manifest.prompt.prefix_tokens, archive.cache.layers
    dense = archive.session(model, Decoding())
    sparse = archive.session(model, Decoding("hsa", 16))
    answer, full = (session.ask("Where is the key?", 30) for session in (sparse, dense))
    assert answer.policy == "hsa"
    assert answer.pairs_read < full.pairs_read
    few, all_pairs = (session.reading.readers()[1] for session in (sparse, dense))
    for index, layer in enumerate(layers):
        assert (few.read(index) == all_pairs.read(index)) == (layer.window is not None)
    longest = max(b - a for layer in layers if layer.window is None for a, b in pairwise(layer.bounds))
    almost = archive.session(model, Decoding("exact-topk", longest - prefix - 1)).ask("Where is the key?", 30)
    assert almost.policy == "exact-topk"
    assert almost.ids == full.ids  # the one pair that is left out weighs next to nothing
    assert len(set(full.ids)) > 1


@pytest.mark.parametrize(
    ("policy", "budget", "words"),
    [
        ("best", None, "no policy 'best'.*hsa"),
        ("hsa", None, "needs a budget"),
        ("dense", 64, "leave the budget out"),
        ("hsa", 0, "16 or more"),
        ("auto", -5, "16 or more"),
    ],
)
def test_decodings_that_make_no_sense(policy, budget, words):
    with pytest.raises(UsageError, match=words):
        Decoding(policy, budget)


def test_loaded_and_in_memory_read_the_same(archive, tiny, tmp_path):
    archive.save(tmp_path / "a.kvz")
    loaded = kvz.load(tmp_path / "a.kvz").session(tiny, Decoding("hsa", 24)).ask("Who keeps it?", 20)
    assert loaded.ids == archive.session(tiny, Decoding("hsa", 24)).ask("Who keeps it?", 20).ids


@pytest.mark.parametrize("length", [1023, 1024, 1025, 1026, 2049])
def test_every_token_of_a_long_question_attends_everything(archive, tiny, length):
    """A question goes through the model in parts; none of one token may pass for a token of the answer."""
    dense = archive.session(tiny, Decoding())
    empty = dense.ask("x", 1).question_tokens - 1
    question = "x" * (length - empty)
    sparse = archive.session(tiny, Decoding("hsa", 16)).ask(question, 1)
    assert sparse.question_tokens == length
    assert sparse.pairs_read is None
    assert sparse.ids == dense.ask(question, 1).ids


def test_the_defaults_own_allocation_by_name_is_the_default(tiny):
    named = compress(TEXT, tiny, ratio=0.5, allocation="nonuniform").manifest.compression
    assert named.allocation_parameters["floor"] == 0.2
    assert named == compress(TEXT, tiny, ratio=0.5).manifest.compression
