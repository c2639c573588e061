"""What new tokens attend while questions are answered: archives, which are only read, and tails that grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from kvz.cache.ragged import RaggedCache, RaggedLayer
from kvz.cache.tail import Tail
from kvz.decode.beside import Beside, Part
from kvz.decode.policies.dense import ArchiveReader
from kvz.kernels.attention import grouped_attention
from kvz.kernels.merge import merge_parts
from kvz.kernels.seen_attention import seen_attention
from kvz.kernels.sliding_attention import sliding_attention
from kvz.kernels.tails import Tails

__all__ = ["PassAttention", "Span"]


@dataclass(frozen=True, eq=False)
class Span:
    """`count` new tokens of one sequence: they read an archive by `reader`, and their pairs go to the end of `tail`."""

    cache: RaggedCache
    reader: ArchiveReader
    tail: Tail
    count: int

    @property
    def kind(self) -> tuple[int, int, int, bool]:
        """Spans of one kind that stand side by side are attended together."""
        return id(self.cache), id(self.reader), self.tail.memory_id, self.count == 1


class PassAttention:
    """Attention of the tokens of one forward pass: spans laid end to end. An `Attend` of `Decoder`."""

    def __init__(self, spans: Sequence[Span], dtype: torch.dtype, scale: float) -> None:
        """`dtype` is that of the pairs; products of queries and keys are multiplied by `scale`."""
        self._dtype, self._scale = dtype, scale
        self._groups: list[tuple[int, int, _Singles | _Several]] = []
        end = 0
        for (*_, single), run in groupby(spans, lambda span: span.kind):
            own = list(run)
            begin, end = end, end + sum(span.count for span in own)
            self._groups.append((begin, end, _Singles(own) if single else _Several(own)))

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of all tokens: `query [n,Hq,D]`, `key, value [n,H,D]` -> `[n,Hq,D]` float32 or `dtype`."""
        query, key, value = (t.to(self._dtype) for t in (query, key, value))
        outs = [
            group.attend(layer, query[begin:end], key[begin:end], value[begin:end], self._scale)
            for begin, end, group in self._groups
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def advance(self) -> None:
        """Make the tokens of the pass count, once all layers have seen them."""
        for _, _, group in self._groups:
            for span in group.spans:
                span.tail.advance(span.count)


@dataclass(frozen=True, eq=False)
class _Several:
    """Spans of several tokens each over one archive: they read it together, and each its own tail."""

    spans: Sequence[Span]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """`query [n,Hq,D]`, `key, value [n,H,D]` -> `[n,Hq,D]`."""
        stored = self.spans[0].cache.layers[layer]
        counts = [span.count for span in self.spans]
        parts = [(_grouped(q, k.shape[1]), k.transpose(0, 1), v.transpose(0, 1))
                 for q, k, v in zip(*(t.split(counts) for t in (query, key, value)), strict=True)]  # fmt: skip
        if stored.window is not None:
            outs = [
                _over_window(span.tail, layer, stored, *part, scale)
                for span, part in zip(self.spans, parts, strict=True)
            ]
            return torch.cat([out.flatten(0, 1).transpose(0, 1) for out in outs])
        own = [_over_tail(span.tail, layer, *part, scale) for span, part in zip(self.spans, parts, strict=True)]
        grouped = torch.cat([part[0] for part in parts], 2)
        heads, group, n, dim = grouped.shape
        out = self.spans[0].reader.attend(layer, grouped, scale, Beside(lambda: _end_to_end(own, group)))
        return out.view(heads * group, n, dim).transpose(0, 1)


class _Singles:
    """Spans of one token each over one archive: one call attends the archive, and their tails, for all of them."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._tail = spans[0].tail
        self._rows = tuple(span.tail.row for span in spans)
        self._lengths = tuple(span.tail.length for span in spans)

    @cached_property
    def _rows_at(self) -> tuple[Tensor, Tensor]:
        """Rows of the tails' memory and their lengths, `[B]` each, on the device."""
        device = self._tail.memory(0)[0].device
        return torch.tensor(self._rows, device=device), torch.tensor(self._lengths, device=device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """`query [B,Hq,D]`, `key, value [B,H,D]` -> `[B,Hq,D]`."""
        span = self.spans[0]
        stored = span.cache.layers[layer]
        heads = key.shape[1]
        self._write(layer, key, value)
        if stored.window is not None and len(self.spans) == 1:
            out = _token_over_window(span.tail, layer, stored, _grouped(query, heads), scale)
        elif stored.window is not None:
            grouped = query.unflatten(1, (heads, -1))
            own = self._over_tails(layer, grouped, scale, stored.window)
            out = merge_parts([own, self._over_windows(stored, grouped, scale)])[0]
        else:
            end = max(self._lengths) + 1
            keys, values = (t[:, :, :end] for t in self._tail.memory(layer))
            tails = Tails(keys, values, tuple(length + 1 for length in self._lengths), self._rows)
            # The rows are to a reader what tokens are: they do not see each other.
            beside = Beside(lambda: self._over_tails(layer, query.unflatten(1, (heads, -1)), scale, None), tails)
            out = span.reader.attend(layer, _grouped(query, heads), scale, beside)
        by_heads: Tensor = out.reshape(query.shape[1], -1, query.shape[2])
        return by_heads.transpose(0, 1)

    def _write(self, layer: int, key: Tensor, value: Tensor) -> None:
        keys, values = self._tail.memory(layer)
        if len(self.spans) == 1:
            keys[self._rows[0], :, self._lengths[0]] = key[0]
            values[self._rows[0], :, self._lengths[0]] = value[0]
        else:
            rows, at = self._rows_at
            keys[rows, :, at] = key
            values[rows, :, at] = value

    def _over_tails(self, layer: int, grouped: Tensor, scale: float, window: int | None) -> Part:
        """Attention of `grouped [B,H,G,D]` over each row's own tail, its new token included."""
        end = max(self._lengths) + 1
        if len(self.spans) == 1:
            keys, values = (t[self._rows[0], :, :end] for t in self._tail.memory(layer))
            return grouped_attention(grouped[0].unsqueeze(2), keys, values, scale)
        rows, lengths = self._rows_at
        keys, values = (t[rows, :, :end] for t in self._tail.memory(layer))
        places = torch.arange(end, device=grouped.device)
        seen = places <= lengths[:, None]
        if window is not None:
            seen &= places > lengths[:, None] - window
        return _as_heads(seen_attention(grouped, keys, values, seen, scale))

    def _over_windows(self, stored: RaggedLayer, grouped: Tensor, scale: float) -> Part:
        """Attention over what the window of each row still sees of the archive."""
        batch, heads, _, dim = grouped.shape
        assert stored.window is not None
        keys, values = (t.view(1, heads, -1, dim).expand(batch, -1, -1, -1) for t in (stored.keys, stored.values))
        back = keys.shape[2] - torch.arange(keys.shape[2], device=grouped.device)  # before the archive's end
        return _as_heads(seen_attention(grouped, keys, values, back + self._rows_at[1][:, None] < stored.window, scale))


def _grouped(query: Tensor, heads: int) -> Tensor:
    """`[n,Hq,D]` as `[H,G,n,D]`."""
    grouped: Tensor = query.unflatten(1, (heads, -1))
    return grouped.permute(1, 2, 0, 3)


def _as_heads(part: Part) -> Part:
    """`[B,H,G,D]`, `[B,H,G]` as a reader has them: `[H,G*B,D]`, `[H,G*B]`."""
    out, lse = part
    heads, dim = out.shape[1], out.shape[3]
    return out.permute(1, 2, 0, 3).reshape(heads, -1, dim), lse.permute(1, 2, 0).reshape(heads, -1)


def _end_to_end(parts: Sequence[Part], group: int) -> Part:
    """Parts of several spans, `[H,G*n,D]` and `[H,G*n]` each, as one of all their tokens."""
    if len(parts) == 1:
        return parts[0]
    heads, _, dim = parts[0][0].shape
    out = torch.cat([part[0].view(heads, group, -1, dim) for part in parts], 2)
    lse = torch.cat([part[1].view(heads, group, -1) for part in parts], 2)
    return out.reshape(heads, -1, dim), lse.reshape(heads, -1)


def _over_tail(tail: Tail, layer: int, grouped: Tensor, key: Tensor, value: Tensor, scale: float) -> Part:
    """Attention of several tokens, `grouped [H,G,n,D]`, over the tail's past and themselves, causal."""
    past = tail.length
    keys, values = tail.write(layer, key, value)
    own = grouped_attention(grouped, keys[:, past:], values[:, past:], scale, causal=True)
    if not past:
        return own
    return merge_parts([own, grouped_attention(grouped, keys[:, :past], values[:, :past], scale)])


def _over_window(
    tail: Tail, layer: int, stored: RaggedLayer, grouped: Tensor, key: Tensor, value: Tensor, scale: float
) -> Tensor:
    """Attention of several tokens of a sliding layer over what they see of archive and tail: `[H,G,n,D]`."""
    assert stored.window is not None
    old, new = _window_parts(stored, *tail.write(layer, key, value), tail.length)
    joined = [torch.cat(pair, 1) for pair in zip(old, new, strict=True)]
    return sliding_attention(grouped, joined[0], joined[1], scale, stored.window)


def _token_over_window(tail: Tail, layer: int, stored: RaggedLayer, grouped: Tensor, scale: float) -> Tensor:
    """Attention of one token that is in the tail already, `grouped [H,G,1,D]`: `[H,G,D]`."""
    keys, values = (t[tail.row, :, : tail.length + 1] for t in tail.memory(layer))
    seen = _window_parts(stored, keys, values, tail.length)
    return merge_parts([grouped_attention(grouped, k, v, scale) for k, v in seen if k.shape[1]])[0]


def _window_parts(
    stored: RaggedLayer, keys: Tensor, values: Tensor, past: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Pairs of archive and tail that the first new token of a sliding layer can see, or a later one."""
    assert stored.window is not None
    heads, dim = keys.shape[0], keys.shape[2]
    old_keys, old_values = (t.view(heads, len(t) // heads, dim) for t in (stored.keys, stored.values))
    first = max(0, old_keys.shape[1] - max(0, stored.window - 1 - past))
    begin = max(0, past - (stored.window - 1))
    return (old_keys[:, first:], old_values[:, first:]), (keys[:, begin:], values[:, begin:])
