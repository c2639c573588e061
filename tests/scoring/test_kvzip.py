from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from kvz.models.language_model import LanguageModel, load_model
from kvz.models.prefill import prefill
from kvz.prompt import make_frame, repeat_ids, turn_ids
from kvz.scoring.kvzip import KVzip
from kvz.scoring.kvzip_plus import KVzipPlus
from kvz.scoring.kvzip_rms import KVzipRMS
from kvz.scoring.method import Context
from tests.near import NETWORK, assert_near, assert_shares_near, forward_terms
from tests.reference import eager64
from tests.tiny import make_model_folder


def context_of(model: LanguageModel, length: int, seed: int = 0, slack: int = 0) -> Context:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 250, (length,), generator=generator).tolist()
    frame = make_frame(model.tokenizer, model.end_ids)
    return Context(frame, tuple(ids), prefill(model, [*frame.prefix_ids, *ids], slack=slack))


def scores64(folder: Path, model: LanguageModel, context: Context, chunk: int, kind: str = "kvzip") -> torch.Tensor:
    """The definition, evaluated by transformers in float64: one forward over everything a chunk's pass attends."""
    passes = []
    for start in range(0, len(context.ids), chunk):
        end = min(start + chunk, len(context.ids))
        passes.append((start, end, repeat_ids(model.tokenizer, context.frame.seam, context.ids, start, end)))
    if kind != "rms":
        return of_passes(folder, model, context, passes, kind, lambda share: share.amax((1, 2)))
    squares = of_passes(folder, model, context, passes, "kvzip+", lambda share: share.square().sum((1, 2)))
    turn = turn_ids(model.tokenizer, context.frame.seam)
    whole = [(0, len(context.ids), turn)]
    of_turn = of_passes(folder, model, context, whole, "kvzip+", lambda share: share.square().sum(1).mean(1))
    return (squares + 4096 * of_turn).sqrt()


def of_passes(folder, model, context, passes, kind: str, reduce) -> torch.Tensor:
    """Scores of passes (start, end, ids): `reduce` turns shares `[H,G,n,m]` into `[H,m]`."""
    reference = eager64(folder)
    prompt = [*context.frame.prefix_ids, *context.ids]
    geometry, prefix = model.geometry, context.prefix
    scores = torch.zeros(geometry.rows_total, len(context.ids), dtype=torch.float64)
    for start, end, repeat in passes:
        out = reference(
            torch.tensor([prompt + repeat]), output_attentions=True, output_hidden_states=True, use_cache=True
        )
        for layer, all_heads in enumerate(out.attentions):
            if geometry.shapes[layer].window is not None:
                continue
            rows = all_heads[0, :, len(prompt) :]
            columns = rows[:, :, prefix + start : prefix + end]
            others = rows[:, :, :prefix].sum(2) + rows[:, :, len(prompt) :].sum(2)
            share = columns / (columns.sum(2) + others)[:, :, None]
            if kind == "kvzip+":
                share = share * contribution(reference, out, layer, len(prompt))[:, :, prefix + start : prefix + end]
            heads = geometry.shapes[layer].kv_heads
            scores[geometry.rows(layer), start:end] = reduce(share.view(heads, -1, *share.shape[1:]))
    return scores


def contribution(reference, out, layer: int, first: int) -> torch.Tensor:
    """||W_o,g v_j|| / ||h_i|| for each query head, row i >= first and key j: `[Hq, n, N]`."""
    cache = out.cache if hasattr(out, "cache") else out.past_key_values
    values = cache.layers[layer].values[0]
    weight = reference.model.layers[layer].self_attn.o_proj.weight
    query_heads = weight.shape[1] // values.shape[-1]
    norms = []
    for g in range(query_heads):
        part = weight[:, g * values.shape[-1] : (g + 1) * values.shape[-1]]
        added = values[g // (query_heads // values.shape[0])] @ part.T
        block = reference.model.layers[layer]
        if hasattr(block, "pre_feedforward_layernorm"):
            added = added * (1 + block.post_attention_layernorm.weight)
        norms.append(added.norm(dim=-1))
    rows = out.hidden_states[layer][0, first:].norm(dim=-1)
    return torch.stack(norms)[:, None, :] / (rows * divisors(reference, out, layer)[first:])[None, :, None]


def divisors(reference, out, layer: int) -> torch.Tensor:
    """What the norm after a Gemma's attention divides by at each row: from the layer's own modules, in float64."""
    block = reference.model.layers[layer]
    if not hasattr(block, "pre_feedforward_layernorm"):
        return torch.ones(out.hidden_states[layer].shape[1])
    cache = out.cache if hasattr(out, "cache") else out.past_key_values
    values = cache.layers[layer].values[0].repeat_interleave(block.self_attn.num_key_value_groups, 0)
    attended = (out.attentions[layer][0] @ values).transpose(0, 1).flatten(1)
    return (block.self_attn.o_proj(attended).square().mean(-1) + block.post_attention_layernorm.eps).sqrt()


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(2, 2), (6, 2), (4, 1), (8, 1)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_kvzip_plus_equals_its_definition(tmp_path, family, query_heads, kv_heads):
    folder = make_model_folder(tmp_path, family, query_heads=query_heads, kv_heads=kv_heads)
    model = load_model(str(folder), "cpu", "float32")
    context = context_of(model, 70)
    got = KVzipPlus(32).score(model, context, lambda tokens: None)
    want = scores64(folder, model, context, 32, "kvzip+")
    assert_shares_near(got, want, model.identity.config, 70)
    assert not torch.allclose(got, KVzip(32).score(model, context, lambda tokens: None))


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(2, 2), (6, 2), (4, 1), (8, 1)])
@pytest.mark.parametrize(("family", "length", "chunk"), [("llama", 70, 32), ("gemma3", 70, 2048), ("phi3", 1, 2048)])
def test_kvzip_rms_equals_its_definition(tmp_path, family, query_heads, kv_heads, length, chunk):
    folder = make_model_folder(tmp_path, family, query_heads=query_heads, kv_heads=kv_heads)
    model = load_model(str(folder), "cpu", "float32")
    context = context_of(model, length)
    told: list[int] = []
    got = KVzipRMS(chunk).score(model, context, told.append)
    assert sum(told) == length
    want = scores64(folder, model, context, chunk, "rms")
    assert_shares_near(got, want, model.identity.config, length)
    without = KVzipRMS(chunk, turn=0).score(model, context, lambda tokens: None)
    assert (without <= got).all()
    assert not torch.allclose(without, got)


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(2, 2), (6, 2)])
def test_logit_scores_are_the_largest_products_of_queries_and_keys(tmp_path, query_heads, kv_heads):
    """Without a softmax the order inside a row of one query is that of its weights; the values are its logits."""
    folder = make_model_folder(tmp_path, query_heads=query_heads, kv_heads=kv_heads)
    model = load_model(str(folder), "cpu", "float32")
    context = context_of(model, 40)
    got = KVzip(weight="logit").score(model, context, lambda tokens: None)
    reference = eager64(folder)
    repeat = repeat_ids(model.tokenizer, context.frame.seam, context.ids, 0, 40)
    prompt = [*context.frame.prefix_ids, *context.ids]
    seen: dict[int, torch.Tensor] = {}

    def keep_logits(module, args, kwargs):
        hidden, (cos, sin) = kwargs["hidden_states"], kwargs["position_embeddings"]
        shape = (1, hidden.shape[1], -1, 16)
        q, k = (proj(hidden).view(shape).transpose(1, 2) for proj in (module.q_proj, module.k_proj))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        k = k.repeat_interleave(query_heads // kv_heads, 1)
        logits = q[0, :, len(prompt) :] @ k[0, :, context.prefix : len(prompt)].transpose(1, 2) / 4
        seen[module.layer_idx] = logits.view(kv_heads, -1, 40).amax(1)

    for layer in reference.model.layers:
        layer.self_attn.register_forward_pre_hook(keep_logits, with_kwargs=True)
    reference(torch.tensor([prompt + repeat]), use_cache=False)
    for layer, want in seen.items():
        assert_near(
            got[model.geometry.rows(layer)], want, forward_terms(model.identity.config, len(prompt)), size=NETWORK
        )


@pytest.mark.parametrize("instruction", ["repeat", "reproduce", "copy"])
def test_instructions_are_worded_differently_and_score_alike(tiny, instruction):
    context = context_of(tiny, 60)
    first = KVzip(32).score(tiny, context, lambda tokens: None)
    other = KVzip(32, instruction).score(tiny, context, lambda tokens: None)
    assert torch.equal(first, other) == (instruction == "repeat")
    assert other.shape == first.shape


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(2, 2), (6, 2), (4, 1), (8, 1)])
@pytest.mark.parametrize(("length", "chunk"), [(1, 2048), (33, 16), (31, 2048), (40, 20)])
def test_scores_equal_the_definition(tmp_path, query_heads, kv_heads, length, chunk):
    folder = make_model_folder(tmp_path, "qwen3", query_heads=query_heads, kv_heads=kv_heads)
    model = load_model(str(folder), "cpu", "float32")
    context = context_of(model, length)
    got = KVzip(chunk).score(model, context, lambda tokens: None)
    want = scores64(folder, model, context, chunk)
    assert got.dtype == torch.float32
    assert want.max() > 0.1  # the tiny model's attention is far from flat, so a wrong softmax would show
    assert_shares_near(got, want, model.identity.config, length)


@pytest.mark.parametrize("length", [2047, 2049])
@pytest.mark.parametrize(("method", "kind"), [(KVzip(), "kvzip"), (KVzipPlus(), "kvzip+"), (KVzipRMS(), "rms")])
def test_the_papers_chunk_with_a_last_one_of_one_token(tiny, tiny_folder, length, method, kind):
    context = context_of(tiny, length)
    got = method.score(tiny, context, lambda tokens: None)
    want = scores64(tiny_folder, tiny, context, 2048, kind)
    assert_shares_near(got, want, tiny.identity.config, length)


def test_scoring_leaves_the_cache_alone_and_is_deterministic(tiny):
    context = context_of(tiny, 70)
    before = [tuple(t.clone() for t in context.cache.layer(i)) for i in range(3)]
    reported: list[int] = []
    first = KVzip(32).score(tiny, context, reported.append)
    second = KVzip(32).score(tiny, context, lambda tokens: None)
    assert torch.equal(first, second)
    assert sum(reported) == 70
    assert len(reported) == 9  # after each layer of each chunk
    assert context.cache.length == context.prefix + 70
    for index, (keys, values) in enumerate(before):
        assert torch.equal(context.cache.layer(index)[0], keys)
        assert torch.equal(context.cache.layer(index)[1], values)


def test_repeat_input_quotes_the_last_ids_of_the_previous_chunk(tiny):
    frame = make_frame(tiny.tokenizer, tiny.end_ids)
    context = list(range(100, 150))
    first = repeat_ids(tiny.tokenizer, frame.seam, context, 0, 20)
    later = repeat_ids(tiny.tokenizer, frame.seam, context, 20, 40)
    turn = list(frame.seam.after_ids)
    assert first[-20:] == context[:20]
    assert first[-20 - len(turn) : -20] == turn
    assert later[-20:] == context[20:40]
    assert later[: -20 - len(turn)][-8:] == context[12:20]


MEMORY_SCRIPT = """
import sys, threading, psutil
from kvz.models.language_model import load_model
from kvz.scoring.kvzip import KVzip
from kvz.scoring.kvzip_rms import KVzipRMS
from tests.scoring.test_kvzip import context_of

def watch():
    while not finished.wait(0.002):
        seen.append(process.memory_info().rss)

model = load_model(sys.argv[1], "cpu", "float32")
KVzipRMS(64).score(model, context_of(model, 100), lambda n: None)
context = context_of(model, 3900)
process, seen, finished = psutil.Process(), [], threading.Event()
before = process.memory_info().rss
watcher = threading.Thread(target=watch)
watcher.start()
KVzipRMS().score(model, context, lambda n: None)
finished.set()
watcher.join()
print((max(seen) - before) / 1e6)
"""


def test_extra_memory_is_bounded(tmp_path):
    """A 3,900-token context with 12 query heads: attention weights alone would be over 500 MB."""
    folder = make_model_folder(tmp_path, "llama", query_heads=12, kv_heads=4, layers=2)
    result = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(folder)], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < 64
