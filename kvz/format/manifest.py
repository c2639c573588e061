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
    "PlanesInfo",
    "PromptInfo",
    "QuestionInfo",
    "SourceInfo",
    "TokenizerInfo",
    "decode_manifest",
    "encode_manifest",
]

Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**31)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
_KINDS = ("full", "sliding")
_DTYPES = ("bfloat16", "float16", "float32")
_PARTS = ("head", "middle", "tail")
Parameter = bool | int | float | str | None


class LayerInfo(Struct, frozen=True):
    """Geometry of one layer's cache. Readers refuse kinds they do not know.

    `kind` is "full" (evicted per head) or "sliding": tokens see `window` tokens, their own included, and the last
    window - 1 before a question are stored, dense.
    """

    kind: str
    kv_heads: Positive
    head_dim: Positive
    window: Positive | None = None


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
    """How a question is appended: ids of `before` + question as plain text, then `after_ids`; and where answers end.

    Without `continues`, as in format 1.1, the plain text is encoded as if nothing stood before it.
    """

    before: str
    after_ids: tuple[Count, ...]
    stop_ids: tuple[Count, ...]
    stop_texts: tuple[str, ...]
    continues: bool = False


class PromptInfo(Struct, frozen=True):
    """Tokens 0..prefix_tokens are the prefix, the next `context_tokens` are the document."""

    frame: str
    prefix_tokens: Count
    context_tokens: Positive
    system: str | None
    question: QuestionInfo


class SourceInfo(Struct, frozen=True):
    """The document. `truncated` names the part that was left out, `dropped_tokens` how many tokens it had.

    That is an estimate where `dropped_estimated`. `newlines_replaced` counts line ends CR LF and CR that were read
    as LF.
    """

    name: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    bytes: Count
    text_included: bool
    truncated: str | None = None
    dropped_tokens: Count = 0
    dropped_estimated: bool = False
    newlines_replaced: Count = 0


class CompressionInfo(Struct, frozen=True):
    """What was kept. `ratio` is the share KEPT; `kept[layer][head]` counts context pairs, the prefix not among them.

    Sliding layers are not evicted from: their row is empty, and they are not in the counts.
    """

    method: str
    parameters: dict[str, Parameter]
    allocation: str
    ratio: float | None
    budget: int | None
    pairs_kept: Count
    pairs_total: Count
    kept: tuple[tuple[Count, ...], ...]
    allocation_parameters: dict[str, Parameter] = {}  # the first archives of version 1.0 have none


class PagesInfo(Struct, frozen=True):
    """Page bounds stored with the archive: `size` context pairs a page; `bits` 16 is the pairs' own dtype."""

    size: Positive
    bits: Positive = 16


class PlanesInfo(Struct, frozen=True):
    """Bit planes of the keys stored with the archive, `bits` for each dimension."""

    bits: Annotated[int, Meta(ge=1, le=8)]


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
    planes: PlanesInfo | None = None
    quantisation: QuantisationInfo | None = None

    @property
    def logical_length(self) -> int:
        """Tokens before a question: prefix and context."""
        return self.prompt.prefix_tokens + self.prompt.context_tokens

    def stored_pairs(self, layer: int) -> int:
        """Pairs stored for a whole layer, without a list of its heads, whose number may be a lie."""
        info = self.model.layers[layer]
        if info.window is not None:
            return min(info.window - 1, self.logical_length) * info.kv_heads
        return sum(self.head_lengths(layer))

    def index_units(self, layer: int, size: int) -> int:
        """Units of `size` context pairs that a full layer's heads have in all, the last one of each perhaps short."""
        return sum(-(-kept // size) for kept in self.compression.kept[layer])

    def head_lengths(self, layer: int) -> list[int]:
        """Pairs stored for each head of a layer, the prefix included."""
        info = self.model.layers[layer]
        if info.window is not None:
            return [min(info.window - 1, self.logical_length)] * info.kv_heads
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
    for index, layer in enumerate(manifest.model.layers):
        if layer.kind not in _KINDS:
            raise ArchiveVersion(f"{path}: layer {index} is of kind '{layer.kind[:40]}', unknown here; upgrade kvz")
    problems = {**_model_problems(manifest), **_source_problems(manifest), **_compression_problems(manifest)}
    for problem, found in problems.items():
        if found:
            raise CorruptArchive(f"{path}: the manifest contradicts itself ({problem}); the archive is damaged")
    if manifest.quantisation is not None:
        raise ArchiveVersion(f"{path}: its pairs are quantised ({manifest.quantisation.scheme[:40]}); upgrade kvz")


def _model_problems(manifest: Manifest) -> dict[str, bool]:
    model, layers = manifest.model, manifest.model.layers
    return {
        "the dtype is neither bfloat16 nor float16 nor float32": model.dtype not in _DTYPES,
        "query_heads is no multiple of a layer's KV heads": any(model.query_heads % x.kv_heads for x in layers),
        "no layer is a full one": not any(x.kind == "full" for x in layers),
        "a layer's window does not go with its kind": any(
            (x.kind == "sliding") != (x.window is not None) for x in layers
        ),
        "prefix and context are longer than max_positions": manifest.logical_length > model.max_positions,
        "page bounds have neither 16 nor 8 bits": manifest.pages is not None and manifest.pages.bits not in (8, 16),
    }


def _source_problems(manifest: Manifest) -> dict[str, bool]:
    source = manifest.source
    return {
        "the name of the source has folders": "/" in source.name,
        "truncated is neither head nor middle nor tail": source.truncated not in (None, *_PARTS),
        "truncated and dropped_tokens do not agree": (source.truncated is None) != (source.dropped_tokens == 0),
    }


def _compression_problems(manifest: Manifest) -> dict[str, bool]:
    compression, context = manifest.compression, manifest.prompt.context_tokens
    kept, ratio, budget = compression.kept, compression.ratio, compression.budget
    evicted = [layer.kv_heads if layer.kind == "full" else 0 for layer in manifest.model.layers]
    return {
        "kept does not list every layer and head": [len(row) for row in kept] != evicted,
        "a head keeps no pair of the context": any(k < 1 for row in kept for k in row),
        "a head keeps more pairs than there are": any(k > context for row in kept for k in row),
        "pairs_kept is not the sum of kept": sum(map(sum, kept)) != compression.pairs_kept,
        "pairs_total is not heads times tokens": sum(evicted) * context != compression.pairs_total,
        "not one of ratio and budget is given": (ratio is None) == (budget is None),
        "the ratio is not in (0, 1]": ratio is not None and not 0 < ratio <= 1,
        "the budget is less than 1": budget is not None and budget < 1,
    }
