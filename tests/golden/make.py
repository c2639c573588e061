"""Work out again what the golden archives must answer:  python -m tests.golden.make

Writes `expected/<name>.json` (each question's answer, text and ids) and `expected/<name>.npy` (the logits that each
token of the answers came from) by `reference.py`, which does not use kvz. It does not write archives or models: these
are never made again. A new version of the format adds archives to those that are here, and lines to `cases.py`.

The models are random: transformers' Llama (grouped heads), Qwen2 (biases, tied embeddings, no chat template) and
Gemma 3 (layers that slide, windows of 24) as their classes make them from a seed, with `initializer_range=0.2`. Then
norms and biases were drawn anew (deviations 0.2 and 0.3), rows of the output layer made equally long, those of bytes
that are no printable text shortened to a fifth, and all weights rounded to bfloat16, those below 2^-16 to 0: float16
holds them exactly too.

The document is two lines of a made-up harbour office, 206 bytes. Archives of version 1.1 were written by the last code
before models had a forward pass of our own, those of 1.0 by three older commits, the very first among them; `cases.py`
names the commits. `model.id` was set to the model's folder in the repository before they were saved.

Questions were searched for among some 40,000 so that in every step of an answer the best token is ahead of the second
by 20 times the error (root mean square) of that code's arithmetic in the archive's dtype, and by 0.1 at least: answers
depend neither on the machine nor on how sums are ordered.
"""

from __future__ import annotations

import json

import numpy as np

from tests.golden.cases import CASES, Case
from tests.golden.reference import Reference


def make(case: Case) -> None:
    """Write what one archive must answer."""
    reference = Reference(case.archive, case.model)
    answers, logits = [], []
    for question in case.questions:
        ids, rows = reference.answer(question, case.most)
        answers.append({"question": question, "text": reference.text(ids), "ids": ids})
        logits.append(rows.float().numpy())
    case.answers.parent.mkdir(exist_ok=True)
    case.answers.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    np.save(case.logits, np.concatenate(logits))


if __name__ == "__main__":
    for each in CASES:
        make(each)
        print(each.name)
