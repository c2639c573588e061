"""Texts of the user's in scripts without spaces, or with other full stops: they are what things are hidden in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvz.bench.tasks.haystack import read_haystack, written_sentences
from kvz.bench.tasks.registry import make_task
from kvz.bench.tasks.units import cut, units_of
from tests.bench.tasks.conftest import words

CHINESE = "船在黎明时分离开港口。潮水很低！谁在看守灯塔？老人说：“没有人。”他笑了……风停了。"
JAPANESE = "船は夜明けに港を出た。潮は低かった！灯台には誰がいるのか？誰もいない。"
THAI = "เรือออกจากท่าเรือตอนรุ่งสางและน้ำลงต่ำมากจนไม่มีใครมองเห็นประภาคารที่อยู่ไกลออกไป"
HINDI = "नाव भोर में बंदरगाह से निकली। ज्वार नीचा था। प्रकाशस्तंभ में कौन है?"
ARABIC = "غادرت السفينة الميناء عند الفجر. من يحرس المنارة؟ لا أحد هناك۔ سكنت الريح."
RUSSIAN = "Корабль вышел из гавани на рассвете. Отлив… Кто на маяке? Никого нет."
VIETNAMESE = "Con tàu rời bến lúc bình minh. Thủy triều rất thấp. Ai ở ngọn hải đăng? Không có ai ở đó."
EMOJI = "👩‍👩‍👧‍👦👍🏽🚢🌊" * 30
BASE64 = "aGVsbG8gd29ybGQgdGhpcyBpcyBhIGxpbmU" * 40
SCRIPTS = [CHINESE, JAPANESE, THAI, HINDI, ARABIC, RUSSIAN, VIETNAMESE, EMOJI, BASE64]
NEEDLE = re.compile(r"The number of the locker called \S+ is \d+\.")


def sentences(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "a.txt").write_text(text, encoding="utf-8")
    [paragraph] = read_haystack(folder).paragraphs
    return tuple(sentence.strip() for sentence in paragraph)


def test_sentences_end_where_their_script_ends_them(tmp_path):
    assert sentences(tmp_path, CHINESE) == (
        "船在黎明时分离开港口。", "潮水很低！", "谁在看守灯塔？", "老人说：“没有人。”", "他笑了……", "风停了。"
    )  # fmt: skip
    assert sentences(tmp_path, JAPANESE) == (
        "船は夜明けに港を出た。", "潮は低かった！", "灯台には誰がいるのか？", "誰もいない。"
    )  # fmt: skip
    assert sentences(tmp_path, HINDI) == ("नाव भोर में बंदरगाह से निकली।", "ज्वार नीचा था।", "प्रकाशस्तंभ में कौन है?")
    assert len(sentences(tmp_path, ARABIC)) == 4
    assert sentences(tmp_path, RUSSIAN)[1] == "Отлив…"
    assert sentences(tmp_path, THAI) == (THAI,)


@pytest.mark.parametrize("text", SCRIPTS, ids=range(len(SCRIPTS)))
def test_a_users_text_is_all_that_surrounds_a_needle(tmp_path, text, counter):
    counter = len if counter is words else counter  # where there are no words, their number says nothing
    (tmp_path / "a.txt").write_text(text * 50, encoding="utf-8")
    samples = make_task("needle", texts=tmp_path).samples(counter, 700, 3, 0)
    letters = set(text)
    for number, sample in enumerate(samples):
        assert abs(counter(sample.context) - 700) <= 14
        before, after = NEEDLE.split(sample.context)
        around = before + after
        assert "The rain" not in around, "words of noise stand in for the text"
        assert set(around) <= letters | {" "}
        assert len(around.strip()) > 0
        if text in (CHINESE, JAPANESE, HINDI):
            assert abs(len(before) / len(around) - number / 2) < 0.15


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("The ship’s captain — naïve — left.", 7),
        ("cafe\u0301 au lait", 3),
        ("港口。", 3),
        ("ship港口ship", 4),
        ("Кто там", 6),
        ("Việt Nam tiếng nói", 4),
        ("o\ufb03ce for €100", 3),
        ("🇩🇪🇫🇷", 2),
        ("ที่", 1),
        ("की", 1),
        ("👩‍👩‍👧", 1),
        ("👍🏽👍", 2),
        ("x" * 33, 9),
        ("x" * 32, 1),
    ],
)
def test_units_by_hand(text, units):
    assert units_of(text) == units
    assert cut(text, units) == text
    assert cut(text, units + 5) == text
    assert cut(text, 0) == ""
    for count in range(1, units):
        part = cut(text, count)
        assert text.startswith(part)
        assert len(part) < len(text)


def test_a_cut_tears_no_character():
    assert [cut("ที่นี่", n) for n in range(3)] == ["", "ที่", "ที่นี่"]
    assert cut("👩‍👩‍👧👍🏽", 1) == "👩‍👩‍👧"
    assert cut("a  b\nc d", 3) == "a b c"
    assert len(cut("Z" + "\u0301" * 500, 1)) == 8


@pytest.mark.parametrize(
    "text",
    [
        "天地玄黄宇宙洪荒日月盈昃辰宿列张" * 60,
        THAI * 12,
        "word " * 900,
        "x=1;y=2;\n" * 300,
        "In the year 5 it was 15. " * 99,
    ],
    ids=["chinese", "thai", "words", "code", "digits"],
)
def test_needles_lie_at_their_depths_where_no_sentence_ends(tmp_path, text):
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    for number, sample in enumerate(make_task("needle", texts=tmp_path).samples(len, 4000, 5, 0)):
        before, after = NEEDLE.split(sample.context)
        assert len(before) / len(before + after) == pytest.approx(number / 4, abs=0.12)


def test_long_sentences_are_parted_between_words_and_never_within_a_character():
    for text in ("word " * 300, "ที่" * 400, "x" * 1000):
        parts = written_sentences(text)
        assert "".join(parts) == text
        assert len(parts) > 1
        assert max(map(len, parts)) <= 402
    assert all(part.endswith("word ") for part in written_sentences("word " * 300))
    assert all(not part.startswith("\u0e35") for part in written_sentences("ที่" * 400))
