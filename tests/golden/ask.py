"""Ask every golden archive, as a process that knows nothing else:  python -m tests.golden.ask FOLDER

FOLDER gets `answers.json`, by archive and way of reading the texts and ids of its two answers, and by archive, way and
question the logits that the tokens of the expected answers come from, as `.npy`. A way "lowbit" or "hsa" reads
all pairs; "lowbit-16" and "hsa-16" read 16 pairs a head, by the index in the archive, and "...-bare" the same
archives without an index, which is then made from the keys.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kvz
from kvz.config import Sampling
from kvz.decode.sampling import Sampler
from kvz.decode.session import Session
from kvz.models.language_model import LanguageModel, load_model
from tests.format.rewriting import rewrite
from tests.golden.cases import CASES, Case


class Forced(Sampler):
    """Takes the tokens it is given, whatever the logits, which it keeps."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(Sampling())
        self.rows: list[torch.Tensor] = []
        self._tokens = tokens

    def choose(self, logits: torch.Tensor, number: int) -> int:
        self.rows.append(logits.float().clone())
        return self._tokens[number]


def logits_of(session: Session, question: str, answer: list[int], most: int) -> np.ndarray[Any, Any]:
    """Logits `[n,V]` that each token of an answer comes from, and its end where it has one before `most` tokens."""
    sequence = session.sequence(session.ids_of(question), most)
    forced = Forced([*answer, session.seam.stop_ids[0]])
    sequence.sampler = forced
    assert list(session.answer(sequence).ids) == answer
    return torch.stack(forced.rows).numpy()


def sessions(case: Case, model: LanguageModel, folder: Path) -> Iterator[tuple[str, Session]]:
    """Every way in which an archive is read."""
    archive = kvz.load(case.archive)
    yield "dense", archive.session(model, kvz.Decoding("dense"))
    everything = max(16, archive.manifest.prompt.context_tokens)
    for policy in ("lowbit", "hsa"):
        yield policy, archive.session(model, kvz.Decoding(policy, everything))
    bare = folder / f"{case.name}.kvz"
    rewrite(case.archive, bare, lambda metadata, manifest: manifest.update(planes=None, pages=None), rename=out_of_use)
    for policy in case.selects:
        page = archive.manifest.pages.size if policy == "hsa" and archive.manifest.pages else None
        few = kvz.Decoding(policy, 16, page)
        yield f"{policy}-16", archive.session(model, kvz.Decoding(policy, 16))
        yield f"{policy}-16-bare", kvz.load(bare).session(model, few)


def out_of_use(name: str) -> str:
    """A name that no reader knows in place of that of an index."""
    return re.sub(r"^layers\.(\d+\.(plane|page))", r"unknown.\1", name)


def main(folder: Path) -> None:
    """Ask them all."""
    torch.set_grad_enabled(False)
    load = cache(lambda path, dtype: load_model(str(path), device="cpu", dtype=dtype))
    answers: dict[str, dict[str, Any]] = {}
    for case in CASES:
        expected = json.loads(case.answers.read_text(encoding="utf-8"))
        for way, session in sessions(case, load(case.model, case.dtype), folder):
            said, rows = [], []
            for item in expected:
                answer = session.ask(item["question"], max_new_tokens=case.most)
                said.append({"question": item["question"], "text": answer.text, "ids": list(answer.ids)})
                rows.append(logits_of(session, item["question"], item["ids"], case.most))
            answers.setdefault(case.name, {})[way] = said
            np.save(folder / f"{case.name}.{way}.npy", np.concatenate(rows))
    (folder / "answers.json").write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
