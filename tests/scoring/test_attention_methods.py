"""SnapKV and H2O against their formulas in float64, and the controls."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import max_pool1d

from kvz.archive import load
from kvz.compression import compress, compress_document
from kvz.documents import document_from_text
from kvz.errors import UsageError
from kvz.kernels.attention_sum import column_sum
from kvz.models.language_model import load_model
from kvz.progress import Progress
from kvz.prompt import question_ids
from kvz.recipe import make_recipe
from kvz.scoring.calibration import calibrate
from kvz.scoring.controls import RandomPairs, Recent
from kvz.scoring.h2o import H2O
from kvz.scoring.method import Setting
from kvz.scoring.registry import METHODS, make_method
from kvz.scoring.snapkv import SnapKV
from tests.conftest import TEXT
from tests.near import LOGITS, assert_near, assert_shares_near
from tests.reference import copy_of, eager64
from tests.scoring.test_kvzip import context_of
from tests.tiny import make_model_folder

GROUPS = [(2, 2), (6, 2), (4, 1), (8, 1)]


def weights64(folder, context) -> list[torch.Tensor]:
    """transformers' attention weights over the prompt, `[Hq,N,N]` float64 a layer."""
    prompt = [*context.frame.prefix_ids, *context.ids]
    out = eager64(folder)(torch.tensor([prompt]), output_attentions=True, use_cache=False)
    return [layer[0] for layer in out.attentions]


@pytest.mark.parametrize(("query_heads", "kv_heads"), GROUPS)
@pytest.mark.parametrize(("length", "window", "kernel"), [(33, 32, 7), (100, 8, 1), (70, 32, 63)])
def test_snapkv_equals_its_formula(tmp_path, query_heads, kv_heads, length, window, kernel):
    folder = make_model_folder(tmp_path, query_heads=query_heads, kv_heads=kv_heads)
    model = load_model(str(folder), "cpu", "float32")
    context = context_of(model, length, slack=32)
    got = SnapKV(window, kernel).score(model, context, lambda tokens: None)
    for layer, weights in enumerate(weights64(folder, context)):
        seen = weights[:, -window:, context.prefix : -window].sum(1).view(kv_heads, -1, length - window).sum(1)
        want = max_pool1d(seen[None], kernel, stride=1, padding=kernel // 2)[0]
        assert_shares_near(got[model.geometry.rows(layer), :-window], want, model.identity.config, length)


@pytest.mark.parametrize(("query_heads", "kv_heads"), GROUPS)
@pytest.mark.parametrize("length", [1, 31, 100])
def test_h2o_equals_its_formula(tmp_path, query_heads, kv_heads, length):
    folder = make_model_folder(tmp_path, query_heads=query_heads, kv_heads=kv_heads)
    model = load_model(str(folder), "cpu", "float32")
    context = context_of(model, length)
    got = H2O().score(model, context, lambda tokens: None)
    for layer, weights in enumerate(weights64(folder, context)):
        received = weights[:, context.prefix :, context.prefix :].sum(1).view(kv_heads, -1, length).sum(1)
        assert_shares_near(got[model.geometry.rows(layer)], received, model.identity.config, length)


def test_h2o_over_several_blocks_equals_one(tiny, tiny_folder):
    context = context_of(tiny, 2049)
    told: list[int] = []
    got = H2O().score(tiny, context, told.append)
    assert sum(told) == 2049
    assert len(told) == 6
    weights = weights64(tiny_folder, context)[1]
    received = weights[:, context.prefix :, context.prefix :].sum(1).view(2, -1, 2049).sum(1)
    assert_shares_near(got[tiny.geometry.rows(1)], received, tiny.identity.config, 2049)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (40, 40), (1500, 1500)])
def test_column_sum(causal, rows, keys):
    torch.manual_seed(0)
    q, k = torch.randn(2, rows, 32), torch.randn(keys, 32)
    scores = q.double() @ k.double().T * 0.2
    if causal:
        scores = scores.masked_fill(torch.ones(rows, keys, dtype=torch.bool).triu(1), float("-inf"))
    lse = torch.logsumexp(scores, -1)
    got = column_sum(q, k, lse.float(), 0.2, causal)
    assert_near(got, (scores - lse[..., None]).exp().sum((0, 1)), 32 + 2 * rows, floor=0, size=LOGITS)


def kept_positions(model, method, ratio: float) -> list[list[int]]:
    """Context positions kept in each head of the first layer."""
    recipe = make_recipe(ratio, method=method, allocation="uniform")
    archive = compress_document(document_from_text(TEXT), model, recipe, Progress())
    layer, prefix = archive.cache.layers[0], archive.manifest.prompt.prefix_tokens
    heads = zip(layer.bounds[:-1], layer.bounds[1:], strict=True)
    return [(layer.positions[a:b][prefix:] - prefix).tolist() for a, b in heads]


def test_windows_halves_sinks_and_seeds(tiny):
    length = len(TEXT.encode())
    count = round(0.3 * length)
    for head in kept_positions(tiny, SnapKV(window=16), 0.3):
        assert head[-16:] == list(range(length - 16, length))
        assert len(head) == count
    for head in kept_positions(tiny, H2O(), 0.3):
        assert head[-(count // 2) :] == list(range(length - count // 2, length))
    for head in kept_positions(tiny, Recent(sink=4), 0.3):
        assert head == [0, 1, 2, 3, *range(length - count + 4, length)]
    same = kept_positions(tiny, RandomPairs(seed=1), 0.3)
    assert same == kept_positions(tiny, RandomPairs(seed=1), 0.3)
    assert same != kept_positions(tiny, RandomPairs(seed=2), 0.3)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_snapkv_with_a_query_looks_from_its_end(tmp_path, family):
    """The window is the last tokens of context and question together; the question is not kept."""
    folder = make_model_folder(tmp_path, family)
    model = load_model(str(folder), "cpu", "float32")
    context = context_of(model, 90, slack=64)
    query = question_ids(model.tokenizer, context.frame.seam, "Who keeps it?")
    for window in (len(query) - 5, len(query) + 9):
        method = SnapKV(window, kernel=1, query="Who keeps it?")
        before = min(90, 90 + len(query) - window)
        [(first, last)] = method.protect(Setting(model, context.frame, 90, 30))
        assert (first, last) == (before, 90)
        got = method.score(model, context, lambda tokens: None)
        prompt = [*context.frame.prefix_ids, *context.ids, *query]
        out = eager64(folder)(torch.tensor([prompt]), output_attentions=True, use_cache=False)
        for layer in set(model.geometry.row_layers):
            seen = out.attentions[layer][0, :, -window:, context.prefix : context.prefix + before].sum(1)
            rows = model.geometry.rows(layer)
            want = seen.view(2, -1, before).sum(1)
            assert_shares_near(got[rows, :before], want, model.identity.config, len(prompt))


@pytest.mark.parametrize("chunk", [2048, 40])
def test_snapkv_and_h2o_of_a_hybrid_model(tmp_path, monkeypatch, chunk):
    folder = make_model_folder(tmp_path, "gemma3")
    model = load_model(str(folder), "cpu", "float32")
    monkeypatch.setattr("kvz.scoring.h2o._CHUNK", chunk)
    context = context_of(model, 150, slack=32)
    snapkv = SnapKV(32, 1).score(model, context, lambda tokens: None)
    told: list[int] = []
    h2o = H2O().score(model, context, told.append)
    assert sum(told) == 150
    weights = weights64(folder, context)[1]
    rows = weights[:, -32:, context.prefix : -32].sum(1).view(2, -1, 118).sum(1)
    assert_shares_near(snapkv[:, :-32], rows, model.identity.config, 150)
    received = weights[:, context.prefix :, context.prefix :].sum(1).view(2, -1, 150).sum(1)
    assert_shares_near(h2o, received, model.identity.config, 150)


def test_pyramidkv_and_adakv_are_snapkv_under_their_own_allocation(tiny):
    context = context_of(tiny, 80, slack=32)
    of = {name: make_method(name) for name in ("snapkv", "pyramidkv", "adakv")}
    assert [m.allocation().name for m in of.values()] == ["uniform", "pyramid", "adakv"]
    assert of["adakv"].allocation().parameters() == {"floor": 0.2}
    assert of["pyramidkv"].parameters() == {"window": 8, "kernel": 7, "query": None}
    same = of["adakv"].score(tiny, context, lambda tokens: None)
    assert torch.equal(same, of["snapkv"].score(tiny, context, lambda tokens: None))
    short = of["pyramidkv"].score(tiny, context, lambda tokens: None)
    assert torch.equal(short, SnapKV(8, 7).score(tiny, context, lambda tokens: None))


@pytest.mark.parametrize("length", [1, 31, 33, 100])
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("kvzip-head", "duo")])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_scoring_is_deterministic_and_leaves_the_cache_alone(tmp_path, family, method, length):
    model = load_model(str(make_model_folder(tmp_path, family)), "cpu", "float32")
    context = context_of(model, length, slack=32)
    before = [(keys.clone(), values.clone()) for keys, values in copy_of(context.cache)]
    told: list[int] = []
    first = make_method(method).score(model, context, told.append)
    assert first.shape == (model.geometry.rows_total, length)
    assert first.dtype == torch.float32
    assert torch.isfinite(first).all()
    assert sum(told) in (
        {length} if method not in ("full", "snapkv", "adakv", "pyramidkv", "rocketkv") else {0, length}
    )
    assert torch.equal(first, make_method(method).score(model, context, lambda tokens: None))
    for held, kept in zip(copy_of(context.cache), before, strict=True):
        assert torch.equal(held[0], kept[0])
        assert torch.equal(held[1], kept[1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_every_method_compresses_and_answers(tmp_path, monkeypatch, method, family):
    monkeypatch.setenv("KVZ_CACHE", str(tmp_path / "cache"))
    model = load_model(str(make_model_folder(tmp_path / "model", family)), "cpu", "float32")
    calibrate(model, TEXT).store(model.identity)
    ratio = None if method == "full" else 0.8
    archive = compress(TEXT * 4, model, ratio=ratio, method=method)
    info, length = archive.manifest.compression, archive.manifest.prompt.context_tokens
    rows = model.geometry.rows_total
    wanted = {rows * length} if ratio is None else {round(0.8 * rows * length), rows * round(0.8 * length)}
    assert info.pairs_kept in wanted
    assert info.method == method
    assert [len(row) for row in info.kept] == [x.kv_heads if x.window is None else 0 for x in model.geometry.shapes]
    archive.save(tmp_path / "a.kvz")
    assert load(tmp_path / "a.kvz").ask("Who?", 5).ids == archive.ask("Who?", 5).ids


def test_a_context_no_longer_than_the_window_is_kept_whole_and_says_so(tiny):
    class Heard(Progress):
        lines: list[str] = []  # noqa: RUF012

        def say(self, message: str) -> None:
            self.lines.append(message)

    for text in ("x", "y" * 32):
        archive = compress_document(document_from_text(text), tiny, make_recipe(0.3, method="snapkv"), Heard())
        assert archive.manifest.compression.pairs_kept == archive.manifest.compression.pairs_total
        assert "nothing is scored or evicted" in Heard.lines.pop()
    archive = compress_document(
        document_from_text("z" * 33 * 4), tiny, make_recipe(0.5, method="snapkv", allocation="nonuniform"), Heard()
    )
    assert archive.manifest.compression.pairs_kept == round(0.5 * 6 * 33 * 4)


def test_options_of_another_method_and_guarantees_that_do_not_fit(tiny):
    with pytest.raises(UsageError, match=r"'kvzip' does not take window \(what does: .*snapkv"):
        make_method("kvzip", window=8)
    for name, options in (
        ("kvzip", {"weight": "mean"}),
        ("kvzip+", {"instruction": "sing"}),
        ("kvzip-rms", {"turn": -1}),
    ):
        with pytest.raises(UsageError):
            make_method(name, **options)
    with pytest.raises(UsageError, match="keeps every pair"):
        compress(TEXT, tiny, ratio=0.3, method="full")
    with pytest.raises(UsageError, match="'uniform' does not take floor"):
        compress(TEXT, tiny, ratio=0.3, method="snapkv", floor=0.2)
    for options in ({"window": 0}, {"kernel": 4}, {"kernel": 0}):
        with pytest.raises(UsageError):
            make_method("snapkv", **options)
    with pytest.raises(UsageError, match=r"too small: every head keeps at least 100 .* the least is 0\.4"):
        compress(TEXT, tiny, ratio=0.1, keep_recent=100)
    with pytest.raises(UsageError, match="most recent"):
        compress(TEXT, tiny, keep_recent=-1)


@pytest.mark.parametrize(("allocation", "kept"), [("nonuniform", round(0.999 * 6 * 206)), ("uniform", 6 * 206)])
def test_a_ratio_just_below_one_is_exact_too(tiny, allocation, kept):
    """Rounded a head, 0.999 of 206 tokens is all of them; rounded over all heads it is not."""
    text = TEXT[:206].ljust(206)
    archive = compress(text, tiny, ratio=0.999, allocation=allocation)
    assert archive.manifest.prompt.context_tokens == 206
    assert archive.manifest.compression.pairs_kept == kept


def test_a_kernel_wider_than_the_context_is_as_wide_as_it(tiny):
    context = context_of(tiny, 60, slack=8)
    whole = SnapKV(8, 2 * 52 + 1).score(tiny, context, lambda tokens: None)
    assert torch.equal(SnapKV(8, 10**30 + 1).score(tiny, context, lambda tokens: None), whole)
