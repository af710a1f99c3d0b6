"""Tests of learning facts from messages: proposals can be accepted, rejected, traced to a message and undone."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from langchain.agents import create_agent
from langchain_core.messages import BaseMessage, HumanMessage

from tests.recorded_events import RecordedEvents
from threadkeep import (
    Evidence,
    FactLearning,
    InvalidInput,
    KnownFacts,
    Memory,
    MemoryOptions,
    Message,
    Scope,
    SessionMemory,
    open_memory,
)
from threadkeep.knowledge import learning
from threadkeep.knowledge.learning import DirectiveLearner, LearningRequest, Record
from threadkeep.knowledge.proposals import LearnerKind, Proposed, Reading
from threadkeep.observe import FactsProposed, LearningFailed, LearningSkipped
from threadkeep.records.knowledge import Proposal, ProposalQuery, ProposalStatus
from threadkeep.testing import ScriptedModel, SettableClock

ADA = Scope("user", "ada")
SHOP = Scope("workspace", "shop")
CONFIG: Any = {"configurable": {"thread_id": "room:1", "user_id": "ada", "workspace": "shop"}}


def found(message: int, key: str, value: str, *, about: str = "user", sure: float = 0.9) -> dict[str, Any]:
    """Return an entry of a model's answer."""
    return {
        "message": message, "about": about, "key": key, "value": value, "kind": "preference", "confidence": sure,
    }  # fmt: skip


def answering(*entries: Any) -> ScriptedModel:
    """Return a model for learning that answers each call with the next list."""
    return ScriptedModel([json.dumps(each) if isinstance(each, list) else each for each in entries])


async def talk(memory: Memory, learning: FactLearning, *texts: str, config: Any = CONFIG) -> None:
    """Send each text to an agent with learning, and wait until it has been read."""
    agent: Any = create_agent(
        ScriptedModel(f"reply {number}" for number in range(1, 99)),
        [],
        middleware=[SessionMemory(memory, learning=learning)],
    )
    for text in texts:
        await agent.ainvoke({"messages": [{"role": "user", "content": text}]}, config)
        await memory.learning.idle()


async def proposals(memory: Memory, status: ProposalStatus | None = None) -> Sequence[Proposal]:
    """Return the proposals, the oldest first."""
    return (await memory.proposals.page(ProposalQuery(status)))[0][::-1]


async def test_a_fact_is_proposed_from_a_message_and_waits_for_a_person(memory: Memory) -> None:
    learning = FactLearning(memory, model=answering([], [found(3, "Home City", "Lisbon")]))
    await talk(memory, learning, "Hello", "I live in Lisbon")
    [proposal] = await proposals(memory)
    assert (proposal.scope, proposal.key, proposal.value, proposal.status) == (ADA, "home_city", "Lisbon", "open")
    assert proposal.origin == "from message 3 of room:1"
    assert await memory.knowledge.facts(ADA) == []
    accepted = await memory.proposals.accept(proposal.id, by="ops")
    assert (accepted.status, accepted.decided_by) == ("accepted", "ops")
    [fact] = await memory.knowledge.facts(ADA)
    assert (fact.id, fact.value, fact.kind) == (accepted.fact_id, "Lisbon", "preference")
    assert (fact.evidence[0].session_id, fact.evidence[0].seq) == ("room:1", 3)


async def test_messages_in_a_graph_store_are_read(database_url: str, memory_options: MemoryOptions) -> None:
    async with open_memory(database_url, options=replace(memory_options, transcripts="graph_store")) as memory:
        model = answering([], [found(3, "home_city", "Lisbon")], [])
        learning = FactLearning(memory, model=model, directives=True)
        await talk(memory, learning, "Hello", "I live in Lisbon", "preference (user): Keep diffs small.")
        assert "I live in Lisbon" in model.calls[1][-1].text
        assert [one.key for one in await proposals(memory, "open")] == ["home_city"]
        assert [fact.value for fact in await memory.knowledge.facts(ADA)] == ["Keep diffs small."]


async def test_learning_is_off_by_default(memory: Memory) -> None:
    agent: Any = create_agent(ScriptedModel(["Hi."]), [], middleware=[SessionMemory(memory)])
    await agent.ainvoke({"messages": [{"role": "user", "content": "I live in Lisbon"}]}, CONFIG)
    await memory.learning.idle()
    assert await proposals(memory) == []


async def test_a_proposal_with_enough_confidence_is_accepted(memory: Memory, events: RecordedEvents) -> None:
    entries = [found(1, "home_city", "Lisbon", sure=0.9), found(1, "pet", "a dog", sure=0.5)]
    for limit in (0, 1):
        FactLearning(memory, model=ScriptedModel([]), accept_from=limit)
    for beyond in (-0.1, 1.1):
        with pytest.raises(InvalidInput, match="accept_from"):
            FactLearning(memory, model=ScriptedModel([]), accept_from=beyond)
    await talk(memory, FactLearning(memory, model=answering(entries), accept_from=0.8), "I live in Lisbon, with a dog?")
    assert {one.key: (one.status, one.decided_by) for one in await proposals(memory)} == {
        "home_city": ("accepted", "confidence 0.8"),
        "pet": ("open", None),
    }
    assert [fact.text for fact in await memory.knowledge.facts(ADA)] == ["home_city: Lisbon"]
    assert [(event.proposed, event.accepted) for event in events.of(FactsProposed)] == [(2, 1)]


async def test_answers_and_recalled_facts_are_no_evidence(memory: Memory) -> None:
    await memory.knowledge.remember(ADA, "diet", "vegan RECALLED")
    model = answering([found(2, "diet", "vegan"), found(9, "x", "y"), found(1, "plan", "gold", about="workspace")])
    learning = FactLearning(memory, model=model)
    agent: Any = create_agent(
        ScriptedModel(["You are vegan."]),
        [],
        middleware=[SessionMemory(memory, sources=[KnownFacts(memory)], learning=learning)],
    )
    await agent.ainvoke({"messages": [{"role": "user", "content": "What do I eat?"}]}, CONFIG)
    await memory.learning.idle()
    asked = "".join(str(message.text) for message in model.calls[0])
    assert "RECALLED" not in asked
    assert '"diet"' in asked
    assert await proposals(memory) == []


async def test_a_message_is_read_once(memory: Memory) -> None:
    model = answering([found(1, "a", "1")], [found(1, "a", "1"), found(3, "b", "2")])
    await talk(memory, FactLearning(memory, model=model), "first", "second")
    assert [one.key for one in await proposals(memory)] == ["a", "b"]
    assert "Look at the messages 3." in model.calls[1][1].text
    request = LearningRequest("room:1", _Refusing(), {"user": ADA})
    assert await memory.learning.learn(request) == 0


class _Refusing:
    kind: LearnerKind = "model"
    name = "another"

    async def learn(self, record: object) -> list[Any]:
        """Fail if there is a message to read."""
        raise AssertionError(record)


async def test_messages_of_a_failed_call_are_read_with_the_next_turn(memory: Memory) -> None:
    model = answering("no list at all", [found(1, "home_city", "Lisbon"), found(3, "pet", "a dog")])
    await talk(memory, FactLearning(memory, model=model), "I live in Lisbon", "I have a dog")
    assert [one.key for one in await proposals(memory)] == ["home_city", "pet"]


class _Rejected(Exception):
    """An error of a provider that rejects a request."""

    status_code = 400


class _Filtered:
    """A model that returns a fact of the newest message, and fails if it reads POISON or is broken."""

    def __init__(self, refusal: str | Exception) -> None:
        self.refusal = refusal
        self.works = True

    def __call__(self, shown: Sequence[BaseMessage]) -> str | Exception:
        """Return the next answer or error."""
        if not self.works or "POISON" in shown[-1].text:
            return self.refusal
        seq = int(shown[-1].text.rpartition("Look at the messages ")[2].partition(".")[0].rpartition(" ")[2])
        return json.dumps([found(seq, f"message_{seq}", "said")])


@pytest.mark.parametrize("refusal", [_Rejected("content filter"), "I cannot help with that."])
async def test_messages_that_a_model_refuses_repeatedly_are_skipped(
    memory: Memory, events: RecordedEvents, refusal: str | Exception
) -> None:
    learning = FactLearning(memory, model=ScriptedModel(itertools.repeat(_Filtered(refusal))))
    await talk(memory, learning, "Hello", "POISON", "third", "fourth")
    assert [one.key for one in await proposals(memory)] == ["message_1", "message_7"]
    assert len(events.of(LearningFailed)) == 2
    [skipped] = events.of(LearningSkipped)
    assert (skipped.session_id, skipped.last_seq) == ("room:1", 4)
    await talk(memory, learning, "fifth")
    assert [one.key for one in await proposals(memory)] == ["message_1", "message_7", "message_9"]
    assert len(events.of(LearningSkipped)) == 1


async def test_refusals_of_a_deleted_session_do_not_count_for_its_successor(
    memory: Memory, clock: SettableClock, events: RecordedEvents
) -> None:
    learning = FactLearning(memory, model=ScriptedModel(itertools.repeat(_Filtered("I cannot help with that."))))
    await talk(memory, learning, "POISON", "second")
    await memory.erase(session_id="room:1")
    clock.advance(60)
    await talk(memory, learning, "POISON again")
    assert len(events.of(LearningFailed)) == 3
    assert events.of(LearningSkipped) == []


@pytest.mark.parametrize("refusal", [_Rejected("no credit"), TimeoutError(), "Out of service."])
async def test_a_model_that_fails_for_every_message_skips_none(
    memory: Memory, events: RecordedEvents, refusal: str | Exception
) -> None:
    model = _Filtered(refusal)
    model.works = False
    learning = FactLearning(memory, model=ScriptedModel(itertools.repeat(model)))
    await talk(memory, learning, *(f"text {number}" for number in range(7)))
    assert len(events.of(LearningFailed)) == 7
    scripted = ScriptedModel([json.dumps([found(1, "first", "x"), found(15, "last", "x")])])
    await talk(memory, FactLearning(memory, model=scripted), "text 7")
    assert [one.key for one in await proposals(memory)] == ["first", "last"]
    assert events.of(LearningSkipped) == []


async def test_brackets_and_invalid_entries_of_an_answer_are_ignored(memory: Memory) -> None:
    thought = '<think>Message [1] says ["tea".</think> [1] [] Here: '
    odd: list[Any] = [
        {**found(1, "odd", "x"), "message": True},
        None,
        [],
        {**found(1, "sure", "tea"), "confidence": 10**400},
        {**found(1, "true", "tea"), "confidence": True},
    ]
    answer = f"{thought}{json.dumps([*odd, found(1, 'drink', 'tea')])} as [you] asked."
    await talk(memory, FactLearning(memory, model=answering(answer, "[]", "None: []")), "I like tea", "Yes", "No")
    proposed = {one.key: one.confidence for one in await proposals(memory)}
    assert proposed == {"drink": 0.9, "sure": 1.0, "true": 0.5}


async def test_an_object_and_a_list_that_was_cut_are_read(memory: Memory) -> None:
    """An object without a key is no fact, but may be an error: the messages are read again."""
    one, two = json.dumps(found(1, "drink", "tea")), json.dumps(found(3, "pet", "a cat"))
    answers = answering(f"Here: {one}", '{"error": "limit"}', f'[{two}, {{"message": 3, "about": "us')
    await talk(memory, FactLearning(memory, model=answers), "I like tea", "I have a cat", "Yes")
    assert {fact.key for fact in await proposals(memory)} == {"drink", "pet"}


async def test_only_100_brackets_that_begin_no_list_are_tried(memory: Memory, events: RecordedEvents) -> None:
    """Each attempt may read the whole answer, so an answer of brackets would block the event loop for minutes."""
    answers = ("[" * brackets + json.dumps([found(1, "drink", "tea")]) for brackets in (100, 99))
    await talk(memory, FactLearning(memory, model=ScriptedModel(answers)), "I like tea", "Yes")
    assert [event.error for event in events.of(LearningFailed)] == ["ValueError"]
    assert [one.key for one in await proposals(memory)] == ["drink"]


class _Noting:
    """A learner that records the messages it may read, and fails until `works` is set."""

    kind: LearnerKind = "model"
    name = "noting"

    def __init__(self) -> None:
        self.works = False
        self.read: list[list[int]] = []

    async def learn(self, record: Record) -> list[Proposed]:
        """Propose one fact from the first message."""
        if not self.works:
            raise TimeoutError
        self.read.append(list(record.learnable))
        return [Proposed(ADA, f"message_{seq}", seq, seq) for seq in list(record.learnable)[:1]]


async def test_after_an_outage_each_message_is_read_once(memory: Memory) -> None:
    """After an outage the learner reads each missed message once, in portions.

    Of a session that is new to the learner, only the last part is read.
    """
    learner = _Noting()
    session = memory.session("room:1", user_id="ada")

    async def say(count: int) -> None:
        for number in range(count):
            said = Message(role="user", content=f"said {number}")
            await session.append([said, Message(role="assistant", content="yes")])

    await say(50)
    request = LearningRequest("room:1", learner, {"user": ADA})
    with pytest.raises(TimeoutError):
        await memory.learning.learn(request)
    await session.append([Message(role="assistant", content=f"on its own {number}") for number in range(60)])
    await say(75)
    with pytest.raises(TimeoutError):
        await memory.learning.learn(request)
    learner.works = True
    memory.learning.enqueue(request)
    await memory.learning.idle()
    assert [seq for read in learner.read for seq in read] == [*range(61, 100, 2), *range(161, 310, 2)]
    assert max(map(len, learner.read)) <= 22
    assert await memory.learning.learn(request) == 0


async def test_a_learner_makes_at_most_20_proposals_at_once_and_invalid_ones_are_dropped(
    memory: Memory, events: RecordedEvents
) -> None:
    """The limit is the same for every learner; a proposal that cannot be stored does not stop the others."""

    class Eager:
        kind: LearnerKind = "model"
        name = "eager"

        async def learn(self, record: Record) -> Sequence[Proposed]:
            [seq] = record.learnable
            return [Proposed(ADA, " ", "no key", seq), *(Proposed(ADA, f"key {n}", n, seq) for n in range(50))]

    await memory.session("room:1", user_id="ada").append([Message(role="user", content="Hello")])
    assert await memory.learning.learn(LearningRequest("room:1", Eager(), {"user": ADA})) == 20
    assert {one.key for one in await proposals(memory)} == {f"key_{n}" for n in range(20)}
    assert [(event.proposed, event.dropped) for event in events.of(FactsProposed)] == [(20, 30)]


async def test_a_long_message_does_not_hide_the_others_from_the_model(memory: Memory) -> None:
    class Small(ScriptedModel):
        async def _agenerate(self, messages: Any, *arguments: Any, **options: Any) -> Any:
            if sum(len(message.text) for message in messages) > 100_000:
                raise ValueError("The context window of this model is exceeded.")
            return await super()._agenerate(messages, *arguments, **options)

    learner: Any = Small([json.dumps([found(3, "home_city", "Lisbon")])] * 3)  # type: ignore[call-arg, arg-type]
    log = "x" * 200_000
    session = memory.session("room:1", user_id="ada")
    await session.append([Message(role="user", content=log), Message(role="assistant", content=log)])
    await talk(memory, FactLearning(memory, model=learner), "I live in Lisbon")
    assert [one.key for one in await proposals(memory)] == ["home_city"]


async def test_a_secret_is_never_proposed(memory: Memory) -> None:
    """Neither in the form that the model wrote, nor in the stored form of its key."""
    secrets = [found(1, key, "hunter22x9") for key in ("password", "API \u00a0key", "apiKey", "Access   Token")]
    model = answering([*secrets, found(1, "note", "the token is ghp_abcdefgh")])
    await talk(memory, FactLearning(memory, model=model), "my password is hunter22")
    assert await proposals(memory) == []


async def test_a_rejected_proposal_is_not_made_again(memory: Memory) -> None:
    learning = FactLearning(memory, model=answering([found(1, "pet", "a dog")], [found(3, "pet", "a dog")]))
    await talk(memory, learning, "I have a dog")
    [proposal] = await proposals(memory)
    assert (await memory.proposals.reject(proposal.id, by="ada")).status == "rejected"
    await talk(memory, learning, "Did I say that I have a dog?")
    assert [one.status for one in await proposals(memory)] == ["rejected"]


class _Reading:
    """A learner that finds the fact `city` in every message, and sorts the facts by value."""

    kind: LearnerKind = "model"
    name = "reading"

    async def learn(self, record: Record) -> list[Proposed]:
        """Propose the text of each message."""
        scope = record.scopes["user"]
        texts = sorted((message.content, seq) for seq, message in record.learnable.items())
        return [Proposed(scope, "city", text, seq) for text, seq in texts]


@pytest.mark.parametrize("accept_from", [0.5, None])
async def test_a_value_that_is_stated_again_after_another_one_is_the_newest(
    memory: Memory, accept_from: float | None
) -> None:
    """The messages are read at once, as after an outage of the model. A mere repetition is proposed once."""
    said = ["Lisbon", "Porto", "Lisbon", "Lisbon"]
    await memory.session("room:1", user_id="ada").append([Message(role="user", content=text) for text in said])
    await memory.learning.learn(LearningRequest("room:1", _Reading(), {"user": ADA}, accept_from))
    assert [(one.value, one.evidence.seq) for one in await proposals(memory)] == [
        ("Lisbon", 1), ("Porto", 2), ("Lisbon", 3)
    ]  # fmt: skip
    facts = [(one.value, [each.seq for each in one.evidence]) for one in await memory.knowledge.facts(ADA)]
    assert facts == ([] if accept_from is None else [("Lisbon", [3])])


async def test_a_message_that_is_read_late_does_not_replace_a_newer_value(memory: Memory, clock: SettableClock) -> None:
    """The process ended before the first session was read. A newest message counts, even if the clock went back."""

    async def say(session_id: str, *texts: str) -> list[Any]:
        session = memory.session(session_id, user_id="ada")
        await session.append([Message(role="user", content=text) for text in texts])
        if texts != ("Lisbon",):
            await memory.learning.learn(LearningRequest(session_id, _Reading(), {"user": ADA}, 0.5))
        return [fact.value for fact in await memory.knowledge.facts(ADA)]

    await say("old", "Lisbon")
    clock.advance(60)
    assert await say("new", "Porto") == ["Porto"]
    clock.advance(-3600)
    assert await say("old", "Faro") == ["Faro"]
    assert {one.value: one.evidence.session_id for one in await proposals(memory)} == {"Porto": "new", "Faro": "old"}


async def test_undoing_brings_back_the_value_before(memory: Memory) -> None:
    await memory.knowledge.remember(ADA, "home_city", "Oslo")
    learning = FactLearning(memory, model=answering([found(1, "home_city", "Lisbon")]), accept_from=0.5)
    await talk(memory, learning, "I live in Lisbon")
    [proposal] = await proposals(memory, "accepted")
    assert [fact.value for fact in await memory.knowledge.facts(ADA)] == ["Lisbon"]
    assert (await memory.proposals.undo(proposal.id, by="ada")).status == "undone"
    [fact] = await memory.knowledge.facts(ADA, past=True)
    assert (fact.value, fact.valid_to, fact.contradicted) == ("Oslo", None, 0)
    with pytest.raises(InvalidInput, match="undone"):
        await memory.proposals.undo(proposal.id, by="ada")


async def test_concurrent_removals_of_all_evidence_delete_the_fact(memory: Memory) -> None:
    origins = [Evidence("room:1", seq) for seq in (1, 2)]
    for number in range(10):
        facts = [await memory.knowledge.remember(ADA, f"city {number}", "Lisbon", evidence=one) for one in origins]
        undoing = [memory.knowledge.take_back(facts[0].id, one) for one in origins]
        assert await asyncio.gather(*undoing) == [True, True]
    assert await memory.knowledge.facts(ADA, past=True) == []


async def test_undoing_a_confirmation_keeps_the_fact(memory: Memory) -> None:
    """Undoing a proposal that confirmed a known fact keeps the fact with one confirmation less."""
    await memory.knowledge.remember(ADA, "home_city", "Lisbon")
    learning = FactLearning(memory, model=answering([found(1, "home_city", "Lisbon")]), accept_from=0.5)
    await talk(memory, learning, "I live in Lisbon")
    [proposal] = await proposals(memory, "accepted")
    assert [fact.confirmed for fact in await memory.knowledge.facts(ADA)] == [2]
    await memory.proposals.undo(proposal.id, by="ada")
    [fact] = await memory.knowledge.facts(ADA)
    assert (fact.value, fact.confirmed, fact.evidence) == ("Lisbon", 1, ())


async def test_a_message_that_was_taken_back_cannot_be_accepted(memory: Memory) -> None:
    await talk(memory, FactLearning(memory, model=answering([found(1, "pet", "a dog")])), "I have a dog")
    await memory.session("room:1", user_id="ada").take_back(2)
    [proposal] = await proposals(memory)
    with pytest.raises(InvalidInput, match="taken back"):
        await memory.proposals.accept(proposal.id, by="ops")
    await memory.session("room:1", user_id="ada").delete()
    assert await proposals(memory) == []


async def test_a_key_that_is_forgotten_meanwhile_does_not_stop_the_other_proposals(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = memory.proposals.accept

    async def forget_first(proposal_id: str, *, by: str) -> Proposal:
        await memory.knowledge.forget(ADA, "pet")
        return await accept(proposal_id, by=by)

    monkeypatch.setattr(memory.proposals, "accept", forget_first)
    model = answering([found(1, "pet", "a dog"), found(1, "home_city", "Lisbon")])
    await talk(memory, FactLearning(memory, model=model, accept_from=0.5), "I live in Lisbon, with a dog")
    assert [fact.key for fact in await memory.knowledge.facts(ADA)] == ["home_city"]


async def test_two_concurrent_decisions_leave_a_consistent_fact(memory: Memory) -> None:
    """Each of two concurrent decisions takes effect or raises InvalidInput.

    The fact exists if the last status is accepted.
    """
    texts = [f"I have pet {number}" for number in range(6)]
    answers = [[found(2 * number + 1, f"pet_{number}", "a dog")] for number in range(6)]
    await talk(memory, FactLearning(memory, model=answering(*answers)), *texts)
    for proposal in await proposals(memory):
        verbs = (memory.proposals.accept, memory.proposals.reject)
        decided = await asyncio.gather(*(verb(proposal.id, by="ada") for verb in verbs), return_exceptions=True)
        for one, status in zip(decided, ("accepted", "rejected"), strict=True):
            assert isinstance(one, InvalidInput) or (isinstance(one, Proposal) and one.status == status)
        known = await memory.knowledge.facts(ADA, key=proposal.key)
        assert bool(known) == ((await memory.proposals.proposal(proposal.id)).status == "accepted")


async def test_forgetting_a_key_deletes_its_proposals(memory: Memory) -> None:
    answers = [[found(1, "pet", "a dog"), found(1, "home_city", "Lisbon")], [found(3, "pet", "a cat")], []]
    await talk(memory, FactLearning(memory, model=answering(*answers)), "My dog and I live in Lisbon", "It is a cat")
    for proposal in await proposals(memory):
        await memory.proposals.accept(proposal.id, by="ada")
    await memory.knowledge.forget(ADA, "Pet")
    assert [one.key for one in await proposals(memory)] == ["home_city"]
    await memory.knowledge.forget_all(ADA)
    assert await proposals(memory) == []


async def test_a_directive_is_remembered_listed_and_undone(memory: Memory) -> None:
    """A directive is stored without a model call, in the scope that it names, and can be undone."""
    text = "Hi.\npreference (user): Keep diffs small.\n\ndecision: Use PostgreSQL."
    await talk(memory, FactLearning(memory, proposes=False, directives=True), text)
    assert [fact.value for fact in await memory.knowledge.facts(ADA)] == ["Keep diffs small."]
    assert [fact.value for fact in await memory.knowledge.facts(SHOP)] == ["Use PostgreSQL."]
    listed = {one.directive: one for one in await proposals(memory, "accepted")}
    assert listed.keys() == {"preference", "decision"}
    assert listed["decision"].origin == "from message 1 of room:1"
    await memory.proposals.undo(listed["decision"].id, by="ada")
    assert await memory.knowledge.facts(SHOP) == []


async def test_a_directive_does_not_wait_for_the_model_of_another_session(
    memory: Memory, events: RecordedEvents
) -> None:
    class Waiting:
        kind: LearnerKind = "model"
        name = "waiting"
        asked, answers = asyncio.Event(), asyncio.Event()

        async def learn(self, _: Record) -> Sequence[Proposed]:
            self.asked.set()
            await self.answers.wait()
            return []

    learner = Waiting()
    await memory.session("room:2", user_id="bob").append([Message(role="user", content="Hello")])
    memory.learning.enqueue(LearningRequest("room:2", learner, {"user": Scope("user", "bob")}))
    await learner.asked.wait()
    await memory.session("room:1", user_id="ada").append([Message(role="user", content="pref: Keep diffs small.")])
    memory.learning.enqueue(LearningRequest("room:1", DirectiveLearner(), {"user": ADA, "workspace": SHOP}, 1.0))
    await events.until(lambda: bool(events.of(FactsProposed)))
    assert [one.value for one in await proposals(memory, "accepted")] == ["Keep diffs small."]
    learner.answers.set()
    await memory.learning.idle()


async def test_a_model_that_raises_a_cancellation_does_not_stop_the_queue(memory: Memory) -> None:
    class Cancelling:
        kind: LearnerKind = "model"
        name = "cancelling"
        asked: ClassVar[list[str]] = []

        async def learn(self, record: Record) -> Sequence[Proposed]:
            self.asked.append(record.learnable[1].content)
            raise asyncio.CancelledError

    for room in ("room:1", "room:2"):
        await memory.session(room, user_id="ada").append([Message(role="user", content=f"Hello {room}")])
        memory.learning.enqueue(LearningRequest(room, Cancelling(), {"user": ADA}))
    await memory.learning.idle()
    assert Cancelling.asked == ["Hello room:1", "Hello room:2"]


async def test_each_message_is_learned_in_the_workspace_of_its_turn(memory: Memory) -> None:
    """The session changes its workspace while the learner is late, and a later question is stored while it reads."""
    asked, answers = asyncio.Event(), asyncio.Event()

    class Late(ScriptedModel):
        async def _agenerate(self, *arguments: Any, **options: Any) -> Any:
            asked.set()
            await answers.wait()
            return await super()._agenerate(*arguments, **options)

    class Answering(ScriptedModel):
        async def _agenerate(self, *arguments: Any, **options: Any) -> Any:
            if len(self.calls) == 2:  # the third question is stored, and its turn has not ended
                answers.set()
                await memory.learning.idle()
            return await super()._agenerate(*arguments, **options)

    entries = [[found(n, f"plan_{n}", f"of {n}", about="workspace") for n in range(1, 6, 2)] for _ in range(3)]
    late = Late(json.dumps(each) for each in entries)  # type: ignore[call-arg, arg-type]
    learning = FactLearning(memory, model=late, scopes=("workspace",), directives=True)
    middleware = [SessionMemory(memory, learning=learning)]
    agent: Any = create_agent(Answering(["One.", "Two.", "Three."]), [], middleware=middleware)  # type: ignore[call-arg, arg-type]
    for workspace in ("shop", "home", "club"):
        config: Any = {"configurable": {**CONFIG["configurable"], "workspace": workspace}}
        await agent.ainvoke({"messages": [("user", f"decision: Meet in the {workspace}.")]}, config)
        await asked.wait()
    await memory.learning.idle()
    assert {(one.key, one.scope.owner) for one in await proposals(memory, "open")} == {
        ("plan_1", "shop"), ("plan_3", "home"), ("plan_5", "club")
    }  # fmt: skip
    assert {(fact.scope.owner, fact.value) for fact in await memory.knowledge.facts()} == {
        (workspace, f"Meet in the {workspace}.") for workspace in ("shop", "home", "club")
    }


async def test_workspace_facts_are_learned_after_the_session_was_deleted(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The questions of the new session have lower numbers than those of the deleted one."""
    monkeypatch.setattr(learning, "_MOST_RUNS", 2)
    entries = [[found(number, f"plan_{number}", "x", about="workspace")] for number in (1, 3, 5, 1)]
    learns = FactLearning(memory, model=answering(*entries), scopes=("workspace",))
    await talk(memory, learns, "One", "Two", "Three")
    await memory.session("room:1", user_id="ada").delete()
    await talk(memory, learns, "One")
    assert [(one.key, one.scope) for one in await proposals(memory)] == [("plan_1", SHOP)]


async def test_a_message_of_a_new_session_has_no_workspace_of_a_deleted_one(memory: Memory) -> None:
    """The message was stored outside of a turn, and its number is that of a deleted question."""
    entries = [[], [found(number, f"plan_{number}", "x", about="workspace") for number in (1, 3)]]
    learns = FactLearning(memory, model=answering(*entries), scopes=("workspace",))
    await talk(memory, learns, "One")
    session = memory.session("room:1", user_id="ada")
    await session.delete()
    await session.append([Message(role="user", content="We moved."), Message(role="assistant", content="Where?")])
    await talk(memory, learns, "Home")
    assert [one.key for one in await proposals(memory)] == ["plan_3"]


async def test_a_repeated_first_question_keeps_the_workspaces_of_later_ones(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [found(number, f"plan_{number}", "x", about="workspace") for number in (1, 3)]
    learns = FactLearning(memory, model=answering(entries), scopes=("workspace",))
    middleware = [SessionMemory(memory, learning=learns)]
    agent: Any = create_agent(ScriptedModel(["First.", "Second."]), [], middleware=middleware)
    with monkeypatch.context() as patched:
        patched.setattr(memory.learning, "_learn_some", lambda _: asyncio.sleep(0, (0, False)))  # the learner is late
        for text in ("One", "Two"):
            await agent.ainvoke({"messages": [HumanMessage(text, id=text)]}, CONFIG)
    await agent.ainvoke({"messages": [HumanMessage("One", id="One")]}, CONFIG)
    await memory.learning.idle()
    assert [(one.key, one.scope) for one in await proposals(memory)] == [("plan_1", SHOP), ("plan_3", SHOP)]


async def test_a_blocking_call_on_the_memorys_own_loop_is_learned_from(memory: Memory) -> None:
    """The turn runs on the loop of a companion memory; the learner is that of the memory."""
    learns = FactLearning(memory, model=answering([found(1, "city", "Lisbon")]), directives=True)
    agent: Any = create_agent(ScriptedModel(["ok"]), [], middleware=[SessionMemory(memory, learning=learns)])
    agent.invoke({"messages": [{"role": "user", "content": "preference (user): Keep diffs small."}]}, CONFIG)
    await asyncio.sleep(0)
    await memory.learning.idle()
    assert sorted(str(one.value) for one in await proposals(memory)) == ["Keep diffs small.", "Lisbon"]


async def test_a_message_of_a_turn_that_another_process_lost_is_learned_in_no_workspace(memory: Memory) -> None:
    await memory.session("room:1", user_id="ada", workspace="home").append([Message(role="user", content="We moved.")])
    entries = [found(n, f"{about}_{n}", "x", about=about) for n in (1, 2) for about in ("user", "workspace")]
    learning = FactLearning(memory, model=answering(entries), scopes=("user", "workspace"))
    await talk(memory, learning, "Hello")
    assert [one.key for one in await proposals(memory)] == ["user_1", "user_2", "workspace_2"]


async def test_workspace_facts_are_learned_late_if_the_newest_turn_has_no_workspace(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [found(number, f"plan_{number}", "x", about="workspace") for number in (1, 3)]
    learns = FactLearning(memory, model=answering(entries), scopes=("user", "workspace"))
    agent: Any = create_agent(ScriptedModel(["1", "2"]), [], middleware=[SessionMemory(memory, learning=learns)])
    with monkeypatch.context() as patched:
        patched.setattr(memory.learning, "_learn_some", lambda _: asyncio.sleep(0, (0, False)))  # the learner is late
        await agent.ainvoke({"messages": [("user", "In the shop")]}, CONFIG)
    nowhere: Any = {"configurable": {"thread_id": "room:1", "user_id": "ada"}}
    await agent.ainvoke({"messages": [("user", "At home")]}, nowhere)
    await memory.learning.idle()
    assert [(one.key, one.scope) for one in await proposals(memory)] == [("plan_1", SHOP)]


async def test_a_dead_process_leaves_workspace_facts_to_the_next_one(
    database_url: str, memory_options: MemoryOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process dies after the answers, and before it has learned. Each turn has its own workspace."""
    nowhere: Any = {"configurable": {"thread_id": "room:1", "user_id": "ada"}}
    with monkeypatch.context() as patched:
        patched.setattr(learning.Learning, "enqueue", lambda *_: None)  # the process dies before its learner runs
        async with open_memory(database_url, options=memory_options) as dead:
            for workspace in ("shop", "home"):
                config: Any = {"configurable": {**CONFIG["configurable"], "workspace": workspace}}
                await talk(
                    dead, FactLearning(dead, directives=True), f"decision: Meet in the {workspace}.", config=config
                )
            await talk(dead, FactLearning(dead, directives=True), "decision: Meet nowhere.", config=nowhere)
            await talk(
                dead,
                FactLearning(dead, directives=True, workspace="club"),
                "decision: Meet in the club.",
                config=nowhere,
            )
    async with open_memory(database_url, options=memory_options) as memory:
        model = answering([found(n, f"plan_{n}", f"of {n}", about="workspace") for n in range(1, 10, 2)])
        learns = FactLearning(memory, model=model, scopes=("workspace",), directives=True)
        await talk(memory, learns, "Hello", config=CONFIG)
        assert {(one.key, one.scope.owner) for one in await proposals(memory, "open")} == {
            ("plan_1", "shop"), ("plan_3", "home"), ("plan_7", "club"), ("plan_9", "shop")
        }  # fmt: skip
        assert {(fact.scope.owner, fact.value) for fact in await memory.knowledge.facts()} == {
            (workspace, f"Meet in the {workspace}.") for workspace in ("shop", "home", "club")
        }


class _LateLearner:
    """A learner that proposes a fact once `answers` is set."""

    kind: LearnerKind = "model"
    name = "late"

    def __init__(self, scope: Scope) -> None:
        self.asked, self.answers, self._scope = asyncio.Event(), asyncio.Event(), scope

    async def learn(self, record: Record) -> list[Proposed]:
        """Wait, then propose a fact of the first message."""
        self.asked.set()
        await self.answers.wait()
        return [Proposed(self._scope, "illness", "asthma", next(iter(record.learnable)))]


@pytest.mark.parametrize("scope", [ADA, Scope("session", "room:1"), SHOP])
async def test_no_fact_of_an_erased_session_is_stored_after_another_one_has_its_id(
    memory: Memory, clock: SettableClock, scope: Scope
) -> None:
    turn = [Message(role="user", content="I have asthma."), Message(role="assistant", content="Noted.")]
    await memory.session("room:1", user_id="ada").append(turn)
    learner = _LateLearner(scope)
    request = LearningRequest("room:1", learner, {scope.kind: scope}, accept_from=0.5)
    learning = asyncio.create_task(memory.learning.learn(request))
    await learner.asked.wait()
    await memory.erase(user_id="ada")
    clock.advance(60)
    await memory.session("room:1", user_id="bob").append(
        [Message(role="user", content="Hello"), Message(role="assistant", content="Hi")]
    )
    of_bob = Proposed(Scope("user", "bob"), "pet", "a dog", 1, confidence=0.6)
    assert await memory.proposals.add(Reading("room:1", "model", "another", 0, 0), [of_bob]) == 1
    learner.answers.set()
    assert await learning == 0
    assert await memory.knowledge.facts() == []
    assert [(one.key, one.status) for one in await proposals(memory)] == [("pet", "open")]


async def test_a_message_of_another_user_is_no_fact_of_the_former_owner(memory: Memory) -> None:
    """The session was deleted before the learner read it, and belongs to another user."""
    turn = [Message(role="user", content="I am Bob."), Message(role="assistant", content="Hi.")]
    await memory.session("room:1", user_id="bob").append(turn)
    learner = _LateLearner(ADA)
    learner.answers.set()
    assert await memory.learning.learn(LearningRequest("room:1", learner, {"user": ADA}, accept_from=0.5)) == 0
    assert await memory.knowledge.facts() == []


async def test_a_directive_with_a_secret_is_refused_with_a_word_to_the_person(memory: Memory) -> None:
    model = ScriptedModel(["I did not remember that."])
    learning = FactLearning(memory, proposes=False, directives=True)
    source = KnownFacts(memory, directives=True)
    agent: Any = create_agent(model, [], middleware=[SessionMemory(memory, sources=[source], learning=learning)])
    await agent.ainvoke({"messages": [{"role": "user", "content": "remember: my password is hunter22"}]}, CONFIG)
    await memory.learning.idle()
    shown = "".join(str(message.text) for message in model.calls[0][:-1])
    assert "looks like a secret" in shown
    assert "hunter22" not in shown
    assert await proposals(memory) == []
    assert await memory.knowledge.facts() == []


@pytest.mark.parametrize("text", ["x" * 9_999, '"' * 6_000], ids=["long", "escaped"])
async def test_a_directive_that_is_too_long_as_json_does_not_stop_later_ones(memory: Memory, text: str) -> None:
    learning = FactLearning(memory, proposes=False, directives=True)
    await talk(memory, learning, f"note: {text}", "preference (user): Keep diffs small.")
    assert [fact.value for fact in await memory.knowledge.facts()] == ["Keep diffs small."]


async def test_all_directives_of_a_message_are_remembered_up_to_100(memory: Memory) -> None:
    model = ScriptedModel(["Noted."] * 2)
    learning = FactLearning(memory, proposes=False, directives=True)
    source = KnownFacts(memory, directives=True)
    agent: Any = create_agent(model, [], middleware=[SessionMemory(memory, sources=[source], learning=learning)])
    for count in (30, 101):
        text = "\n".join(f"note: Rule {count} {number}." for number in range(count))
        await agent.ainvoke({"messages": [{"role": "user", "content": text}]}, CONFIG)
        await memory.learning.idle()
    values = [str(fact.value) for fact in await memory.knowledge.facts(SHOP, limit=1_000)]
    assert [sum(value.startswith(f"Rule {count} ") for value in values) for count in (30, 101)] == [30, 100]
    assert ["more than 100" in "".join(str(one.text) for one in call[:-1]) for call in model.calls] == [False, True]


@pytest.mark.parametrize(
    ("text", "missing"), [("remember: Deploy on Fridays.", "workspace"), ("preference (user): Small diffs.", "user")]
)
async def test_a_directive_without_a_scope_is_reported_to_the_model(memory: Memory, text: str, missing: str) -> None:
    model = ScriptedModel(["I did not remember that."])
    source = KnownFacts(memory, directives=True)
    learning = FactLearning(memory, proposes=False, directives=True)
    agent: Any = create_agent(model, [], middleware=[SessionMemory(memory, sources=[source], learning=learning)])
    await agent.ainvoke({"messages": [{"role": "user", "content": text}]}, {"configurable": {"thread_id": "room:1"}})
    await memory.learning.idle()
    assert f"this run has no {missing}" in "".join(str(message.text) for message in model.calls[0][:-1])
    assert await memory.knowledge.facts() == []


async def test_an_invalid_workspace_fails_neither_the_turn_nor_facts_of_the_user(
    memory: Memory, events: RecordedEvents
) -> None:
    model = answering([found(1, "diet", "vegan"), found(1, "plan", "gold", about="workspace")])
    learning = FactLearning(memory, model=model, directives=True, scopes=("workspace", "user"))
    config: Any = {"configurable": {**CONFIG["configurable"], "workspace": "x" * 600}}
    await talk(memory, learning, "remember: Deploy on Fridays.\npreference (user): Small diffs.", config=config)
    assert [(one.scope, one.key) for one in await proposals(memory, "open")] == [(ADA, "diet")]
    assert [(fact.scope, fact.value) for fact in await memory.knowledge.facts()] == [(ADA, "Small diffs.")]
    assert [event.error for event in events.of(LearningFailed)] == ["InvalidInput"]
    only = FactLearning(memory, model=answering(), scopes=("workspace",))
    await talk(memory, only, "Hello", config=config)
    assert [event.error for event in events.of(LearningFailed)] == ["InvalidInput"] * 2


async def test_another_user_cannot_see_or_decide_a_proposal(memory: Memory) -> None:
    await talk(memory, FactLearning(memory, model=answering([found(1, "pet", "a dog")])), "I have a dog")
    [proposal] = await proposals(memory)
    assert (await memory.proposals.page(ProposalQuery(user_id="bob")))[0] == []
    assert len((await memory.proposals.page(ProposalQuery(user_id="ada")))[0]) == 1
    for verb in (memory.proposals.accept, memory.proposals.reject):
        with pytest.raises(LookupError):
            await verb(proposal.id, by="bob", user_id="bob")


@pytest.mark.parametrize("options", [{"accept_from": 2.0}, {"scopes": ()}, {"scopes": ("everybody",)}])
async def test_invalid_options_are_refused(memory: Memory, options: Any) -> None:
    with pytest.raises(InvalidInput):
        FactLearning(memory, **options)


async def test_many_facts_of_an_answer_are_read_outside_of_the_event_loop(
    sqlite_memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def seen(_: str) -> bool:
        threads.add(threading.get_ident())
        return False

    monkeypatch.setattr(learning, "looks_like_secret", seen)
    model = answering([found(1, f"key_{number}", "tea") for number in range(1_000)])
    await talk(sqlite_memory, FactLearning(sqlite_memory, model=model), "I like tea")
    assert len(await proposals(sqlite_memory)) == 20
    assert threads
    assert threading.get_ident() not in threads
