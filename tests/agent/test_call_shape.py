"""Tests of the shape of a call: a user message first, an answer after each question, no empty text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from tests.agent.talking import ROOM, ask, config_of, kept, make_agent, numbered, seen
from threadkeep import Memory, Message, SessionMemory, rebuild
from threadkeep.agent.provider_messages import NO_ANSWER, OPENING, mark_between
from threadkeep.context.manifest import WindowKind
from threadkeep.records import Summary
from threadkeep.testing import ScriptedModel

type Handler = Callable[[ModelRequest], Awaitable[ModelResponse]]


def talk_of(call: Sequence[BaseMessage]) -> list[tuple[str, str]]:
    """Return types and texts of a call without its system message."""
    return [one for one in seen(call) if one[0] != "system"]


async def check_records(memory: Memory, model: ScriptedModel) -> None:
    """Check that each manifest rebuilds its call."""
    stored = await memory.manifests.of_session(ROOM, limit=200)
    assert [seen(await rebuild(one)) for one in reversed(stored)] == [seen(call) for call in model.calls]


@pytest.mark.parametrize("window", ["anchored", "sliding"])
@pytest.mark.parametrize(("most", "budget"), [*((n, 4_000) for n in range(6)), *((20, n) for n in (60, 75, 90))])
async def test_a_call_begins_with_a_user_message_whatever_the_limits(
    memory: Memory, window: WindowKind, most: int, budget: int
) -> None:
    """A call whose window begins with an answer has a mark before it, which counts towards the budget."""
    await memory.session(ROOM).append(numbered(10))
    model = ScriptedModel(["one", "two", "three"])
    limits = SessionMemory(memory, max_messages=most, max_tokens=budget, window=window, counter="chars4")
    agent = make_agent(model, [limits], system_prompt="Hi")
    for words in ("first", "second", "third"):
        await ask(agent, words)
    for call in model.calls:
        assert [message.type for message in call[:2]] == ["system", "human"]
        assert call[-1].type == "human"
    assert sum(len(message.text) // 4 for message in model.calls[2]) <= budget
    await check_records(memory, model)


async def test_an_answer_that_begins_a_session_is_sent_after_a_mark(memory: Memory) -> None:
    """An answer that begins a session, or follows a reset, is sent after a mark that is not stored."""
    session = memory.session(ROOM)
    await session.append([Message("assistant", "The news of today.")])
    model = ScriptedModel(["yes", "no"])
    agent = make_agent(model, [SessionMemory(memory)])
    await ask(agent, "tell me more")
    await session.reset()
    await session.append([Message("assistant", "The news of tomorrow.")])
    await ask(agent, "and now?")
    assert talk_of(model.calls[0]) == [("human", OPENING), ("ai", "The news of today."), ("human", "tell me more")]
    assert talk_of(model.calls[1]) == [("human", OPENING), ("ai", "The news of tomorrow."), ("human", "and now?")]
    assert OPENING not in [text for _, text in await kept(memory)]
    manifest = (await memory.manifests.of_session(ROOM))[0].manifest
    assert (manifest.get("left_out", []), manifest.get("dropped", 0)) == ([], 0)
    await check_records(memory, model)


@pytest.mark.parametrize(
    "state",
    [
        [AIMessage("a draft", id="draft")],
        [SystemMessage("Be kind."), AIMessage("a draft", id="draft")],
        [AIMessage("a draft", id="draft"), HumanMessage("better?", id="q")],
        [
            AIMessage("", id="call", tool_calls=[{"name": "add", "args": {}, "id": "c"}]),
            ToolMessage("3", tool_call_id="c", id="result"),
        ],
    ],
    ids=["answer", "system", "question", "tool"],
)
async def test_a_state_that_begins_with_an_answer_is_sent_after_a_mark(
    sqlite_memory: Memory, state: list[AnyMessage]
) -> None:
    """A state that begins with an answer or tool call of another node is sent after a mark."""
    model = ScriptedModel(["fine"])
    await make_agent(model, [SessionMemory(sqlite_memory)]).ainvoke({"messages": state}, config_of())
    talk = talk_of(model.calls[0])
    assert talk[0] == ("human", OPENING)
    assert len(talk) == 1 + len([message for message in state if message.type != "system"])


async def test_no_mark_precedes_a_summary(sqlite_memory: Memory) -> None:
    await sqlite_memory.session(ROOM).append(numbered(4))
    assert await sqlite_memory.summaries.add(Summary(ROOM, 1, 3, "They said three things.", "m", "1", 5))
    model = ScriptedModel(["fine"])
    await ask(make_agent(model, [SessionMemory(sqlite_memory)]), "and now?")
    (_, summary), *rest = talk_of(model.calls[0])
    assert "They said three things." in summary
    assert rest == [("ai", "message 4"), ("human", "and now?")]


@pytest.mark.parametrize("answer", ["", RuntimeError("down")], ids=["empty", "failed"])
async def test_a_question_without_an_answer_is_marked(memory: Memory, answer: str | Exception) -> None:
    """Each later call contains a mark after the unanswered question; the transcript does not."""
    model = ScriptedModel([answer, "two", "three"])
    agent = make_agent(model, [SessionMemory(memory)])
    with suppress(RuntimeError):
        await ask(agent, "one?")
    await ask(agent, "two?")
    await ask(agent, "three?")
    unanswered = [("human", "one?"), ("ai", NO_ANSWER)]
    assert talk_of(model.calls[1]) == [*unanswered, ("human", "two?")]
    assert talk_of(model.calls[2]) == [*unanswered, ("human", "two?"), ("ai", "two"), ("human", "three?")]
    assert NO_ANSWER not in [text for _, text in await kept(memory)]
    manifest = (await memory.manifests.of_session(ROOM))[0].manifest
    assert "left_out" not in manifest
    await check_records(memory, model)


async def test_marks_that_a_middleware_changes_in_place_are_not_sent_to_other_sessions(small_memory: Memory) -> None:
    class Changes(AgentMiddleware):
        """A middleware that changes the messages of a call in place."""

        async def awrap_model_call(self, request: ModelRequest, handler: Handler) -> ModelResponse:
            for message in request.messages:
                message.content = "changed"
            return await handler(request)

    model = ScriptedModel(["one", "two"])
    for room, others in (("ann", [Changes()]), ("bob", [])):
        earlier = [
            Message("assistant", "news"),
            Message("user", "one?", run_id="1"),
            Message("user", "two?", run_id="2"),
        ]
        await small_memory.session(room).append(earlier)
        await ask(make_agent(model, [SessionMemory(small_memory), *others]), "three?", thread_id=room)
    texts = [OPENING, "news", "one?", NO_ANSWER, "two?", NO_ANSWER, "three?"]
    assert [message.text for message in model.calls[1]] == texts
    answer, result = AIMessage("a"), ToolMessage("r", tool_call_id="c")
    assert mark_between(answer, None, "anthropic") is not mark_between(answer, None, "anthropic")
    question = HumanMessage("q")
    assert mark_between(result, question, "mistral") is not mark_between(result, question, "mistral")


async def test_messages_of_one_question_have_no_mark_between_them(memory: Memory) -> None:
    model = ScriptedModel(["one", "two"])
    agent = make_agent(model, [SessionMemory(memory)])
    await memory.session(ROOM).append([Message("user", "before"), Message("user", "and before")])
    await agent.ainvoke({"messages": [HumanMessage("hi"), HumanMessage("who are you?")]}, config_of())
    await ask(agent, "sure?")
    assert NO_ANSWER not in [message.text for call in model.calls for message in call]


async def test_a_mark_is_omitted_with_its_question(sqlite_memory: Memory) -> None:
    model = ScriptedModel(["", "two", "three"])
    agent = make_agent(model, [SessionMemory(sqlite_memory, max_messages=2, window="sliding")])
    for words in ("one?", "two?", "three?"):
        await ask(agent, words)
    assert talk_of(model.calls[2]) == [("human", "two?"), ("ai", "two"), ("human", "three?")]
    manifest = (await sqlite_memory.manifests.of_session(ROOM))[0].manifest
    assert manifest["dropped"] == 1
    assert "left_out" not in manifest


async def test_empty_text_is_not_sent(memory: Memory) -> None:
    """Text blocks without text are removed, because providers reject them; an empty message is excluded."""
    empty: dict[str, object] = {"type": "text", "text": " \n"}
    words: dict[str, object] = {"type": "text", "text": "look"}
    call = {"name": "add", "args": {"a": 1, "b": 2}, "id": "c"}
    state: list[AnyMessage] = [
        SystemMessage([empty, {"type": "text", "text": "Be kind."}]),
        HumanMessage([empty], id="nothing"),
        HumanMessage(["", words], id="look"),
        AIMessage([empty], id="call", tool_calls=[call]),
        ToolMessage([empty, words], tool_call_id="c", id="result"),
        AIMessage([empty], id="silence"),
        HumanMessage([empty, words, empty], id="question"),
    ]
    model = ScriptedModel(["fine"])
    await make_agent(model, [SessionMemory(memory)]).ainvoke({"messages": state}, config_of())
    assert [message.content for message in model.calls[0]] == [
        [{"type": "text", "text": "Be kind."}], [words], "", [words], [words],
    ]  # fmt: skip
    left_out = (await memory.manifests.of_session(ROOM))[0].manifest["left_out"]
    assert left_out == [{"id": "nothing", "reason": "empty"}, {"id": "silence", "reason": "empty"}]
    await check_records(memory, model)
