"""Writing an archive: header first with room for checksums, then layer by layer, then the header again with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch
import xxhash
from torch import Tensor

from kvz.cache.index import index_tensors
from kvz.cache.ragged import RaggedCache
from kvz.format.atomic import atomic_file
from kvz.format.header import FORMAT_VERSION, TensorEntry, layout, render_header
from kvz.format.manifest import Manifest, encode_manifest

__all__ = ["DTYPE_NAMES", "write_archive"]

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
}

_NO_DIGEST = "0" * 32


def write_archive(
    path: Path,
    manifest: Manifest,
    cache: RaggedCache,
    token_ids: Tensor | None,
    overwrite: bool = False,
    done: Callable[[int], None] = lambda nbytes: None,
) -> int:
    """Write an archive to `path`, atomically, and return its size in bytes; `done` is told the bytes written.

    `token_ids` are those of prefix and context, `[prefix + S]` int32, or None to leave the text out. The manifest's
    checksums are filled in here. One layer at a time is brought to the CPU. Raises OutputError.
    """
    named = list(_named_tensors(cache, token_ids))
    entries = layout((name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in named)
    tensors = dict(named)
    digests = dict.fromkeys((entry.name for entry in entries), _NO_DIGEST)
    blank = _header(manifest, entries, digests)
    with atomic_file(path, overwrite) as file:
        file.write(blank)
        for entry in entries:
            data = _bytes_of(tensors[entry.name]) if entry.name in tensors else bytes(entry.nbytes)
            digests[entry.name] = xxhash.xxh3_128_hexdigest(data)
            _write_all(file, data, done)
        final = _header(manifest, entries, digests)
        assert len(final) == len(blank)
        file.seek(0)
        file.write(final)
    return len(final) + entries[-1].end


def _header(manifest: Manifest, entries: list[TensorEntry], digests: dict[str, str]) -> bytes:
    text = encode_manifest(msgspec.structs.replace(manifest, checksums=digests))
    return render_header(entries, {"format": "kvz", "kvz_version": FORMAT_VERSION, "manifest": text})


def _named_tensors(cache: RaggedCache, token_ids: Tensor | None) -> Iterator[tuple[str, Tensor]]:
    if token_ids is not None:
        yield "token_ids", token_ids
    for index, layer in enumerate(cache.layers):
        yield f"layers.{index}.offsets", layer.offsets
        yield f"layers.{index}.positions", layer.positions
        yield f"layers.{index}.keys", layer.keys
        yield f"layers.{index}.values", layer.values
        for name, tensor in index_tensors(layer):
            yield f"layers.{index}.{name}", tensor


def _bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's bytes; a view where it already lies contiguous on the CPU."""
    flat = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
    return memoryview(flat.numpy().data)


def _write_all(file: BinaryIO, data: memoryview | bytes, done: Callable[[int], None]) -> None:
    view, step = memoryview(data), 1 << 24
    for start in range(0, len(view), step):
        part = view[start : start + step]
        file.write(part)
        done(len(part))
