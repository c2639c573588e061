"""What is called once before anything is timed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvz.bench.methods import FULL, REPEAT_KV, parse_methods
from kvz.bench.repeat_kv import RepeatKV
from kvz.bench.warm_up import warm_up
from kvz.decode.policies.dense import DenseReader
from kvz.decode.policies.exact_topk import ExactTopK
from kvz.decode.policies.hsa import HSA
from kvz.decode.policies.lowbit import LowBit
from kvz.decode.policies.quest import Quest
from kvz.decode.policies.rocket_mt import FirstStage
from kvz.decode.policies.sparq import SparQ
from kvz.models.language_model import LanguageModel
from kvz.scoring.h2o import H2O
from kvz.scoring.kvzip import KVzip
from kvz.scoring.rocketkv import RocketKV
from kvz.scoring.snapkv import SnapKV

READS = {
    "full": (DenseReader, "attend"),
    "full@repeat-kv": (RepeatKV, "attend"),
    "rocketkv@256": (RocketKV, "score"),
    "rocketkv@1000": (RocketKV, "score"),
    "rocketkv-mt@256": (FirstStage, "attend"),
    "snapkv@0.3": (SnapKV, "score"),
    "snapkv@256": (SnapKV, "score"),
    "kvzip@0.1": (KVzip, "score"),
    "h2o@0.3/hsa@512": (H2O, "score"),
    "hsa@512": (HSA, "choose"),
    "quest@512": (Quest, "choose"),
    "sparq@512": (SparQ, "choose"),
    "exact-topk@512": (ExactTopK, "choose"),
    "kvzip@0.5/quest@4000": (Quest, "choose"),
    "lowbit@512": (LowBit, "step"),
}


@pytest.mark.parametrize("spec", READS)
def test_each_way_to_compress_and_to_read_is_taken_once(
    spec: str, tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    kind, name = READS[spec]
    function = getattr(kind, name)

    def counted(*arguments: Any) -> Any:
        calls[spec] += 1
        return function(*arguments)

    monkeypatch.setattr(kind, name, counted)
    baselines = {method.label: method for method in (FULL, REPEAT_KV)}
    warm_up(tiny, [baselines[spec]] if spec in baselines else parse_methods([spec]), lambda: False)
    assert calls[spec] >= 1
