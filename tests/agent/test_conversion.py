"""Tests of converting, merging and repairing LangChain's messages."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from threadkeep.agent.conversion import from_langchain, text_of, to_langchain
from threadkeep.agent.provider_messages import NO_RESULT, Repaired, merge, plain, repair
from threadkeep.errors import InvalidMessage
from threadkeep.records import Message

THINKING = {"type": "thinking", "thinking": "hm", "signature": "abc"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def calling(*ids: str | None, content: str = "") -> AIMessage:
    """Return an assistant message that calls a tool once for each id."""
    return AIMessage(content, tool_calls=[{"name": "look_up", "args": {"x": 1}, "id": call} for call in ids])


def result(call: str, content: str = "found") -> ToolMessage:
    """Return a tool's result."""
    return ToolMessage(content, tool_call_id=call)


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (Message(role="user", content="hi", id="telegram:42"), HumanMessage),
        (Message(role="assistant", content="hello", id="a1"), AIMessage),
        (Message(role="system", content="note"), SystemMessage),
    ],
)
def test_stored_messages_are_converted_to_langchain_and_back(stored: Message, kind: type[BaseMessage]) -> None:
    converted = to_langchain(stored)
    assert type(converted) is kind
    assert converted.id == stored.id
    assert from_langchain(converted) == stored


def test_blocks_are_stored_as_text_and_marks_for_media() -> None:
    """Text blocks are stored as text and media as marks; reasoning is not stored."""
    message = AIMessage([THINKING, {"type": "text", "text": "one "}, IMAGE, {"type": "text", "text": "two"}], id="1")
    assert text_of(message) == "one two"
    assert from_langchain(message) == Message(role="assistant", content="one two\n[image]", id="1")
    shown = HumanMessage([IMAGE, IMAGE, {"type": "file", "base64": "AAAA"}, {"type": "input_audio", "input_audio": {}}])
    assert from_langchain(shown).content == "[2 images] [file] [recording]"
    assert from_langchain(AIMessage([THINKING])).content == ""


def test_an_original_that_was_stored_without_a_mark_is_restored() -> None:
    """A row of an earlier version, with text alone, is restored from its original."""
    whole = HumanMessage(["what is it?", IMAGE], id="1")
    stored = from_langchain(whole, full=True).with_fields(content="what is it?")
    assert to_langchain(stored) == whole


def test_full_fidelity_restores_the_whole_message() -> None:
    whole = AIMessage(
        [THINKING, {"type": "text", "text": "done"}],
        id="1",
        tool_calls=[{"name": "look_up", "args": {"x": 1}, "id": "c1"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        response_metadata={"model_provider": "anthropic"},
        additional_kwargs={"refusal": None},
    )
    stored = Message.from_json(from_langchain(whole, full=True).to_json())
    assert to_langchain(stored) == whole


def test_an_answer_of_chunks_is_stored_as_a_message() -> None:
    chunk = AIMessageChunk(content="hello", id="1")
    restored = to_langchain(from_langchain(chunk, full=True))
    assert type(restored) is AIMessage
    assert restored.content == "hello"


def test_a_cut_message_is_not_restored_from_its_original() -> None:
    stored = from_langchain(HumanMessage("a long question", id="1"), full=True)
    assert to_langchain(stored.with_fields(content="a lo… [cut]")).content == "a lo… [cut]"


@pytest.mark.parametrize("original", [{"type": "martian", "data": {}}, {"type": "ai", "data": {"content": 1}}, "x", {}])
def test_an_original_that_cannot_be_read_yields_the_stored_text(original: dict[str, object]) -> None:
    """An original of another LangChain version that cannot be read yields a message with the stored text."""
    stored = Message.from_dict({"role": "user", "content": "hi", "id": "1", "original": original})
    assert to_langchain(stored) == HumanMessage("hi", id="1")


@pytest.mark.parametrize(
    ("told", "opinion"),
    [
        ({"confidence": 0.25, "escalated": True}, (0.25, True)),
        ({"confidence": 1}, (1.0, False)),
        ({"confidence": True, "escalated": 1}, (None, False)),
        ({"confidence": float("nan"), "escalated": "yes"}, (None, False)),
        ({}, (None, False)),
    ],
)
def test_confidence_and_escalation_are_stored_with_the_answer(
    told: dict[str, object], opinion: tuple[float | None, bool]
) -> None:
    """Confidence and escalation are stored if they are a number and a boolean.

    Providers use these names for other values.
    """
    stored = from_langchain(AIMessage("hello", id="1", response_metadata=told))
    assert (stored.confidence, stored.escalated) == opinion


@pytest.mark.parametrize("told", [None, 5, "yesterday", "2026-01-01T12:00:00"])
def test_a_sent_time_without_a_zone_is_not_stored(told: object) -> None:
    """The `sent_at` of a person's message is stored if it has a time zone; that of an answer is not."""
    assert from_langchain(HumanMessage("hi", response_metadata={"sent_at": told})).sent_at is None
    known = {"sent_at": "2026-01-01T12:00:00+08:00"}
    assert from_langchain(HumanMessage("hi", response_metadata=known)).sent_at == datetime(2026, 1, 1, 4, tzinfo=UTC)
    assert from_langchain(AIMessage("hi", response_metadata=known)).sent_at is None


@pytest.mark.parametrize("bad_id", ["a\nb", "ab\u200bc", "half \ud83d", "x" * 513])
def test_an_invalid_id_is_replaced(bad_id: str) -> None:
    """An invalid id is replaced by one derived from it, so that a repeated delivery is recognized."""
    stored = from_langchain(HumanMessage("hi", id=bad_id))
    assert stored.id == from_langchain(HumanMessage("hello", id=bad_id)).id
    assert stored.id != from_langchain(HumanMessage("hi", id=f"{bad_id}!")).id
    in_state = HumanMessage("hi", id=bad_id)
    assert merge([to_langchain(stored)], [in_state]) == [in_state]


def test_a_message_without_an_id_is_converted_without_one() -> None:
    assert from_langchain(HumanMessage("hi", id="")).id is None
    assert from_langchain(HumanMessage("hi")).id is None


def test_tool_results_and_unknown_roles_are_refused() -> None:
    with pytest.raises(InvalidMessage, match="type 'tool' is not part of a conversation"):
        from_langchain(result("1"))
    assert from_langchain(ChatMessage(role="developer", content="be brief")).role == "system"
    with pytest.raises(InvalidMessage, match="type 'chat'"):
        from_langchain(ChatMessage(role="critic", content="no"))


def test_merging_keeps_the_version_of_the_state() -> None:
    """Each id is kept once in the state's version; other messages follow their predecessors in the history."""
    history = [HumanMessage(text, id=text) for text in "abcde"]
    state = [HumanMessage("B", id="b"), HumanMessage("x", id="x"), HumanMessage("D", id="d")]
    assert [m.content for m in merge(history, state)] == ["a", "B", "c", "x", "D", "e"]


def test_merging_keeps_system_messages_first() -> None:
    state = [SystemMessage("s"), HumanMessage("new", id="n")]
    assert [m.content for m in merge([HumanMessage("old", id="o")], state)] == ["s", "old", "new"]
    assert [m.content for m in merge([HumanMessage("old", id="o")], state[:1])] == ["s", "old"]
    assert merge([], state) == state


def test_messages_with_equal_text_are_kept() -> None:
    assert len(merge([HumanMessage("ok"), HumanMessage("ok")], [HumanMessage("ok", id="1")])) == 3


ids = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@given(history=ids, state=ids)
def test_merging_removes_duplicates_and_keeps_the_order(history: list[str], state: list[str]) -> None:
    merged = merge(
        [HumanMessage(f"history {key}", id=key) for key in history],
        [HumanMessage(f"state {key}", id=key) for key in state],
    )
    order = [str(message.id) for message in merged]
    assert sorted(order) == sorted({*history, *state})
    assert [key for key in order if key in state] == state
    assert all(message.content == f"state {message.id}" for message in merged if message.id in state)
    for before, after in itertools.pairwise(history):
        if after not in state:
            assert order.index(after) == order.index(before) + 1
    if history and state and history[0] not in state:
        assert order[0] == history[0]


def test_a_call_without_a_result_is_answered() -> None:
    repaired = repair([HumanMessage("q"), calling("1", "2"), result("2"), HumanMessage("again")]).messages
    assert [type(message) for message in repaired] == [HumanMessage, AIMessage, ToolMessage, ToolMessage, HumanMessage]
    assert [m.tool_call_id for m in repaired if isinstance(m, ToolMessage)] == ["1", "2"]
    assert repaired[2].content == NO_RESULT


def test_results_are_moved_after_their_call() -> None:
    repaired = repair([calling("1"), HumanMessage("hurry"), result("1")]).messages
    assert [type(message) for message in repaired] == [AIMessage, ToolMessage, HumanMessage]


def test_results_without_a_call_and_duplicates_are_dropped() -> None:
    lost = repair([result("0"), HumanMessage("q")])
    assert lost == Repaired([HumanMessage("q")], [(result("0"), "orphan_tool")])
    repaired = repair([calling("1"), result("1", "first"), result("1", "second")])
    assert [message.content for message in repaired.messages] == ["", "first"]
    assert repaired.dropped == [(result("1", "second"), "duplicate")]


def test_the_same_call_id_in_two_turns_is_two_calls() -> None:
    repaired = repair([calling("1"), result("1", "old"), HumanMessage("q"), calling("1"), result("1", "new")]).messages
    assert [m.content for m in repaired if isinstance(m, ToolMessage)] == ["old", "new"]


def test_an_invalid_tool_call_is_removed() -> None:
    invalid = AIMessage(
        [{"type": "text", "text": "let me see"}, {"type": "tool_use", "id": "1", "name": "look_up", "input": {}}],
        invalid_tool_calls=[{"name": "look_up", "args": "{", "id": "1", "error": "cut", "type": "invalid_tool_call"}],
        additional_kwargs={"tool_calls": [{"id": "1"}]},
    )
    (repaired,) = repair([invalid]).messages
    assert isinstance(repaired, AIMessage)
    assert repaired.content == [{"type": "text", "text": "let me see"}]
    assert not repaired.invalid_tool_calls
    assert not repaired.additional_kwargs
    assert invalid.invalid_tool_calls
    assert repair([calling(None)]) == Repaired([], [(calling(None), "empty")])


@st.composite
def broken_runs(draw: st.DrawFn) -> list[BaseMessage]:
    """Draw calls and results in any order, some of them missing."""
    messages: list[BaseMessage] = []
    for kind in draw(st.lists(st.sampled_from(["user", "answer", "call", "result"]), max_size=12)):
        key = draw(st.sampled_from("123"))
        made: dict[str, BaseMessage] = {
            "user": HumanMessage("q"),
            "answer": AIMessage("a"),
            "call": calling(key, draw(st.sampled_from("45")), content="c"),
            "result": result(key),
        }
        messages.append(made[kind])
    return messages


@given(broken_runs())
def test_any_repaired_run_is_valid(messages: list[BaseMessage]) -> None:
    """In a repaired list, results directly follow their calls and all other messages are unchanged."""
    repaired = repair(messages).messages
    place = 0
    while place < len(repaired):
        message = repaired[place]
        place += 1
        assert not isinstance(message, ToolMessage)
        for call in message.tool_calls if isinstance(message, AIMessage) else []:
            answer = repaired[place]
            assert isinstance(answer, ToolMessage)
            assert answer.tool_call_id == call["id"]
            place += 1
    assert [m for m in repaired if not isinstance(m, ToolMessage)] == [
        m for m in messages if not isinstance(m, ToolMessage)
    ]
    assert repair(repaired).messages == repaired


def test_reasoning_of_another_provider_becomes_text() -> None:
    foreign = AIMessage(
        [THINKING, {"type": "text", "text": "hello"}, {"type": "tool_use", "id": "1", "name": "look_up", "input": {}}],
        tool_calls=[{"name": "look_up", "args": {}, "id": "1"}],
        response_metadata={"model_provider": "anthropic"},
    )
    (changed,) = plain([foreign], provider="openai")
    assert isinstance(changed, AIMessage)
    assert changed.content == "hello"
    assert changed.tool_calls == foreign.tool_calls
    assert plain([foreign], provider="anthropic") == [foreign]


def test_citations_of_another_provider_are_removed() -> None:
    block: dict[str, object] = {"type": "text", "text": "hello", "citations": [{"cited_text": "hello"}]}
    foreign = AIMessage([block], response_metadata={"model_provider": "anthropic"})
    assert [message.content for message in plain([foreign], provider="openai")] == ["hello"]
    assert plain([foreign], provider="anthropic") == [foreign]


def test_blocks_of_the_newest_provider_are_kept() -> None:
    """Without a given provider, the blocks of the newest message's provider are kept."""
    old = AIMessage([THINKING, {"type": "text", "text": "a"}], response_metadata={"model_provider": "anthropic"})
    new = AIMessage([{"type": "reasoning", "id": "r"}], response_metadata={"model_provider": "openai"})
    assert [message.content for message in plain([old, HumanMessage("q"), new])] == ["a", "q", new.content]


def test_text_human_messages_and_results_are_not_changed() -> None:
    messages = [AIMessage([{"type": "text", "text": "a"}]), AIMessage("b"), HumanMessage([IMAGE]), result("1")]
    assert plain(messages) == messages


@pytest.mark.parametrize(("provider", "names_itself"), [("mistral", "mistralai"), ("ollama", "ollama")])
def test_providers_with_two_names_get_no_reasoning_of_others(provider: str, names_itself: str) -> None:
    """Mistral and Ollama get another provider's answer as its text, and their own answers unchanged."""
    blocks: list[str | dict[str, Any]] = [{"type": "thinking", "thinking": "so", "signature": "s"}, "text"]
    foreign = AIMessage(blocks, response_metadata={"model_provider": "anthropic"})
    own = AIMessage(blocks, response_metadata={"model_provider": names_itself})
    own_message, foreign_message = plain([own, foreign], provider=provider)
    assert own_message == own
    assert foreign_message.content == "text"


def test_an_answer_in_the_format_v1_is_not_marked_so_as_a_text() -> None:
    """Packages of providers expect a list of blocks in a message of the format `v1`, and fail with a text."""
    answer = AIMessage(
        [THINKING, {"type": "text", "text": "a"}],
        response_metadata={"model_provider": "openai", "output_version": "v1"},
    )
    (changed,) = plain([answer], provider="anthropic")
    assert (changed.content, changed.response_metadata) == ("a", {"model_provider": "openai"})


def test_a_refusal_of_another_provider_becomes_text() -> None:
    """A refusal of OpenAI that is not in the content reaches other providers as text, not as an empty message."""
    refusal = AIMessage([], additional_kwargs={"refusal": "No."}, response_metadata={"model_provider": "openai"})
    assert [message.content for message in plain([refusal], provider="anthropic")] == ["No."]
    assert plain([refusal], provider="openai") == [refusal]


@pytest.mark.parametrize(
    "answer",
    [
        AIMessage([THINKING]),
        AIMessage([{"type": "reasoning", "id": "rs_1", "summary": []}, {"type": "text", "text": ""}]),
        AIMessage([], additional_kwargs={"reasoning": {"type": "reasoning", "id": "rs_1", "summary": []}}),
        AIMessage("", additional_kwargs={"reasoning_content": "so"}),
    ],
)
def test_an_answer_that_is_only_reasoning_is_not_sent(answer: AIMessage) -> None:
    """Anthropic and OpenAI refuse reasoning without a text or a call behind it, so one such answer ended a session."""
    messages = [HumanMessage("q"), answer, HumanMessage("and?")]
    assert repair(messages) == Repaired([messages[0], messages[2]], [(answer, "empty")])


def test_an_answer_without_a_provider_is_made_plain() -> None:
    assert [m.content for m in plain([AIMessage([{"type": "server_tool_use", "id": "s"}, "text"])])] == ["text"]
