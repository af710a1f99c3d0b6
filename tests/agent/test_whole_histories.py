"""Tests of clients that send the whole conversation, mostly without ids: no message is stored or sent twice."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import PIIDetectionError, PIIMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from tests.agent.talking import ROOM, add, adding, config_of, input_of, kept, kept_with_status, make_agent, seen
from tests.recorded_events import RecordedEvents
from threadkeep import Memory, Message, SessionMemory, memory_node, open_memory, recorded
from threadkeep.agent.questions import RECEIVED, known_messages
from threadkeep.observe import HistoryDiffers
from threadkeep.testing import ScriptedModel

HIDDEN = "I am [REDACTED_EMAIL]"


class Client:
    """A client that stores the conversation and sends all of it, without ids."""

    def __init__(self, agent: Any, room: str = ROOM) -> None:
        self.agent = agent
        self.room = room
        self.history: list[Any] = []

    async def say(self, words: str, *, heard: bool = True) -> str:
        """Send the conversation with a new question; with `heard=False` the client loses the answer."""
        self.history.append(("user", words))
        state = await self.agent.ainvoke({"messages": list(self.history)}, config_of(self.room))
        answer = str(state["messages"][-1].text)
        if heard:
            self.history.append(("assistant", answer))
        return answer


def texts(call: Any) -> list[str]:
    """Return the texts of a model call."""
    return [text for _, text in seen(call)]


async def words_of(memory: Memory) -> list[str]:
    """Return the texts of the session."""
    return [text for _, text in await kept(memory)]


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_redacted_messages_are_recognized(memory: Memory, first: bool) -> None:
    """A message is recognized by its received text, and later calls contain only its redacted text."""
    model = ScriptedModel([f"answer {n}" for n in range(3)])
    pii = PIIMiddleware("email")
    client = Client(make_agent(model, [pii, SessionMemory(memory)] if first else [SessionMemory(memory), pii]))
    for words in ("I am a@b.co", "and now?", "and then?"):
        await client.say(words)
    assert await words_of(memory) == [HIDDEN, "answer 0", "and now?", "answer 1", "and then?", "answer 2"]
    assert texts(model.calls[2]) == [HIDDEN, "answer 0", "and now?", "answer 1", "and then?"]


async def test_the_digest_of_a_text_differs_between_databases() -> None:
    """The digest of a redacted message differs between databases; an unchanged message has none."""
    digests = []
    for _ in range(2):
        async with open_memory("sqlite://") as memory:
            agent = make_agent(ScriptedModel(["fine", "fine"]), [SessionMemory(memory), PIIMiddleware("email")])
            await agent.ainvoke(input_of("I am a@b.co"), config_of())
            await agent.ainvoke(input_of("hello"), config_of())
            stored = await memory.session(ROOM).tail(4)
            assert RECEIVED not in stored[2].metadata
            digests.append(stored[0].metadata[RECEIVED])
    assert len(set(digests)) == 2


async def test_a_blocked_message_is_not_sent_to_a_model_with_a_later_one(small_memory: Memory) -> None:
    model = ScriptedModel(["fine"])
    agent = make_agent(model, [SessionMemory(small_memory), PIIMiddleware("email", strategy="block")])
    client = Client(agent)
    with pytest.raises(PIIDetectionError):
        await client.say("I am a@b.co")
    await client.say("hello")
    assert texts(model.calls[0]) == ["hello"]
    assert [text for _, text, _ in await kept_with_status(small_memory)] == ["", "hello", "fine"]


@pytest.mark.parametrize("max_messages", [0, 2, 100])
async def test_messages_older_than_the_window_are_recognized(memory: Memory, max_messages: int) -> None:
    model = ScriptedModel([f"answer {n}" for n in range(8)])
    client = Client(make_agent(model, [SessionMemory(memory, max_messages=max_messages)]))
    for number in range(8):
        await client.say(f"question {number}")
    expected = [words for n in range(8) for words in (f"question {n}", f"answer {n}")]
    assert await words_of(memory) == expected
    assert texts(model.calls[-1]) == [*expected[:14][14 - min(max_messages, 14) :], "question 7"]


async def test_a_client_may_send_the_newest_messages_only(memory: Memory) -> None:
    model = ScriptedModel(["fine"] * 6)
    client = Client(make_agent(model, [SessionMemory(memory)]))
    for _ in range(6):
        client.history = client.history[-3:]
        await client.say("ok")
    assert await words_of(memory) == ["ok", "fine"] * 6
    assert texts(model.calls[-1]) == ["ok", "fine"] * 5 + ["ok"]


async def test_a_message_that_a_client_changed_is_stored_once(memory: Memory, events: RecordedEvents) -> None:
    """A message that the client changed is stored once as a new message and reported in an event without its text."""
    model = ScriptedModel([f"answer {n}" for n in range(5)])
    client = Client(make_agent(model, [SessionMemory(memory)]))
    await client.say("my cat is Miso")
    await client.say("and my dog?")
    client.history[0] = ("user", "my cat is Mimi")
    for words in ("who is my cat?", "sure?", "really?"):
        await client.say(words)
    said = ["my cat is Miso", "answer 0", "and my dog?", "answer 1", "my cat is Mimi", "who is my cat?", "answer 2"]
    assert await words_of(memory) == [*said, "sure?", "answer 3", "really?", "answer 4"]
    assert texts(model.calls[2]) == said[:-1]
    assert texts(model.calls[4]) == [*said, "sure?", "answer 3", "really?"]
    [event] = events.of(HistoryDiffers)
    assert (event.messages, event.session_id) == (1, ROOM)
    assert "Mimi" not in repr(event)


async def test_a_question_that_only_the_client_has_is_stored(memory: Memory) -> None:
    """A question that only the client has is stored with the next one; an answer that only the client has is not."""
    model = ScriptedModel(["one", "three"])
    client = Client(make_agent(model, [SessionMemory(memory)]))
    await client.say("first")
    client.history += [("user", "second"), ("assistant", "an error of the client")]
    await client.say("third")
    assert await words_of(memory) == ["first", "one", "second", "third", "three"]
    assert texts(model.calls[1]) == ["first", "one", "second", "an error of the client", "third"]


async def test_an_answer_that_a_client_changed_is_sent_as_stored(small_memory: Memory) -> None:
    model = ScriptedModel(["**bold**", "fine"])
    client = Client(make_agent(model, [SessionMemory(small_memory)]))
    await client.say("hello")
    client.history[1] = ("assistant", "bold")
    await client.say("again")
    assert texts(model.calls[1]) == ["hello", "**bold**", "again"]
    assert await words_of(small_memory) == ["hello", "**bold**", "again", "fine"]


async def test_answers_that_a_client_joins_splits_or_omits_are_sent_as_stored(memory: Memory) -> None:
    model = ScriptedModel([f"answer {n}" for n in range(4)])
    client = Client(make_agent(model, [SessionMemory(memory)]))
    await client.say("one")
    client.history[1:] = [("assistant", "answer"), ("assistant", "0")]
    await client.say("two")
    assert texts(model.calls[1]) == ["one", "answer 0", "two"]
    client.history = [("user", "one"), ("assistant", "Answer 0.")]
    await client.say("three")
    assert texts(model.calls[2]) == ["one", "answer 0", "two", "answer 1", "three"]
    writer = make_agent(ScriptedModel(["draft", "draft 2"]), [SessionMemory(memory)])
    critic = make_agent(model_of_critic := ScriptedModel(["remarks", "remarks 2"]), [SessionMemory(memory)])
    graph: Any = StateGraph(MessagesState)
    for name, agent, before in (("writer", writer, START), ("critic", critic, "writer")):
        graph.add_node(name, agent)
        graph.add_edge(before, name)
    client = Client(graph.compile(), "web:2")
    await client.say("q")
    client.history[1] = ("assistant", "draft\n\nremarks")
    await client.say("q2")
    assert texts(model_of_critic.calls[1]) == ["q", "draft", "remarks", "q2", "draft 2"]


async def test_a_repeated_unanswered_question_is_not_stored_twice(memory: Memory) -> None:
    model = ScriptedModel([ConnectionError("down"), "two", "three", "four"])
    client = Client(make_agent(model, [SessionMemory(memory)]))
    with pytest.raises(ConnectionError):
        await client.say("first")
    await client.say("second")
    await client.say("third", heard=False)
    await client.say("fourth")
    assert await words_of(memory) == ["first", "second", "two", "third", "three", "fourth", "four"]


async def test_a_repeated_text_is_a_new_message(memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["one", "two"]), [SessionMemory(memory)])
    await agent.ainvoke({"messages": [("user", "hi"), ("user", "ok")]}, config_of())
    await agent.ainvoke({"messages": [("user", "ok"), ("user", "ok")]}, config_of())
    assert await words_of(memory) == ["hi", "ok", "one", "ok", "ok", "two"]


async def test_examples_before_the_question_are_not_stored(memory: Memory) -> None:
    model = ScriptedModel(["blue", "red"])
    agent = make_agent(model, [SessionMemory(memory)])
    examples: list[Any] = [("user", "grass?"), ("assistant", "green")]
    for words in ("sky?", "blood?"):
        await agent.ainvoke({"messages": [*examples, ("user", words)]}, config_of())
    assert await words_of(memory) == ["sky?", "blue", "blood?", "red"]
    assert set(texts(model.calls[1])) == {"grass?", "green", "sky?", "blue", "blood?"}


def _node(model: ScriptedModel, memory: Memory) -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("desk", memory_node(memory, model))
    graph.add_edge(START, "desk")
    return graph.compile()


CALLED: dict[str, Callable[[ScriptedModel, Memory], Any]] = {
    "agent": lambda model, memory: create_agent(model, [], middleware=[SessionMemory(memory)], name="desk"),
    "node": _node,
    "recorded": lambda model, memory: recorded(create_agent(model, [], name="desk"), memory),
}
ENDING: list[Any] = [("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2")]


@pytest.mark.parametrize("kind", CALLED)
async def test_a_conversation_that_ends_with_its_answer_is_recognized(memory: Memory, kind: str) -> None:
    """A conversation that ends with its stored answer returns that answer; further text requests a new answer."""
    model = ScriptedModel(["a1", "a2", "a3"])
    agent = CALLED[kind](model, memory)
    for words in ("q1", "q2"):
        await agent.ainvoke(input_of(words), config_of())
    state = await agent.ainvoke({"messages": ENDING}, config_of())
    assert state["messages"][-1].text == "a2"
    assert len(model.calls) == 2
    state = await agent.ainvoke({"messages": [*ENDING, ("assistant", "Also,")]}, config_of())
    assert state["messages"][-1].text == "a3"
    assert texts(model.calls[2]) == ["q1", "a1", "q2", "a2", "Also,"]
    assert await words_of(memory) == ["q1", "a1", "q2", "a2", "a3"]


@pytest.mark.parametrize("kind", CALLED)
async def test_a_conversation_that_ends_with_an_unknown_answer_is_a_new_turn(memory: Memory, kind: str) -> None:
    """A conversation that ends with the beginning of an answer is a new turn, also the second time."""
    model = ScriptedModel(["a rose", "a tulip"])
    agent = CALLED[kind](model, memory)
    for _ in range(2):
        await agent.ainvoke({"messages": [("user", "a flower?"), ("assistant", "It is")]}, config_of())
    assert texts(model.calls[1]) == ["a flower?", "a rose", "a flower?", "It is"]
    assert await words_of(memory) == ["a flower?", "a rose", "a flower?", "a tulip"]


async def test_a_message_with_edits_supersedes_the_edited_one(memory: Memory) -> None:
    """A message with `edits` also supersedes all messages after the edited one; a repeat changes nothing."""
    model = ScriptedModel(["hello Miso", "fine", "hello Mimi"])
    agent = make_agent(model, [SessionMemory(memory)])
    await agent.ainvoke(input_of("I am Miso", "m1"), config_of())
    await agent.ainvoke(input_of("and now?", "m2"), config_of())
    edited = HumanMessage("I am Mimi", id="m3", response_metadata={"edits": "m1"})
    for _ in range(2):
        state = await agent.ainvoke({"messages": [edited]}, config_of())
        assert state["messages"][-1].text == "hello Mimi"
    assert await words_of(memory) == ["I am Mimi", "hello Mimi"]
    assert texts(model.calls[2]) == ["I am Mimi"]
    history = await memory.session(ROOM).tail(9, view="history")
    assert [one.content for one in history][:4] == ["I am Miso", "hello Miso", "and now?", "fine"]


async def test_an_edit_of_an_unknown_message_is_a_new_message(memory: Memory) -> None:
    agent = make_agent(ScriptedModel(["fine"]), [SessionMemory(memory)])
    edited = HumanMessage("I am Mimi", id="m3", response_metadata={"edits": "m1"})
    await agent.ainvoke({"messages": [edited]}, config_of())
    assert await words_of(memory) == ["I am Mimi", "fine"]


async def test_an_edit_of_an_answer_is_an_ordinary_question(memory: Memory) -> None:
    model = ScriptedModel(["hello Miso", "I do not", "fine"])
    agent = make_agent(model, [SessionMemory(memory)])
    state = await agent.ainvoke(input_of("I am Miso", "m1"), config_of())
    edited = HumanMessage("I owe you money", id="m2", response_metadata={"edits": state["messages"][-1].id})
    await agent.ainvoke({"messages": [edited]}, config_of())
    assert [role for role, _ in await kept(memory)] == ["user", "assistant", "user", "assistant"]
    assert seen(model.calls[1]) == [("human", "I am Miso"), ("ai", "hello Miso"), ("human", "I owe you money")]


async def test_steps_of_a_client_keep_their_positions(small_memory: Memory) -> None:
    model = ScriptedModel([adding(), "3", "fine"])
    agent = make_agent(model, [SessionMemory(small_memory, tool_memory=0)], [add])
    await agent.ainvoke({"messages": [("user", "1 + 2?")]}, config_of())
    steps = [adding(), ToolMessage("3", tool_call_id="call-1")]
    history = [("user", "1 + 2?"), *steps, ("assistant", "3"), ("user", "thanks")]
    await agent.ainvoke({"messages": history}, config_of())
    assert [kind for kind, _ in seen(model.calls[2])] == ["human", "ai", "tool", "ai", "human"]
    assert await words_of(small_memory) == ["1 + 2?", "3", "thanks", "fine"]


async def test_messages_of_nodes_without_memory_are_not_stored(memory: Memory) -> None:
    async def reflect(state: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage("make it shorter"), AIMessage("short")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("writer", make_agent(ScriptedModel(["draft", "draft 2"]), [SessionMemory(memory)]))
    graph.add_node("reflect", reflect)
    graph.add_edge(START, "writer")
    graph.add_edge("writer", "reflect")
    compiled = graph.compile(checkpointer=InMemorySaver())
    await compiled.ainvoke(input_of("write"), config_of())
    await compiled.ainvoke(input_of("again"), config_of())
    assert await words_of(memory) == ["write", "draft", "again", "draft 2"]


async def test_a_recorded_graph_gets_each_message_once(memory: Memory) -> None:
    model = ScriptedModel([f"answer {n}" for n in range(3)])
    client = Client(recorded(create_agent(model, [], name="desk"), memory))
    for number in range(3):
        await client.say(f"question {number}")
    assert await words_of(memory) == [w for n in range(3) for w in (f"question {n}", f"answer {n}")]
    assert texts(model.calls[2]) == ["question 0", "answer 0", "question 1", "answer 1", "question 2"]


async def test_a_memory_node_recognizes_the_clients_messages(memory: Memory) -> None:
    """A `memory_node` stores a message that the client changed once, and sends no message twice."""
    model = ScriptedModel([f"answer {n}" for n in range(3)])
    graph: Any = StateGraph(MessagesState)
    graph.add_node("chat", memory_node(memory, model))
    graph.add_edge(START, "chat")
    client = Client(graph.compile())
    await client.say("question 0")
    client.history[0] = ("user", "question zero")
    for number in (1, 2):
        await client.say(f"question {number}")
    assert (await words_of(memory))[:4] == ["question 0", "answer 0", "question zero", "question 1"]
    assert len(await words_of(memory)) == 7
    assert len(set(texts(model.calls[2]))) == len(model.calls[2])


class Added(TypedDict):
    """The state of a graph that appends messages, without ids."""

    messages: Annotated[list[Any], operator.add]


async def test_a_second_agent_takes_part_in_a_turn_with_a_history(memory: Memory) -> None:
    """Two agents that receive the conversation under different ids store each message once."""
    writer, critic = ScriptedModel(["draft", "draft 2"]), ScriptedModel(["remarks", "remarks 2"])
    agents = [
        create_agent(model, [], middleware=[SessionMemory(memory)], name=name)
        for model, name in ((writer, "writer"), (critic, "critic"))
    ]
    graph: Any = StateGraph(Added)
    for number, agent in enumerate(agents):

        def node(agent: Any) -> Any:
            async def run(state: Added) -> dict[str, Any]:
                result = await agent.ainvoke({"messages": state["messages"]})
                return {"messages": [("ai", result["messages"][-1].text)]}

            return run

        graph.add_node(f"n{number}", node(agent))
    graph.add_edge(START, "n0")
    graph.add_edge("n0", "n1")
    compiled = graph.compile()
    history: list[Any] = [("user", "q")]
    state = await compiled.ainvoke({"messages": history}, config_of())
    history = [*state["messages"], ("user", "q2")]
    await compiled.ainvoke({"messages": history}, config_of())
    assert await words_of(memory) == ["q", "draft", "remarks", "q2", "draft 2", "remarks 2"]
    assert texts(critic.calls[1]) == ["q", "draft", "remarks", "q2", "draft 2"]


async def test_a_client_does_not_restore_what_was_taken_back_or_reset(memory: Memory) -> None:
    model = ScriptedModel(["one", "two", "three", "four"])
    client = Client(make_agent(model, [SessionMemory(memory)]))
    await client.say("first")
    await client.say("second")
    await memory.session(ROOM).take_back(2)
    await client.say("third")
    assert texts(model.calls[2]) == ["first", "one", "third"]
    await memory.session(ROOM).reset()
    await client.say("fourth")
    assert texts(model.calls[3]) == ["fourth"]
    assert await words_of(memory) == ["first", "one", "third", "three", "fourth", "four"]


@given(
    said=st.lists(st.tuples(st.sampled_from(["ok", "no", "a@b.co"]), st.integers(0, 9)), min_size=1, max_size=6),
    answers=st.lists(st.sampled_from(["fine", "ok"]), min_size=6, max_size=6),
)
@pytest.mark.slow
async def test_a_client_may_send_any_number_of_its_newest_messages(
    said: list[tuple[str, int]], answers: list[str]
) -> None:
    async with open_memory("sqlite://") as memory:
        model = ScriptedModel(answers)
        client = Client(make_agent(model, [PIIMiddleware("email"), SessionMemory(memory)]))
        expected: list[str] = []
        for number, (words, kept_messages) in enumerate(said):
            client.history = client.history[len(client.history) - min(2 * kept_messages, len(client.history)) :]
            await client.say(words)
            expected.append(words.replace("a@b.co", "[REDACTED_EMAIL]"))
            assert texts(model.calls[-1]) == expected
            expected.append(answers[number])
            assert await words_of(memory) == expected


async def test_messages_with_ids_match_messages_without(memory: Memory) -> None:
    await memory.session(ROOM).append(
        [Message(role="user", content="hi", id="telegram:1"), Message(role="assistant", content="hello")]
    )
    model = ScriptedModel(["fine"])
    client = Client(make_agent(model, [SessionMemory(memory)]))
    client.history = [("user", "hi"), ("assistant", "hello")]
    await client.say("and now?")
    assert await words_of(memory) == ["hi", "hello", "and now?", "fine"]
    assert texts(model.calls[0]) == ["hi", "hello", "and now?"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=12))
def test_a_shortened_conversation_with_repeated_texts_is_known_in_order(said: list[tuple[str, bool]]) -> None:
    """A client that sends only some of the stored messages, without ids, sends no new message."""
    rows = [Message(role="user", content=text, id=str(seq), seq=seq) for seq, (text, _) in enumerate(said)]
    sent = [HumanMessage(text) for text, is_sent in said if is_sent]
    known = known_messages([*sent, HumanMessage("new")], rows)
    found = [known.rows[index].seq for index in range(len(sent))]
    assert found == sorted({seq for seq in found if seq is not None})
    assert known.changed == ([len(sent)] if sent else [])


@example(rows="ab", texts="aba")
@given(rows=st.text("abc", min_size=1, max_size=6), texts=st.text("abcd", min_size=1, max_size=6))
def test_as_many_messages_as_possible_are_known_in_order(rows: str, texts: str) -> None:
    """A client may omit, repeat, move and change messages."""
    stored = [Message(role="user", content=text, id=str(seq), seq=seq) for seq, text in enumerate(rows)]
    known = known_messages([*map(HumanMessage, texts)], stored)
    found = [(index, known.rows[index].seq) for index in sorted(known.rows)]
    assert all(texts[index] == rows[seq or 0] for index, seq in found)
    assert len({seq for _, seq in found}) == len(found)
    increasing = [
        some
        for count in range(len(found) + 1)
        for some in combinations([seq or 0 for _, seq in found], count)
        if all(earlier < later for earlier, later in pairwise(some))
    ]
    common = {some for count in range(len(texts) + 1) for some in combinations(texts, count)}
    longest = max(count for count in range(len(rows) + 1) if common & {*combinations(rows, count)})
    assert max(map(len, increasing)) == longest


def test_the_newer_of_two_equal_messages_is_the_stored_one() -> None:
    """The older one then precedes the stored conversation, so it is no change."""
    stored = [Message(role="user", content=text, id=text) for text in "ac"]
    known = known_messages([HumanMessage("a"), HumanMessage("a")], stored)
    assert ({index: row.content for index, row in known.rows.items()}, known.changed) == ({1: "a"}, [])
