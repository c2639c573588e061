"""A recipe: everything that shapes an archive besides the document and the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvz.cache.index_plan import PLANES, IndexPlan
from kvz.defaults import METHOD
from kvz.errors import UsageError
from kvz.prompt import check_part, check_system
from kvz.scoring.allocation import Allocation
from kvz.scoring.budget import Budget
from kvz.scoring.controls import Full
from kvz.scoring.method import ScoringMethod
from kvz.scoring.registry import make_method
from kvz.scoring.sharing import make_allocation
from kvz.scoring.spans import check_spans

__all__ = ["Recipe", "make_recipe"]


@dataclass(frozen=True)
class Recipe:
    """What to keep, and how to choose it. `make_recipe` makes one from a user's words.

    `protect` names context tokens that every head keeps: ranges (start, end), or texts, wherever they occur. A
    `default` budget, which no user named, gives way to the least that can be kept.
    """

    budget: Budget
    method: ScoringMethod
    allocation: Allocation
    keep_recent: int = 0
    protect: tuple[str | tuple[int | None, int | None], ...] = ()
    system: str | None = None
    truncate: str | None = None
    include_text: bool = True
    offload: bool = False
    index: IndexPlan = PLANES
    default: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for a truncation that does not exist, a negative count, or spans that are none."""
        if self.keep_recent < 0:
            raise UsageError(f"cannot keep the {self.keep_recent} most recent tokens; give 0 or more")
        if self.truncate is not None:
            check_part(self.truncate)
        check_spans(self.protect)
        check_system(self.system)

    def _shown(self, text: str) -> str:
        """A protected text as the manifest has it: not at all in an archive that leaves text out."""
        return f"text {text!r}" if self.include_text else f"(a text of {len(text)} characters, left out)"

    def guarantees(self) -> dict[str, int | str]:
        """What every head keeps whatever its scores, for the manifest."""
        spans = [
            self._shown(p) if isinstance(p, str) else f"tokens {':'.join('' if end is None else str(end) for end in p)}"
            for p in self.protect
        ]
        named: dict[str, int | str] = {"keep_recent": self.keep_recent}
        return {**named, **{f"protect_{index}": span for index, span in enumerate(spans)}}


def make_recipe(
    ratio: float | None = None,
    budget: int | None = None,
    method: str | ScoringMethod | None = None,
    allocation: str | Allocation | None = None,
    floor: float | None = None,
    keep_recent: int = 0,
    protect: tuple[str | tuple[int | None, int | None], ...] = (),
    system: str | None = None,
    truncate: str | None = None,
    include_text: bool = True,
    offload: bool = False,
    index: IndexPlan | None = None,
    **options: int | float | str,
) -> Recipe:
    """The recipe a user asks for; what is left out is the method's own. `options` are the method's.

    Raises UsageError for names that do not exist and options that do not go together.
    """
    if method is None or isinstance(method, str):
        method = make_method(METHOD if method is None else method, **options)
    elif options:
        raise UsageError(f"{', '.join(options)}: give the method's options to the method itself")
    if isinstance(method, Full) and (ratio, budget) != (None, None):
        raise UsageError("method 'full' keeps every pair; leave the ratio or budget out")
    if isinstance(method, Full) and (allocation is not None or floor is not None or keep_recent or protect):
        raise UsageError("method 'full' keeps every pair; leave allocation, floor and protected tokens out")
    limits = Budget(ratio=1.0) if isinstance(method, Full) else Budget.of_options(ratio, budget)
    return Recipe(
        budget=limits,
        method=method,
        allocation=_allocation(method, allocation, floor),
        keep_recent=keep_recent,
        protect=protect,
        system=system,
        truncate=truncate,
        include_text=include_text,
        offload=offload,
        index=index or PLANES,
        default=(ratio, budget) == (None, None),
    )


def _allocation(method: ScoringMethod, allocation: str | Allocation | None, floor: float | None) -> Allocation:
    """The allocation a user named, or the method's own, with the user's floor."""
    options = {} if floor is None else {"floor": floor}
    own = method.allocation()
    if isinstance(allocation, str) and allocation != own.name:
        return make_allocation(allocation, **options)
    chosen = own if allocation is None or isinstance(allocation, str) else allocation
    if not options:
        return chosen
    if "floor" not in chosen.parameters():
        raise UsageError(f"allocation '{chosen.name}' does not take floor; nonuniform and adakv do (--allocation)")
    return replace(chosen, floor=floor)  # type: ignore[type-var]
