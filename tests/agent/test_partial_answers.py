"""Tests of questions that are cancelled and asked again: the next answer replaces the partial one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.talking import ROOM, Agent, add, adding, ask, kept_with_status, make_agent, seen, tokens
from threadkeep import Memory, SessionMemory
from threadkeep.graph_store.layout import GraphLayout
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
        await cut_off(agent, "Which colour?", message_id=message_id)
    assert await ask(agent, "Which colour?", message_id=ids[2]) == "It is blue."
    asked = [("user", "Which colour?", "complete")] * (len({*ids} - {None}) or 3)
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


@pytest.mark.parametrize("words", ["Which colour?", "Why?"])
async def test_a_partial_answer_stays_if_its_question_is_not_asked_again(memory: Memory, words: str) -> None:
    """A message with another text, or after another exchange, is a new question."""
    model = ScriptedModel([*cut(), "fine", "It is blue."])
    agent = make_agent(model, [SessionMemory(memory)])
    await cut_off(agent, "Which colour?")
    await ask(agent, "Wait.")
    await ask(agent, words)
    assert (await kept_with_status(memory))[:2] == [("user", "Which colour?", "complete"), PARTIAL]
    assert ("ai", "It is ") in seen(model.calls[-1])


async def test_an_old_question_that_is_sent_again_replaces_its_partial_answer(memory: Memory) -> None:
    model = ScriptedModel([*cut(), "fine", "It is blue.", "ok"])
    agent = make_agent(model, [SessionMemory(memory)])
    await cut_off(agent, "Which colour?", message_id="m1")
    await ask(agent, "Wait.", message_id="m2")
    await ask(agent, "Which colour?", message_id="m1")
    assert PARTIAL not in await kept_with_status(memory)
    await ask(agent, "Thanks!")
    assert ("ai", "It is ") not in seen(model.calls[-1])


async def test_the_partial_answer_of_a_conversation_in_a_graph_store_is_replaced(memory: Memory) -> None:
    agents = await memory.namespace(GraphLayout(("agents",)))
    agent = make_agent(ScriptedModel([*cut(), "It is blue."]), [SessionMemory(agents)])
    await cut_off(agent, "Which colour?", message_id="m1")
    await ask(agent, "Which colour?", message_id="m1")
    asked = ("user", "Which colour?", "complete")
    assert await kept_with_status(agents) == [asked, ("assistant", "It is blue.", "complete")]
    assert await whole(agents) == [("Which colour?", None), ("It is ", "It is blue."), ("It is blue.", None)]


async def test_a_repeat_that_calls_tools_replaces_the_partial_answer(memory: Memory) -> None:
    model = ScriptedModel([*cut(), adding(), "It is 3.", "fine"])
    agent = make_agent(model, [SessionMemory(memory)], [add])
    await cut_off(agent, "1 + 2?", message_id="m1")
    await ask(agent, "1 + 2?", message_id="m1")
    assert await kept_with_status(memory) == [("user", "1 + 2?", "complete"), ("assistant", "It is 3.", "complete")]
    await ask(agent, "Thanks!")
    assert ("ai", "It is ") not in seen(model.calls[-1])
    assert [kind for kind, _ in seen(model.calls[-1])] == ["human", "ai", "tool", "ai", "human"]
