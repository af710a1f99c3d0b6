"""Tests of `tool_memory`: later calls contain the tool calls and results of earlier turns, the steps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.context_laws import check_shape
from tests.agent.talking import ROOM, ask, config_of, input_of, kept, make_agent
from tests.databases import execute, query
from tests.recorded_events import RecordedEvents
from threadkeep import ContextManifest, InvalidInput, Memory, Message, SessionMemory, TurnOptions, open_memory, rebuild
from threadkeep.agent.counting import count_tokens
from threadkeep.agent.provider_messages import NO_ANSWER, NO_RESULT, UNREAD_RESULT
from threadkeep.context.plan import ContextPlan
from threadkeep.errors import StoreUnavailable
from threadkeep.observe import WriteFailed
from threadkeep.records import Retention, RetentionLimits
from threadkeep.testing import Gate, ScriptedModel

BOOKED: list[str] = []
FLIGHTS = "A: 9:00, 120 €\nB: 11:30, 95 €\nC: 17:45, 80 €"


@tool
def find_flights(city: str, words: int = 0) -> str:
    """Find flights to a city."""
    return f"{city}\n{FLIGHTS}" + " more" * words


@tool
def book(flight: str) -> str:
    """Book a flight."""
    BOOKED.append(flight)
    return f"booked {flight}"


@tool
def broken() -> str:
    """Fail."""
    raise RuntimeError("broken")


TOOLS = [find_flights, book]


def calling(name: str, call_id: str, content: str | list[str | dict[str, Any]] = "", **args: object) -> AIMessage:
    """Return a message that calls a tool."""
    return AIMessage(content, tool_calls=[{"name": name, "args": args, "id": call_id}])


def finding(call_id: str = "c1", words: int = 0) -> AIMessage:
    """Return a message that calls `find_flights`."""
    return calling("find_flights", call_id, city="Porto", words=words)


def talk_of(call: Sequence[BaseMessage]) -> list[tuple[str, str]]:
    """Return the type and text of each message; of a tool call, the name of the tool."""
    return [
        (one.type, one.tool_calls[0]["name"] if isinstance(one, AIMessage) and one.tool_calls else str(one.text))
        for one in call
    ]


FOUND = [
    ("human", "flights to Porto?"),
    ("ai", "find_flights"),
    ("tool", f"Porto\n{FLIGHTS}"),
    ("ai", "There are three."),
]


async def check_records(memory: Memory, model: ScriptedModel) -> list[ContextManifest]:
    """Check the shape of each call and that its manifest rebuilds it; return the manifests, oldest first."""
    stored = [*reversed(await memory.manifests.of_session(ROOM, limit=200))]
    assert [talk_of(await rebuild(one)) for one in stored] == [talk_of(call) for call in model.calls]
    for call in model.calls:
        check_shape(call)
    return [ContextManifest.from_dict(one.manifest) for one in stored]


async def test_tool_calls_of_earlier_turns_are_sent_again(memory: Memory) -> None:
    model = ScriptedModel(
        [finding(), "There are three.", calling("book", "c2", flight="B"), "Booked.", "You are welcome."]
    )
    agent = make_agent(model, [SessionMemory(memory)], TOOLS)
    await ask(agent, "flights to Porto?")
    await ask(agent, "book the second of those")
    assert talk_of(model.calls[2]) == [*FOUND, ("human", "book the second of those")]
    await ask(agent, "thanks")
    booked = [("human", "book the second of those"), ("ai", "book"), ("tool", "booked B"), ("ai", "Booked.")]
    assert talk_of(model.calls[4]) == [*FOUND, *booked, ("human", "thanks")]
    assert await kept(memory) == [
        ("user", "flights to Porto?"),
        ("assistant", "There are three."),
        ("user", "book the second of those"),
        ("assistant", "Booked."),
        ("user", "thanks"),
        ("assistant", "You are welcome."),
    ]
    manifests = await check_records(memory, model)
    entries = [(entry.section, entry.source) for entry in manifests[2].entries]
    assert entries == [
        ("window", "transcript"), ("earlier_steps", "text"), ("earlier_steps", "text"), ("window", "transcript"),
        ("input", "transcript"),
    ]  # fmt: skip
    assert manifests[2].sections["earlier_steps"] == count_tokens(model.calls[2][1:3])


async def test_steps_survive_the_process(shared_url: str) -> None:
    model = ScriptedModel([finding(), "There are three.", "Booked.", "fine"])
    for words in ("flights to Porto?", "book the second of those", "thanks"):
        async with open_memory(shared_url) as memory:
            await ask(make_agent(model, [SessionMemory(memory)], TOOLS), words)
    assert talk_of(model.calls[2]) == [*FOUND, ("human", "book the second of those")]
    async with open_memory(shared_url) as memory:
        await check_records(memory, model)


async def test_steps_of_another_provider_are_explained_as_steps(memory: Memory) -> None:
    """A step of another provider is sent as a copy without that provider's own content."""
    replies = [calling("find_flights", f"c{number}", city="Porto") for number in range(2)]
    for reply, provider in zip(replies, ("groq", "openai"), strict=True):
        reply.response_metadata = {"model_provider": provider}
        reply.additional_kwargs = {"reasoning_content": "Which city?"}
        reply.content = "many words " * 2_000
    model = ScriptedModel([*replies, "There are three.", "The first one."])
    agent = make_agent(model, [SessionMemory(memory, tool_memory=1)], TOOLS)
    await ask(agent, "flights to Porto?")
    await ask(agent, "which one is best?")
    thoughts = [one.additional_kwargs for one in model.calls[-1] if isinstance(one, AIMessage) and one.tool_calls]
    assert thoughts == [{}, replies[1].additional_kwargs]
    newest, *_ = await memory.manifests.of_session(ROOM)
    entries = ContextManifest.from_dict(newest.manifest).entries
    assert [entry.section for entry in entries] == ["window", *["earlier_steps"] * 4, "window", "input"]
    assert [entry.tokens_before is not None for entry in entries] == [False, True, False, True, False, False, False]


async def test_a_sliding_window_sends_the_steps_of_tool_memory_turns(sqlite_memory: Memory) -> None:
    replies: list[str | AIMessage] = [reply for n in range(4) for reply in (finding(f"c{n}"), f"answer {n}")]
    for turns, expected in ((0, [0, 0, 0, 0]), (1, [0, 1, 1, 1]), (2, [0, 1, 2, 2])):
        model = ScriptedModel(replies)
        limits = SessionMemory(sqlite_memory, tool_memory=turns, window="sliding")
        agent = make_agent(model, [limits], TOOLS)
        for n in range(4):
            await agent.ainvoke({"messages": [HumanMessage(f"question {n}")]}, config_of(f"room:{turns}"))
        firsts = model.calls[::2]
        assert [sum(message.type == "tool" for message in call) for call in firsts] == expected
        rows = await sqlite_memory.contexts.steps(f"room:{turns}", "", since=0)
        assert len(rows) == turns


async def test_a_turn_without_tools_counts_as_a_turn(memory: Memory) -> None:
    model = ScriptedModel([finding(), "There are three.", "It is sunny.", "Which ones?"])
    agent = make_agent(model, [SessionMemory(memory, window="sliding")], TOOLS)
    for words in ("flights to Porto?", "and the weather?", "book the second of those"):
        await ask(agent, words)
    assert "tool" not in [message.type for message in model.calls[3]]


@pytest.mark.parametrize("turns", [1, 2])
async def test_an_anchored_window_keeps_steps_while_their_share_has_room(memory: Memory, turns: int) -> None:
    replies: list[str | AIMessage] = [reply for n in range(7) for reply in (finding(f"c{n}", 120), f"answer {n}")]
    model = ScriptedModel(replies)
    agent = make_agent(model, [SessionMemory(memory, tool_memory=turns)], TOOLS)
    for n in range(7):
        await ask(agent, f"question {n}")
    counts = [sum(message.type == "tool" for message in call) for call in model.calls[::2]]
    assert counts == ([0, 1, 2, 3, 4, 1, 2] if turns == 1 else [0, 1, 2, 3, 4, 2, 3])
    for call in model.calls[::2]:
        assert count_tokens([one for one in call if one.type == "tool"]) <= 1_400
    await check_records(memory, model)


async def test_older_steps_are_dropped_together(memory: Memory) -> None:
    replies: list[str | AIMessage] = [reply for n in range(23) for reply in (finding(f"c{n}"), f"answer {n}")]
    model = ScriptedModel(replies)
    agent = make_agent(model, [SessionMemory(memory, max_tokens=30_000)], TOOLS)
    for n in range(23):
        await ask(agent, f"question {n}")
    counts = [sum(message.type == "tool" for message in call) for call in model.calls[::2]]
    assert counts == [*range(21), 1, 2]


async def test_turns_without_tools_do_not_remove_steps(memory: Memory) -> None:
    model = ScriptedModel([finding(), "There are three.", *(f"answer {n}" for n in range(21))])
    agent = make_agent(model, [SessionMemory(memory, max_tokens=30_000)], TOOLS)
    for n in range(22):
        await ask(agent, f"question {n}")
    for before, after in itertools.pairwise(map(talk_of, model.calls)):
        assert after[: len(before)] == before


async def test_steps_are_not_sent_for_an_agent_without_tools(memory: Memory) -> None:
    model = ScriptedModel([finding(), "There are three.", "fine"])
    await ask(make_agent(model, [SessionMemory(memory)], TOOLS), "flights to Porto?")
    await ask(make_agent(model, [SessionMemory(memory)]), "thanks")
    assert "tool" not in [message.type for message in model.calls[2]]


async def test_a_result_larger_than_its_share_is_cut(memory: Memory) -> None:
    model = ScriptedModel([finding(words=3_000), "There are three.", "fine"])
    plan = ContextPlan(shares={"earlier_steps": 0.1})
    agent = make_agent(model, [SessionMemory(memory, max_tokens=2_000, plan=plan)], TOOLS)
    await ask(agent, "flights to Porto?")
    await ask(agent, "book the second of those")
    assert [message.type for message in model.calls[2]] == ["human", "ai", "tool", "ai", "human"]
    assert "… [cut" in model.calls[2][2].text
    assert 100 < count_tokens(model.calls[2][1:3]) <= 200
    manifest = (await check_records(memory, model))[2]
    assert manifest.entries[2].tokens_before is not None
    assert manifest.sections["earlier_steps"] <= 200


async def test_steps_over_the_budget_are_listed_as_exclusions(memory: Memory) -> None:
    model = ScriptedModel([finding(words=60), "There are three.", "fine"])
    agent = make_agent(model, [SessionMemory(memory, max_tokens=600)], TOOLS)
    await ask(agent, "flights to Porto?")
    await ask(agent, "book the second of those " + "please " * 420)
    assert [message.type for message in model.calls[2]] == ["human", "ai", "human"]
    manifest = (await check_records(memory, model))[2]
    assert [one.reason for one in manifest.left_out] == ["over_budget", "over_budget"]
    assert manifest.dropped == 1


async def test_a_share_of_zero_excludes_steps(memory: Memory) -> None:
    model = ScriptedModel([finding(), "There are three.", "fine"])
    plan = ContextPlan(shares={"earlier_steps": 0})
    agent = make_agent(model, [SessionMemory(memory, plan=plan)], TOOLS)
    await ask(agent, "flights to Porto?")
    await ask(agent, "book the second of those")
    assert [message.type for message in model.calls[2]] == ["human", "ai", "human"]


async def test_the_newest_of_several_steps_is_not_cut(memory: Memory) -> None:
    looking = [finding("c1", 800), finding("c2", 800), calling("book", "c3", flight="B")]
    model = ScriptedModel([*looking, "Booked.", "fine"])
    agent = make_agent(model, [SessionMemory(memory, max_tokens=4_000)], TOOLS)
    await ask(agent, "flights to Porto, and book the second")
    await ask(agent, "thanks")
    results = [message.text for message in model.calls[4] if message.type == "tool"]
    assert results[-1] == "booked B"
    assert len(results) == 3
    assert count_tokens(model.calls[4]) < 1_100
    await check_records(memory, model)


async def test_reasoning_and_media_are_not_stored(memory: Memory) -> None:
    @tool
    def show(subject: str) -> list[dict[str, object]]:
        """Show a picture."""
        return [{"type": "text", "text": subject}, {"type": "image", "base64": "aGk=", "mime_type": "image/png"}]

    thinking: list[str | dict[str, Any]] = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "I look."},
    ]
    model = ScriptedModel([calling("show", "c1", thinking, subject="a horse"), "There it is.", "fine"])
    agent = make_agent(model, [SessionMemory(memory)], [show])
    await ask(agent, "show me a horse")
    await ask(agent, "and now?")
    _, asked, shown, *_ = model.calls[2]
    assert (asked.content, shown.content) == ("I look.", "a horse\n[image]")
    await check_records(memory, model)


async def test_with_a_checkpointer_steps_are_not_sent_twice(memory: Memory) -> None:
    model = ScriptedModel([finding(), "There are three.", "Booked.", "fine"])
    agent = make_agent(model, [SessionMemory(memory)], TOOLS, checkpointer=InMemorySaver())
    await ask(agent, "flights to Porto?")
    await ask(agent, "book the second of those")
    assert talk_of(model.calls[2]) == [*FOUND, ("human", "book the second of those")]
    await check_records(memory, model)


@pytest.mark.parametrize("failing", ["model", "tool", "limit"])
async def test_the_steps_of_a_failed_run_are_sent(shared_url: str, failing: str) -> None:
    last: dict[str, AIMessage | Exception] = {
        "model": RuntimeError("down"),
        "tool": calling("broken", "c2"),
        "limit": calling("book", "c2", flight="B"),
    }
    model = ScriptedModel([finding(), last[failing], "There were three."])
    async with open_memory(shared_url) as memory, open_memory(shared_url) as other:
        agent = make_agent(model, [SessionMemory(memory)], [*TOOLS, broken])
        with pytest.raises(RuntimeError):  # LangGraph's RecursionError is a RuntimeError
            await agent.ainvoke(input_of("flights to Porto?"), {**config_of(), "recursion_limit": 5})
        await ask(make_agent(model, [SessionMemory(other)], TOOLS), "hello?")
        booked = [("ai", "book"), ("tool", UNREAD_RESULT)] if failing == "limit" else []
        assert talk_of(model.calls[2]) == [*FOUND[:3], *booked, ("ai", NO_ANSWER), ("human", "hello?")]
        await memory.manifests.flush()
        await check_records(other, model)


async def test_the_steps_of_a_cancelled_run_are_sent_without_results(memory: Memory) -> None:
    booked, gate = asyncio.Event(), Gate()

    class Noting(AgentMiddleware):
        """Middleware that sets an event when a tool has returned."""

        async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[..., Awaitable[Any]]) -> Any:
            """Run it."""
            result = await handler(request)
            booked.set()
            return result

    @tool
    async def wait() -> None:
        """Wait for the other tool, then at the gate."""
        await booked.wait()
        await gate.pass_through()

    both = [{"name": "book", "args": {"flight": "B"}, "id": "c1"}, {"name": "wait", "args": {}, "id": "c2"}]
    model = ScriptedModel([AIMessage("", tool_calls=both), "There were three."])
    agent = make_agent(model, [Noting(), SessionMemory(memory)], [book, wait])
    run = asyncio.create_task(ask(agent, "book the second"))
    await gate.reached()
    run.cancel()
    await asyncio.wait([run])
    await ask(agent, "hello?")
    steps = [("ai", "book"), ("tool", UNREAD_RESULT), ("tool", NO_RESULT), ("ai", NO_ANSWER)]
    assert talk_of(model.calls[1]) == [("human", "book the second"), *steps, ("human", "hello?")]
    check_shape(model.calls[1])
    await check_records(memory, model)


async def test_a_reset_removes_steps(memory: Memory) -> None:
    model = ScriptedModel([finding(), "There are three.", "Who?"])
    agent = make_agent(model, [SessionMemory(memory)], TOOLS)
    await ask(agent, "flights to Porto?")
    await memory.session(ROOM).reset()
    await ask(agent, "book the second of those")
    assert [message.type for message in model.calls[2]] == ["human"]


async def test_steps_of_an_answer_that_was_superseded_are_not_shown(memory: Memory) -> None:
    model = ScriptedModel([finding(), "There are three.", "None at all.", "fine", "fine"])
    agent = make_agent(model, [SessionMemory(memory)], TOOLS)
    await ask(agent, "flights to Porto?")
    session = memory.session(ROOM)
    await agent.ainvoke(await session.regenerate(), config_of())
    assert talk_of(model.calls[2]) == FOUND[:1]
    await ask(agent, "book the second of those")
    assert talk_of(model.calls[3]) == [FOUND[0], ("ai", "None at all."), ("human", "book the second of those")]
    await ask(make_agent(ScriptedModel([finding(), "three"]), [SessionMemory(memory)], TOOLS), "and to Faro?")
    await session.edit((await session.tail(1))[0].id or "", "Two.")
    await ask(agent, "book the second of those")
    assert "tool" not in [message.type for message in model.calls[4]]


async def test_each_agent_receives_its_own_steps(memory: Memory) -> None:
    model = ScriptedModel([finding(), "There are three.", "fine", "Booked."])
    finder, writer = (
        create_agent(model, TOOLS, middleware=[SessionMemory(memory, tool_memory=2)], name=name)
        for name in ("finder", "writer")
    )
    for agent, words in ((finder, "flights to Porto?"), (writer, "thanks"), (finder, "book the second")):
        await ask(agent, words)
    assert [[message.type for message in call].count("tool") for call in model.calls] == [0, 1, 0, 1]
    await check_records(memory, model)


async def test_steps_are_deleted_with_their_messages(shared_url: str) -> None:
    for number, verb in enumerate(("delete", "archive", "take back")):
        model = ScriptedModel([finding(), "There are three."])
        async with open_memory(shared_url) as memory:
            session = memory.session(f"room:{number}")
            agent = make_agent(model, [SessionMemory(memory)], TOOLS)
            await agent.ainvoke({"messages": [HumanMessage("flights to Porto?")]}, config_of(session.session_id))
            assert len(await memory.contexts.steps(session.session_id, "", since=0)) == 1
            if verb == "delete":
                await session.delete()
            elif verb == "take back":
                await session.take_back()
                await session.take_back()
            else:
                await session.append([Message("user", "thanks"), Message("assistant", "you are welcome")])
                await memory.retention.prune(Retention(archive=RetentionLimits(max_messages=2)))
        assert query(shared_url, f"SELECT count(*) FROM chat_steps WHERE session_id = 'room:{number}'") == [(0,)]


async def test_no_history_has_no_steps(memory: Memory) -> None:
    model = ScriptedModel([finding(), "There are three.", "fine"])
    agent = make_agent(model, [SessionMemory(memory, max_messages=0)], TOOLS)
    await ask(agent, "flights to Porto?")
    await ask(agent, "book the second of those")
    assert [message.type for message in model.calls[2]] == ["human"]


async def test_an_agent_answers_if_steps_cannot_be_stored_or_read(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    model = ScriptedModel([finding(), "There are three.", "fine"])
    agent = make_agent(model, [SessionMemory(memory)], TOOLS)
    monkeypatch.setattr(memory.contexts, "keep_steps", away)
    assert await ask(agent, "flights to Porto?") == "There are three."
    monkeypatch.setattr(memory.contexts, "steps", away)
    assert await ask(agent, "book the second of those") == "fine"


@pytest.mark.parametrize("turns", [-1, True, 1.5, "all"])
def test_tool_memory_must_be_a_whole_number(turns: Any) -> None:
    with pytest.raises(InvalidInput, match="tool_memory is a whole number"):
        TurnOptions(tool_memory=turns)


@pytest.mark.parametrize("database_url", ["sqlite-file", "postgres"], indirect=True)
async def test_steps_that_cannot_be_stored_are_reported_as_lost(
    memory: Memory, database_url: str, events: RecordedEvents
) -> None:
    """The turn is stored. The event does not say that the steps are pending, because they are not written again."""
    execute(database_url, "ALTER TABLE chat_steps RENAME TO chat_steps_elsewhere")
    agent = make_agent(ScriptedModel([finding(), "There are three."]), [SessionMemory(memory)], TOOLS)
    await ask(agent, "flights to Porto?")
    assert await kept(memory) == [("user", "flights to Porto?"), ("assistant", "There are three.")]
    assert [event.outcome for event in events.of(WriteFailed)] == ["error"]
