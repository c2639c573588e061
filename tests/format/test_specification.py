"""docs/format.md is a specification: its example reader reads what kvz writes, and its tables list what is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import kvz
from kvz.errors import ArchiveError, ArchiveVersion
from kvz.format.header import FORMAT_VERSION
from kvz.format.manifest import Manifest
from kvz.models.language_model import LanguageModel, load_model
from tests.conftest import TEXT
from tests.format.rewriting import rewrite
from tests.tiny import make_model_folder

SPECIFICATION = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```$", SPECIFICATION, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def read_kvz() -> Callable[[Path], Any]:
    """The example reader of the specification."""
    names: dict[str, Any] = {}
    exec(compile(EXAMPLE, "docs/format.md", "exec"), names)
    return names["read_kvz"]


@pytest.fixture(scope="module")
def archive(tiny: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("specification") / "tiny.kvz"
    kvz.compress(TEXT, tiny, ratio=0.3).save(path)
    return path


def assert_same(read_kvz: Callable[[Path], Any], path: Path) -> None:
    """The example reader's result is that of kvz.load."""
    manifest, token_ids, layers = read_kvz(path)
    loaded = kvz.load(path)
    assert msgspec.convert(manifest, Manifest) == loaded.manifest
    if loaded.token_ids is None:
        assert token_ids is None
    else:
        assert token_ids.tolist() == loaded.token_ids.tolist()
    assert len(layers) == len(loaded.cache.layers)
    for (offsets, positions, keys, values), layer in zip(layers, loaded.cache.layers, strict=True):
        assert offsets.tolist() == layer.offsets.tolist()
        assert positions.tolist() == layer.positions.tolist()
        assert np.array_equal(keys, layer.keys.float().numpy())
        assert np.array_equal(values, layer.values.float().numpy())


def test_the_example_needs_only_what_the_specification_says() -> None:
    imports = [node for node in ast.walk(ast.parse(EXAMPLE)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    assert names == {"json", "struct", "numpy", "xxhash"}
    assert not any(isinstance(node, ast.ImportFrom) for node in imports)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_dtype(read_kvz: Callable[[Path], Any], tiny_folder: Path, tmp_path: Path, dtype: str) -> None:
    model = load_model(str(tiny_folder), device="cpu", dtype=dtype)
    kvz.compress(TEXT, model, ratio=0.4).save(tmp_path / "a.kvz")
    assert_same(read_kvz, tmp_path / "a.kvz")


@pytest.mark.parametrize(
    "options",
    [{"ratio": 1.0}, {"budget": 3}, {"allocation": "uniform"}, {"include_text": False}, {"system": "Be brief."}],
    ids=str,
)
def test_every_kind_of_archive(
    read_kvz: Callable[[Path], Any], tiny: LanguageModel, tmp_path: Path, options: dict[str, Any]
) -> None:
    kvz.compress(TEXT, tiny, **options).save(tmp_path / "a.kvz")
    assert_same(read_kvz, tmp_path / "a.kvz")


@pytest.mark.parametrize("length", [10, len(TEXT)])
def test_a_hybrid_model(read_kvz: Callable[[Path], Any], tmp_path: Path, length: int) -> None:
    model = load_model(str(make_model_folder(tmp_path / "model", "gemma3")), device="cpu", dtype="float32")
    kvz.compress(TEXT[:length] + "\n", model, ratio=0.4).save(tmp_path / "a.kvz")
    assert [layer.window for layer in kvz.load(tmp_path / "a.kvz").cache.layers] == [24, None, 24]
    assert_same(read_kvz, tmp_path / "a.kvz")


def test_no_prefix(read_kvz: Callable[[Path], Any], tmp_path: Path) -> None:
    model = load_model(str(make_model_folder(tmp_path / "model", template=None)), device="cpu", dtype="float32")
    kvz.compress(TEXT, model, ratio=0.2).save(tmp_path / "a.kvz")
    assert kvz.load(tmp_path / "a.kvz").manifest.prompt.prefix_tokens == 0
    assert_same(read_kvz, tmp_path / "a.kvz")


def test_the_example_refuses_flipped_bytes(read_kvz: Callable[[Path], Any], archive: Path, tmp_path: Path) -> None:
    data, damaged = bytearray(archive.read_bytes()), tmp_path / "damaged.kvz"
    for at in [*range(8), *range(8, len(data), 211), len(data) - 1]:
        data[at] ^= 0x10
        damaged.write_bytes(data)
        data[at] ^= 0x10
        with pytest.raises((ValueError, KeyError)):
            read_kvz(damaged)


def test_the_example_refuses_truncated_and_longer_files(
    read_kvz: Callable[[Path], Any], archive: Path, tmp_path: Path
) -> None:
    data, damaged = archive.read_bytes(), tmp_path / "damaged.kvz"
    for content in (b"", data[:7], data[:8], data[:1000], data[: len(data) // 2], data[:-1], data + b"\0"):
        damaged.write_bytes(content)
        with pytest.raises((ValueError, KeyError)):
            read_kvz(damaged)


def test_an_unknown_minor_version_is_read(read_kvz: Callable[[Path], Any], archive: Path, tmp_path: Path) -> None:
    def change(metadata: dict[str, Any], manifest: dict[str, Any]) -> None:
        metadata |= {"kvz_version": "1.7", "mood": "sunny"}
        manifest["weather"] = {"wind": 3}
        manifest["model"]["colour"] = "blue"

    rewrite(archive, tmp_path / "newer.kvz", change)
    assert_same(read_kvz, tmp_path / "newer.kvz")


def change_major_version(metadata: dict[str, Any], manifest: dict[str, Any]) -> None:
    metadata["kvz_version"] = "2.0"


def change_kind_of_layer(metadata: dict[str, Any], manifest: dict[str, Any]) -> None:
    manifest["model"]["layers"][1]["kind"] = "linear"


def change_quantisation(metadata: dict[str, Any], manifest: dict[str, Any]) -> None:
    manifest["quantisation"] = {"scheme": "int4", "bits": 4}


@pytest.mark.parametrize("change", [change_major_version, change_kind_of_layer, change_quantisation])
def test_what_cannot_be_ignored_is_refused(
    read_kvz: Callable[[Path], Any], archive: Path, tmp_path: Path, change: Callable[[Any, Any], None]
) -> None:
    rewrite(archive, tmp_path / "newer.kvz", change)
    with pytest.raises(ArchiveVersion):
        kvz.load(tmp_path / "newer.kvz")
    with pytest.raises(ValueError, match="newer reader"):
        read_kvz(tmp_path / "newer.kvz")


def change_kept(metadata: dict[str, Any], manifest: dict[str, Any]) -> None:
    manifest["compression"]["kept"][0][0] += 1
    manifest["compression"]["pairs_kept"] += 1


def change_head_dim(metadata: dict[str, Any], manifest: dict[str, Any]) -> None:
    manifest["model"]["layers"][0]["head_dim"] *= 2


def change_context(metadata: dict[str, Any], manifest: dict[str, Any]) -> None:
    manifest["prompt"]["context_tokens"] = 5


@pytest.mark.parametrize("change", [change_kept, change_head_dim, change_context])
def test_a_manifest_that_does_not_fit_is_refused(
    read_kvz: Callable[[Path], Any], archive: Path, tmp_path: Path, change: Callable[[Any, Any], None]
) -> None:
    rewrite(archive, tmp_path / "wrong.kvz", change)
    with pytest.raises(ArchiveError):
        kvz.load(tmp_path / "wrong.kvz")
    with pytest.raises((ValueError, KeyError)):
        read_kvz(tmp_path / "wrong.kvz")


def test_the_manifest_table_lists_every_field() -> None:
    table = SPECIFICATION.partition("\n## Manifest\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(_fields(msgspec.inspect.type_info(Manifest), ""))


def _fields(kind: Any, path: str) -> Iterator[str]:
    """Paths of all fields in a type, as the specification writes them."""
    if isinstance(kind, msgspec.inspect.Metadata):
        yield from _fields(kind.type, path)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for member in kind.types:
            yield from _fields(member, path)
    elif isinstance(kind, msgspec.inspect.VarTupleType):
        yield from _fields(kind.item_type, f"{path}[]")
    elif isinstance(kind, msgspec.inspect.StructType):
        for field in kind.fields:
            name = f"{path}.{field.encode_name}" if path else field.encode_name
            yield name
            yield from _fields(field.type, name)


def test_the_version_is_that_of_the_code() -> None:
    assert SPECIFICATION.startswith(f"# The .kvz format, version {FORMAT_VERSION}\n")


def test_the_document_is_in_the_archive(tiny: LanguageModel, read_kvz: Callable[[Path], Any], archive: Path) -> None:
    manifest, token_ids, _ = read_kvz(archive)
    assert tiny.tokenizer.decode(token_ids[manifest["prompt"]["prefix_tokens"] :].tolist()) == TEXT
