"""Tokenizers out of files: what transformers makes of the same folder, without it; else by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from kvz.errors import ModelError
from kvz.models.cache_folder import cache_folder, is_complete
from kvz.models.chat_template import ChatTemplate
from kvz.models.embedded import embedded_path
from kvz.models.tokenizer import Tokenizer
from kvz.models.tokenizer_files import parts_from_files
from kvz.models.tokenizer_parts import TokenizerParts
from tests.sentencepiece import KINDS, TEMPLATES, make_blank_tokenizer
from tests.tiny import CHAT_TEMPLATE, make_tokenizer

TEXTS = (
    "",
    " ",
    "a",
    "The  harbour office opens at 7: tickets cost 1234567 crowns,\n\n\tisn't it?  ",
    "e\u0301 é 你好 🙂 \u00a0 \u200d ﬁ \r\n x",
    "The quick brown fox, 1234567890 — naïve café.\n\n\tdef f(x):\n    return x  # 数据 🙂\n",  # the fingerprint's
    "<s>a</s> <|im_start|>user\n hello<|im_end|>\n<|endoftext|> <mask> <pad><eos> [INST]▁b <|user|> x <think>",
)
MESSAGES = [{"role": "system", "content": " be brief "}, {"role": "user", "content": "what?\n{{ x }}"}]


def compare(folder: Path) -> None:
    """Everything that kvz asks a tokenizer for."""
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    parts = parts_from_files(folder)
    assert parts is not None
    ours, want = Tokenizer(parts), Tokenizer(TokenizerParts.from_transformers(theirs))
    assert ours.vocabulary == dict(theirs.get_vocab())
    assert ours.control_ids == want.control_ids
    assert (ours.begin_ids, ours.end_id) == (want.begin_ids, theirs.eos_token_id)
    assert ours.template == want.template
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode_template(text) == ids
        for continues in (False, True):
            assert plain(ours, text, continues) == plain(want, text, continues)
        for control in (True, False):
            assert ours.decode(ids, control) == theirs.decode(ids, skip_special_tokens=not control)
    if ours.template is not None:
        text = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
        assert ours.render(MESSAGES, True) == text


def plain(tokenizer: Tokenizer, text: str, continues: bool) -> list[int] | str:
    try:
        return tokenizer.encode_plain(text, continues)
    except ModelError as error:  # an unknown character, where that is a control token
        return str(error)


def folder_of(folder: Path, tokenizer: Any, kind: str = "llama", **config: Any) -> Path:
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return edited(folder, "tokenizer_config.json", **config)


def edited(folder: Path, name: str, **changes: Any) -> Path:
    path = folder / name
    fields = {**(json.loads(path.read_text()) if path.is_file() else {}), **changes}
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not ...}))
    return folder


def byte_level(*special: str, digits: bool = False) -> Any:
    """As GPT-2, Qwen2 and Llama 3 have it, with some merges; with `digits` apart, as SmolLM2."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("t", "he"), ("Ġ", "the"), ("1", "2"), ("12", "3"), ("Ċ", "Ċ"), ("'", "t")]
    tokens = [*special, *alphabet, *("".join(merge) for merge in merges)]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    first = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, level])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token) for token in special])
    return backend


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "phi3", "granite", "gemma3_text", "mistral", "smollm3"])
@pytest.mark.parametrize(
    "name",
    [
        None,
        "TokenizersBackend",
        "PreTrainedTokenizerFast",
        "GPT2Tokenizer",
        "GPT2TokenizerFast",
        "Qwen2Tokenizer",
        "LlamaTokenizer",
        "LlamaTokenizerFast",
        "GemmaTokenizer",
    ],
)
@pytest.mark.parametrize("digits", [True, False])
def test_classes_over_a_byte_level_vocabulary(tmp_path, kind, name, digits):
    backend = byte_level("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "<s>", digits=digits)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.add_tokens(["<think>", "\t\t"])
    tokenizer.chat_template = CHAT_TEMPLATE
    compare(folder_of(tmp_path, tokenizer, kind, tokenizer_class=... if name is None else name))


@pytest.mark.parametrize("name", ["TokenizersBackend", "LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [{}, {"legacy": True}, {"legacy": None}, {"add_prefix_space": False}], ids=str)
def test_classes_over_a_vocabulary_of_sentencepiece(tmp_path, kind, name, config):
    tokenizer = make_blank_tokenizer(kind, TEMPLATES[0])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    compare(folder_of(tmp_path, tokenizer, tokenizer_class=name, **config))


@pytest.mark.parametrize(
    "config",
    [
        {"additional_special_tokens": ["<|im_start|>", "<|new|>"]},
        {"extra_special_tokens": {"image_token": "<image>"}, "boi_token": "<think>"},
        {"bos_token": {"__type": "AddedToken", "content": "<|im_start|>", "lstrip": True}},
        {"pad_token": None, "unk_token": "<unheard>", "split_special_tokens": True},
        {"added_tokens_decoder": {"1": {"content": "<|im_start|>", "rstrip": True, "special": True}}},
        {"added_tokens_decoder": {"259": {"content": "<|new|>", "special": False, "normalized": True}}},
        {"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]},
        {"add_bos_token": True, "add_eos_token": True, "clean_up_tokenization_spaces": True},
    ],
    ids=lambda config: next(iter(config)),
)
def test_what_tokenizer_config_may_say(tmp_path, config):
    folder = folder_of(tmp_path, make_tokenizer(None, extra=("<think>",)), **config)
    compare(folder)
    edited(folder, "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer")
    if "added_tokens_decoder" not in config:
        compare(folder)


def test_files_of_older_releases(tmp_path):
    folder = folder_of(tmp_path, make_tokenizer(extra=("<think>",)))
    tokens = {"bos_token": {"content": "<|im_start|>", "rstrip": True}, "cls_token": "<cls>"}
    edited(folder, "special_tokens_map.json", **tokens, additional_special_tokens=["<|x|>"])
    compare(folder)
    edited(folder, "added_tokens.json", **{"<|x|>": 260, "<old>": 261})
    compare(folder)


def test_templates_in_files_of_their_own(tmp_path):
    folder = folder_of(tmp_path, make_tokenizer(None), chat_template="{{ 'of the config' }}")
    compare(folder)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool.jinja").write_text("tool")
    compare(folder)
    (folder / "chat_template.jinja").write_text("{{ 'own' }}\r\n")
    compare(folder)
    assert Tokenizer.load(folder).render(MESSAGES, True) == "own"


def test_tokens_that_differ_in_a_rebuilt_tokenizer_are_left_to_transformers(tmp_path):
    config = {"added_tokens_decoder": {"0": {"content": "<|endoftext|>", "special": True}}}
    folder = folder_of(tmp_path, make_tokenizer(), "qwen3", tokenizer_class="Qwen2Tokenizer", **config)
    assert parts_from_files(folder) is None
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert Tokenizer.load(folder).vocabulary == theirs.get_vocab()


def test_classes_that_are_not_known_are_left_to_transformers(tmp_path):
    folder = folder_of(tmp_path, make_tokenizer(), tokenizer_class="CodeLlamaTokenizer")
    assert parts_from_files(folder) is None
    assert Tokenizer.load(folder).end_id == 2


def test_a_folder_with_a_vocabulary_alone_is_left_to_transformers(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    edited(tmp_path, "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer")
    assert parts_from_files(tmp_path) is None
    assert Tokenizer.load(tmp_path).encode_plain("abb") == [3, 2]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": 1}'])
def test_a_damaged_file(tmp_path, name, text):
    folder = folder_of(tmp_path, make_tokenizer())
    (folder / name).write_text(text)
    if (name, text) == ("tokenizer_config.json", "{}") or (name, text) == ("tokenizer_config.json", '{"model": 1}'):
        return compare(folder)
    with pytest.raises(ModelError, match="cannot load the tokenizer in"):
        Tokenizer.load(folder)
    return None


@pytest.mark.model
def test_the_embedded_model_s(embedded):
    compare(embedded_path())


@pytest.mark.model
def test_gemma_s():
    folder = cache_folder() / "tests" / "gemma-3-270m"
    if not is_complete(folder):
        pytest.skip("Gemma 3 270M is not fetched")
    compare(folder)


@pytest.mark.parametrize(
    "template",
    [
        "  {% if true %}\n x\n  {% endif %}\n",
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}",
        "{{ {'b': '<é>', 'a': [1, 2]} | tojson(indent=2) }}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}{{ dict(a=1).a }}{{ bos_token }}{{ none_such }}",
        "{{ strftime_now('%Y') }}{{ tools is none }}{{ documents is defined }}{{ add_generation_prompt }}",
        "{{ messages[0]['content'].strip().split(' ') | join('-') | upper | trim }}{{ messages | length }}",
    ],
)
def test_templates_render_as_in_transformers(template):
    tokenizer = make_tokenizer(template)
    tokenizer.bos_token = "<|im_start|>"
    ours = ChatTemplate(template, tokenizer.special_tokens_map)
    for prompt in (True, False):
        want = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=prompt)
        assert ours.render(MESSAGES, prompt) == want


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system role') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.x }}",
        "{% set ns = namespace(_a=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% if %}",
    ],
)
def test_templates_fail_as_in_transformers(template):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whichever it is
        make_tokenizer(template).apply_chat_template(MESSAGES, tokenize=False)
    with pytest.raises(type(theirs.value)):
        ChatTemplate(template, {}).render(MESSAGES, False)
