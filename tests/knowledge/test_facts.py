"""Tests of facts on each database: one valid value per key, a history of values, and access by owner."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from tests.children import run_together
from tests.databases import execute, query
from threadkeep import (
    Evidence,
    Fact,
    InvalidInput,
    KnowledgeNotFound,
    Memory,
    MemoryOptions,
    Message,
    Procedure,
    Scope,
    SessionNotFound,
    open_memory,
)
from threadkeep.history.pending import PendingOptions
from threadkeep.records.json_values import Json
from threadkeep.records.knowledge import FactKind, FactQuery, ProcedureQuery, ProposalQuery, canonical_key
from threadkeep.testing import SettableClock

ADA = Scope("user", "ada")
BOB = Scope("user", "bob")
SHOP = Scope("workspace", "shop")
ROOM = Scope("session", "room:1")

_WRITERS = 4
_ROUNDS = 5


async def begin(memory: Memory, session_id: str = "room:1", user_id: str | None = None) -> None:
    """Create a session."""
    await memory.session(session_id, user_id=user_id).append([Message(role="user", content="hi")])


async def values_of(memory: Memory, scope: Scope, *, past: bool = False) -> dict[str, Json]:
    """Return the values of a scope by key."""
    return {fact.key: fact.value for fact in await memory.knowledge.facts(scope, past=past)}


async def test_a_fact_is_stored_with_all_fields(memory: Memory, clock: SettableClock) -> None:
    await begin(memory)
    for scope in (ADA, SHOP, ROOM):
        evidence = Evidence("room:1", 1, "run-1")
        value: Json = {"name": "Köln 東京 🙂", "list": [1, 2.5, True, None]}
        fact = await memory.knowledge.remember(
            scope, "home.city", value, kind="preference", confidence=0.75, evidence=evidence
        )
        assert (fact.scope, fact.key, fact.value, fact.kind) == (scope, "home.city", value, "preference")
        assert (fact.confidence, fact.confirmed, fact.contradicted) == (0.75, 1, 0)
        assert (fact.valid_from, fact.valid_to, fact.updated_at) == (clock(), None, clock())
        assert fact.evidence == (evidence,)
        assert await memory.knowledge.fact(fact.id) == fact
        assert await memory.knowledge.facts(scope) == [fact]


async def test_the_same_value_again_confirms_the_fact(memory: Memory, clock: SettableClock) -> None:
    """The confirmation is counted, the highest confidence stays, and the kind changes only if one is named."""
    first = await memory.knowledge.remember(ADA, "diet", {"a": 1, "b": 2}, kind="preference", confidence=0.9)
    clock.advance(60)
    again = await memory.knowledge.remember(ADA, "diet", {"b": 2, "a": 1}, confidence=0.5)
    assert (again.id, again.confirmed, again.contradicted, again.confidence) == (first.id, 2, 0, 0.9)
    assert (again.kind, again.valid_from, again.updated_at) == ("preference", first.valid_from, clock())
    renamed = await memory.knowledge.remember(ADA, "diet", {"a": 1, "b": 2}, kind="decision", confidence=1.0)
    assert (renamed.id, renamed.confirmed, renamed.kind, renamed.confidence) == (first.id, 3, "decision", 1.0)
    assert await memory.knowledge.facts(ADA, past=True) == [renamed]


async def test_the_same_evidence_again_counts_nothing(memory: Memory) -> None:
    """A tool that runs twice in a run confirms once; another message with the same words confirms again."""
    expected = (
        (Evidence("room:1", 1), 1),
        (Evidence("room:1", 1), 1),
        (Evidence("room:1", 2), 2),
        (Evidence(run_id="run-1"), 3),
        (Evidence(run_id="run-1"), 3),
        (None, 4),
        (None, 5),
    )
    for evidence, confirmed in expected:
        assert (await memory.knowledge.remember(ADA, "diet", "vegan", evidence=evidence)).confirmed == confirmed
    [fact] = await memory.knowledge.facts(ADA)
    assert set(fact.evidence) == {Evidence("room:1", 1), Evidence("room:1", 2), Evidence(run_id="run-1")}


async def test_evidence_is_bounded(sqlite_memory: Memory) -> None:
    """After a hundred confirmations all are counted, and the first twenty origins are kept."""
    for seq in range(1, 101):
        await sqlite_memory.knowledge.remember(ADA, "diet", "vegan", evidence=Evidence("room:1", seq))
    [fact] = await sqlite_memory.knowledge.facts(ADA)
    assert fact.confirmed == 100
    assert {origin.seq for origin in fact.evidence} == set(range(1, 21))


async def test_another_value_closes_the_one_before(memory: Memory, clock: SettableClock) -> None:
    """The old value is contradicted, and the history has all values with their times."""
    began = clock()
    for value in ("vegetarian", "vegan", "vegetarian"):
        await memory.knowledge.remember(ADA, "diet", value, kind="preference")
        clock.advance(60)
    newest, middle, oldest = await memory.knowledge.facts(ADA, key="diet", past=True)
    assert [fact.value for fact in (newest, middle, oldest)] == ["vegetarian", "vegan", "vegetarian"]
    assert [fact.contradicted for fact in (newest, middle, oldest)] == [0, 1, 1]
    assert [fact.confirmed for fact in (newest, middle, oldest)] == [1, 1, 1]
    assert (oldest.valid_from, oldest.valid_to, middle.valid_to, newest.valid_to) == (
        began,
        middle.valid_from,
        newest.valid_from,
        None,
    )
    assert newest.kind == "preference"
    assert await memory.knowledge.facts(ADA) == [newest]


async def test_a_clock_that_goes_back_leaves_the_history_in_order(memory: Memory, clock: SettableClock) -> None:
    """The clocks of two processes may differ, but no value ends before it begins."""
    await memory.knowledge.remember(ADA, "diet", "vegetarian")
    clock.advance(-3600)
    await memory.knowledge.remember(ADA, "diet", "vegan")
    facts = await memory.knowledge.facts(ADA, past=True)
    assert all(fact.valid_to is None or fact.valid_to >= fact.valid_from for fact in facts)
    assert [fact.value for fact in facts if fact.valid_to is None] == ["vegan"]
    newest = max(facts, key=lambda fact: fact.valid_to is None)
    assert newest.valid_from >= min(fact.valid_from for fact in facts)


async def test_scopes_and_owners_have_facts_of_their_own(memory: Memory) -> None:
    await begin(memory)
    for number, scope in enumerate((ROOM, SHOP, ADA, BOB)):
        await memory.knowledge.remember(scope, "color", number)
    for number, scope in enumerate((ROOM, SHOP, ADA, BOB)):
        assert await values_of(memory, scope) == {"color": number}
    assert len(await memory.knowledge.facts()) == 4
    found, _ = await memory.knowledge.facts_page(FactQuery(scope_kind="user"))
    assert {fact.scope for fact in found} == {ADA, BOB}
    assert await values_of(memory, Scope("workspace", "ada")) == {}
    assert await values_of(memory, Scope("user", "nobody")) == {}


async def test_lists_are_filtered_and_paged(memory: Memory, clock: SettableClock) -> None:
    for number in range(7):
        kind: FactKind = "preference" if number % 2 else "decision"
        await memory.knowledge.remember(ADA, f"key {number}", f"Value%{number}", kind=kind)
        clock.advance(number % 3)
    assert {fact.key for fact in await memory.knowledge.facts(ADA, kind="preference")} == {"key_1", "key_3", "key_5"}
    assert [fact.key for fact in await memory.knowledge.facts(ADA, text="vALUE%4")] == ["key_4"]
    assert [fact.key for fact in await memory.knowledge.facts(ADA, text="EY_4")] == ["key_4"]
    assert await memory.knowledge.facts(ADA, text="Value_4") == []
    for scope in (ADA, None):
        seen: list[Fact] = []
        asked = FactQuery(scope, limit=2)
        while True:
            page, cursor = await memory.knowledge.facts_page(asked)
            seen += page
            if cursor is None:
                break
            asked = FactQuery(scope, limit=2, cursor=cursor)
        assert seen == await memory.knowledge.facts(scope)
        assert [fact.key for fact in seen] == [f"key_{number}" for number in reversed(range(7))]


async def test_a_text_with_quotes_and_backslashes_is_found(memory: Memory) -> None:
    """The filter compares the text itself, not the characters of its JSON."""
    await memory.knowledge.remember(ADA, "path", 'C:\\Users\\ann, called "home"')
    await memory.knowledge.remember(ADA, "note", "plain\ntext")
    await memory.knowledge.remember(ADA, "c:\\drive", "full")
    await memory.knowledge.remember(ADA, "homes", [{"city": "rome"}])
    for text, keys in (
        ("c:\\d", ["c:\\drive"]),
        ('[{"city":', ["homes"]),
        ("Rome", ["homes"]),
        ("C:\\users", ["path"]),
        ('"home"', ["path"]),
        ('"', ["homes", "path"]),
        ("\ntext", ["note"]),
    ):
        assert [fact.key for fact in await memory.knowledge.facts(ADA, text=text)] == keys
        assert [fact.key for fact in await memory.knowledge.facts(text=text)] == keys


async def test_a_key_is_one_fact_in_every_spelling(memory: Memory) -> None:
    """Case, spaces, hyphens and composed letters do not distinguish keys."""
    for key in ("Home City", "home_city", " HOME-city ", "home   City", "homeCity"):
        assert (await memory.knowledge.remember(ADA, key, "Lisbon")).key == "home_city"
    assert [fact.confirmed for fact in await memory.knowledge.facts(ADA, key="Home City")] == [5]
    assert (await memory.knowledge.remember(ADA, "A\u0308rzte", "2")).key == "\u00e4rzte"
    for key in ("k" * 129, "\u00df" * 65):
        with pytest.raises(InvalidInput, match="128 characters"):
            await memory.knowledge.remember(ADA, key, "too long")
    assert (await memory.knowledge.remember(ADA, "GitHub user", "ada")).key == "github_user"
    assert await memory.knowledge.forget(ADA, "github-user") == await memory.knowledge.forget(ADA, "Home-City") == 1
    assert await values_of(memory, ADA) == {"\u00e4rzte": "2"}


async def test_facts_of_old_spellings_are_read_and_forgotten(memory: Memory, database_url: str) -> None:
    """Old databases have such keys; a new value hides them, and `forget` deletes both."""
    if database_url == "sqlite://":
        pytest.skip("a database in memory has no other connections")
    await memory.knowledge.remember(ADA, "home_city", "Lisbon")
    execute(database_url, "UPDATE chat_facts SET key = 'Home City'")
    assert [fact.value for fact in await memory.knowledge.facts(ADA, key="Home City")] == ["Lisbon"]
    await memory.knowledge.remember(ADA, "Home City", "Porto")
    assert [fact.value for fact in await memory.knowledge.valid([ADA])] == ["Porto"]
    assert await memory.knowledge.forget(ADA, "home_city") == 2
    assert await memory.knowledge.valid([ADA]) == []


async def test_text_is_found_in_any_case_of_any_script(memory: Memory) -> None:
    await memory.knowledge.remember(ADA, "note", "Drei \u00c4rzte in \u041c\u043e\u0441\u043a\u0432\u0430")
    await memory.procedures.teach(Procedure(scope=SHOP, name="\u00c4rzte", content="x"))
    await memory.persons.resolve("telegram:1", name="\u00c4nne")
    await begin(memory)
    await memory.session("room:1").update(title="\u00c4rzte")
    for text in ("\u00e4rzte", "\u00c4RZTE", "\u043c\u041e\u0421\u043a\u0432"):
        assert [fact.key for fact in await memory.knowledge.facts(text=text)] == ["note"]
        assert [fact.key for fact in await memory.knowledge.facts(ADA, text=text)] == ["note"]
    assert len(await memory.procedures.all(text="\u00e4RZTE")) == 1
    assert [person.id for person in await memory.persons.all(text="\u00e4NN")] == ["telegram:1"]
    assert [info.session_id async for info in memory.sessions(query="\u00e4rzte")] == ["room:1"]
    await memory.session("room:1").update(title="\u03a6\u0399\u039b\u039f\u03a3\u039f\u03a6\u0399\u0391 \u0130zmir")
    for text in (
        "\u03c6\u03b9\u03bb\u03bf\u03c2",
        "\u03a6\u0399\u039b\u039f\u03a3",
        "\u03c6\u03b9\u03bb\u03bf\u03c3\u03bf",
        "izmir",
        "\u0130ZM\u0130R",
    ):
        assert [info.session_id async for info in memory.sessions(query=text)] == ["room:1"], text


@pytest.mark.parametrize("text", ["x" * 60_000, "%" * 30_000])
async def test_a_list_is_filtered_by_a_text_of_bounded_length(memory: Memory, text: str) -> None:
    """A longer text is refused on both databases, also where the engine could search for it."""
    await memory.knowledge.remember(ADA, "note", "%" * 9_000)
    await memory.procedures.teach(Procedure(scope=SHOP, name="shop", content="x"))
    await memory.persons.resolve("telegram:1", name="Ann")
    await begin(memory)
    assert len(await memory.knowledge.facts(text="%" * 8_000)) == 1
    assert await memory.knowledge.facts(text="x" * 10_000) == []
    with pytest.raises(InvalidInput, match="10,000 characters"):
        await memory.knowledge.facts(text=text)
    with pytest.raises(InvalidInput, match="10,000 characters"):
        await memory.procedures.all(text=text)
    with pytest.raises(InvalidInput, match="10,000 characters"):
        await memory.persons.all(text=text)
    with pytest.raises(InvalidInput, match="10,000 characters"):
        _ = [info async for info in memory.sessions(query=text)]


async def test_forgetting_a_key_leaves_nothing_of_it(memory: Memory, database_url: str) -> None:
    for scope in (ADA, BOB):
        for value in ("red", "blue"):
            await memory.knowledge.remember(scope, "color", value, evidence=Evidence("room:1", 1))
    await memory.knowledge.remember(ADA, "diet", "vegan")
    assert await memory.knowledge.forget(ADA, "color") == 2
    assert await memory.knowledge.forget(ADA, "color") == 0
    assert await values_of(memory, ADA, past=True) == {"diet": "vegan"}
    assert await values_of(memory, BOB) == {"color": "blue"}
    if database_url != "sqlite://":
        found = "SELECT count(*) FROM chat_fact_evidence e WHERE NOT EXISTS (SELECT 1 FROM chat_facts f "
        assert query(database_url, f"{found} WHERE f.fact_id = e.fact_id)") == [(0,)]
    assert await memory.knowledge.forget_all(ADA) == 1
    assert await values_of(memory, ADA, past=True) == {}


async def test_a_fact_is_forgotten_by_its_id_with_all_its_values(memory: Memory) -> None:
    """The id of any value of the key can be passed."""
    old = await memory.knowledge.remember(ADA, "color", "red")
    await memory.knowledge.remember(ADA, "color", "blue")
    await memory.knowledge.remember(ADA, "diet", "vegan")
    [new] = await memory.knowledge.facts(ADA, key="color")
    assert await memory.knowledge.forget_facts([old.id, "nobody", new.id]) == (2, ["nobody"])
    assert await values_of(memory, ADA, past=True) == {"diet": "vegan"}
    assert await memory.knowledge.forget_facts([old.id]) == (0, [old.id])
    with pytest.raises(KnowledgeNotFound) as missing:
        await memory.knowledge.fact(old.id)
    assert (missing.value.kind, missing.value.name) == ("fact", old.id)


async def test_the_keys_of_an_owner_are_read_once_to_forget_several(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, forgetting 1,000 of 100,000 keys locks a SQLite database for minutes."""
    for number in range(20):
        await memory.knowledge.remember(ADA, f"key_{number}", number)
    read: list[str] = []

    def noting(key: str) -> str:
        read.append(key)
        return canonical_key(key)

    monkeypatch.setattr("threadkeep.knowledge.facts.canonical_key", noting)
    keys = ["nothing", *(f"Key {number}" for number in range(10))]
    assert await memory.knowledge.forget_keys(ADA, keys) == {**dict.fromkeys(keys, 1), "nothing": 0}
    facts = await memory.knowledge.facts(ADA)
    assert await memory.knowledge.forget_facts([fact.id for fact in facts]) == (10, [])
    assert len(read) < 100


async def test_a_user_sees_and_changes_only_own_facts(memory: Memory) -> None:
    """Facts of the person and of their sessions are accessible; those of workspaces are not."""
    await begin(memory, "room:1", "ada")
    await begin(memory, "room:2", "bob")
    own = [ADA, ROOM]
    others = [BOB, Scope("session", "room:2"), SHOP]
    facts = {scope: await memory.knowledge.remember(scope, "color", "red") for scope in [*own, *others]}
    seen, _ = await memory.knowledge.facts_page(FactQuery(user_id="ada"))
    assert {fact.scope for fact in seen} == set(own)
    for scope in own:
        assert await memory.knowledge.facts_page(FactQuery(scope, user_id="ada")) == ([facts[scope]], None)
        assert await memory.knowledge.fact(facts[scope].id, user_id="ada") == facts[scope]
        changed = await memory.knowledge.remember(scope, "color", "blue", user_id="ada")
        assert await memory.knowledge.forget_facts([changed.id], user_id="ada") == (2, [])
    for scope in others:
        with pytest.raises(KnowledgeNotFound):
            await memory.knowledge.facts_page(FactQuery(scope, user_id="ada"))
        with pytest.raises(KnowledgeNotFound):
            await memory.knowledge.fact(facts[scope].id, user_id="ada")
        with pytest.raises(KnowledgeNotFound):
            await memory.knowledge.remember(scope, "color", "blue", user_id="ada")
        with pytest.raises(KnowledgeNotFound):
            await memory.knowledge.forget(scope, "color", user_id="ada")
        assert await memory.knowledge.forget_facts([facts[scope].id], user_id="ada") == (0, [facts[scope].id])
        with pytest.raises(KnowledgeNotFound):
            await memory.knowledge.forget_all(scope, user_id="ada")
        assert await memory.knowledge.facts(scope) == [facts[scope]]


async def test_a_session_with_any_id_has_facts(memory: Memory) -> None:
    for session_id in ("me@example.com", "C024.17", "+351 912", "/a/b", "群\u00a0\u200d聊", "[x](y)"):
        await begin(memory, session_id)
        fact = await memory.knowledge.remember(Scope("session", session_id), "k", "v", evidence=Evidence(session_id, 1))
        assert await memory.knowledge.facts(Scope("session", session_id)) == [fact]


async def test_facts_are_restored_unchanged(memory: Memory, clock: SettableClock) -> None:
    for value in ("red", "red", "blue"):
        await memory.knowledge.remember(ADA, "color", value, evidence=Evidence("room:1", clock().hour or 1))
        clock.advance(3600)
    await memory.knowledge.remember(SHOP, "days", 30, kind="decision", confidence=0.5)
    exported = await memory.knowledge.facts(past=True)
    for scope in (ADA, SHOP):
        await memory.knowledge.forget_all(scope)
    clock.advance(3600)
    assert await memory.knowledge.restore(exported) == 3
    assert await memory.knowledge.restore(exported) == 0
    assert await memory.knowledge.facts(past=True) == exported


async def test_a_restored_value_is_ordered_by_time(memory: Memory, clock: SettableClock) -> None:
    """The value that began later is valid; a value that exists is not stored twice."""
    older = await memory.knowledge.remember(ADA, "color", "red")
    await memory.knowledge.forget(ADA, "color")
    clock.advance(60)
    newer = await memory.knowledge.remember(ADA, "color", "blue")
    assert await memory.knowledge.restore([older]) == 1
    assert [(fact.value, fact.valid_to) for fact in await memory.knowledge.facts(ADA, past=True)] == [
        ("blue", None),
        ("red", newer.valid_from),
    ]
    await memory.knowledge.forget(ADA, "color")
    await memory.knowledge.restore([older])
    assert await memory.knowledge.restore([newer]) == 1
    facts = await memory.knowledge.facts(ADA, past=True)
    assert {fact.value: fact.valid_to for fact in facts} == {"blue": None, "red": newer.valid_from}
    assert await memory.knowledge.restore([replace(newer, id="another")]) == 0
    assert len(await memory.knowledge.facts(ADA, past=True)) == 2


async def test_a_restored_past_value_does_not_change_the_valid_one(memory: Memory, clock: SettableClock) -> None:
    valid = await memory.knowledge.remember(ADA, "color", "blue")
    clock.advance(60)
    past = replace(valid, id="past", value="red", valid_to=valid.valid_from, updated_at=clock())
    assert await memory.knowledge.restore([past]) == 1
    assert await memory.knowledge.facts(ADA, past=True) == [past, valid]


async def test_concurrent_restores_store_each_fact_once(memory: Memory, clock: SettableClock) -> None:
    for number in range(5):
        await memory.knowledge.remember(ADA, f"color {number}", "red")
        clock.advance(60)
        await memory.knowledge.remember(ADA, f"color {number}", "blue")
    exported = await memory.knowledge.facts(past=True)
    for _ in range(_ROUNDS):
        await memory.knowledge.forget_all(ADA)
        assert sum(await asyncio.gather(*[memory.knowledge.restore(exported) for _ in range(_WRITERS)])) == 10
        assert await memory.knowledge.facts(past=True) == exported


async def test_an_invalid_restore_changes_nothing(memory: Memory) -> None:
    """A fact of a missing session or an invalid fact refuses the whole call."""
    fact = await memory.knowledge.remember(ADA, "color", "red")
    await memory.knowledge.forget(ADA, "color")
    with pytest.raises(SessionNotFound):
        await memory.knowledge.restore([fact, replace(fact, id="2", scope=ROOM)])
    with pytest.raises(InvalidInput):
        await memory.knowledge.restore([fact, replace(fact, id="2", confidence=7.0)])
    assert await memory.knowledge.facts(past=True) == []


async def test_facts_are_deleted_with_their_session(memory: Memory) -> None:
    with pytest.raises(SessionNotFound):
        await memory.knowledge.remember(ROOM, "topic", "refund")
    await begin(memory)
    fact = await memory.knowledge.remember(ROOM, "topic", "refund", evidence=Evidence("room:1", 1))
    person = await memory.knowledge.remember(ADA, "topic", "refund", evidence=Evidence("room:1", 1))
    assert await memory.session("room:1").delete()
    with pytest.raises(KnowledgeNotFound):
        await memory.knowledge.fact(fact.id)
    assert await memory.knowledge.fact(person.id) == person
    await begin(memory)
    assert await memory.knowledge.facts(ROOM, past=True) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", "x"),
        ("   ", "x"),
        ("k" * 129, "x"),
        ("line\nbreak", "x"),
        ("nul\x00", "x"),
        ("half \ud83d", "x"),
        (7, "x"),
        ("k", None),
        ("k", float("nan")),
        ("k", float("inf")),
        ("k", b"bytes"),
        ("k", {1: "x"}),
        ("k", "x" * 10_001),
        ("k", json.loads("[" * 33 + "]" * 33)),
        ("k", json.loads("[" * 900 + "]" * 900)),
    ],
)
async def test_an_invalid_key_or_value_is_refused(sqlite_memory: Memory, key: str, value: Json) -> None:
    with pytest.raises(InvalidInput) as refused:
        await sqlite_memory.knowledge.remember(ADA, key, value)
    assert "xxx" not in str(refused.value)
    assert await sqlite_memory.knowledge.facts(past=True) == []


async def test_other_invalid_arguments_are_refused(sqlite_memory: Memory) -> None:
    remember = sqlite_memory.knowledge.remember
    for kind, owner in (("user", ""), ("user", " "), ("user", "a\n"), ("global", "all"), ("user", "x" * 513)):
        with pytest.raises(InvalidInput):
            Scope(kind, owner)  # type: ignore[arg-type]
    for confidence in (-0.1, 1.1, float("nan"), True):
        with pytest.raises(InvalidInput, match="confidence"):
            await remember(ADA, "k", "v", confidence=confidence)
    with pytest.raises(InvalidInput, match="kind"):
        await remember(ADA, "k", "v", kind="gossip")  # type: ignore[arg-type]
    for evidence in (Evidence(), Evidence(seq=1), Evidence("room:1", 0), Evidence("room:1", 2**53)):
        with pytest.raises(InvalidInput, match=r"[Ee]vidence"):
            await remember(ADA, "k", "v", evidence=evidence)
    for limit in (0, 1001):
        with pytest.raises(InvalidInput, match="page"):
            await sqlite_memory.knowledge.facts(limit=limit)


async def test_the_longest_names_and_values_are_kept(memory: Memory) -> None:
    """Characters may take four bytes; characters that no database stores are replaced."""
    scope = Scope("user", "🙂" * 512)
    fact = await memory.knowledge.remember(scope, "🙂" * 128, "🙂" * 9_998)
    assert await memory.knowledge.facts(scope) == [fact]
    odd = await memory.knowledge.remember(ADA, "odd", "nul \x00, half \ud83d, \\u0000")
    assert odd.value == "nul \ufffd, half \ufffd, \\u0000"
    assert (await memory.knowledge.remember(ADA, "odd", "nul \x00, half \ud83d, \\u0000")).confirmed == 2


async def test_many_tasks_on_one_key_make_one_fact(memory: Memory) -> None:
    """Equal values confirm the fact; of different values one is valid."""
    await asyncio.gather(*(memory.knowledge.remember(ADA, "diet", "vegan") for _ in range(20)))
    [fact] = await memory.knowledge.facts(ADA, past=True)
    assert fact.confirmed == 20
    await asyncio.gather(*(memory.knowledge.remember(BOB, "diet", number) for number in range(20)))
    history = await memory.knowledge.facts(BOB, past=True)
    assert len(history) == 20
    assert sum(fact.valid_to is None for fact in history) == 1


@pytest.mark.process
def test_two_writers_on_one_key_make_one_fact(shared_url: str, tmp_path: Path) -> None:
    starts = [(shared_url, str(tmp_path / "pending"), number) for number in range(_WRITERS)]
    assert run_together(write_facts, starts) == [_ROUNDS] * _WRITERS

    async def check() -> None:
        async with open_memory(shared_url) as memory:
            for number in range(_ROUNDS):
                [same] = await memory.knowledge.facts(ADA, key=f"same {number}", past=True)
                assert same.confirmed == _WRITERS
                history = await memory.knowledge.facts(ADA, key=f"other {number}", past=True)
                assert {fact.value for fact in history} == set(range(_WRITERS))
                assert [fact.valid_to is None for fact in history].count(True) == 1
                ordered = sorted(history, key=lambda fact: (fact.valid_to is None, fact.valid_from))
                assert all(
                    former.valid_to is not None and former.valid_to <= latter.valid_from + timedelta(seconds=1)
                    for former, latter in itertools.pairwise(ordered)
                )

    asyncio.run(check())


def write_facts(url: str, folder: str, number: int) -> int:
    """Write facts as each of the processes does; return the number of keys."""

    async def write() -> int:
        async with open_memory(url, options=MemoryOptions(pending=PendingOptions(folder=Path(folder)))) as memory:
            for key in range(_ROUNDS):
                await memory.knowledge.remember(ADA, f"same {key}", "value")
                await memory.knowledge.remember(ADA, f"other {key}", number)
            return _ROUNDS

    return asyncio.run(write())


@pytest.mark.parametrize("odd", ["nul\x00", "half \ud83d", " "], ids=["nul", "surrogate", "blank"])
async def test_a_name_with_invalid_characters_is_refused_or_not_found(memory: Memory, odd: str) -> None:
    """Keys, ids and filters with such characters behave the same on each database."""
    await memory.knowledge.remember(ADA, "diet", "vegan")
    for call in (
        memory.knowledge.forget(ADA, odd),
        memory.knowledge.forget_facts([odd]),
        memory.knowledge.fact(odd),
        memory.procedures.procedure(odd),
        memory.procedures.forget([odd]),
        memory.proposals.proposal(odd),
    ):
        with pytest.raises(InvalidInput):
            await call
    assert await memory.knowledge.facts(ADA, key=odd) == []
    assert (await memory.procedures.page(ProcedureQuery(name=odd)))[0] == []
    assert (await memory.proposals.page(ProposalQuery(session_id=odd)))[0] == []
    assert await values_of(memory, ADA) == {"diet": "vegan"}


async def test_forgetting_a_key_waits_for_its_writer_before_it_locks_past_values(postgres_url: str) -> None:
    """A `take_back` locks the valid value, and then the past one. The other order would be a deadlock."""
    async with open_memory(postgres_url) as memory, await psycopg.AsyncConnection.connect(postgres_url) as writer:
        for value in ("Lisbon", "Porto"):
            await memory.knowledge.remember(SHOP, "city", value)
        await writer.execute("SELECT 1 FROM chat_facts WHERE valid_to IS NULL FOR UPDATE")
        forgetting = asyncio.create_task(memory.knowledge.forget(SHOP, "city"))
        while not query(postgres_url, "SELECT 1 FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        await writer.execute("SELECT 1 FROM chat_facts WHERE valid_to IS NOT NULL FOR UPDATE NOWAIT")
        await writer.commit()
        assert await forgetting == 2


async def test_calls_that_forget_facts_lock_rows_in_the_same_order(postgres_url: str) -> None:
    """Two calls need a fact that a writer has locked, and a proposal. The server has memory for few locks of keys."""
    async with open_memory(postgres_url) as memory, await psycopg.AsyncConnection.connect(postgres_url) as writer:
        await begin(memory)
        for key in ("age", "city"):
            await memory.knowledge.remember(SHOP, key, "1")
        execute(
            postgres_url,
            "INSERT INTO chat_fact_proposals (proposal_id, scope, owner, session_id, seq, key, value, confidence,"
            " learner, status, created_at, updated_at)"
            " VALUES ('p', 'workspace', 'shop', 'room:1', 1, 'team', '1', 1.0, 'facts', 'open', now(), now())",
        )
        await writer.execute("SELECT 1 FROM chat_facts WHERE key = 'city' FOR UPDATE")
        forgetting: list[asyncio.Task[object]] = []
        for call in (memory.knowledge.forget_keys(SHOP, ["city", "team"]), memory.knowledge.forget_all(SHOP)):
            forgetting.append(asyncio.create_task(call))
            while len(query(postgres_url, "SELECT 1 FROM pg_locks WHERE NOT granted")) < len(forgetting):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
        assert query(postgres_url, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'") == []
        await writer.commit()
        assert await asyncio.gather(*forgetting) == [{"city": 1, "team": 0}, 1]
        assert await memory.proposals.page(ProposalQuery()) == ([], None)
