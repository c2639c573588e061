"""Every rule of docs/format.md, word for word, beside a file that breaks it alone: each is refused.

The files are whole otherwise, and all their checksums are right. What only `kvz verify` looks at is marked so.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvz.archive import load
from kvz.cache.index import with_index
from kvz.cache.index_plan import IndexPlan
from kvz.errors import ArchiveError, CorruptArchive
from kvz.format.manifest import PagesInfo, PlanesInfo
from kvz.format.reader import open_archive
from kvz.format.soundness import check_tensors
from tests.format.archives import Forgery, Sample, make_sample, seal
from tests.format.hostile import set_at

SPECIFICATION = " ".join((Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8").split())
MANIFEST = SPECIFICATION.partition("## Manifest")[2].partition("## What a reader must check")[0]


def make_hybrid(page_bits: int = 8) -> Sample:
    """Two full layers with both indexes around a sliding one; token ids and padding; a head of one context pair."""
    sample = make_sample(((3, 15), (), (9, 1)), windows={1: 5})
    cache = with_index(sample.cache, 2, IndexPlan(planes=3, page_size=4, page_bits=page_bits))
    return replace(sample, cache=cache, manifest=_indexed(sample.manifest, page_bits))


def _indexed(manifest: Any, page_bits: int) -> Any:
    fields = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    return type(manifest)(**{**fields, "pages": PagesInfo(4, page_bits), "planes": PlanesInfo(3)})


@pytest.fixture(scope="module", params=[8, 16])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hybrid(request.param).write(tmp_path_factory.mktemp("rules") / "whole.kvz")


@pytest.fixture
def forgery(whole: Path) -> Forgery:
    return Forgery.of(whole)


def test_what_the_rules_start_from_is_sound(whole: Path, forgery: Forgery, tmp_path: Path) -> None:
    (tmp_path / "a.kvz").write_bytes(forgery.sealed())
    for path in (whole, tmp_path / "a.kvz"):
        load(path)
        check_tensors(open_archive(path), vocabulary=1000)


Change = Callable[[Forgery], "bytes | None"]


@dataclass(frozen=True)
class Rule:
    """A sentence of the specification, and a change of an archive that breaks it."""

    sentence: str
    change: Change
    only_verify: bool = False


def say(*keys: str | int, to: Any) -> Change:
    """Set a value of the manifest."""
    return lambda forgery: set_at(*keys, to=to)(forgery.manifest)


def spec(name: str, **changes: Any) -> Change:
    """Set fields of a tensor's entry in the header."""
    return lambda forgery: forgery.table[name].update(changes)


def numbers(name: str, dtype: str, change: Callable[[np.ndarray[Any, Any]], None]) -> Change:
    """Change the elements of a tensor."""

    def apply(forgery: Forgery) -> None:
        begin, end = forgery.table[name]["data_offsets"]
        array = np.frombuffer(bytes(forgery.data[begin:end]), dtype).copy()
        change(array)
        forgery.put(name, array.tobytes())

    return apply


def write(index: int | slice, value: Any) -> Callable[[np.ndarray[Any, Any]], None]:
    def change(array: np.ndarray[Any, Any]) -> None:
        array[index] = value

    return change


def text(change: Callable[[str], str]) -> Change:
    """Change the header's JSON."""
    return lambda forgery: seal(change(forgery.json_text())) + bytes(forgery.data)


def raw(change: Callable[[bytes], bytes]) -> Change:
    """Change the file that is otherwise complete."""
    return lambda forgery: change(forgery.sealed())


def metadata(**entries: Any) -> Change:
    return lambda forgery: forgery.metadata.update(entries)


def append(name: str, dtype: str, shape: list[int], data: bytes) -> Change:
    return lambda forgery: forgery.append(name, dtype, shape, data)


def flatten(forgery: Forgery) -> None:
    """Give keys nine dimensions, of the same size."""
    shape = forgery.table["layers.0.keys"]["shape"]
    forgery.table["layers.0.keys"]["shape"] = [*shape, 1, 1, 1, 1, 1, 1, 1]


def leave_a_hole(forgery: Forgery) -> None:
    del forgery.table[next(name for name in forgery.table if name.startswith("pad."))]


def fill_padding(forgery: Forgery) -> None:
    name = next(name for name in forgery.table if name.startswith("pad."))
    begin, end = forgery.table[name]["data_offsets"]
    forgery.put(name, bytes(end - begin - 1) + b"\x01")


def leave_checksum_out(forgery: Forgery) -> bytes:
    changed = re.sub(r'\\"layers.0.keys\\": \\"[0-9a-f]{32}\\", ', "", forgery.json_text())
    return seal(changed) + bytes(forgery.data)


def add_checksum(forgery: Forgery) -> bytes:
    added = forgery.json_text().replace(
        r"\"layers.0.keys\": \"", r"\"gone\": \"" + "0" * 32 + r"\", \"layers.0.keys\": \"", 1
    )
    return seal(added) + bytes(forgery.data)


def escape_checksum(data: bytes) -> bytes:
    """A digit of the checksum as a JSON escape, which json reads as the same."""
    at = data.index(b'"header_checksum":"') + 24
    start = 8 + struct.unpack("<Q", data[:8])[0]
    head = data[8:at] + b"\\u00%02x" % data[at] + data[at + 1 : start]
    return len(head).to_bytes(8, "little") + head + data[start:]


def drop_text(forgery: Forgery) -> None:
    forgery.manifest["source"]["text_included"] = False


def drop_index(name: str) -> Change:
    def change(forgery: Forgery) -> None:
        forgery.manifest[name] = None

    return change


def keep_none(forgery: Forgery) -> None:
    """A head that keeps nothing of the context, and all that follows from it."""
    forgery.manifest["compression"]["kept"][2] = [10, 0]
    forgery.put("layers.2.offsets", np.array([0, 12, 14], "<i8").tobytes())


def skip_prefix(array: np.ndarray[Any, Any]) -> None:
    array[:5] = [0, 2, 3, 4, 5]


def flip_the_first_head(array: np.ndarray[Any, Any]) -> None:
    """Its three pairs are the lowest bits of the first of three bytes in each row."""
    array[0::3] ^= 0b111


def slide_all(forgery: Forgery) -> None:
    layers = forgery.manifest["model"]["layers"]
    forgery.manifest["model"]["layers"] = [layers[1]] * 3
    forgery.manifest["compression"].update(kept=[[], [], []], pairs_kept=0, pairs_total=0)


def gap(array: np.ndarray[Any, Any]) -> None:
    array[0] -= 1


LENGTH = "N must be at most 100,000,000."
HEADER = "one JSON object in UTF-8, beginning with `{`, followed by spaces"
UNIQUE = "No name occurs twice."
SIZE = "end - begin is the product of the shape times the size of the dtype."
COVER = "each begins where the one before ends, and the last ends at the end of the file."
KNOWN = "No other tensor has one of these names"
PAIRS_TABLE = "| `layers.N.keys` | T | [sum, D] | keys |"
PAD = "| `pad.N` | U8 | [1] to [63] | zeros;"
OFFSETS = "offsets[0] is 0 and offsets[H] is sum."
RISING = "positions are strictly rising."
PREFIX = "the first P rows of each head have the positions 0 to P-1."
SLIDING = "its positions end with P + S - 1 and have no gaps."
IDS = "token ids of prefix and context, 0 or more; present if and only if `source.text_included`"
PLANES = "| `layers.N.planes` | U8 | [bits D, bytes] | bit planes of a full layer's keys, if `planes` is not null |"
PAGES = "| `layers.N.page_max` | T or U8 | [D, pages] | largest keys of a full layer's pages, if `pages` is not null |"
CELLS = "Row b D + d holds bit bits - 1 - b of c"
CHECKSUMS = "for every tensor of the file, padding included, and for nothing else,"
RATIO = "share of context pairs to KEEP that was asked for, in (0, 1]"
BUDGET = "exactly one of `ratio` and `budget` is not null"
DROPPED = "tokens left out; they are not among S. 0 if and only if `truncated` is null"
KEPT = "`kept[layer][head]`: context pairs kept, 1 to S."
SHA = "SHA-256 of the document's bytes as read, 64 lower-case hexadecimal digits"
ROWS_OF_KEPT = "`kept` has one row per layer and one entry per KV head, none for a sliding layer"
ASKED = "context pairs a head that were asked for, 1 or more;"
LEAST = "`page_min[d, page]` the smallest"
MOST = "`page_max[d, page]` is the largest k(j,d) of the page"
WINDOW = "W: tokens that a token of a sliding layer sees, its own included; null for a full layer"

RULES = [
    Rule(LENGTH, raw(lambda data: (100_000_001).to_bytes(8, "little") + data[8:])),
    Rule("The file has at least 8 bytes", raw(lambda data: data[:7])),
    Rule("8+N is at most the file's size.", raw(lambda data: data[:64])),
    Rule(HEADER, text(lambda body: " " + body)),
    Rule(HEADER, text(lambda body: body + "\n")),
    Rule(HEADER, text(lambda body: body + "{}")),
    Rule(HEADER, text(lambda body: "\ufeff" + body)),
    Rule(HEADER, text(lambda body: body[:-1] + ',"x":NaN}')),
    Rule(HEADER, text(lambda body: body.replace('"F32"', '"F32","scale":Infinity', 1))),
    Rule(HEADER, raw(lambda data: data.replace(b'"dtype"', b'"dtyp\xff"', 1))),
    Rule(UNIQUE, text(lambda body: body.replace('"layers.0.keys":', '"layers.0.keys":0,"layers.0.keys":', 1))),
    Rule(UNIQUE, text(lambda body: body.replace('"shape":', '"shape":0,"shape":', 1))),
    Rule(SIZE, spec("layers.0.keys", shape=[21, 16])),
    Rule("A shape has at most 8 dimensions.", flatten),
    Rule("A shape has at most 8 dimensions.", append("sketch", "I8", [1] * 9, b"x")),
    Rule("a shape and offsets of integers from 0 to 2^62 - 1", spec("layers.0.keys", shape=[2**62, 16])),
    Rule("a shape and offsets of integers from 0 to 2^62 - 1", append("sketch", "I8", [2**62], b"x")),
    Rule("a shape and offsets of integers from 0 to 2^62 - 1", spec("layers.0.keys", shape=[22.0, 16])),
    Rule(COVER, leave_a_hole),
    Rule(COVER, raw(lambda data: data + b"\0")),
    Rule(COVER, raw(lambda data: data[:-1])),
    Rule(COVER, spec("layers.0.keys", data_offsets=[0, 1408])),
    Rule("| `format` | `kvz` |", metadata(format="kvz2")),
    Rule("`kvz_version` is `MAJOR.MINOR`, two decimal numbers.", metadata(kvz_version="1")),
    Rule("`kvz_version` is `MAJOR.MINOR`, two decimal numbers.", metadata(kvz_version="1.x")),
    Rule("**Unknown major version:** refuse it.", metadata(kvz_version="2.0")),
    Rule("`__metadata__` is an object of strings", metadata(more=7)),
    Rule("`__metadata__` is an object of strings", text(lambda body: re.sub(r'"format":"kvz"', '"format":null', body))),
    Rule("The xxh3-128 of the result must be V.", raw(lambda data: data.replace(b'"U8"', b'"I8"', 1))),
    Rule("32 hexadecimal digits, which occur exactly once in these bytes.", raw(escape_checksum)),
    Rule(IDS, drop_text),
    Rule(IDS, lambda forgery: forgery.drop("token_ids")),
    Rule(IDS, spec("token_ids", dtype="F32")),
    Rule(IDS, numbers("token_ids", "<i4", write(0, -1))),
    Rule(KNOWN, append("layers.3.keys", "F32", [1], bytes(4))),
    Rule(KNOWN, append("layers.1.planes", "U8", [1], bytes(1))),
    Rule(KNOWN, append("layers.1.page_grid", "F32", [1], bytes(4))),
    Rule("| `layers.N.offsets` | I64 | [H+1] |", spec("layers.0.offsets", shape=[3, 1])),
    Rule("| `layers.N.positions` | I32 | [sum] |", spec("layers.0.positions", dtype="F32")),
    Rule(PAIRS_TABLE, spec("layers.0.keys", dtype="I32")),
    Rule("| `layers.N.values` | T | [sum, D] | values |", spec("layers.0.values", shape=[16, 22])),
    Rule(PLANES, drop_index("planes")),
    Rule(PLANES, lambda forgery: forgery.drop("layers.0.planes")),
    Rule("| `layers.N.plane_ranges` | F32 | [H, D] |", spec("layers.0.plane_ranges", shape=[16, 2])),
    Rule(PAGES, drop_index("pages")),
    Rule(PAGES, spec("layers.2.page_max", dtype="I8")),
    Rule("| `layers.N.page_min` | T or U8 | [D, pages] | smallest keys |", lambda f: f.drop("layers.0.page_min")),
    Rule(PAD, append("pad.900", "U8", [64], bytes(64))),
    Rule(PAD, append("pad.900", "I32", [1], bytes(4))),
    Rule(PAD, append("pad.900", "U8", [2, 2], bytes(4))),
    Rule(PAD, append("pad.900", "U8", [0], b"")),
    Rule(PAD, fill_padding, only_verify=True),
    Rule(OFFSETS, numbers("layers.0.offsets", "<i8", write(0, 1))),
    Rule(OFFSETS, numbers("layers.0.offsets", "<i8", write(2, 23))),
    Rule(RISING, numbers("layers.0.positions", "<i4", write(4, 2))),
    Rule(PREFIX, numbers("layers.0.positions", "<i4", skip_prefix)),
    Rule("At least one pair of the context follows.", keep_none),
    Rule(KEPT, keep_none),
    Rule(KEPT, say("compression", "kept", 0, to=[19, -1])),
    Rule(SLIDING, numbers("layers.1.positions", "<i4", gap)),
    Rule(CELLS, numbers("layers.0.planes", "u1", flip_the_first_head), only_verify=True),
    Rule("Bits behind the last pair are 0.", numbers("layers.0.planes", "u1", write(0, 0b1000)), only_verify=True),
    Rule("`plane_ranges` has range.", numbers("layers.0.plane_ranges", "<f4", write(3, 9e9)), only_verify=True),
    Rule(MOST, numbers("layers.0.page_max", "u1", write(slice(None), 0)), only_verify=True),
    Rule(LEAST, numbers("layers.0.page_min", "u1", write(slice(None), 127)), only_verify=True),
    Rule("`bfloat16`, `float16` or `float32`", say("model", "dtype", to="float64")),
    Rule("query heads of a layer; a multiple of every layer's `kv_heads`", say("model", "query_heads", to=7)),
    Rule("positions that the model has, in tokens; P + S at least", say("model", "max_positions", to=19)),
    Rule("1 to 4096 layers, in order, at least one of them full", say("model", "layers", to=[])),
    Rule("1 to 4096 layers, in order, at least one of them full", slide_all),
    Rule(WINDOW, say("model", "layers", 0, "window", to=5)),
    Rule(WINDOW, say("model", "layers", 1, "window", to=None)),
    Rule("No other kind exists in 1.2", say("model", "layers", 1, "kind", to="linear")),
    Rule("file name without folders, or `-` for standard input", say("source", "name", to="reports/secret.txt")),
    Rule("part of the document that was left out: `head`, `middle` or `tail`", say("source", "truncated", to="toe")),
    Rule(DROPPED, say("source", "dropped_tokens", to=4)),
    Rule(DROPPED, say("source", "truncated", to="head")),
    Rule(SHA, say("source", "sha256", to="D" * 64)),
    Rule(SHA, say("source", "sha256", to="d" * 64 + "\n")),
    Rule(RATIO, say("compression", "ratio", to=0)),
    Rule(RATIO, say("compression", "ratio", to=1.5)),
    Rule(RATIO, say("compression", "ratio", to=-0.3)),
    Rule(BUDGET, say("compression", "budget", to=40)),
    Rule(BUDGET, say("compression", "ratio", to=None)),
    Rule(ASKED, lambda f: f.manifest["compression"].update(ratio=None, budget=0)),
    Rule("context pairs kept: the sum of `kept`", say("compression", "pairs_kept", to=27)),
    Rule("S times the sum of H over the full layers", say("compression", "pairs_total", to=108)),
    Rule(ROWS_OF_KEPT, say("compression", "kept", 1, to=[5, 5])),
    Rule("no entry exceeds S", say("compression", "kept", to=[[19, 1], [], [7, 1]])),
    Rule("booleans, numbers, strings or null", say("compression", "parameters", to={"chunk": [1]})),
    Rule("16: bounds in the dtype of the pairs; 8: in bytes, on a grid", say("pages", "bits", to=4)),
    Rule("planes of each dimension, 1 to 8", say("planes", "bits", to=9)),
    Rule("planes of each dimension, 1 to 8", say("planes", "bits", to=0)),
    Rule(CHECKSUMS, leave_checksum_out),
    Rule(CHECKSUMS, add_checksum),
    Rule("| `quantisation` | object or null, default null |", say("quantisation", to={"scheme": "int4", "bits": 4})),
]  # fmt: skip


def verify(path: Path) -> None:
    opened = open_archive(path)
    for _ in opened.verify_checksums():
        pass
    check_tensors(opened)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.sentence[:50])
def test_a_file_that_breaks_one_rule_is_refused(tmp_path: Path, forgery: Forgery, rule: Rule) -> None:
    assert SPECIFICATION.count(rule.sentence), "the specification does not say so"
    data = rule.change(forgery) or forgery.sealed()
    path = tmp_path / "a.kvz"
    path.write_bytes(data)
    if not rule.only_verify:
        with pytest.raises(ArchiveError):
            load(path)
    with pytest.raises(ArchiveError) as caught:
        verify(path)
    assert "\n" not in str(caught.value)


def test_ids_are_within_the_vocabulary(whole: Path) -> None:
    assert "Ids in `after_ids` and `token_ids` are within the model's vocabulary" in SPECIFICATION
    with pytest.raises(CorruptArchive, match="token ids"):
        check_tensors(open_archive(whole), vocabulary=500)


def test_alignment_is_not_asked_for(tmp_path: Path) -> None:
    assert "A reader should not refuse a file for lack of it." in SPECIFICATION
    forgery = Forgery.of(make_hybrid().write(tmp_path / "a.kvz"))
    packed = bytearray()
    for name in sorted(forgery.table, key=lambda name: forgery.table[name]["data_offsets"]):
        begin, end = forgery.table[name]["data_offsets"]
        if name.startswith("pad."):
            del forgery.table[name]
            continue
        forgery.table[name]["data_offsets"] = [len(packed) + 1, len(packed) + 1 + end - begin]
        packed += forgery.data[begin:end]
    forgery.table["odd"] = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    forgery.data = bytearray(1) + packed
    data = forgery.sealed()
    start = 8 + int.from_bytes(data[:8], "little")
    body = data[8:start].rstrip(b" ") + b" " * 3
    body = seal_as_it_is(body)
    (tmp_path / "b.kvz").write_bytes(body + bytes(forgery.data))
    for mapped in (True, False):
        ours, theirs = load(tmp_path / "a.kvz").cache, load(tmp_path / "b.kvz", mmap=mapped).cache
        for one, other in zip(ours.layers, theirs.layers, strict=True):
            assert np.array_equal(one.keys.numpy(), other.keys.numpy())
            assert one.positions.tolist() == other.positions.tolist()
    check_tensors(open_archive(tmp_path / "b.kvz"))


def seal_as_it_is(body: bytes) -> bytes:
    """A header from a complete one, its padding left as it is."""
    import xxhash

    checksum = json.loads(body)["__metadata__"]["header_checksum"].encode()
    blank = len(body).to_bytes(8, "little") + body.replace(checksum, b"0" * 32)
    mark = b'"header_checksum":"'
    return blank.replace(mark + b"0" * 32, mark + xxhash.xxh3_128_hexdigest(blank).encode(), 1)


# The table of the manifest: every field is required unless it has a default, and has its type and the limits of it.

ROWS = re.findall(r"\| `([a-z_.\[\]0-9]+)` \| ([^|]+) \|", MANIFEST)
WRONG: dict[str, list[Any]] = {
    "string": [7, True, ["a"], {}],
    "digest": [7, "", "a" * 31, "A" * 32, "a" * 32 + "\n", "g" * 32],
    "count": [-1, 2**53 + 1, 1.0, "1", True],
    "positive": [0, -1, 2**31 + 1, 1.0, "1", True],
    "integer": [1.0, "1", True],
    "number": ["0.3", True, []],
    "boolean": [0, 1, "true"],
    "object": [[], 7, "{}"],
    "array of objects": [{}, 7, [1]],
    "array of counts": [{}, 7, [-1], [1.0], ["1"]],
    "array of strings": [{}, 7, [1], "a"],
    "array of arrays of counts": [{}, 7, [1], [[-1]]],
}


def test_the_table_is_read() -> None:
    assert len(ROWS) > 45
    assert {kind.partition(",")[0].replace(" or null", "") for _, kind in ROWS} == set(WRONG)


@pytest.mark.parametrize(("field", "kind"), [row for row in ROWS if not row[0].startswith("quantisation.")])
def test_a_field_of_the_manifest_has_its_type(tmp_path: Path, forgery: Forgery, field: str, kind: str) -> None:
    kind, _, default = kind.partition(",")
    name, may_be_null = kind.replace(" or null", ""), "null" in kind
    keys = [int(part) if part.isdigit() else part for part in field.replace("[]", ".0").split(".")]
    holder: Any = forgery.manifest
    for key in keys[:-1]:
        holder = holder[key]
    good = holder.get(keys[-1])
    where = f"$.{field.replace('[]', '[0]')}"
    for wrong in [*WRONG[name], *([] if may_be_null else [None])]:
        holder[keys[-1]] = wrong
        assert where in refusal(tmp_path, forgery).replace("[...]", "[0]"), (field, wrong)
    holder.pop(keys[-1])
    if not default:
        assert keys[-1].rstrip("s") in refusal(tmp_path, forgery)
    holder[keys[-1]] = good
    (tmp_path / "good.kvz").write_bytes(forgery.sealed())
    load(tmp_path / "good.kvz")


def refusal(folder: Path, forgery: Forgery) -> str:
    (folder / "a.kvz").write_bytes(forgery.sealed())
    with pytest.raises(CorruptArchive) as caught:
        load(folder / "a.kvz")
    return str(caught.value)
