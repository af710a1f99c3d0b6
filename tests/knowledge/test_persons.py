"""Tests of persons on each database: found by each of their ids, merged and unmerged."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from threadkeep import InvalidInput, KnowledgeNotFound, Memory, Procedure, Scope, SessionNotFound
from threadkeep.records.json_values import Json
from threadkeep.records.knowledge import PersonQuery
from threadkeep.testing import SettableClock

TELEGRAM = "telegram:123"
WECOM = "wecom_dm:li@corp"


async def known_of(memory: Memory, person_id: str) -> dict[str, Json]:
    """Return the valid facts of a person under any id, by key."""
    return {fact.key: fact.value for fact in await memory.knowledge.valid([Scope("user", person_id)])}


async def test_a_sender_becomes_a_person_once(memory: Memory, clock: SettableClock) -> None:
    """Only the first call says that the person is new; names are kept, newest first."""
    first = await memory.persons.resolve(TELEGRAM, name="Ada")
    assert (first.id, first.aliases, first.names, first.new) == (TELEGRAM, (TELEGRAM,), ("Ada",), True)
    assert first.first_seen_at == first.last_seen_at == clock()
    clock.advance(7200)
    again = await memory.persons.resolve(TELEGRAM, name="  Ada\n\x07Lovelace 👩\u200d💻 ")
    assert (again.names, again.new) == (("Ada Lovelace 👩\u200d💻", "Ada"), False)
    assert (again.first_seen_at, again.last_seen_at) == (first.first_seen_at, clock())
    assert await memory.persons.resolve(TELEGRAM) == again
    assert await memory.persons.get(TELEGRAM) == again
    assert await memory.persons.resolve(WECOM) != again


async def test_many_at_once_make_one_person(memory: Memory) -> None:
    found = await asyncio.gather(*(memory.persons.resolve(TELEGRAM, name="Ada") for _ in range(20)))
    assert sum(person.new for person in found) == 1
    assert len(await memory.persons.all()) == 1


async def test_a_fact_about_a_user_creates_the_person(memory: Memory) -> None:
    scope = Scope("user", "ada")
    await memory.knowledge.remember(scope, "diet", "vegan", kind="preference")
    await memory.knowledge.remember(scope, "job", "engineer", kind="world_knowledge")
    await memory.knowledge.remember(scope, "color", "red", kind="preference")
    await memory.knowledge.remember(scope, "color", "blue")
    person = await memory.persons.resolve("ada")
    assert not person.new
    assert person.preferences == {"diet": "vegan", "color": "blue"}


async def test_merged_persons_are_one_under_each_id(memory: Memory, clock: SettableClock) -> None:
    """Both ids find facts and names of both; of two facts with one key the newest is recalled."""
    await memory.persons.resolve(TELEGRAM, name="Ada")
    clock.advance(1)
    await memory.persons.resolve(WECOM, name="李")
    for scope, key, value in (
        (Scope("user", WECOM), "diet", "vegan"),
        (Scope("user", TELEGRAM), "city", "Köln"),
        (Scope("user", TELEGRAM), "diet", "everything"),
    ):
        clock.advance(1)
        await memory.knowledge.remember(scope, key, value, kind="preference")
    merged = await memory.persons.merge(TELEGRAM, WECOM)
    assert (merged.id, merged.aliases, merged.merged) == (WECOM, (WECOM, TELEGRAM), {TELEGRAM: WECOM})
    assert set(merged.names) == {"李", "Ada"}
    assert merged.preferences == {"city": "Köln", "diet": "everything"}
    for alias in (TELEGRAM, WECOM):
        assert await memory.persons.get(alias) == merged
        assert await known_of(memory, alias) == {"city": "Köln", "diet": "everything"}
        [found] = await memory.knowledge.recall("What city?", [Scope("user", alias)])
        assert found.value == "Köln"
        assert len(await memory.knowledge.facts(Scope("user", alias), key="diet")) == 2
    assert [person.id for person in await memory.persons.all()] == [WECOM]


async def test_an_unmerge_restores_both_persons(memory: Memory) -> None:
    """Each person has their own facts again; facts since the merge stay with the main id."""
    before = {}
    for alias in (TELEGRAM, WECOM):
        await memory.knowledge.remember(Scope("user", alias), "from", alias)
        before[alias] = await memory.persons.get(alias)
    await memory.persons.merge(TELEGRAM, WECOM)
    fact = await memory.knowledge.remember(Scope("user", TELEGRAM), "since", "the merge")
    assert fact.scope == Scope("user", WECOM)
    assert await memory.persons.unmerge(TELEGRAM) == before[TELEGRAM]
    assert await memory.persons.get(WECOM) == before[WECOM]
    assert await known_of(memory, TELEGRAM) == {"from": TELEGRAM}
    assert await known_of(memory, WECOM) == {"from": WECOM, "since": "the merge"}


async def test_merges_of_merges_are_undone_one_by_one(memory: Memory) -> None:
    """A person keeps the ids that were merged into them before."""
    for alias in "abcd":
        await memory.persons.resolve(alias)
    await memory.persons.merge("a", "b")
    await memory.persons.merge("c", "d")
    assert (await memory.persons.merge("a", "c")).aliases[0] == "d"
    assert set((await memory.persons.get("b")).aliases) == set("abcd")
    assert await memory.persons.merge("b", "a") == await memory.persons.get("d")
    split = await memory.persons.unmerge("b")
    assert (split.id, set(split.aliases), split.merged) == ("b", {"a", "b"}, {"a": "b"})
    assert set((await memory.persons.get("d")).aliases) == {"c", "d"}
    assert (await memory.persons.unmerge("a")).aliases == ("a",)
    for alias in ("a", "b", "d"):
        with pytest.raises(InvalidInput, match="not merged"):
            await memory.persons.unmerge(alias)


async def test_forgetting_facts_of_merged_persons_forgets_them_under_all_ids(memory: Memory) -> None:
    for alias in (TELEGRAM, WECOM):
        await memory.knowledge.remember(Scope("user", alias), "diet", alias)
        await memory.knowledge.remember(Scope("user", alias), "color", alias)
    await memory.persons.merge(TELEGRAM, WECOM)
    assert await memory.knowledge.forget(Scope("user", TELEGRAM), "diet") == 2
    assert await memory.knowledge.forget_all(Scope("user", WECOM)) == 2
    assert await memory.knowledge.facts(past=True) == []


async def test_a_merged_person_sees_the_facts_of_all_own_ids(memory: Memory) -> None:
    """A caller limited to one id sees facts of the other ids until the unmerge."""
    fact = await memory.knowledge.remember(Scope("user", TELEGRAM), "diet", "vegan")
    await memory.persons.resolve(WECOM)
    with pytest.raises(KnowledgeNotFound):
        await memory.knowledge.fact(fact.id, user_id=WECOM)
    await memory.persons.merge(TELEGRAM, WECOM)
    assert await memory.knowledge.fact(fact.id, user_id=WECOM) == fact
    await memory.persons.unmerge(TELEGRAM)
    with pytest.raises(KnowledgeNotFound):
        await memory.knowledge.fact(fact.id, user_id=WECOM)


async def test_merges_that_cross_make_no_circle(memory: Memory) -> None:
    names = ["a", "b", "c", "d"]
    for _ in range(5):
        for name in names:
            await memory.persons.forget(name)
            await memory.persons.resolve(name)
        pairs = list(itertools.permutations(names, 2))
        await asyncio.gather(*(memory.persons.merge(one, another) for one, another in pairs))
        found = [await memory.persons.get(name) for name in names]
        assert {person.id for person in found} == {found[0].id}
        assert set(found[0].aliases) == set(names)
        assert len(found[0].merged) == 3


async def test_a_person_is_forgotten_under_all_ids(memory: Memory) -> None:
    for alias in (TELEGRAM, WECOM, "bob"):
        await memory.persons.resolve(alias, name="Name")
        await memory.knowledge.remember(Scope("user", alias), "diet", "vegan")
        await memory.procedures.teach(Procedure(scope=Scope("user", alias), name="refund", content="Do it."))
    await memory.persons.merge(TELEGRAM, WECOM)
    assert await memory.persons.forget(TELEGRAM)
    assert not await memory.persons.forget(WECOM)
    for alias in (TELEGRAM, WECOM):
        with pytest.raises(KnowledgeNotFound) as missing:
            await memory.persons.get(alias)
        assert missing.value.kind == "person"
    assert {fact.scope.owner for fact in await memory.knowledge.facts(past=True)} == {"bob"}
    assert {one.scope.owner for one in await memory.procedures.all()} == {"bob"}
    assert (await memory.persons.resolve(TELEGRAM)).new


async def test_persons_are_listed_page_by_page(memory: Memory, clock: SettableClock) -> None:
    """Persons last seen come first, and a text matches any of their ids and names."""
    for index, number in enumerate((3, 0, 2, 4, 1)):
        await memory.persons.resolve(f"telegram:{number}", name=f"Name {number}")
        clock.advance(index % 2)
    for limit, sizes in ((2, [2, 2, 1]), (3, [3, 2]), (5, [5])):
        pages: list[list[str]] = []
        cursor = None
        while cursor is not None or not pages:
            page, cursor = await memory.persons.page(PersonQuery(limit=limit, cursor=cursor))
            pages.append([person.id for person in page])
        assert [person for page in pages for person in page] == [f"telegram:{number}" for number in (1, 4, 2, 3, 0)]
        assert [len(page) for page in pages] == sizes
    assert [person.id for person in await memory.persons.all(text="NAME 3")] == ["telegram:3"]
    await memory.persons.merge("telegram:3", "telegram:1")
    for text in ("name 3", "m:3", "Name 1"):
        assert [person.id for person in await memory.persons.all(text=text)] == ["telegram:1"]


async def test_an_unknown_person_cannot_be_merged(memory: Memory) -> None:
    await memory.persons.resolve("a")
    for one, another in (("a", "x"), ("x", "a")):
        with pytest.raises(KnowledgeNotFound):
            await memory.persons.merge(one, another)
    with pytest.raises(KnowledgeNotFound):
        await memory.persons.unmerge("x")
    assert [person.aliases for person in await memory.persons.all()] == [("a",)]
    assert await memory.persons.merge("a", "a") == await memory.persons.get("a")


@pytest.mark.parametrize("alias", ["", " ", "a\nb", "x" * 513, "half \ud83d", None, 7])
async def test_an_invalid_person_id_is_refused(sqlite_memory: Memory, alias: str) -> None:
    """A blank id would be shared by several persons."""
    with pytest.raises(InvalidInput):
        await sqlite_memory.persons.resolve(alias)
    with pytest.raises(InvalidInput):
        await sqlite_memory.persons.resolve("ada", name=" \n")
    assert await sqlite_memory.persons.all() == []


async def test_the_id_of_a_person_is_no_session(memory: Memory) -> None:
    await memory.persons.resolve("room:1")
    with pytest.raises(SessionNotFound):
        await memory.knowledge.remember(Scope("session", "room:1"), "k", "v")


@pytest.mark.parametrize("odd", ["nul\x00", "half \ud83d"], ids=["nul", "surrogate"])
async def test_an_id_with_invalid_characters_is_refused(memory: Memory, odd: str) -> None:
    await memory.persons.resolve("ann")
    for call in (
        memory.persons.get(odd),
        memory.persons.merge(odd, "ann"),
        memory.persons.merge("ann", odd),
        memory.persons.unmerge(odd),
        memory.persons.forget(odd),
    ):
        with pytest.raises(InvalidInput):
            await call
