"""What a recipe demands, and the least budget that is named where the given one is too small."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvz.demand import demand_of
from kvz.errors import BudgetTooSmall
from kvz.models.language_model import LanguageModel
from kvz.prompt import make_frame
from kvz.recipe import make_recipe
from kvz.scoring.sharing import ALLOCATIONS

SPANS = ((3, 11), (-5, None))
LENGTH = 300


def check(model: LanguageModel, **wanted: Any) -> None:
    frame = make_frame(model.tokenizer, model.end_ids)
    demand_of(make_recipe(**wanted), model, frame, range(3, 3 + LENGTH))


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("method", ["kvzip", "h2o", "snapkv", "recent"])
@pytest.mark.parametrize("kind", ["ratio", "budget"])
def test_the_least_budget_named_is_the_least_that_works(
    tiny: LanguageModel, allocation: str, method: str, kind: str
) -> None:
    wanted = {"method": method, "allocation": allocation, "protect": SPANS, "keep_recent": 7}
    given = 0.001 if kind == "ratio" else 2
    with pytest.raises(BudgetTooSmall, match=rf"^{kind} {given} is too small: .* -r 1 keeps everything") as caught:
        check(tiny, **wanted, **{kind: given})
    [named] = re.findall(r"the least is ([\d.]+);", str(caught.value))
    least = float(named) if kind == "ratio" else int(named)
    check(tiny, **wanted, **{kind: least})
    with pytest.raises(BudgetTooSmall):
        check(tiny, **wanted, **{kind: least - (1e-6 if kind == "ratio" else 1)})


def test_spans_and_recent_tokens_are_protected_together(tiny: LanguageModel) -> None:
    frame = make_frame(tiny.tokenizer, tiny.end_ids)
    recipe = make_recipe(0.5, method="h2o", protect=SPANS, keep_recent=7)
    protected = demand_of(recipe, tiny, frame, range(3, 3 + LENGTH)).protected.nonzero()[:, 0].tolist()
    assert protected == [*range(3, 11), *range(LENGTH - 75, LENGTH)]
