"""What an archive must answer, worked out without kvz.

The archive is read by the reader that docs/format.md prints, the ids of a question are put together as it says, and the
model is transformers' own in float64 (weights and pairs widened as they are stored), but for its attention: that is the
softmax of the specification, written out head by head over the archive's rows and the new tokens, whose pairs are
rounded to the archive's dtype, as they are when they are stored beside it. Nothing else is rounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor

_SPECIFICATION = Path(__file__).parents[2] / "docs" / "format.md"
_ATTENTION = "golden-reference"


def read_kvz(path: Path) -> Any:
    """Manifest, token ids and layers of an archive, by the specification's example."""
    text = _SPECIFICATION.read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/format.md", "exec"), names)
    return names["read_kvz"](path)


class Reference:
    """One archive and the model it was made with."""

    def __init__(self, archive: Path, model: Path) -> None:
        manifest, _, layers = read_kvz(archive)
        self.prompt = manifest["prompt"]
        self._start = self.prompt["prefix_tokens"] + self.prompt["context_tokens"]
        self._dtype = getattr(torch, manifest["model"]["dtype"])
        self._windows = [layer.get("window") for layer in manifest["model"]["layers"]]
        self._layers = [
            (
                offsets.tolist(),
                torch.from_numpy(positions.copy()),
                *(torch.from_numpy(x.copy()).double() for x in pairs),
            )
            for offsets, positions, *pairs in layers
        ]
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        transformers.AttentionInterface.register(_ATTENTION, self._attend)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            str(model), dtype=torch.float64, attn_implementation=_ATTENTION
        ).eval()

    def question_ids(self, question: str) -> list[int]:
        """The ids of a question that spells no control token."""
        seam = self.prompt["question"]
        text = seam["before"] + question.strip()
        return self._tokenizer.encode(text, add_special_tokens=False).ids + seam["after_ids"]

    def answer(self, question: str, most: int) -> tuple[list[int], Tensor]:
        """The greedy answer's ids, `most` at most, and the logits `[n,V]` that each of them, or its end, came from."""
        asked, ids = self.question_ids(question), []
        while len(ids) < most:
            token = int(self.logits([[*asked, *ids]])[0, -1].argmax())
            if token in self.prompt["question"]["stop_ids"]:
                return ids, self.logits([[*asked, *ids]])[0, len(asked) - 1 :]
            ids.append(token)
        return ids, self.logits([[*asked, *ids[:-1]]])[0, len(asked) - 1 :]

    def text(self, ids: Sequence[int]) -> str:
        """The text of an answer."""
        return self._tokenizer.decode(list(ids)).strip()

    @torch.no_grad()
    def logits(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Logits `[B,n,V]` at each of the tokens `ids [B,n]`, which follow the archive."""
        positions = self._start + torch.arange(len(ids[0]))
        return self._model(
            input_ids=torch.tensor(ids), position_ids=positions.expand(len(ids), -1), use_cache=False
        ).logits

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        """Attention of `query [B,Q,n,D]` to the archive's layer and to `key`, `value` `[B,H,n,D]`, without `mask`."""
        offsets, positions, keys, values = self._layers[module.layer_idx]
        window = self._windows[module.layer_idx]
        key, value = (new.to(self._dtype).double() for new in (key, value))
        batch, heads, n, _ = query.shape
        own = self._start + torch.arange(n)
        outs = []
        for head in range(heads):
            kv_head = head // (heads // key.shape[1])
            rows = slice(offsets[kv_head], offsets[kv_head + 1])
            all_keys = torch.cat([keys[rows].expand(batch, -1, -1), key[:, kv_head]], 1)
            all_values = torch.cat([values[rows].expand(batch, -1, -1), value[:, kv_head]], 1)
            distance = own[:, None] - torch.cat([positions[rows], own])
            seen = (distance >= 0) & (distance < (window or torch.inf))
            scores = (scaling * query[:, head] @ all_keys.mT).masked_fill(~seen, -torch.inf)
            outs.append(torch.softmax(scores, -1) @ all_values)
        return torch.stack(outs, 2), None
