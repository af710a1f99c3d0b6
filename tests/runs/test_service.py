"""Tests of the run service: submitting runs, waiting for results, following runs, and repeating requests."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.runs.desk import RunDesk, carried_out, eventually, kinds
from threadkeep import InvalidInput, WrongUser
from threadkeep.errors import RunNotFound, SessionBusy, WorkflowNotFound
from threadkeep.history.retention_rounds import RunRetention
from threadkeep.records.runs import NewRun, Run, RunEvent, RunQuery
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.streams import RunPiece
from threadkeep.testing import Gate, ScriptedModel, SettableClock

AGENT = "schema: 1\nname: desk\nnodes:\n  answer: {kind: agent, next: end}"
STREAMED = RunRequest(workflow="desk", text="hello", session_id="room", stream=True)


def asking(text: str, **more: str) -> RunRequest:
    """Return a request to the workflow `desk`."""
    return RunRequest(workflow="desk", text=text, session_id="room", **more)  # type: ignore[arg-type]


async def test_a_run_answers_its_question(every_desk: RunDesk) -> None:
    """A run stores its turn once, ends as done, and records its steps and usage."""
    async with every_desk.open(AGENT) as service:
        result = await carried_out(service, asking("hello", message_id="m1"))
        assert (result.status, result.text, result.output) == ("done", "reply 1", {"text": "reply 1"})
        events = await service.trace(result.run.run_id)
        [usage] = await service.usage(result.run.run_id)
    assert await every_desk.transcript("room") == [("user", "hello"), ("assistant", "reply 1")]
    assert kinds(events) == [
        "status running",
        "node_started",
        "model_called",
        "agent_messages",
        "node_finished",
        "message",
        "status done",
    ]
    assert [event.number for event in events] == list(range(1, 8))
    assert (usage.calls, usage.tokens > 0, result.run.version is not None) == (1, True, True)


async def test_a_message_stores_the_time_at_which_it_was_sent(desk: RunDesk) -> None:
    sent_at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    async with desk.open(AGENT) as service:
        await carried_out(service, replace(asking("hello", message_id="m1"), sent_at=sent_at))
        await carried_out(service, asking("again", message_id="m2"))
    question, answer, later, _ = await desk.memory.session("room").tail(4)
    assert (question.sent_at, answer.sent_at, later.sent_at) == (sent_at, None, None)


async def test_a_repeat_is_the_same_run(desk: RunDesk) -> None:
    async with desk.open(AGENT) as service:
        first = await carried_out(service, asking("hello", message_id="m1"))
        again = await service.submit(asking("hello", message_id="m1"))
        assert (again.run_id, again.outcome) == (first.run.run_id, "known")
        assert (await service.result(again.run_id)).text == "reply 1"
        other = RunRequest(workflow="desk", text="hello", session_id="hall", message_id="m1")
        assert (await carried_out(service, other)).text == "reply 2"
    assert len(desk.model.calls) == 2


async def test_a_repeated_background_request_starts_a_run_that_nobody_enqueued(every_desk: RunDesk) -> None:
    """The process that stored it died before it enqueued the run."""
    new = NewRun(run_id="r1", workflow="desk", input={"text": "hello"}, session_id="room", message_id="m1")
    await every_desk.memory.runs.order.add(new)
    async with every_desk.open(AGENT) as service:
        submitted = await service.submit(asking("hello", message_id="m1"), mode="background")
        assert (submitted.run_id, submitted.outcome) == ("r1", "known")

        async def is_done() -> bool:
            return (await service.run("r1")).status == "done"

        await eventually(is_done)


async def test_a_repeat_is_known_after_its_run_was_pruned(every_desk: RunDesk, clock: SettableClock) -> None:
    async with every_desk.open(AGENT) as service:
        first = await carried_out(service, asking("hello", message_id="m1", user_id="u1"))
        clock.advance(1)
        assert (await every_desk.memory.run_retention.prune(RunRetention(keep_days=0.0))).runs == 1
        again = await service.submit(asking("hello", message_id="m1", user_id="u1"))
        assert (again.run_id, again.outcome) == (first.run.run_id, "known")
        result = await service.result(again.run_id, user_id="u1")
        assert (result.status, result.text, result.message_id) == ("done", "reply 1", first.message_id)
        [told] = [one async for one in service.follow(again.run_id)]
        assert told == result.run
        assert list(await service.tree(again.run_id)) == [replace(result.run, result=None)]
        assert (list(await service.trace(again.run_id)), list(await service.usage(again.run_id))) == ([], [])
        assert await service.cancel(again.run_id) == []
        with pytest.raises(RunNotFound):
            await service.result(again.run_id, user_id="u2")
        with pytest.raises(InvalidInput):
            await service.retry(again.run_id)
    assert len(every_desk.model.calls) == 1


async def test_turns_of_a_session_run_in_order_of_arrival(every_desk: RunDesk) -> None:
    gate = Gate()
    every_desk.model = ScriptedModel([["one", gate], "two", "three", "four"])
    async with every_desk.open(AGENT) as service:
        runs = [await service.submit(asking("1"))]
        await gate.reached()
        for text, mode in (("2", "wait"), ("3", "background"), ("4", "wait")):
            runs.append(await service.submit(asking(text), mode="wait" if mode == "wait" else "background"))
        assert [(await service.run(one.run_id)).status for one in runs] == ["running", "queued", "queued", "queued"]
        waiting = [asyncio.create_task(service.result(one.run_id)) for one in reversed(runs)]
        gate.open()
        results = await asyncio.gather(*waiting)
    assert [result.text for result in reversed(results)] == ["one", "two", "three", "four"]
    assert [text for role, text in await every_desk.transcript("room") if role == "user"] == ["1", "2", "3", "4"]


async def test_a_run_is_followed(desk: RunDesk) -> None:
    """`follow` yields the events, the pieces of the answer and finally the run, or the events after a number."""
    gate = Gate()
    desk.model = ScriptedModel([["a few ", gate, "words"]])
    async with desk.open(AGENT) as service:
        submitted = await service.submit(STREAMED)
        told: list[RunEvent | RunPiece | Run] = []
        async for one in service.follow(submitted.run_id):
            if isinstance(one, RunPiece):
                gate.open()
            told.append(one)
        pieces = [one for one in told if isinstance(one, RunPiece)]
        events = [one for one in told if isinstance(one, RunEvent)]
        assert "".join(piece.text for piece in pieces) == "a few words"
        assert {(piece.node, piece.message_id is not None) for piece in pieces} == {("answer", True)}
        stored = await service.trace(submitted.run_id)
        assert events == stored
        assert not [event for event in stored if event.kind == "model_called" and "text" in event.data]
        assert isinstance(told[-1], Run)
        assert told[-1].status == "done"
        later = [one async for one in service.follow(submitted.run_id, after=events[-2].number)]
    assert later == [events[-1], told[-1]]


async def test_a_late_follower_receives_the_whole_answer(desk: RunDesk) -> None:
    gate = Gate()
    desk.model = ScriptedModel([["a few ", gate, "words"]])
    async with desk.open(AGENT) as service:
        submitted = await service.submit(STREAMED)
        await gate.reached()
        told: list[RunEvent | RunPiece | Run] = []
        async for one in service.follow(submitted.run_id):
            gate.open()
            told.append(one)
    assert "".join(one.text for one in told if isinstance(one, RunPiece)) == "a few words"


async def test_a_late_follower_receives_the_current_attempt_only(desk: RunDesk) -> None:
    gate = Gate()
    desk.model = ScriptedModel([["many ", ValueError()], ["a few ", gate, "words"]])
    async with desk.open(AGENT) as service:
        submitted = await service.submit(STREAMED)  # its stream has the pieces of both attempts
        assert (await service.result(submitted.run_id)).status == "failed"
        await service.retry(submitted.run_id)
        await gate.reached()
        told: list[RunEvent | RunPiece | Run] = []
        async for one in service.follow(submitted.run_id):
            gate.open()
            told.append(one)
    assert "".join(one.text for one in submitted.stream.pieces) == "many a few words"
    assert "".join(one.text for one in told if isinstance(one, RunPiece)) == "a few words"


async def test_a_cancelled_caller_does_not_stop_the_run(desk: RunDesk) -> None:
    gate = Gate()
    desk.model = ScriptedModel([["well", gate]])
    async with desk.open(AGENT) as service:
        submitted = await service.submit(asking("hello"))
        waiting = asyncio.create_task(service.result(submitted.run_id))
        await gate.reached()
        waiting.cancel()
        gate.open()
        assert (await service.result(submitted.run_id)).text == "well"


async def test_a_request_without_a_session_continues_the_users_session(desk: RunDesk) -> None:
    """A request without a session continues the user's session of the workflow.

    Without a user it begins a new one.
    """
    async with desk.open(AGENT) as service:
        mine = [await carried_out(service, RunRequest(workflow="desk", text="hi", user_id="u1")) for _ in range(2)]
        theirs = await carried_out(service, RunRequest(workflow="desk", text="hi", user_id="u2"))
        nobodys = [await carried_out(service, RunRequest(workflow="desk", text="hi")) for _ in range(2)]
        alone = await carried_out(service, RunRequest(workflow="desk", text="hi", sessionless=True))
    assert mine[0].run.session_id == mine[1].run.session_id
    assert len({one.run.session_id for one in (mine[0], theirs, *nobodys)}) == 4
    assert (alone.status, alone.run.session_id) == ("done", None)
    assert [len(call) for call in desk.model.calls] == [1, 3, 1, 1, 1, 1]


async def test_runs_are_visible_to_their_user_only(desk: RunDesk) -> None:
    """Another user cannot read, cancel or retry a run, write to its session, or get its answer by a message id."""
    async with desk.open(AGENT) as service:
        mine = await carried_out(service, asking("hello", user_id="u1", message_id="m1"))
        run_id = mine.run.run_id
        for asked in (service.run, service.result, service.cancel, service.retry, service.tree, service.trace):
            with pytest.raises(RunNotFound):
                await asked(run_id, user_id="u2")
        with pytest.raises(RunNotFound):
            await anext(service.follow(run_id, user_id="u2"))
        for message_id in ("m1", "m2"):
            with pytest.raises(WrongUser):
                await service.submit(asking("hello", user_id="u2", message_id=message_id))
        found, _ = await service.list(RunQuery(user_id="u1"))
        assert [run.run_id for run in found] == [run_id]


@pytest.mark.parametrize("policy", ["reject", "coalesce"])
async def test_messages_during_a_turn_are_refused_or_coalesced(desk: RunDesk, policy: str) -> None:
    gate = Gate()
    desk.model = ScriptedModel([["one", gate], "two"])
    async with desk.open(f"{AGENT}\noptions: {{double_texting: {policy}}}") as service:
        first = await service.submit(asking("1"))
        await gate.reached()
        if policy == "reject":
            with pytest.raises(SessionBusy):
                await service.submit(asking("2"))
            gate.open()
            assert (await service.result(first.run_id)).text == "one"
            return
        second = await service.submit(asking("2", message_id="m2"))
        third = await service.submit(asking("3", message_id="m3"))
        assert (third.run_id, third.outcome) == (second.run_id, "joined")
        gate.open()
        assert (await service.result(third.run_id)).text == "two"
    said = await desk.transcript("room")
    assert said == [("user", "1"), ("assistant", "one"), ("user", "2"), ("user", "3"), ("assistant", "two")]


async def test_invalid_requests_are_refused(desk: RunDesk) -> None:
    async with desk.open(AGENT) as service:
        with pytest.raises(WorkflowNotFound):
            await service.submit(RunRequest(workflow="other", text="hi"))
        with pytest.raises(RunNotFound):
            await service.result("nothing")
    with pytest.raises(InvalidInput):
        RunRequest(workflow="desk", sessionless=True, session_id="room")
    for seconds in (0, 1e20):
        with pytest.raises(InvalidInput):
            RunRequest(workflow="desk", deadline_seconds=seconds)


async def test_a_follower_does_not_read_the_database_for_each_piece(
    desk: RunDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = [Gate() for _ in range(60)]
    desk.model = ScriptedModel([[part for gate in gates for part in ("word ", gate)]])
    looked: list[str] = []
    look = desk.memory.runs.run

    async def counted(run_id: str, *, damaged: bool = False) -> Run | None:
        looked.append(run_id)
        return await look(run_id, damaged=damaged)

    monkeypatch.setattr(desk.memory.runs, "run", counted)
    async with desk.open(AGENT) as service:
        run = await service.submit(RunRequest(workflow="desk", text="hi", stream=True))
        words = 0
        async for told in service.follow(run.run_id):
            if isinstance(told, RunPiece) and told.text.strip():
                gates[words].open()
                words += 1
    assert words == 60
    assert len(looked) < 30
