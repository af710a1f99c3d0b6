"""Tests of the chat: the order of turns in a session, subscribers, disconnected callers, and closing."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool

from tests.agent.talking import add, adding, kept, kept_with_status, numbered, seen
from tests.recorded_events import RecordedEvents
from tests.runs.chatting import ROOM, Chats, events_of, said, words_of
from tests.runs.desk import eventually
from threadkeep import (
    BudgetTooSmall,
    InvalidInput,
    InvalidKey,
    Memory,
    ModelCallFailed,
    SessionNotFound,
    count_tokens,
)
from threadkeep.agent.turn_options import ChatOptions
from threadkeep.errors import Interrupted, InvalidSettings
from threadkeep.observe import TurnFinished
from threadkeep.records.runs import RunQuery
from threadkeep.runs.chat_turns import ChatAnswer, ChatContext, ChatStarted, ChatToken, ChatTurn, ChatUsage
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.streams import RunPiece, RunStream
from threadkeep.testing import Gate, ScriptedModel


@pytest.mark.parametrize(
    ("pieces", "replaced"), [((), False), (("so", "on"), False), (("so",), True), (("a", "soon"), False)]
)
async def test_a_stream_of_another_answer_says_that_it_was_replaced(pieces: Sequence[str], replaced: bool) -> None:
    """`replaced` is true if the streamed pieces are not the end of the answer.

    Those pieces came from an attempt that another process ended.
    """
    turn = ChatTurn(RunRequest(workflow="chat", text="hi"), stream=True)
    for piece in pieces:
        turn.stream.publish(RunPiece("r", None, None, piece))

    async def answer() -> ChatAnswer:
        return ChatAnswer("s", "r", "m", "soon", None, False, ChatUsage(1, 1), ChatContext())

    turn.task = asyncio.create_task(answer())
    turn.task.add_done_callback(turn.stream.signal)
    last = (await events_of(turn))[-1]
    assert isinstance(last, ChatAnswer)
    assert (last.response, last.replaced) == ("soon", replaced)


async def test_followers_go_on_with_the_stream_of_the_run_that_answers() -> None:
    """During an outage, a run that is not recorded may answer a turn whose recorded run has streamed tokens."""
    turn = ChatTurn(RunRequest(workflow="chat", text="hi"), stream=True)
    recorded, unrecorded, done = RunStream(turn.run_id), RunStream(turn.run_id), asyncio.Event()

    async def answer() -> ChatAnswer:
        await done.wait()
        return ChatAnswer("s", "r", "m", "hello", None, False, ChatUsage(1, 1), ChatContext())

    turn.task = asyncio.create_task(answer())
    turn.task.add_done_callback(lambda _: turn.stream.signal())
    following = turn.follow()
    begun = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    turn.read_from(recorded)
    recorded.renew(begun=True)
    recorded.publish(RunPiece(turn.run_id, None, "a1", "he"))
    events = [await begun, await anext(following)]
    upcoming = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    turn.read_from(unrecorded)
    unrecorded.renew(begun=True)
    unrecorded.publish(RunPiece(turn.run_id, None, "a2", "hello"))
    events.append(await upcoming)
    done.set()
    events.append(await anext(following))
    started, told = ChatStarted(turn.session_id, turn.run_id, turn.message_id), await turn.answer()
    assert events == [started, ChatToken("he", "a1"), ChatToken("hello", "a2"), told]
    assert await events_of(turn) == [started, ChatToken("hello", "a2"), told]


async def test_an_answer_has_ids_usage_and_context(memory: Memory, events: RecordedEvents, make_chat: Chats) -> None:
    """An answer has the ids, the text, the usage and the context of its turn, and `TurnFinished` agrees with it."""
    await memory.session(ROOM).append(numbered(25))
    answer = AIMessage(
        "fine",
        usage_metadata={
            "input_tokens": 70,
            "output_tokens": 8,
            "total_tokens": 78,
            "input_token_details": {"cache_read": 60},
        },
        response_metadata={"confidence": 0.5, "escalated": True},
    )
    chat = make_chat(memory, ScriptedModel([answer]), ChatOptions(system_prompt="be kind"))
    told = await chat.ask(said("and now?", "telegram:7"))
    question, stored = await memory.session(ROOM).tail(2)
    assert told.run_id == question.run_id == stored.run_id
    assert (told.session_id, told.message_id, told.response) == (ROOM, "telegram:7", "fine")
    assert (told.confidence, told.escalated) == (stored.confidence, stored.escalated) == (0.5, True)
    assert told.usage == ChatUsage(70, 8)
    assert (told.context.messages, told.context.dropped) == (22, 5)
    assert told.context.tokens > 0
    (finished,) = events.of(TurnFinished)
    assert (finished.status, finished.input_tokens, finished.output_tokens) == ("complete", 70, 8)
    assert (finished.cache_read_tokens, finished.run_id) == (60, told.run_id)


async def test_usage_is_estimated_when_the_provider_reports_none(
    sqlite_memory: Memory, events: RecordedEvents, make_chat: Chats
) -> None:
    told = await make_chat(sqlite_memory, FakeListChatModel(responses=["fine words"])).ask(said("hello there"))
    assert told.context == ChatContext(messages=1, tokens=count_tokens("hello there"), dropped=0)
    assert told.usage == ChatUsage(count_tokens("hello there"), count_tokens("fine words"), estimated=True)
    assert [event.estimated for event in events.of(TurnFinished)] == [True]


async def test_a_message_without_a_session_begins_one(sqlite_memory: Memory, make_chat: Chats) -> None:
    chat = make_chat(sqlite_memory, ScriptedModel(["one", "two"]))
    first, second = [await chat.ask(said("hi", session_id=None)) for _ in range(2)]
    assert first.session_id != second.session_id
    assert (await sqlite_memory.session(first.session_id).info()).message_count == 2


async def test_a_message_without_a_session_continues_the_last_session_of_its_user(
    memory: Memory, make_chat: Chats
) -> None:
    chat = make_chat(memory, ScriptedModel(["one", "two", "three", "four"]))
    first, second = [await chat.ask(said("hi", session_id=None, user_id="ann")) for _ in range(2)]
    assert first.session_id == second.session_id
    await chat.ask(said("over here", user_id="ann"))
    assert (await chat.ask(said("and now?", session_id=None, user_id="ann"))).session_id == ROOM
    info = await memory.session(first.session_id).info()
    assert (info.user_id, info.message_count) == ("ann", 4)


async def test_a_slow_follower_gets_all_tokens(sqlite_memory: Memory, make_chat: Chats) -> None:
    """The turn may end while its follower is still taking an early token."""
    gate = Gate()
    turn = make_chat(sqlite_memory, ScriptedModel([["once upon ", gate, "a ", "time"]])).begin(said("a story"))
    following = turn.follow()
    events = [await anext(following), await anext(following)]
    gate.open()
    answer = await turn.answer()
    events += [event async for event in following]
    assert (words_of(events), events[-1]) == (answer.response, answer)


async def test_twenty_at_once_are_answered_in_order_of_arrival(memory: Memory, make_chat: Chats) -> None:
    gate = Gate()
    model = ScriptedModel([[gate, "answer 0"], *(f"answer {n}" for n in range(1, 20))])
    chat = make_chat(memory, model)
    turns = [chat.begin(said(f"question {n}")) for n in range(20)]
    await gate.reached()
    assert chat.running == 20
    assert len(model.calls) == 1
    gate.open()
    answers = [(await turn.answer()).response for turn in turns]
    assert answers == [f"answer {n}" for n in range(20)]
    expected = [line for n in range(20) for line in (("user", f"question {n}"), ("assistant", f"answer {n}"))]
    assert await kept(memory, ROOM) == expected
    assert chat.running == 0


async def test_a_later_message_does_not_overtake_waiting_messages(sqlite_memory: Memory, make_chat: Chats) -> None:
    gates = [Gate() for _ in range(3)]
    model = ScriptedModel([[gate, f"answer {n}"] for n, gate in enumerate(gates)])
    chat = make_chat(sqlite_memory, model)
    first, second = chat.begin(said("question 0")), chat.begin(said("question 1"))
    await gates[0].reached()
    gates[0].open()
    await first.answer()
    await gates[1].reached()
    third = chat.begin(said("question 2"))
    gates[2].open()

    async def statuses() -> list[str]:
        runs, _ = await sqlite_memory.runs.records.runs(RunQuery(session_id=ROOM))
        return [run.status for run in runs]

    async def third_is_stored() -> bool:
        return len(await statuses()) == 3

    await eventually(third_is_stored)
    assert await statuses() == ["queued", "running", "done"]
    assert len(model.calls) == 2
    gates[1].open()
    await third.answer()
    await second.answer()
    assert [text for _, text in await kept(sqlite_memory, ROOM)] == [
        text for number in range(3) for text in (f"question {number}", f"answer {number}")
    ]


async def test_sessions_run_in_parallel(memory: Memory, make_chat: Chats) -> None:
    gate = Gate()
    model = ScriptedModel([[gate, "slow"], "quick"])
    chat = make_chat(memory, model)
    slow = chat.begin(said("take your time"))
    await gate.reached()
    assert (await chat.ask(said("be quick", session_id="room:2"))).response == "quick"
    gate.open()
    assert (await slow.answer()).response == "slow"


async def test_a_cancelled_caller_does_not_stop_the_turn(memory: Memory, make_chat: Chats) -> None:
    gate = Gate()
    chat = make_chat(memory, ScriptedModel([["once upon ", gate, "a time"]]))
    caller = asyncio.create_task(chat.ask(said("a story")))
    await gate.reached()
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert chat.running == 1
    gate.open()
    await chat.close(60)
    assert await kept_with_status(memory, ROOM) == [
        ("user", "a story", "complete"),
        ("assistant", "once upon a time", "complete"),
    ]


async def test_followers_receive_all_events(sqlite_memory: Memory, make_chat: Chats) -> None:
    """A follower receives all events, whether it begins before, during or after the turn."""
    gate = Gate()
    chat = make_chat(sqlite_memory, ScriptedModel([["once upon ", gate, "a time"]]))
    turn = chat.begin(said("a story"))
    early = asyncio.create_task(events_of(turn))
    await gate.reached()
    middle = asyncio.create_task(events_of(turn))
    async for event in turn.follow():
        assert event == ChatStarted(ROOM, turn.run_id, turn.message_id)
        break
    gate.open()
    heard = await early
    assert heard == await middle == await events_of(turn) == await events_of(turn)
    assert words_of(heard) == "once upon a time"
    assert heard[0] == ChatStarted(ROOM, turn.run_id, turn.message_id)
    assert heard[-1] == await turn.answer()


async def test_a_turn_with_tool_calls_returns_the_final_message(sqlite_memory: Memory, make_chat: Chats) -> None:
    """The answer of a turn with tool calls is the final message; its usage is the sum of all model calls."""
    chat = make_chat(sqlite_memory, ScriptedModel([adding(), "3"]), tools=[add])
    told = await chat.ask(said("1 + 2?"))
    assert (told.response, told.context.messages) == ("3", 3)
    assert told.usage.input_tokens > 3
    assert await kept(sqlite_memory, ROOM) == [("user", "1 + 2?"), ("assistant", "3")]


async def test_all_direct_results_of_tools_are_the_answer(sqlite_memory: Memory, make_chat: Chats) -> None:
    """The results of all tools with `return_direct` are stored as the answer; a repeat returns the same text."""

    @tool(return_direct=True)
    def price(thing: str) -> str:
        """Say what a thing costs."""
        return f"a {thing} is 3 euros"

    calls = [{"name": "price", "args": {"thing": thing}, "id": thing} for thing in ("tea", "cake")]
    chat = make_chat(sqlite_memory, ScriptedModel([AIMessage("", tool_calls=calls)]), tools=[price])
    told = [(await chat.ask(said("tea and cake?", "m1"))).response for _ in range(2)]
    assert told == ["a tea is 3 euros\n\na cake is 3 euros"] * 2
    assert await kept(sqlite_memory, ROOM) == [("user", "tea and cake?"), ("assistant", told[0])]


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_failing_model_is_reported_by_kind(
    memory: Memory, events: RecordedEvents, streamed: bool, make_chat: Chats
) -> None:
    """A failed model call raises `ModelCallFailed` with the kind of the error only.

    The user message stays in the session, without an answer.
    """
    model = ScriptedModel([ConnectionError("canary"), "hello"])
    chat = make_chat(memory, model)
    with pytest.raises(ModelCallFailed) as caught:
        await (events_of(chat.begin(said("hi"))) if streamed else chat.ask(said("hi")))
    assert caught.value.kind == "ConnectionError"
    assert "canary" not in str(caught.value) + repr(events.all)
    assert await kept(memory, ROOM) == [("user", "hi")]
    assert [event.status for event in events.of(TurnFinished)] == ["failed"]
    assert (await chat.ask(said("hi again"))).response == "hello"


async def test_a_model_that_takes_too_long_has_failed(sqlite_memory: Memory, make_chat: Chats) -> None:
    chat = make_chat(sqlite_memory, ScriptedModel([[Gate(), "never"]]), ChatOptions(model_timeout_seconds=0.01))
    with pytest.raises(ModelCallFailed) as caught:
        await chat.ask(said("hi"))
    assert caught.value.kind == "TimeoutError"
    assert await kept(sqlite_memory, ROOM) == [("user", "hi")]


async def test_a_failure_without_a_caller_causes_no_warning(sqlite_memory: Memory, make_chat: Chats) -> None:
    """The event loop warns of unretrieved exceptions, and this test suite turns warnings into errors."""
    chat = make_chat(sqlite_memory, ScriptedModel([ConnectionError("down")]))
    chat.begin(said("hi"))
    await chat.close(60)
    assert chat.running == 0


def test_a_system_prompt_that_leaves_no_room_is_refused_at_the_start(sqlite_memory: Memory, make_chat: Chats) -> None:
    """The chat refuses a history budget that the system prompt fills, and the error names a value that works."""
    prompt = "be kind " * 99
    with pytest.raises(InvalidSettings, match="raise it to at least") as refused:
        make_chat(sqlite_memory, ScriptedModel(), ChatOptions(system_prompt=prompt, max_tokens=50))
    assert refused.value.variable == "THREADKEEP_HISTORY_MAX_TOKENS"
    needed = int(re.findall(r"raise it to at least (\d+)", str(refused.value))[0])
    make_chat(sqlite_memory, ScriptedModel(), ChatOptions(system_prompt=prompt, max_tokens=needed))
    make_chat(sqlite_memory, ScriptedModel(), ChatOptions(system_prompt=prompt, max_tokens=0))


@pytest.mark.parametrize(
    ("options", "variable"),
    [
        (ChatOptions(context_window=4000, max_output_tokens=4000), "THREADKEEP_MAX_OUTPUT_TOKENS"),
        (ChatOptions(context_window=600), "THREADKEEP_CONTEXT_WINDOW"),
        (ChatOptions(context_window=1000, system_prompt="be kind " * 199), "THREADKEEP_SYSTEM_PROMPT"),
    ],
)
def test_a_context_window_that_leaves_no_room_is_refused_at_the_start(
    sqlite_memory: Memory, options: ChatOptions, variable: str, make_chat: Chats
) -> None:
    """The error names the variables and the numbers."""
    with pytest.raises(InvalidSettings, match="THREADKEEP_CONTEXT_WINDOW") as refused:
        make_chat(sqlite_memory, ScriptedModel(), options)
    assert refused.value.variable == variable
    assert re.search(r"\d", str(refused.value))


def test_the_window_of_the_real_model_counts(sqlite_memory: Memory, make_chat: Chats) -> None:
    """The context window is that of the model's profile, unless a setting overrides it."""
    model = ScriptedModel()
    model.profile = {"max_input_tokens": 700}
    with pytest.raises(InvalidSettings, match="A context window of 700 tokens"):
        make_chat(sqlite_memory, model, ChatOptions(max_output_tokens=500))
    make_chat(sqlite_memory, model, ChatOptions(max_output_tokens=500, context_window=8000))


async def test_a_budget_that_is_too_small_is_reported_as_such(sqlite_memory: Memory, make_chat: Chats) -> None:
    with pytest.raises(BudgetTooSmall):
        await make_chat(sqlite_memory, ScriptedModel(), ChatOptions(max_tokens=1)).ask(said("one two three four five"))


async def test_another_users_session_is_not_found(memory: Memory, make_chat: Chats) -> None:
    """A message to another user's session raises `SessionNotFound`, calls no model and stores nothing."""
    model = ScriptedModel(["hello", "again"])
    chat = make_chat(memory, model)
    await chat.ask(said("I am Ann", user_id="ann"))
    for message_id in (None, "telegram:1"):
        with pytest.raises(SessionNotFound):
            await chat.ask(said("who is there?", message_id, user_id="bob"))
    assert len(model.calls) == 1
    assert await memory.session(ROOM).count() == 2
    assert (await chat.ask(said("still me", user_id="ann"))).response == "again"


async def test_invalid_keys_and_users_are_refused_at_once(sqlite_memory: Memory, make_chat: Chats) -> None:
    chat = make_chat(sqlite_memory, ScriptedModel())
    with pytest.raises(InvalidKey):
        chat.begin(said("hi", session_id="telegram:"))
    with pytest.raises(InvalidInput):
        chat.begin(said("hi", user_id=""))
    assert chat.running == 0


async def test_metadata_is_kept_with_the_question(sqlite_memory: Memory, make_chat: Chats) -> None:
    chat = make_chat(sqlite_memory, ScriptedModel(["hello"]))
    await chat.ask(RunRequest(workflow="chat", text="hi", session_id=ROOM, metadata={"chat_type": "group", "n": 1}))
    question, answer = await sqlite_memory.session(ROOM).tail(2)
    assert (question.metadata, answer.metadata) == ({"chat_type": "group", "n": 1}, {})


async def test_a_closing_chat_stores_partial_answers(memory: Memory, make_chat: Chats) -> None:
    """A closing chat stores the partial answer of the running turn.

    Running and waiting turns raise `Interrupted`.
    """
    gate = Gate()
    chat = make_chat(memory, ScriptedModel([["once upon ", gate, "a time"]]))
    turns = [chat.begin(said(f"story {n}")) for n in range(3)]
    followers = [asyncio.create_task(events_of(turn)) for turn in turns]
    await gate.reached()
    await make_chat.close(chat)
    for turn, follower in zip(turns, followers, strict=True):
        with pytest.raises(Interrupted):
            await turn.answer()
        with pytest.raises(Interrupted):
            await follower
    assert await kept_with_status(memory, ROOM) == [
        ("user", "story 0", "complete"),
        ("assistant", "once upon ", "interrupted"),
    ]
    assert chat.running == 0


async def test_a_closing_chat_answers_its_turns_within_its_limit(sqlite_memory: Memory, make_chat: Chats) -> None:
    gate = Gate()

    async def answer(messages: Sequence[BaseMessage]) -> str:
        await gate.pass_through()
        return f"answer to {messages[-1].text}"

    chat = make_chat(sqlite_memory, ScriptedModel(itertools.repeat(answer)))
    turns = [chat.begin(said(f"question {n}")) for n in range(3)]
    await gate.reached()
    closing = asyncio.create_task(chat.close(60))
    gate.open()
    await closing
    assert [(await turn.answer()).response for turn in turns] == [f"answer to question {n}" for n in range(3)]


async def test_a_chat_that_was_closed_takes_no_turn(memory: Memory, make_chat: Chats) -> None:
    """A closed chat refuses a turn at once. Otherwise the request would wait until its connection is cut."""
    chat = make_chat(memory, ScriptedModel(["hello"]))
    await chat.close(60)
    with pytest.raises(Interrupted, match="send the message again"):
        chat.begin(said("late"))
    assert chat.running == 0


async def test_a_reset_waits_for_the_turn_before_it(sqlite_memory: Memory, make_chat: Chats) -> None:
    gate = Gate()
    model = ScriptedModel([[gate, "hello Ann"], "who?"])
    chat = make_chat(sqlite_memory, model)
    turn = chat.begin(said("I am Ann"))
    await gate.reached()

    resetting = asyncio.create_task(chat.reset(ROOM))
    later = chat.begin(said("who am I?"))
    gate.open()
    await asyncio.gather(resetting, turn.answer(), later.answer())
    assert seen(model.calls[1]) == [("human", "who am I?")]


async def test_a_reset_during_a_turn_hides_its_answer(memory: Memory, make_chat: Chats) -> None:
    """After a reset during a turn, the run ends and its answer is in the history, but not in the window."""
    gate, session = Gate(), memory.session(ROOM)
    chat = make_chat(memory, ScriptedModel(["one", [gate, "late"], "three"]))
    await chat.ask(said("first"))
    turn = asyncio.create_task(chat.ask(said("second")))
    await gate.reached()
    await session.reset()
    gate.open()
    answer = await turn
    run = await memory.runs.run(answer.run_id)
    assert (answer.response, run and run.status) == ("late", "done")
    assert (await session.window()).messages == ()
    assert (await chat.ask(said("third"))).context.messages == 1
    assert [message.content for message in await session.tail(9)][-3:] == ["late", "third", "three"]
