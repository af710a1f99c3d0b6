"""Tests of questions that are cancelled and asked again: the next answer replaces the partial one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from langchain_core.language_models.llms import LLM
from langchain_core.messages import HumanMessage
from langchain_core.outputs import GenerationChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from tests.agent.talking import ROOM, Agent, add, adding, ask, config_of, kept_with_status, make_agent, seen, tokens
from threadkeep import Memory, Message, SessionMemory, session_turn
from threadkeep.agent.callbacks import PartialAnswer
from threadkeep.errors import StoreUnavailable
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.records import Turn
from threadkeep.store.tables import TableTranscripts
from threadkeep.testing import Gate, ScriptedModel

PARTIAL = ("assistant", "It is ", "interrupted")


async def cut_off(agent: Agent, words: str, *, message_id: str | None = None) -> None:
    """Ask, and stop to read after the first word of the answer."""
    reading = tokens(agent, words, message_id=message_id)
    await anext(reading)
    await reading.aclose()


def cut(count: int = 1) -> list[list[str | Gate]]:
    """Return replies that stream two words and then wait."""
    return [["It is ", Gate()] for _ in range(count)]


async def whole(memory: Memory) -> list[tuple[str, str | None]]:
    """Return the texts of the history view, and the text of the message that replaced each."""
    rows = await memory.session(ROOM).tail(100, view="history")
    texts = {row.id: row.content for row in rows}
    return [(row.content, texts.get(row.superseded_by)) for row in rows]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("ids", [("m1", "m1", "m1"), ("m1", "m2", "m3"), (None, None, None), ("m1", "m2", "m1")])
async def test_the_answer_to_a_repeated_question_replaces_its_partial_answers(
    memory: Memory, ids: Sequence[str | None], checkpointed: bool
) -> None:
    """The question is cut off twice, and sent again with the same id or, as chat clients do, with another one."""
    model = ScriptedModel([*cut(2), "It is blue.", "fine"])
    saver = InMemorySaver() if checkpointed else None
    agent = make_agent(model, [SessionMemory(memory)], checkpointer=saver)
    for message_id in ids[:2]:
        await cut_off(agent, "Which colour is the sky?", message_id=message_id)
    assert await ask(agent, "Which colour is the sky?", message_id=ids[2]) == "It is blue."
    asked = [("user", "Which colour is the sky?", "complete")] * (len({*ids} - {None}) or 3)
    found = await kept_with_status(memory)
    assert sorted(found) == sorted([*asked, ("assistant", "It is blue.", "complete")])
    assert sorted(await whole(memory), key=str) == sorted(
        [
            *[(words, None) for _, words, _ in asked],
            ("It is ", "It is "),
            ("It is ", "It is blue."),
            ("It is blue.", None),
        ],
        key=str,
    )
    await ask(agent, "Thanks!")
    assert "It is " not in [text for _, text in seen(model.calls[-1])]


@pytest.mark.parametrize("words", ["Which colour is the sky?", "Why?"])
async def test_a_partial_answer_stays_if_its_question_is_not_asked_again(memory: Memory, words: str) -> None:
    """A message with another text, or after another exchange, is a new question."""
    model = ScriptedModel([*cut(), "fine", "It is blue."])
    agent = make_agent(model, [SessionMemory(memory)])
    await cut_off(agent, "Which colour is the sky?")
    await ask(agent, "Wait.")
    await ask(agent, words)
    assert (await kept_with_status(memory))[:2] == [("user", "Which colour is the sky?", "complete"), PARTIAL]
    assert ("ai", "It is ") in seen(model.calls[-1])


async def test_an_old_question_that_is_sent_again_replaces_its_partial_answer(memory: Memory) -> None:
    model = ScriptedModel([*cut(), "fine", "It is blue.", "ok"])
    agent = make_agent(model, [SessionMemory(memory)])
    await cut_off(agent, "Which colour is the sky?", message_id="m1")
    await ask(agent, "Wait.", message_id="m2")
    await ask(agent, "Which colour is the sky?", message_id="m1")
    assert PARTIAL not in await kept_with_status(memory)
    await ask(agent, "Thanks!")
    assert ("ai", "It is ") not in seen(model.calls[-1])


async def test_the_partial_answer_of_a_conversation_in_a_graph_store_is_replaced(memory: Memory) -> None:
    agents = await memory.namespace(GraphLayout(("agents",)))
    agent = make_agent(ScriptedModel([*cut(), "It is blue."]), [SessionMemory(agents)])
    await cut_off(agent, "Which colour is the sky?", message_id="m1")
    await ask(agent, "Which colour is the sky?", message_id="m1")
    asked = ("user", "Which colour is the sky?", "complete")
    assert await kept_with_status(agents) == [asked, ("assistant", "It is blue.", "complete")]
    assert await whole(agents) == [("Which colour is the sky?", None), ("It is ", "It is blue."), ("It is blue.", None)]


async def test_a_repeat_that_calls_tools_replaces_the_partial_answer(memory: Memory) -> None:
    model = ScriptedModel([*cut(), adding(), "It is 3.", "fine"])
    agent = make_agent(model, [SessionMemory(memory)], [add])
    await cut_off(agent, "1 + 2?", message_id="m1")
    await ask(agent, "1 + 2?", message_id="m1")
    assert await kept_with_status(memory) == [("user", "1 + 2?", "complete"), ("assistant", "It is 3.", "complete")]
    await ask(agent, "Thanks!")
    assert ("ai", "It is ") not in seen(model.calls[-1])
    assert [kind for kind, _ in seen(model.calls[-1])] == ["human", "ai", "tool", "ai", "human"]


def picture(name: str) -> HumanMessage:
    """Return a question about a picture."""
    content: list[Any] = [
        {"type": "text", "text": "What is this a picture of?"},
        {"type": "image", "url": f"https://example.org/{name}.png"},
    ]
    return HumanMessage(content)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (HumanMessage("Which colour is mine?", name="Ann"), HumanMessage("Which colour is mine?", name="Bob")),
        (picture("sky"), picture("sea")),
        (HumanMessage("please continue"), HumanMessage("please continue")),
    ],
    ids=["persons", "pictures", "short"],
)
async def test_a_question_with_the_same_text_may_be_another_one(
    memory: Memory, first: HumanMessage, second: HumanMessage
) -> None:
    agent = make_agent(ScriptedModel([*cut(), "It is blue."]), [SessionMemory(memory)])
    events: Any = agent.astream({"messages": [first]}, config_of(), stream_mode="messages")
    async for message, _ in events:
        if message.type != "human" and message.text:
            break
    await events.aclose()
    await agent.ainvoke({"messages": [second]}, config_of())
    assert [row for row in await kept_with_status(memory) if row[0] == "assistant"] == [
        PARTIAL,
        ("assistant", "It is blue.", "complete"),
    ]


async def test_a_partial_answer_behind_another_message_is_replaced(memory: Memory) -> None:
    """The other message was stored while the first answer was written."""
    agent = make_agent(ScriptedModel([*cut(), "It is blue."]), [SessionMemory(memory)])
    reading = tokens(agent, "Which colour?", message_id="m1")
    await anext(reading)
    await memory.session(ROOM).append([Message(role="user", content="Wait.", id="m2")])
    await reading.aclose()
    await ask(agent, "Which colour?", message_id="m1")
    assert [words for _, words, _ in await kept_with_status(memory)] == ["Which colour?", "Wait.", "It is blue."]


async def test_the_partial_answer_of_the_second_agent_is_replaced(memory: Memory) -> None:
    """The complete answer of the first agent stays."""
    graph = StateGraph(MessagesState)
    for name, reply in (("writer", "A draft."), ("critic", "It is fine.")):
        graph.add_node(name, make_agent(ScriptedModel([reply]), [SessionMemory(memory)]))
    graph.add_edge(START, "writer").add_edge("writer", "critic")
    draft = Message("assistant", "A draft.", answers="m1", author="writer")
    remarks = Message("assistant", "It is ", answers="m1", author="critic", status="interrupted")
    await memory.session(ROOM).append([Message(role="user", content="Write.", id="m1"), draft, remarks])
    await graph.compile().ainvoke({"messages": [HumanMessage("Write.", id="m1")]}, config_of())
    assert [words for _, words, _ in await kept_with_status(memory)] == ["Write.", "A draft.", "It is fine."]


class FailingLLM(LLM):
    """A text model, whose pieces have no message id. It fails after the first piece."""

    @property
    def _llm_type(self) -> str:
        return "failing"

    def _call(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    async def _astream(
        self, prompt: str, stop: Any = None, run_manager: Any = None, **_: Any
    ) -> AsyncIterator[GenerationChunk]:
        await run_manager.on_llm_new_token("It is ")
        yield GenerationChunk(text="It is ")
        raise ConnectionError("gone")


async def test_a_partial_answer_without_an_id_is_stored_once(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response of the database to the first write is lost, so the answer is written again."""
    append = TableTranscripts.append_joined

    async def lose(transcripts: TableTranscripts, turn: Turn, join: Any) -> Any:
        stored = await append(transcripts, turn, join)
        if turn.answers is not None:
            raise StoreUnavailable("lost")
        return stored

    monkeypatch.setattr(TableTranscripts, "append_joined", lose)
    with pytest.raises(ConnectionError, match="gone"):
        async with session_turn(memory, [HumanMessage("q", id="m1")], config_of()):
            [_ async for _ in FailingLLM().astream("q")]
    await memory.pending.deliver()
    assert await kept_with_status(memory) == [("user", "q", "complete"), ("assistant", "It is ", "failed")]


def test_the_text_of_a_model_call_is_not_in_the_repr_of_its_handler() -> None:
    assert "Confidential" not in repr(PartialAnswer(text="Confidential"))
