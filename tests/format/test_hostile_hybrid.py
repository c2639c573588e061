"""Hostile archives of hybrid models: every checksum right, the sliding layers a lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvz.archive import load
from kvz.errors import ArchiveVersion, CorruptArchive
from tests.format.archives import Forgery, make_sample
from tests.format.hostile import refuse, set_at

HYBRIDS = {
    "heads without end": set_at("model", "layers", 1, "kv_heads", to=2**31),
    "another window": set_at("model", "layers", 1, "window", to=7),
    "no window": set_at("model", "layers", 1, "window", to=0),
    "window as null": set_at("model", "layers", 1, "window", to=None),
    "sliding as full": set_at("model", "layers", 1, "kind", to="full"),
    "kept where nothing is evicted": set_at("compression", "kept", 1, to=[4, 4]),
    "another kind": set_at("model", "layers", 1, "kind", to="linear"),
}


@pytest.mark.parametrize("change", HYBRIDS.values(), ids=HYBRIDS.keys())
def test_a_hybrid_manifest_that_lies_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    hybrid = Forgery.of(make_sample(((3, 5), (), (4, 4)), windows={1: 5}).write(tmp_path / "hybrid.kvz"))
    change(hybrid.manifest)
    newer = hybrid.manifest["model"]["layers"][1]["kind"] == "linear"
    refuse(tmp_path / "a.kvz", hybrid.sealed(), ArchiveVersion if newer else CorruptArchive)


def test_positions_of_a_sliding_layer_are_its_last_window(tmp_path: Path) -> None:
    sample = make_sample(((3, 5), (), (4, 4)), windows={1: 5})
    sample.cache.layers[1].positions[:4] -= 1
    sample.write(tmp_path / "a.kvz")
    with pytest.raises(CorruptArchive, match="layer 1 has positions that are not its last window"):
        load(tmp_path / "a.kvz")
