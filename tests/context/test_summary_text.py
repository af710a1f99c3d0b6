"""Tests of the text of a summary: prose and lines of facts."""

from __future__ import annotations

import pytest

from threadkeep.context.compression import SummaryText, fitting_facts, merged_facts


@pytest.mark.parametrize(
    ("text", "prose", "facts"),
    [
        ("They met.", "They met.", ()),
        ("They met.\n\nFacts:\n- Ann is 40.\n- Bob's code is X.", "They met.", ("Ann is 40.", "Bob's code is X.")),
        ("They met.\n## Facts\n* Ann is 40.\nThey parted.", "They met.\nThey parted.", ("Ann is 40.",)),
        ("**Facts:**\n• 安今年四十。", "", ("安今年四十。",)),
        ("Facts:\nNone.", "Facts:\nNone.", ()),
        ("Facts: Ann is 40.", "Facts: Ann is 40.", ()),
        (f"They met.\nFacts:\n- {'a' * 301}\n- Ann is 40.", f"They met.\n- {'a' * 301}", ("Ann is 40.",)),
    ],
)
def test_facts_are_read_below_their_heading(text: str, prose: str, facts: tuple[str, ...]) -> None:
    """Facts are read with any list mark; other lines, and very long ones, are prose."""
    read = SummaryText.read(text)
    assert (read.prose, read.facts) == (prose, facts)
    assert SummaryText.read(read.render()) == read


def test_a_repeated_fact_is_held_once() -> None:
    texts = [SummaryText("", ("Ann is 40.", "Bob is 50.")), SummaryText("", ("ann is 40",))]
    assert merged_facts(texts) == ("Bob is 50.", "ann is 40")


def test_facts_that_differ_in_a_mark_are_two() -> None:
    """Facts that differ in a decimal point, a sign or a vowel mark are different."""
    facts = ("Ann takes 1.5 mg.", "Ann takes 15 mg.", "The limit is -5.", "The limit is 5.", "कमल दिन", "कमल दीन")
    assert merged_facts([SummaryText("", facts)]) == facts


def test_prose_is_cut_before_facts() -> None:
    text = SummaryText("word " * 100, ("old fact one", "new fact two")).within(200, 25, len)
    assert text.facts == ("new fact two",)
    assert len(text.render()) <= 200
    assert text.prose.endswith("[cut]")
    assert fitting_facts(("a fact that is too long",), 10, len) == ()
