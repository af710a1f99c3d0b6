"""Tests of recalling facts for an input: which scopes, and in which order."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.knowledge.test_facts import ADA, BOB, ROOM, SHOP, begin
from tests.recorded_events import RecordedEvents
from threadkeep import Memory
from threadkeep.context.recall.words import words_of
from threadkeep.knowledge import recall
from threadkeep.knowledge.recall import take_of_each
from threadkeep.knowledge.rows import fact_of
from threadkeep.observe import ExtraNotFound
from threadkeep.records.knowledge import Fact
from threadkeep.store.driver import Row
from threadkeep.testing import SettableClock


def test_each_scope_has_a_share_and_no_statement_is_repeated() -> None:
    """Three facts of [dup], [dup, workspace] and [user] are one of each scope."""
    found = [["dup"], ["dup", "workspace"], ["user"]]
    assert take_of_each(found, 3, lambda text: [text]) == ["dup", "workspace", "user"]
    assert take_of_each([["a", "b", "c"], ["d"], ["e"]], 3, lambda text: [text]) == ["a", "d", "e"]
    assert take_of_each([["a", "b", "c"], ["d"], ["e"]], 9, lambda text: [text]) == ["a", "b", "c", "d", "e"]
    assert take_of_each([["a"], [], ["c"]], 0, lambda text: [text]) == []


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=4), st.integers(0, 12))
def test_each_scope_gets_its_part(found: list[list[int]], limit: int) -> None:
    """The result has no duplicates, is full up to the limit, and has the best fact of each scope."""
    taken = take_of_each(found, limit, lambda number: [str(number)])
    everything = {number for numbers in found for number in numbers}
    assert len(taken) == len(set(taken)) == min(limit, len(everything))
    if limit >= len(found):
        assert all(numbers[0] in taken for numbers in found if numbers)


@pytest.mark.slow
async def test_an_old_fact_is_found_behind_thousands_of_newer_ones(memory: Memory, clock: SettableClock) -> None:
    old = await memory.knowledge.remember(ADA, "home_city", "Lisbon")
    newer = [replace(old, id=f"fact {n}", key=f"key {n}", evidence=(), value=f"word {n}") for n in range(2_500)]
    await memory.knowledge.restore([replace(fact, updated_at=clock() + timedelta(1)) for fact in newer])
    found = await memory.knowledge.recall("Which town do I live in?", [ADA])
    assert [fact.id for fact in found] == [old.id]


async def test_many_facts_are_read_outside_of_the_event_loop(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep.knowledge.facts._COMPUTED_AT_ONCE", 2)
    for key in ("home_city", "home_street", "home_number"):
        await memory.knowledge.remember(ADA, key, "unknown")
    threads: set[int] = set()

    def noted(row: Row) -> Fact:
        threads.add(threading.get_ident())
        return fact_of(row)

    monkeypatch.setattr("threadkeep.knowledge.facts.fact_of", noted)
    assert len(await memory.knowledge.recall("Where is my home?", [ADA])) == 3
    assert threads
    assert threading.get_ident() not in threads


async def test_the_words_of_long_chinese_facts_take_little_memory(memory: Memory) -> None:
    """The index of a hundred facts with 1,000 characters each takes less than 4 MB; sets of terms took 20 MB."""
    first = await memory.knowledge.remember(ADA, "note", "x")
    words = ["".join(chr(0x4E00 + 5 * number + letter) for letter in range(5)) for number in range(400)]
    texts = ["，".join(Random(number).choices(words, k=200)) for number in range(100)]
    facts = [replace(first, id=f"fact {n}", key=f"note_{n}", value=text) for n, text in enumerate(texts)]
    gc.collect()
    tracemalloc.start()
    try:
        found = await memory.knowledge.rank(f"{texts[7][:29]}在哪里？", facts)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found[0].key == "note_7"
    assert taken < 4_000_000


async def test_facts_are_indexed_once_until_many_of_them_are_old(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranking a few of an owner's facts keeps the index of the others; an index of old values is replaced."""
    first = await memory.knowledge.remember(ADA, "note", "x")
    facts = [replace(first, id=f"fact {n}", key=f"note_{n}", value=f"word{n}") for n in range(900)]
    read: list[str] = []

    def noted_words_of(text: str) -> list[str]:
        read.append(text)
        return words_of(text)

    monkeypatch.setattr(recall, "words_of", noted_words_of)
    for some, texts in ((facts, 1_800), (facts[:3], 0), (facts, 0)):
        read.clear()
        assert (await memory.knowledge.rank("word2", some))[0].key == "note_2"
        assert len(read) == texts
    for number in range(1_500):
        await memory.knowledge.rank("word2", [replace(first, value=f"old{number}")])
    read.clear()
    await memory.knowledge.rank("word2", facts[:3])
    assert len(read) == 6


async def test_facts_are_found_by_other_words_than_their_own(memory: Memory) -> None:
    """Related words match, and unrelated facts are not returned."""
    facts = {
        "diet": "vegetarian",
        "preferred_language": "German",
        "editor.theme": "dark",
        "homeCity": "Lisbon",
        "dog_name": "Rex",
        "job": "nurse at a hospital",
    }
    for key, value in facts.items():
        await memory.knowledge.remember(ADA, key, value)
    for query, key in (
        ("Which town do I live in?", "home_city"),
        ("What is my dog called?", "dog_name"),
        ("What theme does my editor have?", "editor.theme"),
        ("What should a vegetarian cook?", "diet"),
    ):
        found = await memory.knowledge.recall(query, [ADA])
        assert found[0].key == key, query
    assert await memory.knowledge.recall("quantum chromodynamics", [ADA]) == []
    assert await memory.knowledge.recall("", [ADA]) == []


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("Where do I live?", "home_city"),
        ("Who am I married to?", "partner"),
        ("When was I born?", "birthday"),
        ("What can I eat?", "diet"),
        ("Who pays my salary?", "employer"),
        ("How tall am I?", "height"),
        ("How should you write to me?", "reply_style"),
    ],
)
async def test_a_question_finds_the_attribute_that_it_asks_for(memory: Memory, query: str, key: str) -> None:
    """The question has no word in common with the key or the value."""
    facts = {
        "home_city": "Lisbon", "partner": "Kim", "birthday": "3 May", "diet": "vegan",
        "employer": "a bank", "height": "1.82 m", "reply_style": "short and dry",
    }  # fmt: skip
    for name, value in facts.items():
        await memory.knowledge.remember(ADA, name, value)
    assert (await memory.knowledge.recall(query, [ADA]))[0].key == key


class Embedder:
    """An embedding model with two meanings, which can fail or hang."""

    name = "two"

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.fault = ""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text."""
        self.texts += texts
        return [await self.embed_query(text) for text in texts]

    async def embed_query(self, text: str) -> Sequence[float]:
        """Return the vector of a text: about vessels, or not."""
        if self.fault == "fails":
            raise RuntimeError("no such model")
        if self.fault == "hangs":
            await asyncio.Event().wait()
        return [1.0, 0.0] if {"ketch", "sailing"} & set(text.split()) else [0.0, 1.0]


async def test_an_embedder_finds_facts_that_share_no_word(memory: Memory) -> None:
    """Each fact is embedded once; a newer fact is embedded at the next query."""
    embedder = Embedder()
    for key, value in (("possession", "a ketch"), ("gift", "a lamp"), ("rule", "no shoes"), ("mood", "calm")):
        await memory.knowledge.remember(ADA, key, value)
    assert await memory.knowledge.recall("sailing", [ADA]) == []
    for _ in range(2):
        found = await memory.knowledge.recall("sailing", [ADA], embedder=embedder)
        assert [fact.value for fact in found] == ["a ketch"]
    assert sorted(embedder.texts) == ["gift: a lamp", "mood: calm", "possession: a ketch", "rule: no shoes"]
    await memory.knowledge.remember(ADA, "plan", "buy another ketch")
    found = await memory.knowledge.recall("sailing", [ADA], embedder=embedder)
    assert {fact.key for fact in found} == {"possession", "plan"}
    assert await memory.knowledge.recall("sailing", [BOB], embedder=embedder) == []


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_words_find_facts_when_the_embedder_does_not_work(
    memory: Memory, events: RecordedEvents, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("threadkeep.knowledge.recall._EMBEDDING_SECONDS", 0.05)
    embedder = Embedder()
    embedder.fault = fault
    await memory.knowledge.remember(ADA, "dog_name", "Rex")
    found = await memory.knowledge.recall("What is my dog called?", [ADA], embedder=embedder)
    assert [fact.value for fact in found] == ["Rex"]
    [event] = events.of(ExtraNotFound)
    assert (event.section, event.error) == ("facts", "RuntimeError" if fault == "fails" else "TimeoutError")


async def test_facts_in_a_script_without_spaces_are_found(memory: Memory) -> None:
    await memory.knowledge.remember(ADA, "城市", "我住在北京")
    await memory.knowledge.remember(ADA, "食物", "喜欢吃辣的川菜")
    found = await memory.knowledge.recall("你知道我住在哪个城市吗？", [ADA])
    assert found[0].key == "城市"


@pytest.mark.parametrize("query", ["istanbul", "İstanbul", "İSTANBUL", "i\u0307stanbul"])
async def test_accents_do_not_hide_facts(memory: Memory, query: str) -> None:
    """The lower case of İ is i with a separate dot."""
    await memory.knowledge.remember(ADA, "home_city", "İstanbul")
    await memory.knowledge.remember(ADA, "office", "i\u0307stanbul")
    await memory.knowledge.remember(ADA, "pet", "a cat")
    assert {fact.key for fact in await memory.knowledge.recall(query, [ADA])} == {"home_city", "office"}


async def test_recent_messages_are_part_of_the_query(memory: Memory) -> None:
    """The new message alone has no word about a dog."""
    await memory.knowledge.remember(ADA, "dog_name", "Rex")
    recent = ["I have to buy food for my dog.", "Sure, which kind?"]
    found = await memory.knowledge.recall("What is it called again?", [ADA], recent=recent)
    assert [fact.value for fact in found] == ["Rex"]


async def test_the_most_specific_scope_wins(memory: Memory) -> None:
    """A session's key hides that of the workspace and the user, and an equal statement is returned once."""
    await begin(memory)
    for scope, value in ((ADA, "red"), (SHOP, "green"), (ROOM, "blue")):
        await memory.knowledge.remember(scope, "color", value)
    found = await memory.knowledge.recall("Which color?", [ADA, SHOP, ROOM])
    assert [(fact.scope, fact.value) for fact in found] == [(ROOM, "blue")]
    found = await memory.knowledge.recall("Which color?", [ADA, SHOP])
    assert [(fact.scope, fact.value) for fact in found] == [(SHOP, "green")]
    await memory.knowledge.remember(ADA, "Color", "GREEN.")
    assert [fact.scope for fact in await memory.knowledge.valid([ADA, SHOP])] == [SHOP]


async def test_scopes_come_in_their_order_and_each_gets_its_part(memory: Memory) -> None:
    """The order is session, workspace, user, whatever the order of the arguments."""
    await begin(memory)
    for scope in (ADA, SHOP, ROOM):
        for number in range(5):
            await memory.knowledge.remember(scope, f"{scope.kind} color {number}", f"shade {number} of {scope.kind}")
    found = await memory.knowledge.recall("Which color?", [ADA, ROOM, SHOP], limit=4)
    assert [fact.scope for fact in found] == [ROOM, ROOM, SHOP, ADA]


async def test_facts_of_other_scopes_are_not_recalled(memory: Memory) -> None:
    await memory.knowledge.remember(ADA, "color", "red")
    await memory.knowledge.remember(BOB, "secret color of bob", "violet")
    for query in ("What is the secret color of bob?", "bob", "violet"):
        assert all(fact.scope == ADA for fact in await memory.knowledge.recall(query, [ADA]))
        assert await memory.knowledge.recall(query, []) == []


async def test_forgotten_and_changed_values_are_not_recalled(memory: Memory) -> None:
    """The index of a process has old values, but none of them is recalled."""
    for number in range(60):
        await memory.knowledge.remember(ADA, "color", f"shade {number}")
        [found] = await memory.knowledge.recall("Which color?", [ADA])
        assert found.value == f"shade {number}"
    await memory.knowledge.forget(ADA, "color")
    assert await memory.knowledge.recall("Which color?", [ADA]) == []
