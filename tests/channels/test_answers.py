"""Tests of splitting replies into messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.channels.formatting import split_markdown, split_text, utf8_length, utf16_length


def test_a_reply_is_split_between_paragraphs() -> None:
    """A reply of 10,000 characters is three messages of Telegram."""
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
        ("aaaa bbb ccc dddd", ["aaaa bbb ccc", "dddd"]),  # the first part has exactly 12 characters
        ("我们明天去。你也来吗", ["我们明天去。", "你也来吗"]),
        ("x" * 25, ["x" * 12, "x" * 12, "x"]),
        ("\n\n  indented\nline", ["  indented", "line"]),
        ("a\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\nb", ["a", "b"]),
    ],
)
def test_a_text_is_split_at_the_best_position(text: str, parts: list[str]) -> None:
    """A part ends in its second half, if possible at the end of a paragraph, else of a line, a sentence or a word."""
    limit = 8 if "我" in text else 12
    assert list(split_text(text, limit)) == parts


def test_a_limit_in_bytes_splits_between_characters() -> None:
    parts = split_text("消" * 1000, 2048, size=utf8_length)
    assert [len(part) for part in parts] == [682, 318]


def test_telegram_counts_in_utf16() -> None:
    assert [len(part) for part in split_text("😀" * 3000, 4096, size=utf16_length)] == [2048, 952]


@pytest.mark.parametrize("sign", ["👩\u200d👩\u200d👧", "e\u0301", "👍🏻", "👍🏿", "❤\ufe0f"])
def test_grapheme_clusters_are_not_split(sign: str) -> None:
    for part in split_text(sign * 100, 101):
        assert part == sign * (len(part) // len(sign))


@pytest.mark.parametrize(
    "marked", ["**Mind this. It matters.**", "`a. b.c`", "[the page. Really](https://example.org/a)"]
)
def test_inline_markup_is_not_split(marked: str) -> None:
    parts = split_markdown(f"{marked} " * 900, 4096, size=utf16_length)
    assert len(parts) > 1
    assert sum(part.count(marked) for part in parts) == 900


def test_markup_longer_than_a_part_is_split() -> None:
    parts = split_markdown(f"**{'word ' * 2000}**", 4096, size=utf16_length)
    assert " ".join(parts) == f"**{'word ' * 2000}**"
    assert len(parts) == 3


def test_a_text_is_split_after_a_code_block() -> None:
    """The closing fence does not count as an opening one."""
    block = "```\n" + "\n\n".join(["line()"] * 70) + "\n```"
    rest = "word " * 100
    parts = split_markdown(f"{block}\n\n{rest}", 800)
    assert parts[0] == block


def test_asterisks_between_blanks_are_not_markup() -> None:
    parts = split_markdown(f"2 ** 3 {'word ' * 30}\n{'word ' * 90}", 400)
    assert parts[0] == f"2 ** 3 {'word ' * 30}".rstrip()


def test_a_split_code_block_is_closed_and_reopened() -> None:
    code = "\n".join(f"    line_{number}()" for number in range(300))
    parts = split_markdown(f"Look:\n\n```python\n{code}\n```\n\nThat is all.", 1000)
    assert len(parts) > 3
    assert all(len(part) <= 1000 for part in parts)
    assert parts[0].endswith("\n```")
    assert all(part.startswith("```python\n") and part.count("```") == 2 for part in parts[1:])
    inside = "\n".join(part.removeprefix("```python\n").removesuffix("\n```") for part in parts)
    assert [line for line in inside.split("\n") if "line_" in line] == code.split("\n")


@given(st.text(st.sampled_from("ab \n.。`~#\u0301😀"), max_size=400), st.integers(1, 40))
def test_only_white_space_is_lost(text: str, limit: int) -> None:
    parts = split_text(text, limit)
    assert all(part.strip() and len(part) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@given(st.text(st.sampled_from("ab \n`~"), max_size=2000), st.integers(150, 400))
def test_the_lines_of_a_code_block_fit(text: str, limit: int) -> None:
    """Parts with added fences stay within the limit, and no character is lost."""
    parts = split_markdown(text, limit)
    assert all(len(part) <= limit for part in parts)
    sent = iter([sign for part in parts for sign in part if sign in "ab"])
    assert all(sign in sent for sign in text if sign in "ab")
