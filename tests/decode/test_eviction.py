"""Physical eviction equals masking the full cache, and -r 1.0 equals transformers."""

from __future__ import annotations

import pytest
import torch

from kvz.cache.ragged import evict
from kvz.cache.tail import Tail
from kvz.decode.decoding import dense_reading
from kvz.models.language_model import LanguageModel, load_model
from kvz.models.prefill import prefill
from kvz.scoring.allocation import Demand, Nonuniform
from kvz.scoring.budget import Budget
from kvz.scoring.selection import select
from tests.decode.ragged import feed
from tests.near import NETWORK, assert_near, forward_terms
from tests.reference import MaskedStore, copy_of
from tests.tiny import FAMILIES, make_model_folder

PREFIX, CONTEXT = 5, 700


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ratio", [0.7, 0.3, 0.05])
@pytest.mark.parametrize("question", [1, 20])
def test_physical_eviction_equals_masking(tmp_path, family, ratio, question):
    model = load_model(str(make_model_folder(tmp_path, family)), "cpu", "float32")
    generator = torch.Generator().manual_seed(question)
    ids = torch.randint(3, 250, (PREFIX + CONTEXT + question + 6,), generator=generator)
    full = prefill(model, ids[: PREFIX + CONTEXT].tolist(), chunk=256)
    rows = model.geometry.row_layers
    demand = Demand(Budget(ratio=ratio), rows, torch.zeros(CONTEXT, dtype=torch.bool))
    kept = select(torch.rand(len(rows), CONTEXT, generator=generator) ** 4, demand, Nonuniform())
    masked = MaskedStore(copy_of(full), kept, model.geometry, PREFIX)
    tail = Tail(model.geometry.shapes, question + 6, model.dtype, model.device)
    reading = dense_reading(evict(full, kept, model.geometry, PREFIX))
    new, start = ids[PREFIX + CONTEXT :], PREFIX + CONTEXT
    for part in (new[:question], *new[question:].split(1)):  # the question, then six tokens one by one
        at = start + tail.length
        got, want = feed(model, reading, tail, part.tolist()), model.logits(part, at, masked)
        assert_near(got, want, forward_terms(model.identity.config, len(ids)), size=NETWORK)


def test_a_second_question_part_attends_the_first_causally(tiny: LanguageModel):
    ids = torch.randint(3, 250, (90,), generator=torch.Generator().manual_seed(3))
    results = []
    for split in ([40], [7, 33], [1, 38, 1]):
        full = prefill(tiny, ids[:50].tolist())
        tail = Tail(tiny.geometry.shapes, 40, tiny.dtype, tiny.device)
        reading = dense_reading(evict(full, torch.ones(6, 50, dtype=torch.bool), tiny.geometry, 0))
        for part in ids[50:].split(split):
            logits = feed(tiny, reading, tail, part.tolist())
        results.append(logits)
    assert_near(results[1], results[0], forward_terms(tiny.identity.config, len(ids)), size=NETWORK)
    assert_near(results[2], results[0], forward_terms(tiny.identity.config, len(ids)), size=NETWORK)
