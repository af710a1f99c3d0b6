"""Tests of search terms: words are found in any case on both engines."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

from threadkeep.store.search_terms import (
    fingerprints,
    rarity,
    relevance,
    relevance_words,
    search_terms,
    term_pattern,
    trigram_expression,
)

_CASED = [char for char in map(chr, range(0x20000)) if char.lower() != char or char.upper() != char]


def test_a_pattern_matches_every_text_with_its_term() -> None:
    """The check of the text keeps every text that the index returns, in any case."""
    for char in _CASED:
        for term in search_terms(f"a{char}"):
            assert re.search(term_pattern(term), f"a{char}"), (char, term)


def test_relevance_folds_case_like_fts5() -> None:
    """A text that SQLite's index finds in another case also passes the check of the text."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE VIRTUAL TABLE texts USING fts5 (content, tokenize = 'trigram')")
        database.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab (texts, 'instance')")
        rows = [(ord(char), f"zz{char}") for char in _CASED]
        database.executemany("INSERT INTO texts (rowid, content) VALUES (?, ?)", rows)
        tokens = database.execute("SELECT doc, term FROM tokens").fetchall()
    assert len(tokens) == len(_CASED)
    for place, token in tokens:
        assert relevance(f"zz{chr(place)}", relevance_words([token], [1.0])) is not None, (chr(place), token)


def test_a_fingerprint_has_two_bytes() -> None:
    """A fingerprint is the same in every process, and fingerprints use nearly all values."""
    assert fingerprints(["refund", "退款", "refund"]) == [-28292, 3583]
    many = fingerprints(map(str, range(200_000)))
    assert (min(many), max(many)) == (-0x8000, 0x7FFF)
    assert len(many) > 62_000


def test_the_trigrams_of_a_query_are_bounded() -> None:
    """Each trigram appears once and quoted; a very long query has 64 of them."""
    assert trigram_expression(["abcd", "xabc", 'a"b', "ab"]) == '"abc" "bcd" "xab" "a""b"'
    assert len(trigram_expression(map(str, range(10_000))).split()) == 64
    assert trigram_expression(["abit"]) == '("abi" OR "abİ") AND ("bit" OR "bİt")'
    assert trigram_expression(["kite", "abc"]) == '"abc" AND ("kit" OR "kİt") AND ("ite" OR "İte")'


def test_relevance_needs_all_words() -> None:
    """Relevance rises with the number of matches and the rarity of a word, and falls with the length of the text."""
    words = relevance_words(["Refund", "order"], [rarity(2, 1000), rarity(900, 1000)])
    assert relevance("refunds only", words) is None
    once = relevance("REFUND beside an order", words)
    twice = relevance("REFUND refund an order", words)
    common = relevance("order refund an order", words)
    longer = relevance("REFUND beside an order" + " and more" * 100, words)
    scores = [score for score in (twice, common, once, longer) if score is not None]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] > 0
    assert rarity(1000, 1000) > 0
