"""What a recipe wants of an allocation for one context, and the smallest budget that it could be granted with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from kvz.errors import BudgetTooSmall
from kvz.models.language_model import LanguageModel
from kvz.prompt import Frame
from kvz.recipe import Recipe
from kvz.scoring.allocation import Demand
from kvz.scoring.budget import Budget
from kvz.scoring.method import Setting
from kvz.scoring.protection import protected_tokens

__all__ = ["demand_of"]

_PARTS = 10**6  # a ratio is named to six places


def demand_of(recipe: Recipe, model: LanguageModel, frame: Frame, ids: Sequence[int]) -> Demand:
    """The demand of `recipe` on a context of `ids`, checked before any work is done.

    A default budget that is too small becomes the least that does. Raises BudgetTooSmall, naming that least, for one
    that was given, and whatever the method or the protected spans object to.
    """
    asked = _Asked(recipe, model, frame, protected_tokens(model.tokenizer, ids, recipe.protect))
    demand = asked.demand(recipe.budget)
    try:
        if not demand.keeps_everything:
            recipe.allocation.groups(demand)
    except BudgetTooSmall as error:
        least = asked.least()
        if not recipe.default:
            shown = least.tokens if least.ratio is None else f"{least.ratio:g}"
            raise BudgetTooSmall(f"{error}; the least is {shown}; -r 1 keeps everything") from None
        return asked.demand(least)
    return demand


@dataclass(frozen=True, eq=False)
class _Asked:
    """A recipe for one context, `spans [S]` bool being the tokens that its user protects."""

    recipe: Recipe
    model: LanguageModel
    frame: Frame
    spans: Tensor

    def demand(self, given: Budget) -> Demand:
        """The demand with the budget `given` in place of the recipe's; what a method protects may depend on it."""
        length = self.spans.shape[0]
        protected = self.spans.clone()
        method = self.recipe.method
        setting = Setting(self.model, self.frame, length, given.of(1, length))
        budget = method.kept(given, setting)
        for start, end in method.protect(replace(setting, per_head=budget.of(1, length))):
            protected[start:end] = True
        protected[max(0, length - self.recipe.keep_recent) :] = True
        return Demand(budget, self.model.geometry.row_layers, protected)

    def least(self) -> Budget:
        """The smallest budget, of the kind that was given, that is large enough."""
        of_tokens = self.recipe.budget.tokens is not None
        low, high = 0, self.spans.shape[0] if of_tokens else _PARTS  # too small, large enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits(_budget(middle, of_tokens)) else (middle, high)
        return _budget(high, of_tokens)

    def _fits(self, budget: Budget) -> bool:
        demand = self.demand(budget)
        try:
            return demand.keeps_everything or bool(self.recipe.allocation.groups(demand))
        except BudgetTooSmall:
            return False


def _budget(number: int, of_tokens: bool) -> Budget:
    return Budget(tokens=number) if of_tokens else Budget(ratio=number / _PARTS)
