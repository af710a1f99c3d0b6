"""Tests of `KnownFacts`, the section `facts` of a context, through agents."""

from __future__ import annotations

import asyncio
from datetime import date

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool

from tests.agent.talking import ROOM, config_of, input_of, make_agent
from tests.agent.test_lookup_tools import calling, result_of
from tests.databases import execute
from tests.recorded_events import RecordedEvents
from threadkeep import (
    ContextManifest,
    ContextPlan,
    Evidence,
    InvalidInput,
    KnownFacts,
    Memory,
    MemoryOptions,
    Scope,
    SessionMemory,
    TurnOptions,
    knowledge_tools,
    open_memory,
    rebuild,
    session_turn,
)
from threadkeep.context.manifest import Entry, FactReference, FactsLeftOut, TurnReference
from threadkeep.context.quotation import FACTS_HEADER
from threadkeep.observe import ExtraNotFound
from threadkeep.testing import ScriptedModel, SettableClock

ANN = Scope("user", "ann")
SHOP = Scope("workspace", "shop")


@tool
def read() -> str:
    """Return a long text."""
    return "word " * 1_750


class Talk:
    """An agent with `KnownFacts`, and the calls of its model."""

    def __init__(self, memory: Memory, source: KnownFacts | None = None, *, max_tokens: int = 4_000) -> None:
        self.memory = memory
        self.model = ScriptedModel("Sure." for _ in range(100))
        self._plan = ContextPlan()
        middleware = SessionMemory(
            memory, max_tokens=max_tokens, sources=[source or KnownFacts(memory)], plan=self._plan
        )
        self._agent = make_agent(self.model, [middleware], system_prompt="Be kind.")

    async def sent(self, words: str, **configurable: object) -> list[BaseMessage]:
        """Return the messages that the model receives for an input."""
        given = {"thread_id": ROOM, "user_id": "ann", "workspace": "shop", **configurable}
        config = {name: value for name, value in given.items() if value is not None}
        await self._agent.ainvoke(input_of(words), {"configurable": config})
        return list(self.model.calls[-1])

    async def facts(self, words: str, **configurable: object) -> list[str]:
        """Return the lines of the block of facts without its header, or an empty list."""
        blocks = [message.text for message in await self.sent(words, **configurable) if FACTS_HEADER in message.text]
        assert len(blocks) < 2
        return blocks[0].splitlines()[2:] if blocks else []

    async def manifest(self) -> ContextManifest:
        """Return the manifest of the newest call."""
        return ContextManifest.from_dict((await self.memory.manifests.of_session(ROOM))[0].manifest)

    async def entry(self) -> Entry:
        """Return the entry of the facts in the newest manifest."""
        [entry] = [entry for entry in (await self.manifest()).entries if entry.section == "facts"]
        return entry


async def test_facts_precede_the_window(memory: Memory, clock: SettableClock) -> None:
    """Facts follow the system message and precede the window, so that consecutive calls begin alike."""
    await memory.knowledge.remember(ANN, "diet", "vegan")
    clock.advance(86_400)
    await memory.knowledge.remember(SHOP, "refund_days", 30)
    talk = Talk(memory)
    first = await talk.sent("Hello!")
    lines = first[1].text.splitlines()
    assert [message.text for message in (first[0], first[2])] == ["Be kind.", "Hello!"]
    assert lines == [
        FACTS_HEADER,
        "",
        "> refund_days: 30 (workspace, 2026-01-02)",
        '> diet: "vegan" (user, 2026-01-01)',
    ]
    second = await talk.sent("And now?")
    assert [message.text for message in second[:3]] == [message.text for message in first]
    [newest, before] = [ContextManifest.from_dict(found.manifest) for found in await memory.manifests.of_session(ROOM)]
    assert list(newest.sections) == ["system", "facts", "window", "input"]
    assert before.prefix is not None
    assert before.prefix.messages == 2


async def test_the_manifest_notes_that_no_fact_fits(memory: Memory) -> None:
    await memory.knowledge.remember(ANN, "diet", "vegan")
    talk = Talk(memory, max_tokens=200)
    assert await talk.facts("Hello!") == []
    assert (await talk.manifest()).notes == ("no_room_for_facts",)


async def test_the_manifest_notes_that_a_tool_result_displaced_the_facts(sqlite_memory: Memory) -> None:
    for number in range(30):
        await sqlite_memory.knowledge.remember(ANN, f"fact_{number}", f"what is known under the number {number}")
    reading = AIMessage("", tool_calls=[{"name": "read", "args": {}, "id": "call-1"}])
    session_memory = SessionMemory(sqlite_memory, max_tokens=2_000, sources=[KnownFacts(sqlite_memory)])
    agent = make_agent(ScriptedModel([reading, "Read."]), [session_memory], [read])
    await agent.ainvoke(input_of("Read it."), config_of(user_id="ann"))
    calls = [ContextManifest.from_dict(one.manifest) for one in await sqlite_memory.manifests.of_session(ROOM)]
    assert [one.notes for one in calls] == [("no_room_for_facts",), ()]
    assert ["facts" in one.sections for one in calls] == [False, True]


async def test_the_manifest_references_facts_without_their_values(memory: Memory) -> None:
    """The manifest references facts without their values, and rebuilds the call after they were forgotten."""
    fact = await memory.knowledge.remember(ANN, "diet", "vegan", evidence=Evidence("room:9", 17, "run-1"))
    talk = Talk(memory)
    sent = await talk.sent("Hello!")
    entry = await talk.entry()
    assert entry.facts == (FactReference(fact.id, "user", "memory", date(2026, 1, 1), (TurnReference("room:9", 17),)),)
    assert entry.source == "text"
    stored = (await memory.manifests.of_session(ROOM))[0]
    assert "vegan" not in str(stored.manifest)
    await memory.knowledge.remember(ANN, "diet", "vegetarian")
    await memory.knowledge.forget(ANN, "diet")
    assert [message.text for message in await rebuild(stored)] == [message.text for message in sent]


async def test_the_manifest_names_no_session_of_another_person(memory: Memory) -> None:
    for session_id in ("telegram:999", ROOM):
        await memory.knowledge.remember(SHOP, "color", "blue", evidence=Evidence(session_id, 17))
    talk = Talk(memory)
    await talk.sent("Hello!")
    [fact] = (await talk.entry()).facts
    assert (fact.scope, fact.evidence) == ("workspace", (TurnReference(ROOM, 17),))
    assert "telegram:999" not in str((await memory.manifests.of_session(ROOM))[0].manifest)


async def test_without_facts_there_is_no_section(memory: Memory) -> None:
    """Without facts there is no section; without user and workspace it has only facts of the session."""
    talk = Talk(memory)
    assert await talk.facts("Hello!") == []
    await memory.knowledge.remember(Scope("session", ROOM), "topic", "bees")
    await memory.knowledge.remember(SHOP, "refund_days", 30)
    [line] = await talk.facts("Hello!", workspace=None)
    assert line.startswith("> topic")


async def test_facts_of_other_users_are_not_sent(memory: Memory) -> None:
    for owner in ("ann", "bob"):
        await memory.knowledge.remember(Scope("user", owner), "name", f"I am {owner}")
    talk = Talk(memory)
    owners: dict[str, str | None] = {"room:a": "ann", "room:b": "bob", "room:c": None}
    for thread_id, user_id in owners.items():
        lines = await talk.facts("What is the name of ann and of bob?", thread_id=thread_id, user_id=user_id)
        assert [f"I am {user_id}" in line for line in lines] == ([True] if user_id else [])


async def test_only_the_named_scopes_are_read(memory: Memory) -> None:
    await memory.knowledge.remember(ANN, "diet", "vegan")
    await memory.knowledge.remember(SHOP, "refund_days", 30)
    assert len(await Talk(memory, KnownFacts(memory, scopes=["user"])).facts("Hi")) == 1
    given = Talk(memory, KnownFacts(memory, workspace="shop"))
    assert len(await given.facts("Hi", workspace=None)) == 2
    assert len(await given.facts("Hi", workspace="another")) == 1
    found = Talk(memory, KnownFacts(memory, workspace=lambda config: str(config["configurable"]["project"])))
    assert len(await found.facts("Hi", workspace=None, project="shop")) == 2


async def test_an_invalid_workspace_does_not_affect_facts_of_the_user(memory: Memory) -> None:
    await memory.knowledge.remember(ANN, "diet", "vegan")
    talk = Talk(memory, KnownFacts(memory, scopes=("user",)))
    for workspace in ("x" * 600, "a\x00b"):
        assert len(await talk.facts("Hello", workspace=workspace)) == 1


async def test_an_invalid_workspace_is_reported_and_omits_only_its_own_facts(
    memory: Memory, events: RecordedEvents
) -> None:
    await memory.knowledge.remember(ANN, "diet", "vegan")
    talk = Talk(memory)
    for workspace in ("x" * 600, "a\x00b", ["shop"]):
        assert len(await talk.facts("Hello", workspace=workspace)) == 1
    assert [event.error for event in events.of(ExtraNotFound)] == ["InvalidInput"] * 3


async def test_matching_and_recent_facts_are_sent_if_not_all_fit(memory: Memory) -> None:
    await memory.knowledge.remember(ANN, "dog_name", "Rex")
    for number in range(100):
        await memory.knowledge.remember(ANN, f"note {number}", f"something about matter number {number} of the list")
    talk = Talk(memory)
    lines = await talk.facts("What is my dog called?")
    assert any("Rex" in line for line in lines)
    assert 5 < len(lines) < 40
    no_room, others = (await talk.manifest()).facts_left_out
    assert (no_room.scope, no_room.reason, len(no_room.ids)) == ("user", "no_room", 20)
    assert no_room.count >= 60 - len(lines)
    assert others == FactsLeftOut("user", "over_limit")
    assert (await talk.entry()).tokens <= 400
    assert lines == sorted(lines)


async def test_a_selection_stays_until_an_input_needs_another(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The selected facts stay the same until an input needs others, so that calls begin alike.

    The test selects facts by words: with the extra `meaning`, some facts resemble every input.
    """
    monkeypatch.setattr("threadkeep.agent.recalled_turns.installed_word_vectors", lambda: None)
    await memory.knowledge.remember(ANN, "dog_name", "Rex")
    await memory.knowledge.remember(ANN, "home_city", "Lisbon")
    for number in range(100):
        await memory.knowledge.remember(ANN, f"note {number}", f"something about matter number {number} of the list")
    talk = Talk(memory)
    with_dog = await talk.facts("What is my dog called?")
    assert await talk.facts("Thank you!") == with_dog
    assert await talk.facts("And what was the dog's name again?") == with_dog
    with_city = await talk.facts("Which town do I live in?")
    assert any("Lisbon" in line for line in with_city)


async def test_the_manifest_lists_omitted_facts(memory: Memory) -> None:
    """The manifest lists a fact that is too long, and one whose key a more specific scope has."""
    long = await memory.knowledge.remember(ANN, "a", "x " * 4_000)
    hidden = await memory.knowledge.remember(ANN, "b", "hidden")
    await memory.knowledge.remember(SHOP, "B", "short")
    talk = Talk(memory)
    assert await talk.facts("Hi") == ['> b: "short" (workspace, 2026-01-01)']
    assert (await talk.manifest()).facts_left_out == (
        FactsLeftOut("user", "no_room", 1, (long.id,)),
        FactsLeftOut("user", "same_key", 1, (hidden.id,)),
    )
    await memory.knowledge.forget_all(ANN)
    await talk.facts("Hi")
    assert (await talk.manifest()).facts_left_out == ()


async def test_the_next_turn_receives_a_changed_fact(memory: Memory) -> None:
    talk = Talk(memory)
    await memory.knowledge.remember(ANN, "diet", "vegetarian")
    assert await talk.facts("Hi") == ['> diet: "vegetarian" (user, 2026-01-01)']
    await memory.knowledge.remember(ANN, "diet", "vegan")
    assert await talk.facts("Hi") == ['> diet: "vegan" (user, 2026-01-01)']
    await memory.persons.resolve("telegram:7")
    await memory.persons.merge("telegram:7", "ann")
    assert await talk.facts("Hi", thread_id="telegram:7", user_id="telegram:7") == [
        '> diet: "vegan" (user, 2026-01-01)'
    ]


async def test_the_transaction_of_the_question_reads_the_facts(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(memory)
    await memory.knowledge.remember(ANN, "city", "Lisbon")
    await memory.knowledge.remember(SHOP, "database", "SQLite")
    assert len(await talk.facts("Hello")) == 2
    monkeypatch.setattr(memory.knowledge, "valid", None)
    assert [line.partition(" (")[0] for line in await talk.facts("Hello again")] == [
        '> database: "SQLite"',
        '> city: "Lisbon"',
    ]
    assert await talk.facts("Hello", user_id="bob", thread_id="room:2", workspace=None) == []


async def test_facts_of_another_memory_are_read_there(memory: Memory) -> None:
    async with open_memory("sqlite:///:memory:") as other:
        await other.knowledge.remember(ANN, "city", "Porto")
        await memory.knowledge.remember(ANN, "city", "Lisbon")
        assert "Porto" in " ".join(await Talk(memory, KnownFacts(other)).facts("Hello"))


async def test_a_block_of_a_turn_sends_facts_that_were_stored_in_it(memory: Memory) -> None:
    options = TurnOptions(sources=(KnownFacts(memory),))
    config = RunnableConfig(configurable={"thread_id": ROOM, "user_id": "ann"})
    async with session_turn(memory, [HumanMessage("Hello")], config, options) as turn:
        await memory.knowledge.remember(Scope("session", ROOM), "city", "Lisbon")
        assert "Lisbon" in " ".join(message.text for message in await turn.messages())
        turn.answer("Hello")


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_fact_that_a_tool_forgets_is_not_sent_again(memory: Memory, is_sync: bool) -> None:
    await memory.knowledge.remember(ANN, "diet", "vegan")
    await memory.knowledge.remember(ANN, "city", "Porto")
    model = ScriptedModel([calling("forget", {"key": "diet"}), "Done."])
    agent = make_agent(model, [SessionMemory(memory, sources=[KnownFacts(memory)])], knowledge_tools(memory))
    given, config = input_of("Forget my diet"), config_of(user_id="ann")
    await (asyncio.to_thread(agent.invoke, given, config) if is_sync else agent.ainvoke(given, config))
    blocks = [[message.text for message in call if FACTS_HEADER in message.text] for call in model.calls]
    assert [("vegan" in block, "Porto" in block) for [block] in blocks] == [(True, True), (False, True)]


async def test_without_a_database_the_agent_answers_without_facts(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    async with open_memory(shared_url, observers=[events], options=memory_options) as memory:
        await memory.knowledge.remember(ANN, "diet", "vegan")
        await asyncio.to_thread(execute, shared_url, "ALTER TABLE chat_facts RENAME TO elsewhere")
        assert await Talk(memory).facts("Hi") == []
        assert [event.section for event in events.of(ExtraNotFound)] == ["facts"]
        await asyncio.to_thread(execute, shared_url, "ALTER TABLE elsewhere RENAME TO chat_facts")


async def test_an_unknown_scope_is_refused(sqlite_memory: Memory) -> None:
    with pytest.raises(InvalidInput, match="scopes"):
        KnownFacts(sqlite_memory, scopes=["everybody"])  # type: ignore[list-item]


async def test_the_note_about_a_refused_directive_counts_towards_the_facts(memory: Memory) -> None:
    for number in range(30):
        await memory.knowledge.remember(ANN, f"rule_{number}", f"no shoes in hall {number}, nor in the garden of it")
    talk = Talk(memory, KnownFacts(memory, directives=True), max_tokens=2_000)
    lines = await talk.facts("remember: my password is hunter2hunter2")
    assert lines[-1].startswith("Note of the system")
    assert len(lines) > 1
    assert (await talk.entry()).tokens <= 200


class Vessels(Embeddings):
    """An embedding model that knows only whether a text is about vessels."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return a vector for each text."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text."""
        return [1.0, 0.0] if {"ketch", "sailing"} & set(text.split()) else [0.0, 1.0]


async def test_embeddings_select_facts_with_other_words(memory: Memory) -> None:
    await memory.knowledge.remember(ANN, "possession", "a ketch")
    for number in range(80):
        await memory.knowledge.remember(ANN, f"rule_{number}", f"no shoes in hall {number}, nor in the garden of it")
    without = await Talk(memory).facts("sailing")
    assert not any("ketch" in line for line in without)
    found = await Talk(memory, KnownFacts(memory, embeddings=Vessels())).facts("sailing")
    assert any("ketch" in line for line in found)
    model = ScriptedModel([calling("recall", {"query": "sailing"}), "I see."])
    agent = make_agent(model, [SessionMemory(memory)], knowledge_tools(memory, embeddings=Vessels()))
    state = await agent.ainvoke(input_of("Go."), {"configurable": {"thread_id": "elsewhere", "user_id": "ann"}})
    assert "ketch" in result_of(state["messages"])
