"""What attention over one layer needs beside the pairs: who works on what, and memory for results that are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvz.kernels.flat_pairs import FlatPairs
from kvz.kernels.ragged_attention import RaggedPlan, plan_ragged
from kvz.kernels.schedule import Schedule, block_rows, plan_schedule, programs_at_once

__all__ = ["DecodePlan", "Rows", "TailPairs", "in_one_workspace", "plan_decode"]

_TAIL_SHARE = 256  # tokens of a tail's capacity for each part that it may be cut into
_MOST_SPLITS = 16


@dataclass(frozen=True)
class Rows:
    """Query rows of each KV head: `batch` questions of `tokens` new tokens each, in GQA groups of `group`.

    Row (b group + g) tokens + i is token i of question b, in query head g of the group.
    """

    batch: int
    group: int
    tokens: int

    @property
    def count(self) -> int:
        """R."""
        return self.batch * self.group * self.tokens


@dataclass(frozen=True, eq=False)
class TailPairs:
    """Each question's own pairs: `keys, values [B,H,capacity,D]`, the new tokens' among them, in the model's dtype.

    `past [B]` int32, on the same device, are the tokens before the new ones: new token i of question b sees pairs
    0..past[b]+i. What lies behind them means nothing, but must be finite numbers for the plain form.
    """

    keys: Tensor
    values: Tensor
    past: Tensor


@dataclass(frozen=True, eq=False)
class DecodePlan:
    """A layer's pairs, head h owning pairs bounds[h]:bounds[h+1], planned for a number of rows; used for every step.

    A tail is cut into `splits` parts, whose sizes follow its length on the device; 0 where there is no tail.
    `workspace` is float32; the results of a head's segments and of its tail's parts lie in it. `ragged` is the plan of
    the plain form, None where the pairs are codes.
    """

    pairs: FlatPairs
    bounds: tuple[int, ...]
    rows: Rows
    schedule: Schedule
    splits: int
    workspace: Tensor
    ragged: RaggedPlan | None

    @property
    def heads(self) -> int:
        """KV heads."""
        return len(self.bounds) - 1

    @property
    def slots(self) -> int:
        """Results of R rows each: those of the segments, then those of the tail's parts, head after head."""
        return self.schedule.slots + self.heads * self.splits

    @property
    def workspace_size(self) -> int:
        """Numbers that the workspace holds: for each slot and row an output of D and a log-sum-exp."""
        return self.slots * self.rows.count * (self.pairs.dim + 1)

    @property
    def outs(self) -> Tensor:
        """The results' outputs, `[slots,R,D]`."""
        shape = self.slots, self.rows.count, self.pairs.dim
        return self.workspace[: shape[0] * shape[1] * shape[2]].view(shape)

    @property
    def lses(self) -> Tensor:
        """The results' natural log-sum-exps, `[slots,R]`."""
        size = self.slots * self.rows.count
        return self.workspace[size * self.pairs.dim : size * (self.pairs.dim + 1)].view(self.slots, self.rows.count)


def plan_decode(pairs: FlatPairs, bounds: Sequence[int], rows: Rows, capacity: int, multiprocessors: int) -> DecodePlan:
    """The plan of one layer and tails of `capacity` tokens, 0 for none; without a workspace: see `in_one_workspace`.

    A tail that grows beyond `capacity` is attended as well, in the same number of parts.
    """
    device, heads = pairs.keys.device, len(bounds) - 1
    block = block_rows(rows.count, pairs.dim, pairs.bits)
    at_once = programs_at_once(block, pairs.dim, pairs.bits)
    schedule = plan_schedule(bounds, multiprocessors, at_once, -(-rows.count // block), device)
    of_question = rows.group * rows.tokens
    units = rows.batch * heads * -(-of_question // block_rows(of_question, pairs.dim, pairs.bits))
    useful = max(1, -(-2 * multiprocessors // units))
    splits = min(-(-capacity // _TAIL_SHARE), useful, _MOST_SPLITS)
    ragged = plan_ragged(pairs.keys, pairs.values, bounds, rows.count) if pairs.bits == 16 else None
    empty = torch.empty(0, device=device)
    return DecodePlan(pairs, tuple(bounds), rows, schedule, splits, empty, ragged)


def in_one_workspace(plans: Sequence[DecodePlan]) -> tuple[DecodePlan, ...]:
    """The same plans over one new workspace, as large as the largest needs: layers are attended one after another."""
    size = max(plan.workspace_size for plan in plans)
    workspace = torch.empty(size, dtype=torch.float32, device=plans[0].workspace.device)
    return tuple(replace(plan, workspace=workspace) for plan in plans)
