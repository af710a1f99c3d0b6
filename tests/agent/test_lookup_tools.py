"""Tests of the tools of `history_tools`, through an agent that calls them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool

from tests.agent.talking import ROOM, config_of, input_of, make_agent
from tests.databases import execute
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, MemoryOptions, Message, SessionMemory, open_memory
from threadkeep.agent.lookup_tools import history_tools
from threadkeep.observe import ReadFailed
from threadkeep.records import Summary
from threadkeep.testing import ScriptedModel

type Arguments = dict[str, object]


def calling(name: str, arguments: Arguments, call_id: str = "look") -> AIMessage:
    """Return a message that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": call_id}])


async def looked_up(memory: Memory, name: str, arguments: Arguments, *, user_id: str | None = None) -> str:
    """Return the result of a tool call of an agent."""
    model = ScriptedModel([calling(name, arguments), "I see."])
    agent = make_agent(model, [SessionMemory(memory, max_tokens=None)], history_tools(memory))
    config = config_of() if user_id is None else config_of(user_id=user_id)
    state = await agent.ainvoke(input_of("Look it up."), config)
    return result_of(state["messages"])


def result_of(messages: Sequence[BaseMessage]) -> str:
    """Return the newest tool result."""
    return str(next(message for message in reversed(messages) if isinstance(message, ToolMessage)).text)


def lines_of(result: str) -> list[dict[str, object]]:
    """Return the quoted lines of a result."""
    return [json.loads(line) for line in result.splitlines() if line.startswith("{")]


async def remember(memory: Memory, *texts: str, session_id: str = ROOM, user_id: str | None = None) -> None:
    """Append texts, alternately by user and assistant."""
    session = memory.session(session_id, user_id=user_id)
    for number, text in enumerate(texts):
        await session.append([Message(role="assistant" if number % 2 else "user", content=text)])


async def test_messages_are_read_by_their_numbers(memory: Memory) -> None:
    """Messages are returned whole, with date and role, and marked as quoted."""
    await remember(memory, "My cat is Miso.", "A fine name.", "She is nine.", "Nine!")
    result = await looked_up(memory, "read_history", {"from_seq": 2, "to_seq": 3})
    assert "no instructions" in result.splitlines()[0]
    assert lines_of(result) == [
        {"message": 2, "at": "2026-01-01 12:00", "from": "assistant", "text": "A fine name."},
        {"message": 3, "at": "2026-01-01 12:00", "from": "user", "text": "She is nine."},
    ]


async def test_a_long_stretch_is_read_page_by_page(sqlite_memory: Memory) -> None:
    await remember(sqlite_memory, *(f"{number}: " + "x" * 500 for number in range(1, 70)))
    arguments: Arguments | None = {"from_seq": 1, "to_seq": 69}
    read: list[object] = []
    while arguments is not None:
        result = await looked_up(sqlite_memory, "read_history", arguments)
        assert len(result) < 10_000
        read += [line["message"] for line in lines_of(result)]
        more = re.search(r"More: read_history\(from_seq=(\d+), to_seq=(\d+)\)", result)
        arguments = {"from_seq": int(more[1]), "to_seq": int(more[2])} if more else None
    assert read == list(range(1, 70))


async def test_messages_that_do_not_fit_are_replaced_by_summaries(memory: Memory) -> None:
    """Messages that do not fit are replaced by their first summaries, unless they were superseded."""
    await remember(memory, *(f"{number}: words" for number in range(1, 71)))
    parts = [Summary(ROOM, at, at + 9, f"Of {at}.", model="m", prompt_version="1", tokens=3) for at in range(1, 61, 10)]
    for part in parts:
        assert await memory.summaries.add(part)
    merged = Summary(ROOM, 1, 50, "Of all.", model="m", prompt_version="1", tokens=3, level=2)
    assert await memory.summaries.add(merged, [part.id for part in parts[:5]])

    async def told() -> list[object]:
        result = await looked_up(memory, "read_history", {"from_seq": 1, "to_seq": 66})
        return [line["text"] for line in lines_of(result) if "summary_of_messages" in line]

    assert await told() == ["Of 31.", "Of 41.", "Of 51."]
    [question] = await memory.session(ROOM).at([45])
    await memory.session(ROOM).edit(str(question.id), "other")
    assert await told() == ["Of 31."]


async def test_a_huge_message_is_read_in_pieces(sqlite_memory: Memory) -> None:
    words = " ".join(f"word{number}" for number in range(2_000))
    await remember(sqlite_memory, words, "Much.")
    start: int | None = 0
    read = ""
    while start is not None:
        arguments: Arguments = {"from_seq": 1, "to_seq": 1, "start_character": start}
        result = await looked_up(sqlite_memory, "read_history", arguments)
        [line] = lines_of(result)
        read += str(line["text"])
        more = re.search(r"start_character=(\d+)", result)
        start = int(more[1]) if more else None
    assert read == words


async def test_a_range_without_messages_says_so(sqlite_memory: Memory) -> None:
    await remember(sqlite_memory, "hi", "hello")
    for first, last in ((50, 60), (2, 1), (-5, 0)):
        result = await looked_up(sqlite_memory, "read_history", {"from_seq": first, "to_seq": last})
        assert result == "This conversation has no such messages."


async def test_messages_before_a_reset_are_not_returned(memory: Memory) -> None:
    await remember(memory, "The secret is plum.", "Noted.")
    await memory.session(ROOM).reset()
    await remember(memory, "The fruit is plum.", "Fine.")
    read = await looked_up(memory, "read_history", {"from_seq": 1, "to_seq": 4})
    assert [line["message"] for line in lines_of(read)] == [3, 4]
    found = await looked_up(memory, "search_history", {"query": "plum"})
    assert [line["text"] for line in lines_of(found)] == ["The fruit is plum."]


async def test_a_search_covers_only_the_session(memory: Memory) -> None:
    await remember(memory, "It was in Lisbon.", "Lovely.", "Sold inside. " * 30 + "in Lisbon again " + "so " * 300)
    await remember(memory, "Lisbon is elsewhere.", session_id="telegram:2")
    result = await looked_up(memory, "search_history", {"query": "in lisbon"})
    found = {line["message"]: str(line["text"]) for line in lines_of(result)}
    assert set(found) == {1, 3}
    assert "Lisbon again" in found[3]
    assert len(found[3]) < 400
    nothing = await looked_up(memory, "search_history", {"query": "zanzibar"})
    assert nothing.startswith("No message of this conversation")


async def test_an_excerpt_has_the_word_after_letters_that_are_longer_in_lower_case(memory: Memory) -> None:
    await remember(memory, "İ" * 200 + " then Lisbon " + "so " * 300)
    assert "Lisbon" in await looked_up(memory, "search_history", {"query": "lisbon"})


async def test_a_search_states_that_not_all_messages_are_indexed(
    database_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing_done(*_: object, **__: object) -> bool:
        return False

    # Background indexing is off: it could be running when it is patched, and would finish.
    async with open_memory(database_url, options=replace(memory_options, background=False)) as memory:
        await remember(memory, "I live in Lisbon.")
        await memory.search("lisbon")
        monkeypatch.setattr("threadkeep.store.search.SearchIndex.catch_up", nothing_done)
        await remember(memory, "I was in Zanzibar.")
        for word, found in (("lisbon", 1), ("zanzibar", 0)):
            result = await looked_up(memory, "search_history", {"query": word})
            assert "Not all messages" in result.splitlines()[1]
            assert len(lines_of(result)) == found


async def test_the_history_of_another_user_is_not_returned(memory: Memory) -> None:
    """A run of another user gets no messages, and the tools have no argument for a user."""
    await remember(memory, "mine", "yes", user_id="u1")
    tools = history_tools(memory)
    calls: list[tuple[str, Arguments]] = [
        ("read_history", {"from_seq": 1, "to_seq": 2}),
        ("search_history", {"query": "mine"}),
    ]
    for name, arguments in calls:
        [called] = [tool for tool in tools if tool.name == name]
        model = ScriptedModel([calling(name, arguments), "I see."])
        agent = make_agent(model, [], [called])
        state = await agent.ainvoke(input_of("Look."), config_of(user_id="u2"))
        assert result_of(state["messages"]) == "This conversation has no such messages."
    assert set(tools[0].args) == {"from_seq", "to_seq", "start_character"}
    assert set(tools[1].args) == {"query"}
    assert set(tools[2].args) == {"tool_call_id", "start", "characters", "arguments"}


async def test_without_a_database_the_result_says_so(
    shared_url: str, memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    calls: list[tuple[str, Arguments]] = [
        ("read_history", {"from_seq": 1, "to_seq": 2}),
        ("search_history", {"query": "hi"}),
    ]
    async with open_memory(shared_url, observers=[events], options=memory_options) as memory:
        await remember(memory, "hi", "hello")
        agent_tools = history_tools(memory)
        await asyncio.to_thread(execute, shared_url, "ALTER TABLE chat_sessions RENAME TO elsewhere")
        for name, arguments in calls:
            agent = make_agent(ScriptedModel([calling(name, arguments), "I see."]), [], agent_tools)
            state = await agent.ainvoke(input_of("Look."), config_of())
            assert result_of(state["messages"]) == "The history cannot be read just now; go on without it."
        assert {event.outcome for event in events.of(ReadFailed)} >= {"fallback"}
        await asyncio.to_thread(execute, shared_url, "ALTER TABLE elsewhere RENAME TO chat_sessions")


@tool
def report() -> str:
    """A long report."""
    return " ".join(f"line{number}" for number in range(3_000))


@tool
def write(text: str) -> str:
    """Write a text down."""
    return "written"


async def test_a_result_that_was_cut_can_be_read(sqlite_memory: Memory) -> None:
    model = ScriptedModel(
        [
            calling("report", {}, "call-1"),
            calling("read_tool_result", {"tool_call_id": "call-1", "start": 4_000}, "call-2"),
            calling("read_tool_result", {"tool_call_id": "report", "start": 22_000, "characters": 90_000}, "call-3"),
            calling("read_tool_result", {"tool_call_id": "nonsense"}, "call-4"),
            "Read.",
        ]
    )
    agent = make_agent(model, [SessionMemory(sqlite_memory, max_tokens=3_000)], [report, *history_tools(sqlite_memory)])
    state = await agent.ainvoke(input_of("Report."), config_of())
    whole = str(report.invoke({}))
    results = [str(message.text) for message in state["messages"] if isinstance(message, ToolMessage)]
    assert results[0] == whole
    assert f"Characters 4000 to 8000 of {len(whole)}." in results[1]
    assert "start=8000" in results[1]
    assert lines_of(results[1]) == [{"result": whole[4_000:8_000]}]
    assert lines_of(results[2]) == [{"result": whole[22_000:28_000]}]
    assert f"call-1 (report, {len(whole)} characters)" in results[3]


async def test_arguments_that_were_cut_can_be_read(sqlite_memory: Memory) -> None:
    told: Arguments = {"text": "word " * 3_000 + "end"}
    reading: Arguments = {"tool_call_id": "call-1", "start": 14_990, "arguments": True}
    model = ScriptedModel([calling("write", told, "call-1"), calling("read_tool_result", reading, "call-2"), "Read."])
    agent = make_agent(model, [SessionMemory(sqlite_memory, max_tokens=900)], [write, *history_tools(sqlite_memory)])
    state = await agent.ainvoke(input_of("Write."), config_of())
    whole = json.dumps(told)
    assert f"Characters 14990 to {len(whole)} of {len(whole)}." in result_of(state["messages"])
    assert lines_of(result_of(state["messages"])) == [{"arguments": whole[14_990:]}]


async def test_without_tool_results_the_result_says_so(sqlite_memory: Memory) -> None:
    result = await looked_up(sqlite_memory, "read_tool_result", {"tool_call_id": "x"})
    assert result == "No tool has answered in this run."
