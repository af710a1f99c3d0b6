"""Tests of the public `count_tokens` and `trim` with LangChain messages."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from threadkeep.agent.conversion import text_of
from threadkeep.agent.counting import MEDIA_TOKENS, count_tokens
from threadkeep.agent.shortening import trim
from threadkeep.context.cut import CUT_MARK
from threadkeep.context.tokens import TokenCounter, chars4, estimate
from threadkeep.errors import BudgetTooSmall, InvalidInput
from threadkeep.records import Message

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


def odd_counter(text: str) -> int:
    """Return a count that does not grow with the text."""
    return len(text) + (7 if len(text) % 3 else 0)


def calling(*ids: str, content: str = "", x: str = "é") -> AIMessage:
    """Return an assistant message that calls a tool once for each id."""
    return AIMessage(content, tool_calls=[{"name": "look_up", "args": {"x": x}, "id": call} for call in ids])


def test_texts_messages_and_lists_are_counted() -> None:
    words = "What is the weather like?"
    assert count_tokens(words) == estimate(words)
    assert count_tokens(Message(role="user", content=words)) == estimate(words)
    assert count_tokens(HumanMessage(words), model="mistral-large") == estimate(words)
    assert count_tokens([words, HumanMessage(words)], counter=len) == 2 * len(words)
    assert count_tokens([]) == 0


def test_tool_calls_and_results_are_counted() -> None:
    """A tool call counts its name and unescaped JSON once, even if the content repeats it."""
    call = 'look_up{"x": "é"}'
    assert count_tokens(calling("1", content="hm"), counter=len) == len("hm") + len(call)
    blocks = AIMessage(
        [{"type": "text", "text": "hm"}, {"type": "tool_use", "id": "1", "name": "look_up", "input": {"x": "é"}}],
        tool_calls=[{"name": "look_up", "args": {"x": "é"}, "id": "1"}],
    )
    assert count_tokens(blocks, counter=len) == len("hm") + len(call)
    assert count_tokens(ToolMessage("found", tool_call_id="1"), counter=len) == 5


def test_base64_is_not_counted_as_text() -> None:
    assert count_tokens(HumanMessage(["look", IMAGE]), counter=len) == 4 + MEDIA_TOKENS
    unknown = {"type": "hologram", "data": "A" * 100_000}
    assert count_tokens(HumanMessage([unknown]), counter=len) == len('{"type": "hologram"}') + MEDIA_TOKENS
    assert count_tokens(AIMessage([{"type": "thinking", "thinking": "hmm", "signature": "s" * 500}]), counter=len) == 3


def test_system_messages_are_kept_and_moved_to_the_beginning() -> None:
    messages = [HumanMessage("a" * 50), SystemMessage("s"), AIMessage("b"), SystemMessage("t"), HumanMessage("c")]
    assert [m.content for m in trim(messages, 10, counter=len)] == ["s", "t", "b", "c"]
    assert trim(messages, 1000) == [messages[1], messages[3], messages[0], messages[2], messages[4]]


def test_history_fills_the_budget_that_the_steps_leave() -> None:
    history = [kind(f"{n:02}" * 5) for n in range(10) for kind in (HumanMessage, AIMessage)]
    turn = [HumanMessage("q" * 10), calling("1"), ToolMessage("r" * 10, tool_call_id="1")]
    spent = count_tokens(turn, counter=len)
    assert trim([*history, *turn], spent + 70, counter=len) == [*history[-7:], *turn]
    assert trim([*history, *turn], spent + 69, counter=len) == [*history[-6:], *turn]
    turn = [HumanMessage("q" * 10), AIMessage("said")]
    assert trim([*history, *turn], 84, counter=len) == [*history[-7:], *turn]


def test_cutting_a_message_keeps_its_image() -> None:
    (cut,) = trim([HumanMessage([{"type": "text", "text": "x" * 100}, IMAGE])], MEDIA_TOKENS + 20, counter=len)
    assert cut.content == [{"type": "text", "text": "x" * 13 + CUT_MARK}, IMAGE]


def test_the_middle_of_a_tool_result_is_replaced_by_a_mark_with_its_length() -> None:
    messages = [HumanMessage("q"), calling("1"), ToolMessage("a" * 500 + "z" * 500, tool_call_id="1")]
    kept = trim(messages, 80, counter=len)
    assert text_of(kept[2]).startswith("a")
    assert "… [cut 9" in text_of(kept[2])
    assert text_of(kept[2]).endswith("z")
    assert count_tokens(kept, counter=len) <= 80
    assert messages[2].content == "a" * 500 + "z" * 500


def blocks_of(message: BaseMessage) -> list[object]:
    """Return the content of a message that consists of blocks."""
    assert isinstance(message.content, list)
    return list(message.content)


def test_long_arguments_are_cut_in_every_copy() -> None:
    arguments: dict[str, object] = {"path": "a.txt", "text": "a" * 300 + "z" * 300, "lines": list(range(200)), "n": 5}
    blocks: list[str | dict[str, object]] = [
        {"type": "reasoning", "summary": []},
        {"type": "text", "text": "I write."},
        {"type": "tool_use", "id": "1", "name": "write", "input": arguments, "partial_json": "{"},
        {"type": "function_call", "call_id": "1", "name": "write", "arguments": json.dumps(arguments)},
    ]
    call = {"name": "write", "args": arguments, "id": "1"}
    said = AIMessage(blocks, tool_calls=[call], additional_kwargs={"tool_calls": [], "kept": "as it is"})
    kept = trim([HumanMessage("q"), said, ToolMessage("done", tool_call_id="1")], 300, counter=len)
    assert 250 < count_tokens(kept, counter=len) <= 300
    assert isinstance(kept[1], AIMessage)
    short = kept[1].tool_calls[0]["args"]
    assert (short["path"], short["n"]) == ("a.txt", 5)
    assert re.fullmatch(r"a+… \[cut \d+ characters\] …z+", short["text"])
    assert re.fullmatch(r"\[0, 1, .*… \[cut \d+ characters\] ….*, 199\]", short["lines"])
    reasoning, text, used, function = blocks_of(kept[1])
    assert [reasoning, text] == blocks[:2]
    assert used == {"type": "tool_use", "id": "1", "name": "write", "input": short}
    assert isinstance(function, dict)
    assert json.loads(function["arguments"]) == short
    assert kept[1].additional_kwargs == {"kept": "as it is"}
    assert said.tool_calls[0]["args"] == arguments


def test_media_are_replaced_by_marks_before_text_is_cut_further() -> None:
    """Media are replaced by marks, oldest first and only as many as necessary, before text is cut further."""
    recording = {"type": "input_audio", "input_audio": {"data": "A" * 99}}
    question = HumanMessage([IMAGE, "x" * 100, IMAGE, recording, {"type": "file", "data": "A"}])
    (cut,) = trim([question], 2 * MEDIA_TOKENS + 140, counter=len)
    mark = {"type": "text", "text": "[image left out]"}
    assert cut.content == [mark, "x" * 100, mark, *question.content[3:]]
    (cut,) = trim([question], 2 * MEDIA_TOKENS + 60, counter=len)
    text = "x" * 33 + CUT_MARK + "\n[2 images left out]"
    assert cut.content == [{"type": "text", "text": text}, *question.content[3:]]
    (cut,) = trim([question], 165, counter=len)
    marks = "[2 images left out] [recording left out] [file left out]"
    assert cut.content == "x" * 100 + "\n" + marks
    (cut,) = trim([question], 80, counter=len)
    assert cut.content == "x" * (80 - len(CUT_MARK) - 1 - len(marks)) + CUT_MARK + "\n" + marks
    with pytest.raises(BudgetTooSmall):
        trim([question], len(marks), counter=len)


def test_reasoning_is_not_removed_with_images() -> None:
    thought = {"type": "thinking", "thinking": "hmm", "signature": "s"}
    said = AIMessage([thought, {"type": "text", "text": "see"}, IMAGE], tool_calls=calling("1").tool_calls)
    kept = trim([HumanMessage("q"), said, ToolMessage("r", tool_call_id="1")], 100, counter=len)
    mark = {"type": "text", "text": "[image left out]"}
    assert kept[1].content == [thought, {"type": "text", "text": "see"}, mark]


@pytest.mark.parametrize(
    "before",
    [
        [{"type": "thinking", "thinking": "so", "signature": "s"}],
        [{"type": "reasoning", "id": "rs_1", "summary": []}, {"type": "web_search_call", "id": "ws_1"}],
    ],
)
def test_reasoning_stays_before_the_text_of_a_cut_answer(before: list[str | dict[str, Any]]) -> None:
    """A cut answer begins with its reasoning, which Anthropic and OpenAI refuse behind its text."""
    answer = AIMessage([*before, {"type": "text", "text": "as I said " * 400}])
    sent, _ = trim([answer, HumanMessage("and?")], 200)
    assert isinstance(sent.content, list)
    assert sent.content[:-1] == before
    assert 0 < len(str(sent.text)) < len(str(answer.text))


def test_a_cut_answer_in_the_format_v1_is_not_marked_so_as_a_text() -> None:
    answer = AIMessage([{"type": "text", "text": "as I said " * 400}], response_metadata={"output_version": "v1"})
    sent, _ = trim([answer, HumanMessage("and?")], 200)
    assert isinstance(sent.content, str)
    assert sent.response_metadata == {}


def test_the_error_names_the_least_budget() -> None:
    steps = [HumanMessage("words " * 200), calling("c1"), ToolMessage("result " * 300, tool_call_id="c1")]
    budget = next(budget for budget in range(1, 2_000) if _fits(steps, budget))
    with pytest.raises(BudgetTooSmall) as refused:
        trim(steps, budget - 1, counter=len)
    newest, rest = (int(number) for number in re.findall(r"at least (\d+)", str(refused.value)))
    assert newest + rest == budget
    assert count_tokens(trim(steps, budget, counter=len), counter=len) == budget


def _fits(messages: list[BaseMessage], budget: int) -> bool:
    try:
        return bool(trim(messages, budget, counter=len))
    except BudgetTooSmall:
        return False


def test_invalid_limits_are_refused() -> None:
    with pytest.raises(InvalidInput, match="max_messages must be a whole number from 0"):
        trim([], 10, max_messages=-1)
    with pytest.raises(BudgetTooSmall, match="have 20 tokens and the budget is 10"):
        trim([SystemMessage("s" * 20), HumanMessage("q")], 10, counter=len)


@st.composite
def conversations(draw: st.DrawFn) -> list[BaseMessage]:
    """Draw messages in several scripts, with tool loops and results without calls."""
    messages: list[BaseMessage] = []
    for kind in draw(st.lists(st.sampled_from(["system", "user", "assistant", "step", "orphan"]), max_size=9)):
        text = draw(st.text("ab 中👍é\n", max_size=80))
        images = [IMAGE] * draw(st.integers(0, 2))
        if kind == "step":
            ids = [f"{len(messages)}-{n}" for n in range(draw(st.integers(1, 3)))]
            said = calling(*ids, content=text, x=draw(st.sampled_from(["é", "é 中" * 80])))
            messages += [said, *(ToolMessage([text * 2, *images], tool_call_id=call) for call in ids)]
        elif kind == "orphan":
            messages.append(ToolMessage(text, tool_call_id="nobody"))
        elif kind == "system":
            messages.append(SystemMessage(text[:9]))
        else:
            messages.append({"user": HumanMessage, "assistant": AIMessage}[kind]([text, *images] if images else text))
    return messages


counters: st.SearchStrategy[TokenCounter | None] = st.sampled_from([None, len, chars4, odd_counter])


@given(
    messages=conversations(),
    budget=st.integers(0, 400) | st.integers(0, 4_000),
    counter=counters,
    limit=st.none() | st.integers(0, 5),
)
def test_the_rules_hold_for_any_conversation(
    messages: list[BaseMessage], budget: int, counter: TokenCounter | None, limit: int | None
) -> None:
    """Trimming keeps the budget, system messages, the newest question and the order.

    It leaves no result without a call, and is deterministic and idempotent.
    """
    for number, message in enumerate(messages):
        message.id = str(number)
    try:
        kept = trim(messages, budget, counter=counter, max_messages=limit)
    except BudgetTooSmall:
        return
    assert count_tokens(kept, counter=counter) <= budget
    system = [message for message in messages if isinstance(message, SystemMessage)]
    assert kept[: len(system)] == system
    places = [int(message.id or 0) for message in kept[len(system) :]]
    assert places == sorted(set(places))
    users = [message.id for message in messages if isinstance(message, HumanMessage)]
    assert not users or users[-1] in {message.id for message in kept}
    called = [call["id"] for message in kept if isinstance(message, AIMessage) for call in message.tool_calls]
    assert called == [message.tool_call_id for message in kept if isinstance(message, ToolMessage)]
    asked = [message.id for message in messages if isinstance(message, AIMessage)]
    assert not users or not asked or int(asked[-1] or 0) < int(users[-1] or 0) or asked[-1] in {m.id for m in kept}
    assert trim(messages, budget, counter=counter, max_messages=limit) == kept
    assert trim(kept, budget, counter=counter, max_messages=limit) == kept
