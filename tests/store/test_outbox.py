"""Tests of the outbox (each answer once, in order, by one process) and of stored channel state."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.children import run_together
from tests.store.running import asked
from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.records import Json
from threadkeep.records.runs import RunEnd
from threadkeep.store.outbox import Outbox, Outgoing
from threadkeep.testing import SettableClock

SESSION = "telegram:1:7"
ADDRESS: dict[str, Json] = {"chat_id": "7", "message_id": "42"}
DAY = timedelta(days=1)


async def add(outbox: Outbox, message: str, *, content: str | None = None, session: str = SESSION) -> bool:
    """Add an answer to a message of the session, or a given text."""
    return await outbox.add("support", session, message, address=ADDRESS, content=content, waits=content is None)


async def run(memory: Memory, message: str, *, status: RunEnd | None = "done", session: str = SESSION) -> None:
    """Begin the run of a message, and end it unless `status` is None."""
    order, run_id = memory.runs.order, f"run-{message}"
    await order.add(asked(run_id, session=session, message=message), owner="worker")
    if status is not None:
        await memory.runs.finish(run_id, "worker", status, result={"text": "hello"})


async def claimed(outbox: Outbox, owner: str = "a", *, seconds: float = 60) -> Outgoing | None:
    """Claim the first message that is due; return None if there is none."""
    await outbox.make_ready()
    due = await outbox.due("support", limit=10)
    return await outbox.claim(due[0], owner, seconds=seconds) if due else None


async def taken(outbox: Outbox, owner: str = "a") -> Outgoing:
    """Claim the first message that is due, which must exist."""
    message = await claimed(outbox, owner)
    assert message is not None
    return message


async def statuses(outbox: Outbox) -> dict[str, str]:
    """Return the status of each message."""
    return {entry.message_id: entry.status for entry in await outbox.entries()}


async def test_a_message_that_is_delivered_again_is_added_once(memory: Memory) -> None:
    """Duplicates are detected per session."""
    outbox = memory.channels.outbox
    assert [await add(outbox, "m1"), await add(outbox, "m1")] == [True, False]
    assert await add(outbox, "m1", session="telegram:1:8")
    assert len(await outbox.entries()) == 2


async def test_an_answer_waits_for_its_run(memory: Memory) -> None:
    outbox = memory.channels.outbox
    await add(outbox, "m1")
    assert await claimed(outbox) is None
    await run(memory, "m1", status=None)
    assert await claimed(outbox) is None
    await memory.runs.finish("run-m1", "worker", "done", result={"text": "hello"})
    message = await taken(outbox)
    assert (message.message_id, message.content, message.address) == ("m1", None, ADDRESS)
    assert message.run_id == "run-m1"


@pytest.mark.parametrize("ahead", [400 * 86_400, 3_600])
async def test_a_clock_that_was_ahead_delays_no_answer(memory: Memory, clock: SettableClock, ahead: int) -> None:
    """Later answers of the session are not delayed either; retry pauses are kept after that."""
    outbox = memory.channels.outbox
    clock.advance(ahead)
    await add(outbox, "m1", content="hello")
    await add(outbox, "m2", content="hello", session="telegram:1:8")
    assert (await taken(outbox, "killed")).message_id == "m1"
    clock.advance(-ahead)
    for number in await outbox.due("support", limit=10):
        message = await outbox.claim(number, "b", seconds=60)
        assert message is not None
        assert message.created_at == clock()
        assert await outbox.postpone(number, "b", clock() + timedelta(seconds=30), "Timeout")
    assert await claimed(outbox, "c") is None
    clock.advance(31)
    assert (await taken(outbox, "c")).message_id == "m1"
    assert (await taken(outbox, "c")).message_id == "m2"


async def test_a_pause_that_began_while_the_clock_was_ahead_delays_no_answer(
    memory: Memory, clock: SettableClock
) -> None:
    """A correct pause is shorter than half an hour, also for a process whose clock is a few minutes behind."""
    outbox = memory.channels.outbox
    await add(outbox, "m1", content="hello")
    clock.advance(3600)
    message = await taken(outbox, "a")
    assert await outbox.postpone(message.number, "a", clock() + timedelta(seconds=30), "Timeout")
    clock.advance(-3600)
    assert (await taken(outbox, "b")).message_id == "m1"
    assert await outbox.postpone(message.number, "b", clock() + timedelta(hours=10), "TooManyRequests")
    assert await claimed(outbox, "c") is None
    clock.advance(-240)
    assert await claimed(outbox, "c") is None
    clock.advance(240 + 1500)
    assert (await taken(outbox, "c")).message_id == "m1"


async def test_an_answer_to_a_message_that_joined_another_turn_is_ready_with_it(memory: Memory) -> None:
    outbox = memory.channels.outbox
    await run(memory, "m1", status=None)
    joining = asked("run-m2", session=SESSION, message="m2")
    await memory.runs.order.add(asked("run-m3", session=SESSION, message="m3"))
    added = await memory.runs.order.add(joining, policy="coalesce")
    assert (added.outcome, added.run.run_id) == ("joined", "run-m3")
    await add(outbox, "m2")
    await memory.runs.finish("run-m1", "worker", "done")
    assert await claimed(outbox) is None
    await memory.runs.order.begin("run-m3", "worker")
    await memory.runs.finish("run-m3", "worker", "done")
    message = await taken(outbox)
    assert (message.message_id, message.run_id) == ("m2", "run-m3")


async def test_a_text_can_wait_for_a_run_too(memory: Memory) -> None:
    """A command that is executed in its turn is answered after the turn."""
    outbox = memory.channels.outbox
    await outbox.add("support", SESSION, "m1", address=ADDRESS, content="A new conversation.")
    assert await outbox.waits("support", SESSION, "m1")
    assert await claimed(outbox) is None
    await run(memory, "m1")
    message = await taken(outbox)
    assert (message.content, message.run_id) == ("A new conversation.", "run-m1")
    assert not await outbox.waits("support", SESSION, "m1")


async def test_each_channel_sees_its_own_messages(memory: Memory) -> None:
    """A process without a bot of that name leaves the messages to other processes."""
    await add(memory.channels.outbox, "m1", content="hello")
    assert await memory.channels.outbox.due("other", limit=10) == []


async def test_a_run_that_failed_or_was_cancelled_makes_its_answer_ready_too(memory: Memory) -> None:
    """The sender chooses the text for such a run."""
    outbox = memory.channels.outbox
    for message, status in (("m1", "failed"), ("m2", "cancelled"), ("m3", "interrupted")):
        await add(outbox, message)
        await run(memory, message, status=status)  # type: ignore[arg-type]
    assert await outbox.make_ready(SESSION) == 3


async def test_answers_of_one_session_only_are_made_ready(memory: Memory) -> None:
    """A process that knows which run ended checks one session only."""
    outbox = memory.channels.outbox
    for session in (SESSION, "telegram:1:8"):
        await add(outbox, "m1", session=session)
    await run(memory, "m1")
    assert await outbox.make_ready("telegram:1:8") == 0
    assert await outbox.make_ready(SESSION) == 1


async def test_a_text_is_ready_at_once(memory: Memory) -> None:
    """The answer to a command needs no run; characters that no database stores are replaced."""
    outbox = memory.channels.outbox
    await add(outbox, "m1", content="A new conversation.\x00")
    assert (await taken(outbox)).content == "A new conversation.\ufffd"


async def test_messages_of_a_session_are_sent_in_order(memory: Memory) -> None:
    outbox = memory.channels.outbox
    for message in ("m1", "m2"):
        await add(outbox, message, content=message)
    await add(outbox, "m3", content="m3", session="telegram:1:8")
    first, other = await taken(outbox, "a"), await taken(outbox, "b")
    assert (first.message_id, other.message_id) == ("m1", "m3")
    assert await claimed(outbox) is None
    entries = await outbox.entries()
    assert await outbox.claim(entries[1].number, "b", seconds=60) is None
    assert await outbox.end(first.number, "a", "delivered")
    assert (await taken(outbox)).message_id == "m2"


async def test_a_message_has_one_owner_until_its_claim_expires(memory: Memory, clock: SettableClock) -> None:
    """After the claim expires, the new owner knows that delivery is uncertain, and the old one can change nothing."""
    outbox = memory.channels.outbox
    await add(outbox, "m1", content="hello")
    first = await taken(outbox, "a")
    assert (first.tries, first.uncertain) == (1, False)
    clock.advance(59)
    assert await claimed(outbox, "b") is None
    clock.advance(2)
    second = await taken(outbox, "b")
    assert (second.tries, second.uncertain) == (2, True)
    number = first.number
    assert not await outbox.note_part(first, "a", 1, seconds=60)
    assert not await outbox.move(number, "a", {})
    assert not await outbox.postpone(number, "a", clock(), "Timeout")
    assert not await outbox.fail(number, "a", "Timeout")
    assert not await outbox.end(number, "a", "delivered")
    assert await outbox.end(number, "b", "delivered")


async def test_delivered_parts_are_known_to_the_next_owner(memory: Memory, clock: SettableClock) -> None:
    """Each delivered part is recorded and extends the claim."""
    outbox = memory.channels.outbox
    await add(outbox, "m1", content="long")
    first = await taken(outbox, "a")
    clock.advance(50)
    assert await outbox.note_part(first, "a", 2, seconds=60)
    clock.advance(50)
    assert await claimed(outbox, "b") is None
    clock.advance(11)
    assert (await taken(outbox, "b")).parts_sent == 2


async def test_a_refused_message_is_tried_again_later(memory: Memory, clock: SettableClock) -> None:
    """A retry waits for the time that the platform named, and uses the newest address."""
    outbox = memory.channels.outbox
    await add(outbox, "m1", content="hello")
    message = await taken(outbox)
    assert await outbox.move(message.number, "a", {"chat_id": "-100"})
    assert await outbox.postpone(message.number, "a", clock() + timedelta(seconds=3), "TooManyRequests")
    clock.advance(2)
    assert await claimed(outbox) is None
    clock.advance(1)
    again = await taken(outbox)
    assert (again.error, again.uncertain, again.address) == ("TooManyRequests", False, {"chat_id": "-100"})
    assert await outbox.postpone(again.number, "a", clock(), "ReadTimeout", uncertain=True)
    assert (await taken(outbox)).uncertain


async def test_a_failed_message_can_be_retried_or_dropped(memory: Memory) -> None:
    outbox = memory.channels.outbox
    for message in ("m1", "m2"):
        await add(outbox, message, content="hello", session=f"telegram:1:{message}")
        taken_now = await taken(outbox)
        assert await outbox.fail(taken_now.number, "a", "Forbidden")
    assert await claimed(outbox) is None
    first, second = await outbox.entries(status="failed")
    assert first.error == "Forbidden"
    assert await outbox.retry(first.number)
    assert not await outbox.retry(first.number)
    again = await taken(outbox)
    assert (again.content, again.tries, again.error) == ("hello", 1, None)
    assert await outbox.counts(open_only=True) == {("support", "ready"): 1, ("support", "failed"): 1}
    assert await outbox.end(again.number, "a", "delivered")
    assert await outbox.drop(second.number)
    assert await outbox.counts(open_only=True) == {}
    assert not await outbox.drop(first.number)
    assert await statuses(outbox) == {"m1": "delivered", "m2": "dropped"}
    assert await outbox.counts() == {("support", "delivered"): 1, ("support", "dropped"): 1}


async def test_a_finished_message_keeps_no_words_and_no_address(memory: Memory, clock: SettableClock) -> None:
    """Delivered and dropped messages are deleted after a time; failed ones are not."""
    outbox = memory.channels.outbox
    for message in ("m1", "m2", "m3"):
        await add(outbox, message, content="words", session=f"telegram:1:{message}")
    first, second, third = [await taken(outbox) for _ in range(3)]
    await outbox.end(first.number, "a", "delivered")
    await outbox.fail(second.number, "a", "Forbidden")
    await outbox.drop(third.number)
    for entry in await outbox.entries():
        assert (entry.content is None and not entry.address) == (entry.status != "failed")
    clock.advance(DAY.total_seconds() + 1)
    assert await outbox.remove_ended(older_than=DAY) == 2
    assert await statuses(outbox) == {"m2": "failed"}


async def test_the_words_of_a_message_are_deleted_when_its_answer_is_ready(memory: Memory) -> None:
    outbox = memory.channels.outbox
    for message in ("m1", "m2"):
        await outbox.add("support", SESSION, message, address=ADDRESS, about="telegram:7", message="words")
    await run(memory, "m1")
    assert await outbox.make_ready() == 1
    assert await outbox.answer("support", SESSION, "m2", "Sorry.")
    assert not await outbox.answer("support", SESSION, "m2", "Sorry.")
    expected = {**ADDRESS, "user_id": "telegram:7"}
    assert [entry.address for entry in await outbox.entries(status="ready")] == [expected] * 2
    first = await taken(outbox)
    await outbox.fail(first.number, "a", "Forbidden")
    assert [entry.address for entry in await outbox.entries(status="failed")] == [expected]


async def test_a_message_without_a_run_is_ended(memory: Memory, clock: SettableClock) -> None:
    """The process died before it created the run; rows with a run keep waiting."""
    outbox = memory.channels.outbox
    for message in ("m1", "m2"):
        await outbox.add("support", SESSION, message, address=ADDRESS, message=f"what is needed of {message}")
    await run(memory, "m2", status=None)
    assert await outbox.end_without_run(older_than=DAY) == 0
    assert await outbox.orphaned(older_than=DAY) == []
    clock.advance(DAY.total_seconds() + 1)
    [left] = await outbox.orphaned(older_than=DAY)
    assert (left.number, left.channel, left.message) == (1, "support", "what is needed of m1")
    assert left.address["chat_id"] == ADDRESS["chat_id"]
    assert await outbox.end_without_run(older_than=DAY) == 1
    assert await statuses(outbox) == {"m1": "nothing", "m2": "waiting"}


async def test_messages_without_a_run_are_returned_in_their_order(memory: Memory, clock: SettableClock) -> None:
    """The order stays the same if the row of the first message is updated."""
    outbox = memory.channels.outbox
    for message in ("m1", "m2", "m3"):
        await outbox.add("support", SESSION, message, address=ADDRESS, message=message)
    assert await outbox.note_partial(1, "Hello")
    clock.advance(DAY.total_seconds() + 1)
    assert [left.message for left in await outbox.orphaned(older_than=DAY)] == ["m1", "m2", "m3"]


async def test_a_text_is_sent_to_the_newest_address(memory: Memory) -> None:
    """An unsolicited text goes to that address once; an answer can leave the stored address unchanged."""
    outbox = memory.channels.outbox
    assert await outbox.recipient(SESSION) is None
    assert not await outbox.send(SESSION, "news-1", "Good morning!")
    await add(outbox, "m1", content="hello")
    await outbox.end((await taken(outbox)).number, "a", "delivered")
    recipient = await outbox.recipient(SESSION)
    assert recipient is not None
    assert (recipient.channel, recipient.address) == ("support", ADDRESS)
    assert [await outbox.send(SESSION, "news-1", "Good morning!") for _ in range(2)] == [True, False]
    assert (await taken(outbox)).content == "Good morning!"
    for message_id, chat, remember in (("m2", "-100", True), ("m3", "-200", False)):
        await outbox.add("support", SESSION, message_id, address={"chat_id": chat}, remember=remember)
    recipient = await outbox.recipient(SESSION)
    assert recipient is not None
    assert recipient.address == {"chat_id": "-100"}


async def test_the_outbox_of_a_session_is_deleted_with_it(memory: Memory) -> None:
    outbox, session = memory.channels.outbox, memory.session(SESSION)
    await session.append([Message(role="user", content="hi", id="m0")])
    await add(outbox, "m1")
    await add(outbox, "m2", content="hello")
    await outbox.fail((await taken(outbox)).number, "a", "Forbidden")
    await add(outbox, "m3", session="telegram:1:8")
    assert await session.delete()
    assert await statuses(outbox) == {"m3": "waiting"}
    assert await outbox.recipient(SESSION) is None


async def test_the_address_and_the_words_of_a_message_are_not_shown(memory: Memory) -> None:
    """An address can contain a secret, and `repr` is written to logs."""
    await add(memory.channels.outbox, "m1", content="words")
    message = await taken(memory.channels.outbox)
    assert "words" not in repr(message)
    assert "chat_id" not in repr(message)


def test_one_of_many_processes_claims_a_message(shared_url: str) -> None:
    asyncio.run(_fill(shared_url))
    claims = run_together(_claim_all, [(shared_url, f"process-{number}") for number in range(4)])
    assert sorted(number for numbers in claims for number in numbers) == sorted(set().union(*claims))
    assert len(set().union(*claims)) == 10


async def _fill(url: str) -> None:
    async with open_memory(url, options=MemoryOptions(background=False)) as memory:
        for number in range(10):
            await add(memory.channels.outbox, "m1", content="hello", session=f"telegram:1:{number}")


def _claim_all(url: str, owner: str) -> set[int]:
    async def claim_all() -> set[int]:
        async with open_memory(url, options=MemoryOptions(background=False)) as memory:
            outbox = memory.channels.outbox
            due = await outbox.due("support", limit=100)
            return {number for number in due if await outbox.claim(number, owner, seconds=600) is not None}

    return asyncio.run(claim_all())


async def test_a_value_is_kept_until_it_expires(memory: Memory, clock: SettableClock) -> None:
    """A value belongs to one bot, and a new value replaces it; expired values are deleted."""
    state = memory.channels.state
    assert await state.value("telegram:1", "offset") is None
    await state.keep("telegram:1", "offset", "5")
    await state.keep("telegram:1", "offset", "6")
    assert await state.value("telegram:1", "offset") == "6"
    assert await state.value("telegram:2", "offset") is None
    await state.keep("wecom:c", "token", "secret", expires_at=clock() + timedelta(seconds=7200))
    assert await state.value("wecom:c", "token") == "secret"
    clock.advance(7200)
    assert await state.value("wecom:c", "token") is None
    await state.keep("wecom:c", "ticket", "secret", expires_at=clock() + timedelta(seconds=7200))
    clock.advance(-7200)
    assert await state.value("wecom:c", "token") is None


async def test_the_first_name_of_a_chat_stays(memory: Memory) -> None:
    """Either of two chats may report the change, and any number of times."""
    state = memory.channels.state
    await state.keep_first("telegram:1", "chat:-100", "-5")
    await state.keep_first("telegram:1", "chat:-100", "-6")
    assert await state.value("telegram:1", "chat:-100") == "-5"


async def test_of_values_stored_at_once_the_first_stays_until_it_expires(memory: Memory, clock: SettableClock) -> None:
    """After the expiry another value replaces it, even if the expired one is not deleted yet."""
    state, names = memory.channels.state, [f"t{number}" for number in range(105)]
    soon, later = clock() + timedelta(seconds=60), clock() + timedelta(seconds=120)
    for name in names:
        assert await state.keep_first("threads", name, "old", expires_at=soon)
    stored = await asyncio.gather(*(state.keep_first("threads", "t", str(each), expires_at=later) for each in range(4)))
    assert sorted(stored) == [False, False, False, True]
    clock.advance(60)
    assert await state.keep_first("threads", names[-1], "new", expires_at=later)
    assert await state.value("threads", names[-1]) == "new"
    clock.advance(-60)
    assert len(await state.values_of("threads", "t")) == 6  # the store deletes a hundred expired values


async def test_processes_that_replace_expired_values_at_once_do_not_deadlock(
    shared_url: str, memory_options: MemoryOptions, clock: SettableClock
) -> None:
    """Each process also deletes expired values, which are the names that the others store."""
    names = [f"t{number}" for number in range(8)]
    async with (
        open_memory(shared_url, options=memory_options) as one,
        open_memory(shared_url, options=memory_options) as other,
    ):
        states = [one.channels.state, other.channels.state]
        for _ in range(30):
            soon = clock() + timedelta(seconds=60)
            for name in names:
                await states[0].keep("threads", name, "old", expires_at=soon)
            clock.advance(60)
            later = clock() + timedelta(seconds=60)
            pairs = list(zip(names, states * 4, strict=True))
            stored = await asyncio.gather(
                *(of.keep_first("threads", name, "new", expires_at=later) for name, of in pairs)
            )
            assert all(stored)
            clock.advance(60)
            soon = clock() + timedelta(seconds=60)
            await asyncio.gather(*(of.keep("threads", name, "newer", expires_at=soon) for name, of in pairs))
            assert await states[1].values_of("threads", "t") == dict.fromkeys(names, "newer")
            clock.advance(60)


async def test_a_refused_token_is_forgotten_unless_there_is_a_new_one(memory: Memory) -> None:
    """Of two processes with a refused token, the second keeps the token that the first one fetched."""
    state = memory.channels.state
    await state.keep("wecom:c", "token", "old")
    await state.forget("wecom:c", "token", "old")
    await state.keep("wecom:c", "token", "new")
    await state.forget("wecom:c", "token", "old")
    assert await state.value("wecom:c", "token") == "new"


async def test_only_the_owner_of_a_duty_moves_its_cursor(memory: Memory, clock: SettableClock) -> None:
    """A process that was suspended cannot overwrite the cursor of the next owner."""
    state, duties = memory.channels.state, memory.channels.duties
    duty = "sync:desk"

    async def keep(owner: str, value: str) -> bool:
        return await state.keep_for_duty("wecom_cs:c", "cursor:desk", value, duty=duty, owner=owner)

    assert not await keep("a", "c0")
    assert await duties.claim(duty, "a", seconds=60, every_seconds=0)
    assert await keep("a", "c1")
    clock.advance(61)
    assert not await keep("a", "c2")
    assert await duties.claim(duty, "b", seconds=60, every_seconds=0)
    assert await keep("b", "c3")
    assert not await keep("a", "c4")
    assert await state.value("wecom_cs:c", "cursor:desk") == "c3"
