"""A tokenizer out of a model folder's files, as transformers makes it of them, without transformers.

transformers takes tokenizer.json as it is for some of its classes, and for others the vocabulary alone: those bring
their own pre-tokeniser, decoder and flags. Ids are to be the same here, so the same parts are put in place. What is not
known to come out the same is left to transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvz.models.tokenizer_parts import TokenizerParts

__all__ = ["parts_from_files"]

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PLAIN = ("TokenizersBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer")  # tokenizer.json as it is
_OF_MODEL = {
    "gemma3_text": "GemmaTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "qwen3_moe": "Qwen2Tokenizer",
    **dict.fromkeys(("granite", "mistral", "mixtral", "olmo2", "phi3"), "TokenizersBackend"),
}
"""`model_type` -> the class that transformers has for it."""
_OVERRULES = ("phi3", "qwen2")  # whatever class the files name
_OVERRULED_REPOS = ("allenai/", "deepseek-ai/")  # transformers has exceptions for some of theirs
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class _LeftToTransformers(Exception):
    """What transformers makes of the files is not known here."""


@dataclass(frozen=True)
class _Class:
    """A class that takes no more than the vocabulary from tokenizer.json: `build` puts its own parts in place."""

    build: Callable[[Any, Mapping[str, Any]], None]
    defaults: Mapping[str, str] = field(default_factory=dict)
    marks_special: bool = False


def parts_from_files(folder: Path) -> TokenizerParts | None:
    """The tokenizer in `folder`, or None where it is for transformers to make it.

    Raises what reading a damaged file raises.
    """
    if not (folder / "tokenizer.json").is_file():
        return None
    try:
        return _parts(folder, _json(folder / "tokenizer_config.json"), _json(folder / "config.json"))
    except _LeftToTransformers:
        return None


def _json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(found, dict):
        raise _LeftToTransformers
    return found


def _parts(folder: Path, config: dict[str, Any], model: Mapping[str, Any]) -> TokenizerParts:
    from tokenizers import Tokenizer

    name = _class_name(folder, config, model)
    made = _CLASSES.get(name)
    if made is None and name not in _PLAIN:
        raise _LeftToTransformers
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    tokens = _Tokens.from_files(folder, config, backend)
    if made is not None:
        _check_rebuilt(backend, tokens)
        tokens.named = {**made.defaults, **tokens.named}
        made.build(backend, {**tokens.named, **{k: v for k, v in config.items() if k not in _NAMES}})
    tokens.named = {name: token for name, token in tokens.named.items() if token is not None}
    tokens.add_to(backend, made is not None and made.marks_special)
    named = {name: str(token) for name, token in tokens.named.items()}
    return TokenizerParts(backend, named, frozenset(tokens.special), _template(folder, config))


def _class_name(folder: Path, config: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The class of transformers that AutoTokenizer takes for these files."""
    kind = str(model.get("model_type"))
    odd = ("auto_map", "fast_tokenizer_files", "fix_mistral_regex")
    repo = model.get("_name_or_path")
    if any(config.get(key) for key in odd) or "model_name" in model:
        raise _LeftToTransformers
    if isinstance(repo, str) and repo.lower().startswith(_OVERRULED_REPOS):
        raise _LeftToTransformers
    declared = config.get("tokenizer_class") or model.get("tokenizer_class")
    if not isinstance(declared, str | None):
        raise _LeftToTransformers
    usual = _OF_MODEL.get(kind)
    if declared is None:
        return usual or "TokenizersBackend"
    own = declared.removesuffix("Fast")
    if own == "LlamaTokenizer" and kind not in _OVERRULES and _has_byte_level(folder):
        return "TokenizersBackend"
    if usual in (None, own):
        return own
    if usual == "TokenizersBackend":
        return usual
    return usual if kind in _OVERRULES else own


def _has_byte_level(folder: Path) -> bool:
    return b'"ByteLevel"' in (folder / "tokenizer.json").read_bytes()


@dataclass
class _Tokens:
    """Special tokens by name, further special ones, and added tokens by id; AddedToken where flags are known."""

    named: dict[str, Any]
    extra: list[Any]
    added: dict[int, Any]

    @classmethod
    def from_files(cls, folder: Path, config: Mapping[str, Any], backend: Any) -> _Tokens:
        fields = dict(config)
        if "additional_special_tokens" in fields and not fields.get("extra_special_tokens"):
            fields["extra_special_tokens"] = fields.pop("additional_special_tokens")
        named = {key: _token(value) for key, value in fields.items() if key.endswith("_token") and _is_token(value)}
        if "added_tokens_decoder" in fields:
            added = {int(i): _added(**token) for i, token in fields["added_tokens_decoder"].items()}
        else:  # as older releases saved them
            _merge_map(named, fields, _json(folder / "special_tokens_map.json"))
            added = _older_added(folder, named, fields.get("extra_special_tokens") or [])
            added |= backend.get_added_tokens_decoder()
        extra = fields.get("extra_special_tokens") or []
        if isinstance(extra, dict):
            named, extra = named | {key: _token(value) for key, value in extra.items()}, []
        by_content = {str(token): token for token in added.values()}
        named = {key: by_content.get(str(token), token) if key in _NAMES else token for key, token in named.items()}
        named |= {key: None for key in _NAMES if key in config and config[key] is None and key not in named}
        return cls(named, [_token(token) for token in extra], added)

    @property
    def special(self) -> set[str]:
        """The text of every special token."""
        return {str(token) for token in (*self.named.values(), *self.extra)}

    def add_to(self, backend: Any, mark_special: bool) -> None:
        """Add to the backend what it has not, or has with other flags, in transformers' order."""
        from tokenizers import AddedToken

        tokens = [token for _, token in sorted(self.added.items())]
        texts = {token.content for token in backend.get_added_tokens_decoder().values()} | {str(t) for t in tokens}
        for token in (*self.named.values(), *self.extra):
            if str(token) not in texts:
                texts.add(str(token))
                tokens.append(token)
        names = {str(token) for token in self.named.values()}
        for index, token in enumerate(tokens):
            if isinstance(token, str):
                tokens[index] = AddedToken(token, special=True)
            elif not token.special and token.content in names:
                token.special = True
        _add(backend, tokens)
        if mark_special:
            _add(backend, [AddedToken(text, special=True) for text in sorted(self.special)])


def _add(backend: Any, tokens: Iterable[Any]) -> None:
    """Add tokens but for those that are there, flag by flag: to compare them one by one takes long for many."""
    there = {token.content: token.__getstate__() for token in backend.get_added_tokens_decoder().values()}
    if new := [token for token in tokens if there.get(token.content) != token.__getstate__()]:
        backend.add_tokens(new)


def _is_token(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and "content" in value)


def _token(value: Any) -> Any:
    """A token as text or, where its flags are written, as AddedToken."""
    if isinstance(value, dict) and value.get("__type") == "AddedToken":
        return _added(**{key: flag for key, flag in value.items() if key != "__type"})
    if isinstance(value, dict) or (not isinstance(value, str) and type(value).__name__ != "AddedToken"):
        raise _LeftToTransformers
    return value


def _added(**flags: Any) -> Any:
    from tokenizers import AddedToken

    return AddedToken(**flags)


def _merge_map(named: dict[str, Any], fields: dict[str, Any], older: Mapping[str, Any]) -> None:
    """Put the tokens of special_tokens_map.json over those of tokenizer_config.json."""
    for key, value in older.items():
        if key in ("additional_special_tokens", "extra_special_tokens"):
            if not isinstance(value, list) or not all(isinstance(token, str) for token in value):
                raise _LeftToTransformers
            if key == "additional_special_tokens" and "extra_special_tokens" in fields:
                continue
            before = list(fields.get("extra_special_tokens") or []) if key == "extra_special_tokens" else []
            fields["extra_special_tokens"] = [*before, *(token for token in value if token not in before)]
        elif isinstance(value, dict):
            named[key] = _added(**{**value, "special": True})
        elif isinstance(value, str):
            named[key] = value
        else:
            raise _LeftToTransformers


def _older_added(folder: Path, named: Mapping[str, Any], extra: Iterable[Any]) -> dict[int, Any]:
    """The tokens of added_tokens.json."""
    special = {str(named[key]) for key in _NAMES if named.get(key)} | {str(token) for token in extra}
    return {
        index: _added(content=text, normalized=text not in special, special=text in special)
        for text, index in _json(folder / "added_tokens.json").items()
    }


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template; of several, the default. Files of their own come before what the config has."""
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        files = {"default": folder / "chat_template.jinja", **files}
    if files:
        return files["default"].read_text(encoding="utf-8") or None if "default" in files else None
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {template["name"]: template["template"] for template in found}
    if isinstance(found, dict):
        found = found.get("default")
    return found or None


def _check_rebuilt(backend: Any, tokens: _Tokens) -> None:
    """Leave to transformers what a tokenizer made of the vocabulary alone may have otherwise."""
    from tokenizers.models import BPE

    there = backend.get_added_tokens_decoder()
    special = {token.content: token.special for token in there.values()}
    same = special == {token.content: token.special for token in tokens.added.values()}
    if not isinstance(backend.model, BPE) or not same or list(there) != sorted(there):
        raise _LeftToTransformers


def _put(backend: Any, normalizer: Any, pre_tokenizer: Any, decoder: Any, **flags: Any) -> None:
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, pre_tokenizer, decoder
    usual = {"unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "dropout": None}
    for name, flag in {**usual, **flags}.items():
        setattr(backend.model, name, flag)


def _llama(backend: Any, config: Mapping[str, Any]) -> None:
    from tokenizers import decoders, pre_tokenizers

    blank = config.get("add_prefix_space")
    blank = True if blank is None else bool(blank)
    legacy = config.get("legacy", False)
    scheme = "never" if not blank else "always" if legacy else "first"
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if blank else []
    metaspace = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    _put(backend, None, metaspace, decoders.Sequence(steps), fuse_unk=True, byte_fallback=True)


def _gemma(backend: Any, config: Mapping[str, Any]) -> None:
    from tokenizers import decoders, normalizers, pre_tokenizers

    _put(
        backend,
        normalizers.Replace(" ", "▁"),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        unk_token=str(config["unk_token"]),
        fuse_unk=True,
        byte_fallback=True,
    )


def _qwen2(backend: Any, config: Mapping[str, Any]) -> None:
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    blank = bool(config.get("add_prefix_space"))
    words = pre_tokenizers.Split(Regex(_QWEN2_WORDS), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=blank, use_regex=False)
    _put(backend, normalizers.NFC(), pre_tokenizers.Sequence([words, level]), decoders.ByteLevel())


def _gpt2(backend: Any, config: Mapping[str, Any]) -> None:
    from tokenizers import decoders, pre_tokenizers

    level = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space", False)))
    _put(backend, None, level, decoders.ByteLevel())


_END = "<|endoftext|>"
_CLASSES = {
    "GPT2Tokenizer": _Class(_gpt2, {"unk_token": _END, "bos_token": _END, "eos_token": _END}),
    "GemmaTokenizer": _Class(
        _gemma,
        {
            "unk_token": "<unk>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
    ),
    "LlamaTokenizer": _Class(_llama, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}),
    "Qwen2Tokenizer": _Class(_qwen2, {"unk_token": _END, "eos_token": _END, "pad_token": _END}, marks_special=True),
}
