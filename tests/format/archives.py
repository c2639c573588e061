"""Small archives to write, and archives taken apart to be changed and sealed again with valid checksums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.format.manifest import (
    CompressionInfo,
    CreatorInfo,
    LayerInfo,
    Manifest,
    ModelInfo,
    PromptInfo,
    QuestionInfo,
    SourceInfo,
    TokenizerInfo,
)
from kvz.format.writer import write_archive

Kept = tuple[tuple[int, ...], ...]
NO_CHECKSUM = "0" * 32


@dataclass(frozen=True)
class Sample:
    """What goes into an archive: the arguments of `write_archive` that say what to write."""

    manifest: Manifest
    cache: RaggedCache
    token_ids: Tensor | None

    def write(self, path: Path, overwrite: bool = False) -> Path:
        write_archive(path, self.manifest, self.cache, self.token_ids, overwrite)
        return path


def make_sample(
    kept: Kept = ((3, 5), (1, 7), (4, 4)),
    dims: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    prefix: int = 2,
    context: int | None = None,
    text: bool = True,
    seed: int = 0,
    windows: dict[int, int] | None = None,
) -> Sample:
    """A random archive that keeps `kept[layer][head]` context pairs; layers in `windows` are sliding, of two heads."""
    generator = torch.Generator().manual_seed(seed)
    context = context or max(1, *(count for row in kept for count in row)) + 3
    dims = dims or [16] * len(kept)
    layers = [
        _sliding(windows[index], dim, dtype, prefix + context, generator)
        if windows and index in windows
        else _layer(row, dim, dtype, prefix, context, generator)
        for index, (row, dim) in enumerate(zip(kept, dims, strict=True))
    ]
    token_ids = torch.randint(0, 1000, (prefix + context,), dtype=torch.int32, generator=generator)
    manifest = make_manifest(kept, dims, str(dtype).removeprefix("torch."), prefix, context, text, windows or {})
    return Sample(manifest, RaggedCache(tuple(layers), prefix + context), token_ids if text else None)


def make_manifest(
    kept: Kept, dims: Sequence[int], dtype: str, prefix: int, context: int, text: bool, windows: dict[int, int]
) -> Manifest:
    """A manifest that does not contradict itself."""
    layers = tuple(
        LayerInfo("sliding", 2, dim, windows[index]) if index in windows else LayerInfo("full", len(row), dim)
        for index, (row, dim) in enumerate(zip(kept, dims, strict=True))
    )
    return Manifest(
        model=ModelInfo("tiny", None, "LlamaForCausalLM", "a" * 32, dtype, 12, 4096, layers),
        tokenizer=TokenizerInfo("b" * 32, "c" * 32),
        prompt=PromptInfo("chat", prefix, context, None, QuestionInfo("\n\n", (5, 6), (2,), ())),
        source=SourceInfo("naïve 数据.txt", "d" * 64, 1234, text),
        compression=CompressionInfo(
            method="kvzip",
            parameters={"chunk": 2048},
            allocation="nonuniform",
            allocation_parameters={"floor": 0.0},
            ratio=0.3,
            budget=None,
            pairs_kept=sum(map(sum, kept)),
            pairs_total=sum(map(len, kept)) * context,
            kept=kept,
        ),
        creator=CreatorInfo("kvz", "0.1.0"),
    )


def _layer(
    kept: Sequence[int], dim: int, dtype: torch.dtype, prefix: int, context: int, generator: torch.Generator
) -> RaggedLayer:
    rows = []
    for count in kept:
        chosen = torch.randperm(context, generator=generator)[:count].sort().values + prefix
        rows.append(torch.cat([torch.arange(prefix), chosen]))
    positions = torch.cat(rows).to(torch.int32)
    lengths = torch.tensor([0, *(prefix + count for count in kept)])
    keys, values = (torch.randn(len(positions), dim, generator=generator).to(dtype) for _ in range(2))
    return RaggedLayer(keys, values, lengths.cumsum(0), positions)


def _sliding(window: int, dim: int, dtype: torch.dtype, length: int, generator: torch.Generator) -> RaggedLayer:
    count = min(window - 1, length)
    positions = torch.arange(length - count, length, dtype=torch.int32).repeat(2)
    keys, values = (torch.randn(len(positions), dim, generator=generator).to(dtype) for _ in range(2))
    return RaggedLayer(keys, values, torch.arange(3) * count, positions, window)


def same_bits(ours: Tensor, theirs: Tensor) -> bool:
    """Equal in dtype, shape and every bit: NaN equals the same NaN, and -0.0 is not 0.0."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (ours, theirs)))


def tensors_of(cache: RaggedCache) -> dict[str, Tensor]:
    """The tensors of a cache under the names that they have in an archive."""
    kinds = ("keys", "values", "offsets", "positions")
    return {f"layers.{n}.{kind}": getattr(layer, kind) for n, layer in enumerate(cache.layers) for kind in kinds}


def seal(text: str) -> bytes:
    """A header from its JSON text, which holds 32 zeros as `header_checksum`: padded, and the checksum filled in."""
    body = text.encode()
    body += b" " * (-(len(body) + 8) % 64)
    blank = len(body).to_bytes(8, "little") + body
    mark = f'"header_checksum":"{NO_CHECKSUM}"'.encode()
    assert blank.count(mark) == 1
    return blank.replace(mark, mark.replace(NO_CHECKSUM.encode(), xxhash.xxh3_128_hexdigest(blank).encode()))


@dataclass
class Forgery:
    """An archive taken apart. Whatever is done to it, `sealed` gives it checksums that are right."""

    metadata: dict[str, Any]
    manifest: Any
    table: dict[str, Any]
    data: bytearray

    @classmethod
    def of(cls, path: Path) -> Forgery:
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        table = json.loads(raw[8:start])
        metadata = table.pop("__metadata__")
        return cls(metadata, json.loads(metadata["manifest"]), table, bytearray(raw[start:]))

    def put(self, name: str, data: bytes) -> None:
        """Overwrite the bytes of a tensor."""
        begin, end = self.table[name]["data_offsets"]
        assert len(data) == end - begin
        self.data[begin:end] = data

    def append(self, name: str, dtype: str, shape: list[int], data: bytes) -> None:
        """Add a tensor behind all others."""
        self.table[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(self.data), len(self.data) + len(data)],
        }
        self.data += data

    def drop(self, name: str) -> None:
        """Leave a tensor out of the header; its bytes become those of an unknown one."""
        begin, end = self.table.pop(name)["data_offsets"]
        self.table["unknown"] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}

    def json_text(self) -> str:
        """The header's JSON, without its checksum."""
        if isinstance(self.manifest, dict) and isinstance(self.manifest.get("checksums"), dict):
            self.manifest["checksums"] = {name: self._digest(spec) for name, spec in self.table.items()}
        manifest = self.manifest if isinstance(self.manifest, str) else json.dumps(self.manifest)
        metadata = {**self.metadata, "manifest": manifest, "header_checksum": NO_CHECKSUM}
        return json.dumps({"__metadata__": metadata, **self.table}, separators=(",", ":"))

    def sealed(self) -> bytes:
        """The whole file."""
        return seal(self.json_text()) + bytes(self.data)

    def _digest(self, spec: Any) -> str:
        try:
            begin, end = spec["data_offsets"]
            part = self.data[begin:end]
        except (TypeError, KeyError, ValueError):
            return NO_CHECKSUM
        return xxhash.xxh3_128_hexdigest(part)
