"""Hostile archives: every checksum right, everything else a lie. And archives of the future, which are none."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvz.archive import load
from kvz.errors import ArchiveVersion
from tests.format.archives import Forgery, Sample, make_sample, same_bits, seal, tensors_of
from tests.format.hostile import refuse, set_at

KEYS = "layers.0.keys"


@pytest.fixture
def forgery(intact: Path) -> Forgery:
    return Forgery.of(intact)


def test_a_forgery_that_changes_nothing_loads(tmp_path: Path, forgery: Forgery, sample: Sample) -> None:
    path = tmp_path / "a.kvz"
    path.write_bytes(forgery.sealed())
    read = tensors_of(load(path).cache)
    assert all(same_bits(read[name], tensor) for name, tensor in tensors_of(sample.cache).items())


SPECS: dict[str, dict[str, Any]] = {
    "negative begin": {"data_offsets": [-64, 0]},
    "end before begin": {"data_offsets": [128, 64]},
    "past the end": {"data_offsets": [0, 2**40]},
    "huge place": {"data_offsets": [2**60, 2**60 + 64]},
    "place beyond 64 bits": {"data_offsets": [2**70, 2**70 + 64]},
    "one offset": {"data_offsets": [0]},
    "three offsets": {"data_offsets": [0, 64, 128]},
    "offsets as text": {"data_offsets": "ab"},
    "offsets as floats": {"data_offsets": [0.0, 64.0]},
    "offsets as booleans": {"data_offsets": [False, True]},
    "huge dimension": {"shape": [2**60, 16]},
    "dimensions whose product wraps": {"shape": [2**61, 8]},
    "dimension beyond 64 bits": {"shape": [2**80]},
    "negative dimensions": {"shape": [-12, -16]},
    "shape that does not fit its bytes": {"shape": [11, 16]},
    "other shape of the same size": {"shape": [16, 12]},
    "one dimension": {"shape": [192]},
    "booleans in the shape": {"shape": [True, 192]},
    "text in the shape": {"shape": ["12", "16"]},
    "shape as a number": {"shape": 192},
    "no shape": {"shape": None},
    "unknown dtype": {"dtype": "F99"},
    "dtype in lower case": {"dtype": "f32"},
    "dtype as a list": {"dtype": ["F32"]},
    "endless dtype": {"dtype": "F32" * 10_000},
    "other dtype of the same size": {"dtype": "I32"},
}


@pytest.mark.parametrize("change", SPECS.values(), ids=SPECS.keys())
def test_an_impossible_tensor_is_refused(tmp_path: Path, forgery: Forgery, change: dict[str, Any]) -> None:
    forgery.table[KEYS].update(change)
    assert "is damaged" in refuse(tmp_path / "a.kvz", forgery.sealed())


@pytest.mark.parametrize("spec", [None, 7, "F32", [], {}, {"dtype": "F32"}])
def test_a_tensor_that_is_no_tensor_is_refused(tmp_path: Path, forgery: Forgery, spec: Any) -> None:
    forgery.table[KEYS] = spec
    assert KEYS in refuse(tmp_path / "a.kvz", forgery.sealed())


def test_tensors_that_share_bytes_are_refused(tmp_path: Path, forgery: Forgery) -> None:
    forgery.table[KEYS]["data_offsets"] = forgery.table["layers.0.values"]["data_offsets"]
    assert "overlaps" in refuse(tmp_path / "a.kvz", forgery.sealed())


def test_a_hole_is_refused(tmp_path: Path, forgery: Forgery) -> None:
    del forgery.table[next(name for name in forgery.table if name.startswith("pad."))]
    assert "hole" in refuse(tmp_path / "a.kvz", forgery.sealed())


def test_an_entry_inside_another_is_refused(tmp_path: Path, forgery: Forgery) -> None:
    begin, _ = forgery.table[KEYS]["data_offsets"]
    forgery.table["inside"] = {"dtype": "U8", "shape": [4], "data_offsets": [begin, begin + 4]}
    refuse(tmp_path / "a.kvz", forgery.sealed())


@pytest.mark.parametrize("repeated", ['"layers.0.keys":', '"shape":', '"__metadata__":', '"manifest":'])
def test_a_name_that_occurs_twice_is_refused(tmp_path: Path, forgery: Forgery, repeated: str) -> None:
    text = forgery.json_text()
    doubled = text.replace(repeated, repeated + "0," + repeated, 1)
    assert doubled != text
    refuse(tmp_path / "a.kvz", seal(doubled) + bytes(forgery.data))


@pytest.mark.parametrize("name", ["token_ids", "layers.0.offsets", "layers.1.positions", "layers.2.values"])
def test_a_missing_tensor_is_named(tmp_path: Path, forgery: Forgery, name: str) -> None:
    forgery.drop(name)
    assert f"'{name}' is missing" in refuse(tmp_path / "a.kvz", forgery.sealed())


def test_a_tensor_without_checksum_is_refused(tmp_path: Path, forgery: Forgery) -> None:
    text = forgery.json_text().replace(r"\"layers.0.keys\": \"", r"\"layers.9.keys\": \"", 1)
    assert "no checksum" in refuse(tmp_path / "a.kvz", seal(text) + bytes(forgery.data))


METADATA = {
    "number": '{"format":"kvz","header_checksum":7}',
    "no checksum": '{"format":"kvz"}',
    "empty checksum": '{"format":"kvz","header_checksum":""}',
    "checksum in other letters": '{"format":"kvz","header_checksum":"' + "é" * 32 + '"}',
    "checksum that cannot be encoded": '{"format":"kvz","header_checksum":"' + r"\ud800" * 32 + '"}',
    "null": "null",
    "list": "[]",
    "nested": '{"format":{"format":"kvz"}}',
}


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA.keys())
def test_metadata_that_cannot_be_is_refused(tmp_path: Path, metadata: str) -> None:
    body = f'{{"__metadata__":{metadata}}}'.encode()
    refuse(tmp_path / "a.kvz", len(body).to_bytes(8, "little") + body)


@pytest.mark.parametrize("body", [b"[]", b"7", b"null", b'"kvz"', b"[" * 100_000, b"\xff\xfe", b"9" * 5000, b"{"])
def test_a_header_that_is_no_object_is_refused(tmp_path: Path, body: bytes) -> None:
    refuse(tmp_path / "a.kvz", len(body).to_bytes(8, "little") + body)


MANIFESTS = {
    "kept of the wrong head": set_at("compression", "kept", 0, to=[5, 3]),
    "kept more than there is": set_at("compression", "kept", 0, to=[2**40, 5]),
    "kept below zero": set_at("compression", "kept", 0, to=[-1, 9]),
    "kept as booleans": set_at("compression", "kept", 0, to=[True, 7]),
    "kept without a layer": set_at("compression", "kept", to=[[3, 5], [1, 7]]),
    "kept without a head": set_at("compression", "kept", 2, to=[8]),
    "wrong sum": set_at("compression", "pairs_kept", to=25),
    "wrong total": set_at("compression", "pairs_total", to=10),
    "no layers": set_at("model", "layers", to=[]),
    "a window at a full layer": set_at("model", "layers", 0, "window", to=5),
    "a sliding layer without a window": set_at("model", "layers", 0, "kind", to="sliding"),
    "full as sliding": set_at("model", "layers", 0, to={"kind": "sliding", "kv_heads": 2, "head_dim": 16, "window": 7}),
    "no heads": set_at("model", "layers", 0, "kv_heads", to=0),
    "more heads": set_at("model", "layers", 0, "kv_heads", to=3),
    "huge head": set_at("model", "layers", 0, "head_dim", to=2**31),
    "other dtype": set_at("model", "dtype", to="bfloat16"),
    "unknown dtype": set_at("model", "dtype", to="float8"),
    "fingerprint that is none": set_at("model", "fingerprint", to="../../etc"),
    "longer context": set_at("prompt", "context_tokens", to=11),
    "no context": set_at("prompt", "context_tokens", to=0),
    "huge context": set_at("prompt", "context_tokens", to=2**31),
    "longer prefix": set_at("prompt", "prefix_tokens", to=3),
    "negative prefix": set_at("prompt", "prefix_tokens", to=-2),
    "prefix beyond 64 bits": set_at("prompt", "prefix_tokens", to=10**40),
    "ids below zero": set_at("prompt", "question", "after_ids", to=[-1]),
    "ids as text": set_at("prompt", "question", "stop_ids", to="2"),
    "parameters nested": set_at("compression", "parameters", to={"chunk": {"a": 1}}),
    "source as null": set_at("source", to=None),
    "checksums as a list": set_at("checksums", to=[]),
    "checksum that is none": set_at("checksums", to="x"),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_manifest_that_lies_is_refused(
    tmp_path: Path, forgery: Forgery, change: Callable[[dict[str, Any]], None]
) -> None:
    change(forgery.manifest)
    refuse(tmp_path / "a.kvz", forgery.sealed())


@pytest.mark.parametrize("field", ["model", "tokenizer", "prompt", "source", "compression", "creator", "checksums"])
def test_a_manifest_without_a_field_is_refused(tmp_path: Path, forgery: Forgery, field: str) -> None:
    del forgery.manifest[field]
    refuse(tmp_path / "a.kvz", forgery.sealed())


TEXTS = ["", "{", "null", "[]", "7", "not JSON", "\ud800", "\0", '{"model":{}}', "[" * 100_000]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, forgery: Forgery, text: str) -> None:
    forgery.manifest = text
    assert "manifest" in refuse(tmp_path / "a.kvz", forgery.sealed())


def test_a_manifest_nested_without_end_is_refused(tmp_path: Path, forgery: Forgery) -> None:
    text = json.dumps(forgery.manifest)
    forgery.manifest = text[:-1] + ',"unknown":' + "[" * 100_000 + "]" * 100_000 + "}"
    assert "manifest" in refuse(tmp_path / "a.kvz", forgery.sealed())


OFFSETS = [[0, 5, 13], [1, 5, 12], [0, 12, 12], [-5, 0, 7], [0, -(2**63), 12], [0, 5, 2**40], [12, 7, 0]]


@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_offsets_that_lie_are_refused(tmp_path: Path, forgery: Forgery, offsets: list[int]) -> None:
    forgery.put("layers.0.offsets", np.array(offsets, np.int64).tobytes())
    assert "offsets" in refuse(tmp_path / "a.kvz", forgery.sealed())


def swap(positions: Any) -> None:
    positions[[2, 3]] = positions[[3, 2]]


def repeat(positions: Any) -> None:
    positions[3] = positions[2]


def disorder_the_last_head(positions: Any) -> None:
    positions[-1] = positions[-2] - 1


def exceed(positions: Any) -> None:
    positions[-1] = 12


def exceed_by_far(positions: Any) -> None:
    positions[-1] = 2**31 - 1


def go_below_zero(positions: Any) -> None:
    positions[0] = -1


@pytest.mark.parametrize("change", [swap, repeat, disorder_the_last_head, exceed, exceed_by_far, go_below_zero])
def test_positions_that_lie_are_refused(
    tmp_path: Path, forgery: Forgery, sample: Sample, change: Callable[[Any], None]
) -> None:
    assert sample.cache.logical_length == 12
    positions = sample.cache.layers[1].positions.numpy().copy()
    change(positions)
    forgery.put("layers.1.positions", positions.tobytes())
    message = refuse(tmp_path / "a.kvz", forgery.sealed())
    assert "layer 1" in message
    assert "position" in message


def test_positions_may_fall_from_one_head_to_the_next(tmp_path: Path) -> None:
    path = make_sample(((4, 4, 4),), prefix=0).write(tmp_path / "a.kvz")
    positions = load(path).cache.layers[0].positions
    assert int(positions[4]) < int(positions[3])


@pytest.mark.parametrize("version", ["2.0", "2.5", "10.0", "123456789.0"])
def test_a_newer_major_version_is_refused_by_name(tmp_path: Path, forgery: Forgery, version: str) -> None:
    forgery.metadata["kvz_version"] = version
    message = refuse(tmp_path / "a.kvz", forgery.sealed(), ArchiveVersion)
    assert f"format version {version}" in message
    assert "newer" in message


@pytest.mark.parametrize(
    "version", ["", "1", "1." + "9" * 5000, "one.zero", "-1.0", "1.x", "²⁺.0", "1.0.0", " 1.0", "v1.0", "٢.0"]
)
def test_a_version_that_is_none_is_refused(tmp_path: Path, forgery: Forgery, version: str) -> None:
    forgery.metadata["kvz_version"] = version
    assert "version" in refuse(tmp_path / "a.kvz", forgery.sealed())


def test_a_file_without_version_is_refused(tmp_path: Path, forgery: Forgery) -> None:
    del forgery.metadata["kvz_version"]
    refuse(tmp_path / "a.kvz", forgery.sealed())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model", "layers", 1, "kind"), "linear"),
        (("quantisation",), {"scheme": "int4", "bits": 4}),
    ],
    ids=["layer kind", "quantisation"],
)
def test_what_this_version_cannot_read_asks_for_a_newer_one(
    tmp_path: Path, forgery: Forgery, path: tuple[str | int, ...], value: Any
) -> None:
    set_at(*path, to=value)(forgery.manifest)
    assert "upgrade" in refuse(tmp_path / "a.kvz", forgery.sealed(), ArchiveVersion)


@pytest.mark.parametrize(("version", "dtype"), [("1.1", "U8"), ("1.42", "F32"), ("1.2", "I8"), ("1.2", "BOOL")])
def test_a_newer_minor_version_loads_without_what_is_unknown(
    tmp_path: Path, forgery: Forgery, sample: Sample, version: str, dtype: str
) -> None:
    forgery.metadata.update(kvz_version=version, unknown="more")
    forgery.manifest.update(unknown={"a": [1, None]})
    forgery.manifest["model"].update(unknown=1.5)
    forgery.manifest["prompt"]["question"].update(unknown=[])
    forgery.append("layers.0.sketch", dtype, [64], bytes(256 if dtype == "F32" else 64))
    path = tmp_path / "a.kvz"
    path.write_bytes(forgery.sealed())
    read = tensors_of(load(path).cache)
    assert all(same_bits(read[name], tensor) for name, tensor in tensors_of(sample.cache).items())


def test_an_unknown_tensor_is_checked_all_the_same(tmp_path: Path, forgery: Forgery) -> None:
    forgery.append("layers.0.sketch", "U8", [64], bytes(64))
    data = bytearray(forgery.sealed())
    data[-1] ^= 1
    assert "layers.0.sketch" in refuse(tmp_path / "a.kvz", bytes(data))


@pytest.mark.parametrize("spec", [{"shape": [2**60]}, {"data_offsets": [0, 2**60]}, {"shape": [2**61] * 20_000}])
def test_sizes_that_cannot_be_are_refused_at_once(tmp_path: Path, forgery: Forgery, spec: dict[str, Any]) -> None:
    forgery.table[KEYS].update(spec)
    data = forgery.sealed()
    tracemalloc.start()
    began = time.perf_counter()
    refuse(tmp_path / "a.kvz", data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.perf_counter() - began < 2
    assert peak < 1_000_000 + 20 * len(data)


def test_huge_counts_in_the_manifest_are_refused_at_once(tmp_path: Path, forgery: Forgery) -> None:
    manifest = forgery.manifest
    manifest["model"]["max_positions"] = 2**31
    manifest["prompt"]["context_tokens"] = 2**31 - 2
    manifest["compression"].update(pairs_total=6 * (2**31 - 2), pairs_kept=6 * 2**30, kept=[[2**30] * 2] * 3)
    began = time.perf_counter()
    assert "manifest says" in refuse(tmp_path / "a.kvz", forgery.sealed())
    assert time.perf_counter() - began < 2
