"""Copies of an archive with another header, sound again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash


def rewrite(
    source: Path,
    target: Path,
    change: Callable[[dict[str, Any], dict[str, Any]], None],
    rename: Callable[[str], str] = lambda name: name,
) -> None:
    """Copy an archive with `change(metadata, manifest)` applied and tensors renamed, as the specification has it."""
    data = source.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header["__metadata__"]
    manifest = json.loads(metadata["manifest"])
    change(metadata, manifest)
    header = {rename(name): entry for name, entry in header.items()}
    manifest["checksums"] = {rename(name): digest for name, digest in manifest["checksums"].items()}
    metadata |= {"manifest": json.dumps(manifest), "header_checksum": "0" * 32}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    head = len(text).to_bytes(8, "little") + text
    mark = b'"header_checksum": "' + b"0" * 32
    assert head.count(mark) == 1
    digest = xxhash.xxh3_128_hexdigest(head).encode()
    target.write_bytes(head.replace(mark, mark[:-32] + digest) + data[start:])
