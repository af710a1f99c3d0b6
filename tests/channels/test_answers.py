"""Answers as the messages that carry them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.channels.formatting import split_markdown, split_text, utf8_length, utf16_length


def test_ten_thousand_characters_are_three_messages_of_telegram() -> None:
    """Cut between paragraphs, in order."""
    paragraphs = [f"{number:03d} " + "x" * 494 for number in range(20)]
    text = "\n\n".join(paragraphs)
    assert len(text) > 9_990
    parts = split_markdown(text, 4096, size=utf16_length)
    assert len(parts) == 3
    assert "\n\n".join(parts) == text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("one two\n\nthree\nfour. five", ["one two", "three\nfour.", "five"]),
        ("aaaa bbbb. cccc dddd", ["aaaa bbbb.", "cccc dddd"]),
        ("我们明天去。你也来吗", ["我们明天去。", "你也来吗"]),
        ("x" * 25, ["x" * 12, "x" * 12, "x"]),
        ("\n\n  indented\nline", ["  indented", "line"]),
        ("a\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\nb", ["a", "b"]),
    ],
)
def test_a_cut_is_at_the_best_place_in_the_second_half(text: str, parts: list[str]) -> None:
    """A paragraph, a line, a sentence, a blank, else anywhere."""
    limit = 8 if "我" in text else 12
    assert list(split_text(text, limit)) == parts


def test_a_limit_in_bytes_cuts_between_characters() -> None:
    """Not inside of one."""
    parts = split_text("消" * 1000, 2048, size=utf8_length)
    assert [len(part) for part in parts] == [682, 318]


def test_telegram_counts_in_utf16() -> None:
    """An emoji counts twice."""
    assert [len(part) for part in split_text("😀" * 3000, 4096, size=utf16_length)] == [2048, 952]


@pytest.mark.parametrize("sign", ["👩\u200d👩\u200d👧", "e\u0301", "👍🏽", "❤\ufe0f"])
def test_a_sign_of_several_characters_is_not_cut(sign: str) -> None:
    """Families, accents and skin tones stay whole."""
    for part in split_text(sign * 100, 101):
        assert part == sign * (len(part) // len(sign))


@pytest.mark.parametrize(
    "marked", ["**Mind this. It matters.**", "`a. b.c`", "[the page. Really](https://example.org/a)"]
)
def test_a_cut_breaks_no_markup_of_a_line(marked: str) -> None:
    """Bold, code and links of one long paragraph stay in one message, as they were written."""
    parts = split_markdown(f"{marked} " * 900, 4096, size=utf16_length)
    assert len(parts) > 1
    assert sum(part.count(marked) for part in parts) == 900


def test_a_cut_in_markup_that_is_too_long_is_made() -> None:
    """There is no other place for it."""
    parts = split_markdown(f"**{'word ' * 2000}**", 4096, size=utf16_length)
    assert " ".join(parts) == f"**{'word ' * 2000}**"
    assert len(parts) == 3


def test_a_cut_is_behind_a_code_block_rather_than_in_it() -> None:
    """The marks of the closing fence are no open code."""
    block = "```\n" + "\n\n".join(["line()"] * 70) + "\n```"
    rest = "word " * 100
    parts = split_markdown(f"{block}\n\n{rest}", 800)
    assert parts[0] == block


def test_a_power_is_no_bold() -> None:
    """Two asterisks between blanks open nothing."""
    parts = split_markdown(f"2 ** 3 {'word ' * 30}\n{'word ' * 90}", 400)
    assert parts[0] == f"2 ** 3 {'word ' * 30}".rstrip()


def test_a_code_block_that_is_cut_goes_on_as_one() -> None:
    """It is closed at the end of a message and opened again, with its language, in the next one."""
    code = "\n".join(f"    line_{number}()" for number in range(300))
    parts = split_markdown(f"Look:\n\n```python\n{code}\n```\n\nThat is all.", 1000)
    assert len(parts) > 3
    assert all(len(part) <= 1000 for part in parts)
    assert parts[0].endswith("\n```")
    assert all(part.startswith("```python\n") and part.count("```") == 2 for part in parts[1:])
    inside = "\n".join(part.removeprefix("```python\n").removesuffix("\n```") for part in parts)
    assert [line for line in inside.split("\n") if "line_" in line] == code.split("\n")


@given(st.text(st.sampled_from("ab \n.。`~#\u0301😀"), max_size=400), st.integers(1, 40))
def test_nothing_but_blanks_is_lost(text: str, limit: int) -> None:
    """Whatever the text and the limit."""
    parts = split_text(text, limit)
    assert all(part.strip() and len(part) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@given(st.text(st.sampled_from("ab \n`~"), max_size=2000), st.integers(150, 400))
def test_the_lines_of_a_code_block_fit(text: str, limit: int) -> None:
    """A part with the lines that were added is not longer than the limit, and code blocks are never left open."""
    parts = split_markdown(text, limit)
    assert all(len(part) <= limit for part in parts)
    sent = iter([sign for part in parts for sign in part if sign in "ab"])
    assert all(sign in sent for sign in text if sign in "ab")
