"""The golden archives, how each was made, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GOLDEN = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """An archive `archives/<name>.kvz`, made with `models/<model>`, in `dtype`; answers have at most `most` tokens.

    `writer` is the commit whose code wrote it, `options` what `kvz.compress` was given there.
    """

    name: str
    questions: tuple[str, str]
    writer: str
    options: str
    most: int = 8
    selects: tuple[str, ...] = ()  # policies that choose by an index in the archive

    @property
    def model(self) -> Path:
        """Folder of the model."""
        return GOLDEN / "models" / self.name.split("-")[0]

    @property
    def dtype(self) -> str:
        """Of the archive's pairs, and what the model computes in."""
        return self.name.split("-")[2]

    @property
    def archive(self) -> Path:
        """The archive."""
        return GOLDEN / "archives" / f"{self.name}.kvz"

    @property
    def answers(self) -> Path:
        """JSON: for each question its answer's text and ids."""
        return GOLDEN / "expected" / f"{self.name}.json"

    @property
    def logits(self) -> Path:
        """Logits `[rows,V]` in float32: of all tokens of the first answer, then of the second's, ends included."""
        return GOLDEN / "expected" / f"{self.name}.npy"


CASES = (
    Case(
        "llama-1.0-bfloat16",
        ("When sells the small ledger?", "When keeps the small island on Tuesday?"),
        "1ed8647",
        "ratio=0.3",
    ),
    Case(
        "llama-1.0-float32",
        ("Which one paints the spare harbour on Tuesday?", "Where opens the crown now?"),
        "f2bc3f4",
        "ratio=0.4, system='Be brief.'",
    ),
    Case(
        "gemma3-1.0-bfloat16",
        ("Which one leaves the blue clock now?", "Which one reads the blue key today?"),
        "c78ca3a",
        "ratio=0.4",
    ),
    Case(
        "qwen2-1.0-float16-no-text",
        ("How keeps the crown?", "Where loses the last clock at noon?"),
        "c78ca3a",
        "budget=60, method='snapkv', include_text=False",
    ),
    Case(
        "llama-1.1-bfloat16-planes",
        ("How keeps the crown?", "Where hides the old boat?"),
        "34a183d",
        "ratio=0.2",
        most=6,
        selects=("lowbit",),
    ),
    Case(
        "llama-1.1-float32-pages16",
        ("When opens the small clock on Tuesday?", "How loses the spare key on Tuesday?"),
        "34a183d",
        "ratio=0.5, method='h2o', index of pages of 8 tokens",
        selects=("hsa",),
    ),
    Case(
        "llama-1.1-float16-pages8-no-text",
        ("Where keeps the letter today?", "Where keeps the ledger today?"),
        "34a183d",
        "ratio=0.4, include_text=False, index of pages in 8 bits",
    ),
    Case(
        "qwen2-1.1-bfloat16-planes-pages16",
        ("Why finds the blue key on Tuesday?", "Where leaves the third crown at noon?"),
        "34a183d",
        "ratio=0.4, allocation='uniform', index of planes and pages",
        selects=("lowbit", "hsa"),
    ),
    Case(
        "qwen2-1.1-float32-everything",
        ("When hangs the spare map today?", "Who leaves the last map now?"),
        "34a183d",
        "ratio=1.0, no index",
    ),
    Case(
        "gemma3-1.1-bfloat16-planes-no-text",
        ("Where leaves the third map?", "How paints the small ferry on Tuesday?"),
        "34a183d",
        "ratio=0.6, include_text=False",
        selects=("lowbit",),
    ),
    Case(
        "gemma3-1.1-float32-pages8",
        ("How reads the old clock now?", "Where hides the blue island today?"),
        "34a183d",
        "ratio=0.3, index of pages in 8 bits",
    ),
    Case(
        "gemma3-1.1-float32-planes-pages16-short",
        ("How leaves the third ledger at noon?", "How hangs the third map now?"),
        "34a183d",
        "ratio=1.0, a document of 7 tokens (shorter than the window), index of planes and pages",
    ),
)
