"""Tests of the synchronous memory: the same methods, blocking, from any thread."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import assert_type

import pytest

from tests.limits import HANG_SECONDS
from threadkeep import (
    InvalidInput,
    InvalidKey,
    InvalidSettings,
    MemoryOptions,
    Message,
    Page,
    Receipt,
    Retention,
    RetentionLimits,
    Session,
    SessionInfo,
    SessionNotFound,
    StoreClosed,
    SyncMemory,
    SyncSession,
    WrongUser,
    open_memory_sync,
)
from threadkeep.history.blocking import Wrapper
from threadkeep.memory import Memory


@pytest.fixture
def sync_memory(database_url: str, memory_options: MemoryOptions) -> Iterator[SyncMemory]:
    """Open a synchronous memory on each engine, and close it after the test."""
    with open_memory_sync(database_url, options=memory_options) as opened:
        yield opened


def turn(words: str) -> list[Message]:
    """Return a question and its answer."""
    return [Message(role="user", content=words), Message(role="assistant", content=f"you said {words}")]


def test_the_example_of_the_interface_without_await(sync_memory: SyncMemory) -> None:
    session = sync_memory.session("telegram:123", user_id="u1")
    receipt = session.append(
        [Message(role="user", content="hi", id="telegram:42"), Message(role="assistant", content="hello")]
    )
    assert_type(receipt, Receipt)
    assert (receipt.first_seq, receipt.last_seq, receipt.duplicates) == (1, 2, ())
    assert_type(session.tail(20), list[Message])
    assert [message.content for message in session.tail(20)] == ["hi", "hello"]
    page = session.page(before=None, limit=1)
    assert_type(page, Page)
    assert ([message.content for message in page.messages], page.next_before) == (["hello"], 2)
    window = session.window(max_messages=20, max_tokens=4000)
    assert (len(window.messages), window.manifest.dropped) == (2, 0)
    assert session.count() == 2
    assert session.find("telegram:42") is not None
    assert session.update(title="Greetings", tags=["short"]).title == "Greetings"
    assert session.info().tags == ("short",)
    infos = list(sync_memory.sessions(user_id="u1", query=None))
    assert_type(infos, list[SessionInfo])
    assert [info.session_id for info in infos] == ["telegram:123"]
    [hit] = sync_memory.search("hello", user_id="u1", limit=10)
    assert (hit.session_id, hit.message.content) == ("telegram:123", "hello")
    assert session.record(turn("later"), answers="telegram:42") is not None
    assert session.waiting() == ()
    assert sync_memory.pending.entries == ()
    assert sync_memory.pending.deliver()
    session.reset()
    assert session.window().messages == ()
    sync_memory.retention.change("telegram:123", Retention(delete=RetentionLimits(max_messages=2)))
    assert [removal.messages for removal in sync_memory.retention.plan()] == [2]
    assert sync_memory.retention.prune().deleted.messages == 2
    assert list(sync_memory.run_retention.plan()) == []
    assert sync_memory.manifests.of_session("telegram:123") == []
    assert sync_memory.summaries.active("telegram:123") == []
    assert session.delete()


def test_errors_are_those_of_the_asynchronous_verbs(sync_memory: SyncMemory) -> None:
    with pytest.raises(SessionNotFound):
        sync_memory.session("nowhere").info()
    sync_memory.session("room", user_id="u1").append(turn("mine"))
    with pytest.raises(WrongUser):
        sync_memory.session("room", user_id="u2").append(turn("mine too"))
    with pytest.raises(InvalidKey):
        sync_memory.session("")
    with pytest.raises(InvalidSettings), open_memory_sync("nonsense://"):
        pass


def test_a_long_list_is_read_lazily(sync_memory: SyncMemory) -> None:
    """An iteration that is not finished does not affect later ones."""
    for number in range(5):
        sync_memory.session(f"room:{number}").append(turn("hi"))
    found = iter(sync_memory.sessions(page_size=2))
    assert next(found).session_id == "room:4"
    del found
    assert len(list(sync_memory.sessions(page_size=2))) == 5


def test_many_threads_use_one_memory(sync_memory: SyncMemory) -> None:
    session = sync_memory.session("room")
    with ThreadPoolExecutor(8) as threads:
        receipts = list(threads.map(lambda number: session.append(turn(str(number))), range(40)))
    assert sorted(receipt.first_seq for receipt in receipts) == list(range(1, 81, 2))
    messages = session.tail(100)
    assert [message.seq for message in messages] == list(range(1, 81))
    assert all(two.content == f"you said {one.content}" for one, two in zip(messages[::2], messages[1::2], strict=True))


async def test_a_sync_memory_works_inside_a_running_event_loop(sync_memory: SyncMemory) -> None:
    """The memory has its own event loop, so it works in a notebook."""
    session = sync_memory.session("room")
    session.append(turn("hi"))
    assert await asyncio.to_thread(session.count) == 2
    assert session.count() == 2


def test_a_closed_memory_says_that_it_is_closed(sync_memory: SyncMemory) -> None:
    """A memory may be closed twice."""
    session = sync_memory.session("room")
    session.append(turn("hi"))
    sync_memory.close()
    sync_memory.close()
    for attempt in (session.count, lambda: list(sync_memory.sessions())):
        with pytest.raises(StoreClosed, match="before it is closed"):
            attempt()


def test_the_next_memory_reads_what_was_stored(sqlite_url: str, memory_options: MemoryOptions) -> None:
    """A memory that is opened and closed without a block stores its turns."""
    memory = SyncMemory.open(sqlite_url, options=memory_options)
    memory.session("room").append(turn("hi"))
    memory.close()
    with open_memory_sync(sqlite_url, options=memory_options) as again:
        assert again.session("room").count() == 2


def test_a_call_on_its_own_loop_is_an_error_and_no_deadlock(sync_memory: SyncMemory) -> None:
    """A callback that runs on the memory's loop cannot wait for the memory."""

    async def inside() -> None:
        sync_memory.session("room").count()

    with pytest.raises(InvalidInput, match="wait for itself"):
        sync_memory.wait_for(inside())

    async def closing() -> None:
        sync_memory.close()

    with pytest.raises(InvalidInput, match="own thread"):
        sync_memory.wait_for(closing())
    assert sync_memory.session("room").count() == 0


def test_an_interrupted_call_leaves_the_memory_usable(sync_memory: SyncMemory) -> None:
    began, ended = threading.Event(), threading.Event()

    async def long() -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    def interrupt() -> None:
        began.wait(HANG_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        sync_memory.wait_for(long())
    assert ended.wait(HANG_SECONDS)
    assert sync_memory.session("room").count() == 0


def test_closing_ends_running_calls(sync_memory: SyncMemory) -> None:
    began = threading.Event()

    async def long() -> None:
        began.set()
        await asyncio.sleep(600)

    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(lambda: sync_memory.wait_for(long()))
        assert began.wait(HANG_SECONDS)
        sync_memory.close()
        with pytest.raises(StoreClosed, match="during this call"):
            call.result(60)


def _use_in_a_child(memory: SyncMemory, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        memory.session("room").count()
    except StoreClosed as error:
        answers.put(str(error))
    memory.close()
    answers.put("closed")


def test_a_forked_child_must_open_its_own_memory(sync_memory: SyncMemory) -> None:
    """A forked child (as in Celery) gets an error with the cure, and the parent's memory stays usable."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_use_in_a_child, args=(sync_memory, answers))
    child.start()
    child.join(HANG_SECONDS)
    assert child.exitcode == 0
    assert "worker_process_init" in answers.get()
    assert answers.get() == "closed"
    sync_memory.session("room").append(turn("hi"))
    assert sync_memory.session("room").count() == 2


@pytest.mark.slow
def test_a_script_that_forgets_to_close_ends_and_loses_nothing(sqlite_url: str) -> None:
    script = f"""
    from threadkeep import Message, SyncMemory
    memory = SyncMemory.open({sqlite_url!r})
    memory.session("room").append([Message(role="user", content="hi")])
    print(memory.session("room").count())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    with open_memory_sync(sqlite_url) as memory:
        assert memory.session("room").count() == 1


# Methods that construct the memory, or that only packages of Threadkeep call.
INTERNAL = {
    "Memory": {
        "open_at",
        "namespace",
        "namespaces",
        "start",
        "memory_of",
        "finish",
        "settle",
        "settle_run",
        "empty_messages",
        "keep_index",
        "has_graph_store",
        "open",
    },
    "Session": {
        "append_instead",
        "begin_joined",
        "record_joined",
        "belong_to",
        "check_owner",
        "recall",
        "tell",
        "timeout",
    },
    "Pending": {"adopt", "start", "record", "record_joined", "ensure_kept", "tell", "delete", "discard", "close"},
    "Manifests": {"purge", "keep_writing", "close"},
    "Summaries": {
        "for_export",
        "merged",
        "of_messages",
        "newest_of_messages",
        "add",
        "uncovered",
        "claim",
        "release",
    },
    "Compressor": {"close"},
    "Graphiti": {"close", "delivering", "note_repo_state", "send_fact", "fact_closure", "queue_fact"},
    "Knowledge": {"remember_in", "valid_in"},
}


def test_every_asynchronous_verb_has_a_blocking_one(sync_memory: SyncMemory) -> None:
    """Names and parameters are equal, and each method has a docstring."""
    pairs: dict[str, Wrapper[object]] = {"Session": sync_memory.session("room"), "Memory": sync_memory}
    parts = ("pending", "retention", "run_retention", "manifests", "summaries", "compressor")
    pairs["Consents"] = sync_memory.graphiti.consents
    for name in (*parts, "knowledge", "procedures", "persons", "graphiti"):
        pairs[name.title()] = getattr(sync_memory, name)
    for name, wrapper in pairs.items():
        for verb, method in inspect.getmembers(type(wrapper.asynchronous), inspect.isroutine):
            if verb.startswith("_") or verb in INTERNAL.get(name, ()):
                continue
            iterates = "AsyncIterator" in str(getattr(method, "__annotations__", {}).get("return"))
            if iterates or inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
                own = getattr(wrapper, verb)
                assert own.__doc__
                assert own.__name__ == verb
                parameters = list(inspect.signature(method).parameters.values())[1:]
                assert list(inspect.signature(own).parameters.values()) == parameters, f"{name}.{verb}"


def test_a_person_is_exported_without_await(sync_memory: SyncMemory) -> None:
    """The export works line by line and as an archive; sessions return questions and superseded ranges."""
    session = sync_memory.session("room", user_id="ann")
    session.append(turn("one"))
    assert session.question().content == "one"
    assert session.superseded() == []
    session.take_back()
    assert session.superseded() == [(2, 2)]
    assert session.deliver()
    assert any('"one"' in line for line in sync_memory.export(user_id="ann"))
    assert b"".join(sync_memory.export_archive(user_id="ann")).startswith(b"PK")
    sync_memory.check_database()


def test_notebooks_show_sessions_and_windows(sync_memory: SyncMemory) -> None:
    """The newest messages are shown with escaped texts; a session that cannot be read shows an error."""
    session = sync_memory.session("<b>room</b>", user_id="<i>ann</i>")
    session.append([Message(role="user", content=f"<script>{number}</script>") for number in range(12)])
    shown = session._repr_html_()
    assert "&lt;b&gt;room&lt;/b&gt;" in shown
    assert "&lt;i&gt;ann&lt;/i&gt;" in shown
    assert "&lt;script&gt;11&lt;/script&gt;" in shown
    assert "&lt;script&gt;1&lt;/script&gt;" not in shown
    window = session.window(max_messages=3)._repr_html_()
    assert "Window of 3 messages" in window
    assert "9 left out" in window
    for html in (shown, window, session.asynchronous._repr_html_()):
        assert "<script>" not in html
        assert "<b>" not in html
    assert "await session.tail(10)" in session.asynchronous._repr_html_()
    sync_memory.close()
    assert "closed" in session._repr_html_()
    assert repr(session) == "SyncSession('<b>room</b>')"
    assert isinstance(session, SyncSession)
    assert isinstance(session.asynchronous, Session)
    assert isinstance(sync_memory.asynchronous, Memory)


def test_messages_can_be_taken_back_and_sessions_branched(sync_memory: SyncMemory) -> None:
    """The methods of a branch block too."""
    session = sync_memory.session("room")
    session.append(turn("one"))
    session.append(turn("two"))
    assert [message.content for message in session.take_back(2)] == ["two", "you said two"]
    branch = session.branch(at=2, session_id="other")
    assert_type(branch, SyncSession)
    assert [message.content for message in branch.tail(9)] == ["one", "you said one"]


def test_persons_work_without_await(sync_memory: SyncMemory) -> None:
    person = sync_memory.persons.resolve("telegram:123", name="Ann")
    assert sync_memory.persons.get(person.id).names == ("Ann",)
    assert sync_memory.persons.forget(person.id)


async def test_a_memory_stays_open_from_cell_to_cell(sqlite_url: str) -> None:
    """Each cell of a notebook is a task of its own."""
    memory = await asyncio.create_task(Memory.open(sqlite_url))
    await asyncio.create_task(memory.session("room").append(turn("hi")))
    assert await asyncio.create_task(memory.session("room").count()) == 2
    await asyncio.create_task(memory.close())
    await memory.close()
    with pytest.raises(StoreClosed):
        await memory.session("room").count()


async def test_a_memory_that_cannot_be_opened_raises() -> None:
    with pytest.raises(InvalidSettings):
        await Memory.open("nonsense://")
