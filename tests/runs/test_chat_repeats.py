"""Tests of repeated message ids: in one process, in two processes, after failures, and in an outage."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from langchain_core.language_models import BaseChatModel

from tests.agent.talking import kept
from tests.limits import HANG_SECONDS
from tests.runs.chatting import ROOM, WATCHFUL, Chats, events_of, said, words_of
from tests.runs.desk import living_process
from threadkeep import Memory, MemoryOptions, ModelCallFailed, SessionNotFound, open_memory
from threadkeep.errors import Interrupted
from threadkeep.records.runs import NewRun
from threadkeep.runs.chat import Chat
from threadkeep.runs.engine.engine import Engine, EngineOptions, Execute, Troubled
from threadkeep.runs.engine.opening import open_engine
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.driver import StoreOptions
from threadkeep.testing import Gate, ScriptedModel

if TYPE_CHECKING:
    from tests.servers import Postgres

ID = "telegram:42"
ELSEWHERE = NewRun(
    run_id="0192b2c0-0000-7000-8000-000000000000", workflow="chat", input={"text": "hi"}, session_id=ROOM, message_id=ID
)


class Processes:
    """Chats over one database, each with its own memory, as in separate processes."""

    def __init__(self, stack: AsyncExitStack, url: str, options: MemoryOptions, make_chat: Chats) -> None:
        self._stack = stack
        self._url = url
        self._options = options
        self._make_chat = make_chat

    async def start(self, model: BaseChatModel) -> tuple[Chat, Memory]:
        """Start another chat with its memory."""
        memory = await self._stack.enter_async_context(open_memory(self._url, options=self._options))
        chat = self._make_chat(memory, model, runs=WATCHFUL)
        self._stack.push_async_callback(self._make_chat.close, chat)
        return chat, memory

    async def stop(self, chat: Chat) -> None:
        """Close a chat at once."""
        await self._make_chat.close(chat)


@pytest.fixture
def shared_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the engines by engines that never execute a run twice at a time, as separate processes do."""
    hands: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def opened(
        address: DatabaseAddress, execute: Execute, options: EngineOptions, *, troubled: Troubled
    ) -> AsyncIterator[Engine]:
        async def execute_alone(run_id: str) -> None:
            async with hands[run_id]:
                await execute(run_id)

        async with open_engine(address, execute_alone, options, troubled=troubled) as engine:
            yield engine

    monkeypatch.setattr("threadkeep.runs.service.open_engine", opened)


@pytest.fixture
async def processes(shared_url: str, memory_options: MemoryOptions, shared_engine: None) -> AsyncIterator[Processes]:
    """Return processes over a shared database of each kind, with one clock."""
    async with AsyncExitStack() as stack:
        yield Processes(stack, shared_url, memory_options, Chats())


async def test_a_repeat_gets_the_first_answer(memory: Memory, make_chat: Chats) -> None:
    model = ScriptedModel(["hello"])
    chat = make_chat(memory, model)
    first = await chat.ask(said("hi", ID))
    assert await chat.ask(said("hi", ID)) == first
    assert await chat.ask(said("something else", ID)) == first
    assert len(model.calls) == 1
    assert await kept(memory, ROOM) == [("user", "hi"), ("assistant", "hello")]


async def test_a_repeat_while_the_first_runs_joins_it(memory: Memory, make_chat: Chats) -> None:
    gate = Gate()
    model = ScriptedModel([["hell", gate, "o"]])
    chat = make_chat(memory, model)
    first = chat.begin(said("hi", ID))
    await gate.reached()
    second = chat.begin(said("hi", ID))
    gate.open()
    assert await first.answer() == await second.answer()
    assert words_of(await events_of(second)) == "hello"
    assert len(model.calls) == 1
    assert len(await kept(memory, ROOM)) == 2


async def test_a_follower_of_a_repeat_receives_the_answer_at_once(sqlite_memory: Memory, make_chat: Chats) -> None:
    chat = make_chat(sqlite_memory, ScriptedModel(["hello"]))
    first = await chat.ask(said("hi", ID))
    assert await events_of(chat.begin(said("hi", ID))) == [first]


async def test_the_same_id_in_another_session_is_another_message(sqlite_memory: Memory, make_chat: Chats) -> None:
    chat = make_chat(sqlite_memory, ScriptedModel(["one", "two"]))
    await chat.ask(said("hi", "42"))
    assert (await chat.ask(said("hi", "42", session_id="room:2"))).response == "two"


async def test_after_a_failure_the_repeat_is_a_second_try(memory: Memory, make_chat: Chats) -> None:
    """A repeat of a failed message retries the same run, and the user message is stored once."""
    model = ScriptedModel([ConnectionError("down"), "hello"])
    chat = make_chat(memory, model)
    with pytest.raises(ModelCallFailed):
        await chat.ask(said("hi", ID))
    failed = (await memory.session(ROOM).tail(1))[0]
    run = await memory.runs.run(failed.run_id or "")
    assert run is not None
    assert (run.status, run.error) == ("failed", "ConnectionError")
    told = await chat.ask(said("hi", ID))
    assert (told.response, told.run_id) == ("hello", failed.run_id)
    assert await kept(memory, ROOM) == [("user", "hi"), ("assistant", "hello")]


async def test_a_second_try_is_streamed(sqlite_memory: Memory, make_chat: Chats) -> None:
    chat = make_chat(sqlite_memory, ScriptedModel([ConnectionError("down"), ["once upon ", "a time"]]))
    with pytest.raises(ModelCallFailed):
        await chat.ask(said("a story", ID))
    assert words_of(await events_of(chat.begin(said("a story", ID)))) == "once upon a time"


async def test_after_an_interruption_the_repeat_is_a_second_try(processes: Processes) -> None:
    """A message whose service stopped during the answer is answered anew; this replaces the partial answer."""
    gate = Gate()
    chat, memory = await processes.start(ScriptedModel([["once upon ", gate, "never"]]))
    turn = chat.begin(said("a story", ID))
    await gate.reached()
    await processes.stop(chat)
    with pytest.raises(Interrupted):
        await turn.answer()
    second, _ = await processes.start(ScriptedModel(["once upon a time"]))
    assert (await second.ask(said("a story", ID))).response == "once upon a time"
    whole = [("user", "a story"), ("assistant", "once upon "), ("assistant", "once upon a time")]
    assert await kept(memory, ROOM) == [whole[0], whole[2]]
    rows = await memory.session(ROOM).tail(10, view="history")
    assert [(one.role, one.content) for one in rows] == whole
    assert rows[1].superseded_by == rows[2].id


async def test_another_process_gives_the_same_answer(processes: Processes) -> None:
    first, memory = await processes.start(ScriptedModel(["hello"]))
    model = ScriptedModel(["never"])
    second, _ = await processes.start(model)
    assert await first.ask(said("hi", ID)) == await second.ask(said("hi", ID))
    assert model.calls == []
    assert len(await kept(memory, ROOM)) == 2


async def test_two_processes_at_once_answer_once(processes: Processes) -> None:
    gate = Gate()
    first, memory = await processes.start(ScriptedModel([["hell", gate, "o"]]))
    model = ScriptedModel(["never"])
    second, _ = await processes.start(model)
    turn = first.begin(said("hi", ID))
    await gate.reached()
    waiting = second.begin(said("hi", ID))
    done, _ = await asyncio.wait([waiting.task], timeout=0.1)
    assert not done
    gate.open()
    assert await waiting.answer() == await turn.answer()
    assert model.calls == []
    assert await kept(memory, ROOM) == [("user", "hi"), ("assistant", "hello")]


async def test_many_at_once_in_two_processes_answer_each_once(processes: Processes) -> None:
    models = [ScriptedModel([lambda seen: f"answer to {seen[-1].text}"] * 10) for _ in range(2)]
    (first, memory), (second, _) = [await processes.start(model) for model in models]
    chats = [first, second]
    requests = [said(f"question {n}", f"telegram:{n}", session_id=f"room:{n % 3}") for n in range(10)]
    answers = await asyncio.gather(*(chat.ask(request) for request in requests for chat in chats))
    assert answers[::2] == answers[1::2]
    assert [answer.response for answer in answers[::2]] == [f"answer to question {n}" for n in range(10)]
    assert sum(len(model.calls) for model in models) == 10
    counts = [await memory.session(f"room:{n}").count() for n in range(3)]
    assert sum(counts) == 20


async def test_the_message_of_a_dead_process_is_taken_over(processes: Processes) -> None:
    """A repeat waits while the run's process lives. Then it executes the same run."""
    model = ScriptedModel(["hello"])
    chat, memory = await processes.start(model)
    async with living_process() as owner:
        await memory.runs.order.add(ELSEWHERE, owner=owner)
        waiting = chat.begin(said("hi", ID))
        done, _ = await asyncio.wait([waiting.task], timeout=0.3)
        assert not done
        assert model.calls == []
    told = await waiting.answer()
    assert (told.response, told.run_id) == ("hello", ELSEWHERE.run_id)
    run = await memory.runs.run(ELSEWHERE.run_id)
    assert run is not None
    assert (run.status, run.attempts) == ("done", 2)
    assert run.owner != owner


async def test_another_user_does_not_get_the_answer(memory: Memory, make_chat: Chats) -> None:
    gate = Gate()
    model = ScriptedModel([["hell", gate, "o"]])
    chat = make_chat(memory, model)
    turn = chat.begin(said("hi", ID, user_id="ann"))
    await gate.reached()
    other = chat.begin(said("hi", ID, user_id="bob"))
    assert chat.running == 2
    gate.open()
    assert (await turn.answer()).response == "hello"
    for attempt in (other, chat.begin(said("hi", ID, user_id="bob"))):
        with pytest.raises(SessionNotFound):
            await attempt.answer()
    assert len(model.calls) == 1


async def test_a_message_that_an_agent_answered_is_known_to_the_chat(sqlite_memory: Memory, make_chat: Chats) -> None:
    """The chat returns the answer of the transcript if no run has the message id, for example after an import."""
    await make_chat(sqlite_memory, ScriptedModel(["hello"])).ask(said("hi", ID))
    async with open_memory("sqlite://") as other:
        await other.session(ROOM).append(await sqlite_memory.session(ROOM).tail(10))
        model = ScriptedModel(["never"])
        told = await make_chat(other, model).ask(said("hi", ID))
        assert told.response == "hello"
        assert model.calls == []
        assert len(await kept(other, ROOM)) == 2


@pytest.fixture
def unsteady_url(unsteady_postgres: Postgres) -> Iterator[str]:
    """Return a database on a PostgreSQL server that the test may stop."""
    with unsteady_postgres.database() as url:
        yield url


@pytest.mark.xdist_group("unsteady_postgres")
@pytest.mark.slow
async def test_an_outage_stops_no_chat(
    unsteady_postgres: Postgres, unsteady_url: str, memory_options: MemoryOptions, make_chat: Chats
) -> None:
    """The chat answers messages and repeats while PostgreSQL is stopped, and stores each turn once afterwards."""
    pending = dataclasses.replace(memory_options.pending, write_timeout_seconds=1.0)
    options = dataclasses.replace(memory_options, pending=pending, store=StoreOptions(pool_timeout_seconds=1.0))
    async with open_memory(unsteady_url, options=options) as memory:
        model = ScriptedModel(["hello", "noted", "you are Ann"])
        chat = make_chat(memory, model)
        await chat.ask(said("hi", "1", user_id="ann"))
        unsteady_postgres.stop()
        async with asyncio.timeout(HANG_SECONDS):
            first = await chat.ask(said("I am Ann", "2", user_id="ann"))
            assert (await chat.ask(said("I am Ann", "2", user_id="ann"))).response == first.response == "noted"
            await chat.ask(said("who am I?", user_id="ann"))
        assert len(model.calls) == 3
        assert [message.text for message in model.calls[2]] == ["I am Ann", "noted", "who am I?"]
        unsteady_postgres.start()
        async with asyncio.timeout(HANG_SECONDS):
            while memory.pending.entries:
                await memory.pending.deliver()
        assert [text for _, text in await kept(memory, ROOM)] == [
            "hi",
            "hello",
            "I am Ann",
            "noted",
            "who am I?",
            "you are Ann",
        ]
