"""The default: KVzip+'s contributions, their squares added up over all rows, and the rows of a turn beside them.

    score(j)^2 = sum over g, i of e(g,i,j)^2  +  w * mean over i' of sum over g of e(g,i',j)^2
    e(g,i,j)   = a(g,i,j) * ||W_o,g v_j|| / ||h_i||

i runs over the repeat input of the pair's chunk as in KVzip+, i' over a turn: what stands between a context and its
answer whatever is asked. A sum of squares is what evicting the pair changes in the attention outputs, to first order
and in all rows together, where a maximum hears one row only. The turn's rows look at pairs that every question needs,
and no row of a repetition does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvz.errors import UsageError
from kvz.prompt import turn_ids
from kvz.scoring.allocation import Allocation, Nonuniform
from kvz.scoring.kvzip import RepeatingMethod
from kvz.scoring.method import Context

if TYPE_CHECKING:
    from torch import Tensor

    from kvz.models.language_model import LanguageModel
    from kvz.scoring.repeat_pass import RepeatedChunk, RepeatPass

__all__ = ["KVzipRMS"]

_MOST = 1e9  # above it float32 may overflow


@dataclass(frozen=True)
class KVzipRMS(RepeatingMethod):
    """Root of the summed squared contributions; `turn` is w, the repeat rows that the turn's mean row counts for."""

    turn: float = 4096.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.turn <= _MOST:
            raise UsageError(f"turn {self.turn:g}: give the weight of the turn's rows, 0 to {_MOST:g}")

    @property
    def name(self) -> str:
        return "kvzip-rms"

    def allocation(self) -> Allocation:
        """Every head is guaranteed a fifth of a uniform budget: layers' scores do not compare well in every model."""
        return Nonuniform(floor=0.2)

    def score(self, model: LanguageModel, context: Context, done: Callable[[int], None]) -> Tensor:
        """Scores `[N,S]` float32, on the CPU. KVzip's pass over the context, and one over a turn of some 50 tokens."""
        squares = super().score(model, context, done)
        if self.turn:
            squares += self._of_turn(model, context)
        return squares.sqrt_()

    def chunk_pass(self, model: LanguageModel, chunk: RepeatedChunk) -> RepeatPass:
        from kvz.scoring.contribution import SquaredContributions

        return SquaredContributions(chunk, model)

    def _of_turn(self, model: LanguageModel, context: Context) -> Tensor:
        """The turn's part of the squared scores, `[N,S]`."""
        import torch

        from kvz.models.attention import Told
        from kvz.scoring.contribution import SquaredContributions
        from kvz.scoring.repeat_pass import RepeatedChunk

        length = len(context.ids)
        squares = torch.zeros(model.geometry.rows_total, length)
        ids = turn_ids(model.tokenizer, context.frame.seam)
        whole = RepeatedChunk(context, model.geometry, 0, length, squares)
        store = Told(SquaredContributions(whole, model), lambda tokens: None, 0, model.geometry.layers)
        model.fill_watched(torch.tensor(ids), context.prefix + length, store)
        return squares.mul_(self.turn / len(ids))
