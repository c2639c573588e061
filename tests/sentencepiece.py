"""Tokenizers that put a blank before a text, as those converted from SentencePiece do, with chat templates."""

from __future__ import annotations

import json
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

KINDS = ("prepend", "first", "always")
"""A normaliser that prepends "▁" to every part between control tokens; Metaspace, to the first part or to each."""

INSTRUCTION = (
    "{{ '<s>' }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + "
    "' [/INST]' }}{% elif message['role'] == 'system' %}{{ '<<SYS>> ' + message['content'] + '\n<</SYS>>\n' }}"
    "{% else %}{{ ' ' + message['content'] + '</s>' }}{% endif %}{% endfor %}"
)
"""As Mistral and Llama 2: what stands around a message is plain text."""
CONTROL = (
    "{{ '<s>' }}{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""As Phi-3: control tokens, which take the white space after them."""
COLON = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""Plain text alone."""
TEMPLATES = (INSTRUCTION, CONTROL, COLON)

_TEXT = (
    "The harbour office opens at seven. Mara Lindqvist keeps the ledger, and the ledger is blue. user: assistant: "
    "Repeat the part of the previous context exactly, starting with. Question: Answer: What colour is the ledger?"
)
_SPECIAL = ("<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")


def make_blank_tokenizer(kind: str, template: str | None = None) -> Any:
    """A tokenizer of one of the KINDS: BPE with bytes for what the vocabulary lacks."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator([_TEXT] * 4, trainers.BpeTrainer(vocab_size=160, show_progress=False))
    merges = [tuple(merge) for merge in json.loads(trained.to_str())["model"]["merges"]]
    plain = sorted({*(t for merge in merges for t in (*merge, "".join(merge))), *_TEXT.replace(" ", "▁")})
    tokens = ["<unk>", *_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *plain]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if kind == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=kind, split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, rstrip=token.startswith("<|")) for token in _SPECIAL])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = template
    return tokenizer
