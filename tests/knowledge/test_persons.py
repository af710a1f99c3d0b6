"""Persons on each database: found by each of their ids, merged, and unmerged again as if nothing had been."""

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
    """What is valid of a person under any id, by key."""
    return {fact.key: fact.value for fact in await memory.knowledge.valid([Scope("user", person_id)])}


async def test_a_sender_becomes_a_person_once(memory: Memory, clock: SettableClock) -> None:
    """The first call says that the person is new, the later ones do not; the names are kept, the newest first."""
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
    """One of the calls is told that the person is new."""
    found = await asyncio.gather(*(memory.persons.resolve(TELEGRAM, name="Ada") for _ in range(20)))
    assert sum(person.new for person in found) == 1
    assert len(await memory.persons.all()) == 1


async def test_who_is_remembered_is_known(memory: Memory) -> None:
    """A fact about an id makes it a person's, whose preferences are the facts of that kind."""
    scope = Scope("user", "ada")
    await memory.knowledge.remember(scope, "diet", "vegan", kind="preference")
    await memory.knowledge.remember(scope, "job", "engineer", kind="world_knowledge")
    await memory.knowledge.remember(scope, "color", "red", kind="preference")
    await memory.knowledge.remember(scope, "color", "blue")
    person = await memory.persons.resolve("ada")
    assert not person.new
    assert person.preferences == {"diet": "vegan", "color": "blue"}


async def test_merged_persons_are_one_under_each_id(memory: Memory, clock: SettableClock) -> None:
    """Facts and names of both are found by both ids; of one key the fact that changed last is recalled."""
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


async def test_a_merge_is_undone_as_if_it_had_not_been(memory: Memory) -> None:
    """Each has the own facts again; what was remembered since stays with the id that stood for both."""
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
    """What was merged into a person before stays with that person."""
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


async def test_forgetting_what_merged_persons_know_forgets_it_for_both(memory: Memory) -> None:
    """A person who asks to be forgotten has one name for it, whatever the channel."""
    for alias in (TELEGRAM, WECOM):
        await memory.knowledge.remember(Scope("user", alias), "diet", alias)
        await memory.knowledge.remember(Scope("user", alias), "color", alias)
    await memory.persons.merge(TELEGRAM, WECOM)
    assert await memory.knowledge.forget(Scope("user", TELEGRAM), "diet") == 2
    assert await memory.knowledge.forget_all(Scope("user", WECOM)) == 2
    assert await memory.knowledge.facts(past=True) == []


async def test_a_merged_person_sees_the_facts_of_all_own_ids(memory: Memory) -> None:
    """A caller who is limited to one id sees what is known under the others, and loses it with the merge."""
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
    """However many merge whomever into whomever: each id has one person, and all are one at the end."""
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
    """With facts, procedures and names; others stay."""
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
    """The last seen first; by a text in any of their ids and names."""
    for number in range(5):
        await memory.persons.resolve(f"telegram:{number}", name=f"Name {number}")
        clock.advance(number % 2)
    seen: list[str] = []
    cursor = None
    while True:
        page, cursor = await memory.persons.page(PersonQuery(limit=2, cursor=cursor))
        seen += [person.id for person in page]
        if cursor is None:
            break
    assert seen == [f"telegram:{number}" for number in reversed(range(5))]
    assert [person.id for person in await memory.persons.all(text="NAME 3")] == ["telegram:3"]
    await memory.persons.merge("telegram:3", "telegram:1")
    for text in ("name 3", "m:3", "Name 1"):
        assert [person.id for person in await memory.persons.all(text=text)] == ["telegram:1"]


async def test_who_is_not_there_cannot_be_merged(memory: Memory) -> None:
    """The error says so, and nobody was made."""
    await memory.persons.resolve("a")
    for one, another in (("a", "x"), ("x", "a")):
        with pytest.raises(KnowledgeNotFound):
            await memory.persons.merge(one, another)
    with pytest.raises(KnowledgeNotFound):
        await memory.persons.unmerge("x")
    assert [person.aliases for person in await memory.persons.all()] == [("a",)]
    assert await memory.persons.merge("a", "a") == await memory.persons.get("a")


@pytest.mark.parametrize("alias", ["", " ", "a\nb", "x" * 513, "half \ud83d", None, 7])
async def test_an_id_that_names_nobody_is_refused(sqlite_memory: Memory, alias: str) -> None:
    """No shared bucket comes of a blank."""
    with pytest.raises(InvalidInput):
        await sqlite_memory.persons.resolve(alias)
    with pytest.raises(InvalidInput):
        await sqlite_memory.persons.resolve("ada", name=" \n")
    assert await sqlite_memory.persons.all() == []


async def test_a_session_is_nobodys_person(memory: Memory) -> None:
    """An id of a person is no session's, and the other way round."""
    await memory.persons.resolve("room:1")
    with pytest.raises(SessionNotFound):
        await memory.knowledge.remember(Scope("session", "room:1"), "k", "v")


@pytest.mark.parametrize("odd", ["nul\x00", "half \ud83d"], ids=["nul", "surrogate"])
async def test_an_id_that_no_database_keeps_is_refused(memory: Memory, odd: str) -> None:
    """The same on each database."""
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
