"""The manifest: one JSON object that says what an archive holds and what it needs. Validated on reading."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from kvz.errors import ArchiveVersion, CorruptArchive

__all__ = [
    "CompressionInfo",
    "CreatorInfo",
    "LayerInfo",
    "Manifest",
    "ModelInfo",
    "PagesInfo",
    "PromptInfo",
    "QuestionInfo",
    "SourceInfo",
    "TokenizerInfo",
    "decode_manifest",
    "encode_manifest",
]

Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**31)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Parameter = bool | int | float | str | None


class LayerInfo(Struct, frozen=True):
    """Geometry of one layer's cache. `kind` is "full": evicted per head. Readers refuse kinds they do not know."""

    kind: str
    kv_heads: Positive
    head_dim: Positive


class ModelInfo(Struct, frozen=True):
    """The model the pairs were computed with. `dtype` is that of keys and values."""

    id: str
    revision: str | None
    architecture: str
    fingerprint: Digest
    dtype: str
    query_heads: Positive
    max_positions: Positive
    layers: Annotated[tuple[LayerInfo, ...], Meta(min_length=1, max_length=4096)]


class TokenizerInfo(Struct, frozen=True):
    """Fingerprints of the tokenizer and of the chat template."""

    fingerprint: Digest
    template_fingerprint: Digest


class QuestionInfo(Struct, frozen=True):
    """How a question is appended: ids of `before` + question as plain text, then `after_ids`; and where answers end."""

    before: str
    after_ids: tuple[Count, ...]
    stop_ids: tuple[Count, ...]
    stop_texts: tuple[str, ...]


class PromptInfo(Struct, frozen=True):
    """Tokens 0..prefix_tokens are the prefix, the next `context_tokens` are the document."""

    frame: str
    prefix_tokens: Count
    context_tokens: Positive
    system: str | None
    question: QuestionInfo


class SourceInfo(Struct, frozen=True):
    """The document. `truncated` names the part that was left out, `dropped_tokens` how many tokens it had."""

    name: str
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    bytes: Count
    text_included: bool
    truncated: str | None = None
    dropped_tokens: Count = 0


class CompressionInfo(Struct, frozen=True):
    """What was kept. `ratio` is the share KEPT; `kept[layer][head]` counts context pairs, the prefix not among them."""

    method: str
    parameters: dict[str, Parameter]
    allocation: str
    allocation_parameters: dict[str, Parameter]
    ratio: float | None
    budget: int | None
    pairs_kept: Count
    pairs_total: Count
    kept: tuple[tuple[Count, ...], ...]


class PagesInfo(Struct, frozen=True):
    """Page bounds stored with the archive: `size` pairs a page."""

    size: Positive


class QuantisationInfo(Struct, frozen=True):
    """How keys and values are quantised."""

    scheme: str
    bits: Positive


class CreatorInfo(Struct, frozen=True):
    """The program that wrote the archive."""

    name: str
    version: str


class Manifest(Struct, frozen=True):
    """Everything in an archive's `manifest` metadata. Unknown fields are ignored."""

    model: ModelInfo
    tokenizer: TokenizerInfo
    prompt: PromptInfo
    source: SourceInfo
    compression: CompressionInfo
    creator: CreatorInfo
    checksums: dict[str, Digest] = {}
    pages: PagesInfo | None = None
    quantisation: QuantisationInfo | None = None

    @property
    def logical_length(self) -> int:
        """Tokens before a question: prefix and context."""
        return self.prompt.prefix_tokens + self.prompt.context_tokens

    def head_lengths(self, layer: int) -> list[int]:
        """Pairs stored for each head of a layer, the prefix included."""
        return [self.prompt.prefix_tokens + kept for kept in self.compression.kept[layer]]


def encode_manifest(manifest: Manifest) -> str:
    """The manifest as JSON text, keys in a fixed order."""
    return msgspec.json.encode(manifest).decode()


def decode_manifest(text: str, path: str) -> Manifest:
    """Parse and validate; raises CorruptArchive with the field that is wrong."""
    try:
        manifest = msgspec.json.decode(text.encode(), type=Manifest)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise CorruptArchive(f"{path}: the manifest is not valid ({error}); the archive is damaged") from error
    _check_consistency(manifest, path)
    return manifest


def _check_consistency(manifest: Manifest, path: str) -> None:
    layers, compression = manifest.model.layers, manifest.compression
    context = manifest.prompt.context_tokens
    total = sum(layer.kv_heads for layer in layers) * context
    problems = {
        "kept does not list every layer and head": [len(k) for k in compression.kept] != [x.kv_heads for x in layers],
        "a head keeps more pairs than there are": any(k > context for row in compression.kept for k in row),
        "pairs_kept is not the sum of kept": sum(map(sum, compression.kept)) != compression.pairs_kept,
        "pairs_total is not heads times tokens": total != compression.pairs_total,
    }
    for problem, found in problems.items():
        if found:
            raise CorruptArchive(f"{path}: the manifest contradicts itself ({problem}); the archive is damaged")
    for index, layer in enumerate(layers):
        if layer.kind != "full":
            raise ArchiveVersion(f"{path}: layer {index} is of kind '{layer.kind[:40]}', unknown here; upgrade kvz")
    if manifest.quantisation is not None:
        raise ArchiveVersion(f"{path}: its pairs are quantised ({manifest.quantisation.scheme[:40]}); upgrade kvz")
