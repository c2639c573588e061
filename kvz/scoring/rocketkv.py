"""RocketKV's first stage (arXiv 2502.14051): SnapKV with a wide kernel, and as many pairs as suit its second stage.

The budget is what a step may read, t pairs a head; how many pairs are kept follows from it and from the length. The
second stage is the policy hsa with the same budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvz.decode.budget import rocket_kept
from kvz.scoring.budget import Budget
from kvz.scoring.method import Setting
from kvz.scoring.snapkv import SnapKV

__all__ = ["RocketKV"]


@dataclass(frozen=True)
class RocketKV(SnapKV):
    """SnapKV over the last `window` tokens, max-pooled over 63; `query` ends the window with a question known already.

    A ratio says how many pairs are kept, as with every method; a budget of t tokens is one of steps.
    """

    kernel: int = 63

    @property
    def name(self) -> str:
        return "rocketkv"

    def kept(self, budget: Budget, setting: Setting) -> Budget:
        """The paper's adaptive split; the prefix is kept beside it."""
        if budget.tokens is None:
            return budget
        prompt = len(setting.frame.prefix_ids) + setting.length
        dim = max(shape.head_dim for shape in setting.model.geometry.shapes)
        kept = rocket_kept(prompt, budget.tokens, dim) - len(setting.frame.prefix_ids)
        return Budget(tokens=min(setting.length, max(budget.tokens, kept)))

    def provenance(self, setting: Setting, budget: Budget) -> dict[str, int | str]:
        return {} if budget.tokens is None else {"step_budget": budget.tokens}
