"""Tests of `bounded_messages`, the reducer that limits the messages of a graph's state."""

from __future__ import annotations

from typing import Annotated, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from threadkeep.agent.conversion import text_of
from threadkeep.agent.reducers import TrimReport, bounded_messages
from threadkeep.context.cut import CUT_MARK


def texts(messages: list[BaseMessage]) -> list[str]:
    """Return the texts of messages."""
    return [text_of(message) for message in messages]


def calling(*ids: str, content: str = "") -> AIMessage:
    """Return an assistant message that calls a tool once for each id."""
    return AIMessage(content, tool_calls=[{"name": "look_up", "args": {}, "id": call} for call in ids])


def test_messages_within_the_limits_are_kept() -> None:
    reduce = bounded_messages(max_messages=10, max_chars=1000)
    assert texts(reduce([HumanMessage("hello")], [AIMessage("hi there")])) == ["hello", "hi there"]
    assert reduce.trim_report() == TrimReport(before=2, after=2, trimmed_by_chars=0, trimmed_by_count=0)


def test_the_character_limit_drops_the_oldest_messages() -> None:
    reduce = bounded_messages(max_messages=10, max_chars=10)
    assert texts(reduce([HumanMessage("X" * 50)], [HumanMessage("short")])) == ["short"]
    assert reduce.trim_report() == TrimReport(before=2, after=1, trimmed_by_chars=50, trimmed_by_count=0)


def test_the_message_limit_drops_the_oldest_messages() -> None:
    reduce = bounded_messages(max_messages=2, max_chars=1000)
    assert texts(reduce([HumanMessage("one"), AIMessage("two")], [HumanMessage("three")])) == ["two", "three"]
    assert reduce.trim_report() == TrimReport(before=3, after=2, trimmed_by_chars=0, trimmed_by_count=1)


def test_characters_are_trimmed_before_messages() -> None:
    reduce = bounded_messages(max_messages=1, max_chars=8)
    left = [HumanMessage("12345678"), AIMessage("1234")]
    assert texts(reduce(left, [HumanMessage("abcd")])) == ["abcd"]
    assert reduce.trim_report() == TrimReport(before=3, after=1, trimmed_by_chars=8, trimmed_by_count=1)


def test_a_system_message_is_pinned() -> None:
    reduce = bounded_messages(max_messages=3)
    left = [SystemMessage("SYS"), HumanMessage("one"), AIMessage("two")]
    assert texts(reduce(left, [HumanMessage("three"), AIMessage("four")])) == ["SYS", "three", "four"]


def test_the_newest_user_message_is_cut_and_never_dropped() -> None:
    reduce = bounded_messages(max_chars=70)
    kept = texts(reduce([SystemMessage("S" * 50), HumanMessage("A" * 60)], [HumanMessage("B" * 60)]))
    assert kept == ["S" * 50, "B" * 13 + CUT_MARK]
    assert reduce.trim_report() == TrimReport(before=3, after=2, trimmed_by_chars=100, trimmed_by_count=0)


def test_a_system_message_over_the_limit_leaves_the_mark_of_the_newest_user_message() -> None:
    reduce = bounded_messages(max_messages=1, max_chars=10)
    assert texts(reduce([SystemMessage("S" * 50)], [HumanMessage("B" * 60)])) == ["S" * 50, CUT_MARK]


@pytest.mark.parametrize("max_messages", [1, 0, -3])
def test_a_message_limit_below_one_keeps_one(max_messages: int) -> None:
    reduce = bounded_messages(max_messages=max_messages)
    assert texts(reduce([HumanMessage("one"), AIMessage("two")], [HumanMessage("three")])) == ["three"]


def test_a_character_limit_of_zero_means_no_limit() -> None:
    reduce = bounded_messages(max_chars=0)
    assert texts(reduce([], [HumanMessage("X" * 100_000)])) == ["X" * 100_000]


def test_an_answer_over_the_limit_is_cut_and_not_dropped() -> None:
    """An answer over the limit is cut and not dropped, because the next node reads it."""
    reduce = bounded_messages(max_chars=30)
    assert texts(reduce([HumanMessage("why?")], [AIMessage("z" * 100)])) == ["why?", "z" * 19 + CUT_MARK]


def test_tool_calls_stay_with_their_results() -> None:
    """A call and its results are dropped together; the newest group stays even if it exceeds the limit."""
    reduce = bounded_messages(max_messages=3)
    left: list[BaseMessage] = [HumanMessage("q"), calling("1"), ToolMessage("a", tool_call_id="1"), calling("2", "3")]
    kept = reduce(left, [ToolMessage("b", tool_call_id="2"), ToolMessage("c", tool_call_id="3")])
    assert texts(kept) == ["q", "", "b", "c"]


def test_a_huge_tool_result_is_cut_in_the_middle() -> None:
    reduce = bounded_messages(max_chars=60)
    kept = texts(reduce([HumanMessage("q"), calling("1")], [ToolMessage("b" * 500 + "e", tool_call_id="1")]))
    assert kept[0] == "q"
    assert kept[2].startswith("b")
    assert "… [cut " in kept[2]
    assert kept[2].endswith("e")
    assert sum(map(len, kept)) <= 60


def test_an_update_with_a_known_id_replaces_its_message() -> None:
    """A known id replaces its message, and RemoveMessage removes it, as in LangGraph's reducer."""
    reduce = bounded_messages()
    left = [HumanMessage("one", id="1"), AIMessage("two", id="2")]
    assert texts(reduce(left, [AIMessage("zwei", id="2")])) == ["one", "zwei"]
    assert texts(reduce(left, [RemoveMessage(id="1")])) == ["two"]


def test_remove_all_messages_clears_the_state() -> None:
    reduce = bounded_messages(max_messages=2)
    left = [HumanMessage("one"), AIMessage("two")]
    anew = [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("a"), AIMessage("b"), HumanMessage("c")]
    assert texts(reduce(left, anew)) == ["b", "c"]
    assert reduce.trim_report() == TrimReport(before=3, after=2, trimmed_by_chars=0, trimmed_by_count=1)


def test_plain_inputs_are_taken() -> None:
    reduce = bounded_messages(max_messages=3)
    kept = reduce([("user", "one"), {"role": "assistant", "content": "two"}], ("user", "three"))
    assert [type(message) for message in kept] == [HumanMessage, AIMessage, HumanMessage]
    assert texts(reduce("one", {"role": "assistant", "content": "two"})) == ["one", "two"]


def test_a_report_for_given_messages_does_not_change_the_last_one() -> None:
    reduce = bounded_messages(max_messages=1)
    reduce([], [HumanMessage("one")])
    assert reduce.trim_report([HumanMessage("one")], [HumanMessage("two")]) == TrimReport(2, 1, 0, 1)
    assert reduce.trim_report() == TrimReport(1, 1, 0, 0)


async def test_a_graph_uses_the_reducer_after_each_step() -> None:
    class State(TypedDict):
        messages: Annotated[list[AnyMessage], bounded_messages(max_messages=2, max_chars=8000)]

    async def answer(state: State) -> dict[str, list[tuple[str, str]]]:
        return {"messages": [("assistant", f"I see {len(state['messages'])}")]}

    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    state = await builder.compile().ainvoke(
        {"messages": [HumanMessage("one"), AIMessage("two"), HumanMessage("three")]}
    )
    assert texts(state["messages"]) == ["three", "I see 2"]


@st.composite
def runs(draw: st.DrawFn) -> list[BaseMessage]:
    """Draw the messages of a run with tool loops."""
    messages: list[BaseMessage] = []
    for kind in draw(st.lists(st.sampled_from(["system", "user", "assistant", "step"]), max_size=9)):
        text = draw(st.text("ab 中", max_size=60))
        if kind == "step":
            ids = [f"{len(messages)}-{n}" for n in range(draw(st.integers(1, 3)))]
            messages += [calling(*ids), *(ToolMessage(text * 2, tool_call_id=call) for call in ids)]
        else:
            messages.append({"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}[kind](text))
    return messages


@given(run=runs(), split=st.integers(0, 20), max_messages=st.integers(-1, 9), max_chars=st.integers(0, 200))
def test_the_rules_hold_for_any_run(run: list[BaseMessage], split: int, max_messages: int, max_chars: int) -> None:
    """The reducer keeps its limits, system messages, the newest question, whole groups and the order.

    It is deterministic and idempotent.
    """
    reduce = bounded_messages(max_messages, max_chars)
    kept = reduce(run[:split], run[split:])
    assert kept == reduce(run[:split], run[split:])
    order = {message.id: place for place, message in enumerate(run)}
    places = [order[message.id] for message in kept]
    assert places == sorted(places)
    assert [m for m in kept if isinstance(m, SystemMessage)] == [m for m in run if isinstance(m, SystemMessage)]
    users = [message.id for message in run if isinstance(message, HumanMessage)]
    assert not users or users[-1] in {message.id for message in kept}
    system = sum(len(text_of(message)) for message in kept if isinstance(message, SystemMessage))
    if max_chars > 0 and system + len(CUT_MARK) <= max_chars:
        assert sum(map(len, texts(kept))) <= max_chars
    answered = {message.tool_call_id for message in kept if isinstance(message, ToolMessage)}
    assert answered == {call["id"] for message in kept if isinstance(message, AIMessage) for call in message.tool_calls}
    report = reduce.trim_report()
    assert (report.before, report.after) == (len(run), len(kept))
    assert len(run) == len(kept) or report.trimmed_by_chars + report.trimmed_by_count > 0 or "" in texts(run)
    assert reduce(kept, []) == kept


def test_a_state_with_two_reducers_raises_langgraphs_error() -> None:
    class Small(TypedDict):
        messages: Annotated[list[AnyMessage], bounded_messages(max_messages=2)]

    def node(state: MessagesState) -> None:
        """Do nothing."""

    builder = StateGraph(Small)
    with pytest.raises(ValueError, match="messages"):
        builder.add_node("node", node)
