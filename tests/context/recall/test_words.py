"""Tests of words and stems."""

from __future__ import annotations

import pytest

from threadkeep.context.recall.words import WordTable, stem, terms_of, words_of


@pytest.mark.parametrize(
    "forms",
    [
        "adopt adopts adopted adopting adoption", "run runs ran running runner", "hike hikes hiking hiked",
        "create created creating creation creative", "story stories", "music musician musical",
        "child children",
        "organize organized organizing organization", "photo photos photography photographer",
        "happy happily happiness",
        "class classes", "write wrote written writing",
        "рыбака рыбаков", "лодка лодку", "المهندسة مهندسة", "βιβλιοθήκη βιβλιοθήκης",
    ],
)  # fmt: skip
def test_forms_of_a_word_have_one_stem(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("bus", "busy"), ("news", "new"), ("king", "kin"), ("sing", "sin"), ("red", "r")]
)
def test_different_words_keep_different_stems(one: str, other: str) -> None:
    assert stem(one) != stem(other)


def test_stop_words_and_marks_are_no_terms() -> None:
    assert list(terms_of(words_of("I've been to the Château’s party, haven't you?"))) == ["chateau", "parti"]


def test_unspaced_scripts_give_characters_and_pairs() -> None:
    assert list(terms_of(words_of("我的橘猫"))) == ["橘", "猫", "橘猫"]


def test_full_width_and_accents_are_made_plain() -> None:
    assert words_of("ＡＢＣ Crème") == ["abc", "creme"]


def test_long_words_are_not_cached() -> None:
    """The table does not cache long words, because each message may contain different ones."""
    table = WordTable(len)
    assert [table[word] for word in ("word", "w" * 5_000)] == [4, 5_000]
    assert list(table) == ["word"]
