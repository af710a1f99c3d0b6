"""Property tests of superseding against a plain model: edits, take-backs, resets, summaries and branches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threadkeep import Memory, MemoryOptions, Message, MessageNotFound, open_memory
from threadkeep.context.window import Exclusion
from threadkeep.graph_store.layout import GraphLayout
from threadkeep.history.session import Session
from threadkeep.records import Role, Summary
from threadkeep.store.codec import shorten
from threadkeep.testing import SettableClock

pytestmark = pytest.mark.slow

type Kind = Literal["say", "take back", "edit", "regenerate", "reset", "summarise", "branch"]

_ROLES: st.SearchStrategy[Role] = st.sampled_from(["user", "assistant", "system"])
_STEPS = st.one_of(
    st.tuples(st.just("say"), st.lists(_ROLES, min_size=1, max_size=4)),
    st.tuples(st.just("take back"), st.integers(1, 5)),
    st.tuples(st.just("edit"), st.integers(0, 30)),
    st.tuples(st.just("regenerate"), st.just(0)),
    st.tuples(st.just("reset"), st.just(0)),
    st.tuples(st.just("summarise"), st.integers(1, 6)),
    st.tuples(st.just("branch"), st.integers(0, 30)),
)
_NUMBERS = count()


@dataclass
class PlainMessage:
    """A message as the test knows it; `superseded` is the step at which it was superseded."""

    id: str
    role: Role
    seq: int
    superseded: int | None = None
    by: str | None = None


@dataclass
class PlainSession:
    """A session as lists."""

    said: list[PlainMessage] = field(default_factory=list)
    reset_seq: int = 0
    step: int = 0

    @property
    def active(self) -> list[PlainMessage]:
        """Return the messages that are not superseded."""
        return [one for one in self.said if one.superseded is None]

    def append(self, ids: list[str], roles: list[Role]) -> None:
        """Add messages."""
        for message_id, role in zip(ids, roles, strict=True):
            self.said.append(PlainMessage(message_id, role, len(self.said) + 1))

    def supersede(self, gone: list[PlainMessage], by: str | None = None) -> None:
        """Supersede the messages; `by` replaces the first of them."""
        self.step += 1
        for place, one in enumerate(gone):
            one.superseded, one.by = self.step, by if place == 0 else None

    def branched(self, at: int) -> PlainSession:
        """Return the session as it was while the message with this seq was active."""
        until = self.said[at - 1].superseded
        kept = [
            one for one in self.said[:at] if one.superseded is None or (until is not None and one.superseded >= until)
        ]
        said = [PlainMessage(one.id, one.role, place) for place, one in enumerate(kept, start=1)]
        return PlainSession(said, sum(one.seq <= self.reset_seq for one in kept))


@pytest.fixture
async def graph_memory(database_url: str, memory_options: MemoryOptions) -> AsyncIterator[Memory]:
    """Open a memory with transcripts in the graph store of its database."""
    async with open_memory(database_url, options=replace(memory_options, transcripts="graph_store")) as opened:
        yield opened


async def check(session: Session, plain: PlainSession) -> None:
    """Compare everything that can be read of a session."""
    active = plain.active
    assert [(m.id, m.seq) for m in await session.tail(99)] == [(one.id, one.seq) for one in active]
    history = await session.tail(99, view="history")
    assert [(m.id, m.superseded_at is None, m.superseded_by) for m in history] == [
        (one.id, one.superseded is None, one.by) for one in plain.said
    ]
    pages: list[Message] = []
    before: int | None = None
    while True:
        page = await session.page(before, 3)
        pages[:0] = page.messages
        if (before := page.next_before) is None:
            break
    assert pages == await session.tail(99)
    assert (await session.count(), await session.count(view="history")) == (len(active), len(plain.said))
    if not plain.said:
        return
    info = await session.info()
    users = [one.id for one in active if one.role == "user"]
    assert (info.message_count, info.last_seq, info.reset_seq) == (len(active), len(plain.said), plain.reset_seq)
    assert info.last_message == (shorten(active[-1].id, 100) if active else None)
    assert info.title == (users[0] if users else None)
    spoken = [one for one in active if one.seq > plain.reset_seq and one.role != "system"]
    window = await session.window(None, None)
    assert [message.id for message in window.messages] == [one.id for one in spoken]
    superseded = {one.seq for one in plain.said if one.superseded is not None and one.seq > plain.reset_seq}
    named = [gap for gap in window.manifest.excluded if gap.reason == "superseded"]
    assert {seq for gap in named for seq in _seqs(gap)} == superseded
    assert await session.superseded() == _ranges([one.seq for one in plain.said if one.superseded is not None])
    few = await session.window(2, None)
    assert {message.id for message in few.messages} <= {one.id for one in spoken}


async def check_summaries(memory: Memory, session: Session, plain: PlainSession) -> None:
    """Check that active summaries are contiguous, and that each has exactly its active messages."""
    counting = await memory.summaries.active(session.session_id)
    last = plain.reset_seq
    for summary in counting:
        assert summary.first_seq == last + 1
        last = summary.last_seq
        made_of = [one.id for one in plain.active if summary.first_seq <= one.seq <= summary.last_seq]
        assert summary.text.split() == made_of


async def run(
    memory: Memory, session: Session, steps: list[tuple[Kind, object]], clock: SettableClock, summarises: bool
) -> None:
    """Execute the steps, and compare after each."""
    plain = PlainSession()
    for kind, value in steps:
        clock.advance(1)
        await _STEP[kind](memory, session, plain, value, summarises)
        await check(session, plain)
        if summarises:
            await check_summaries(memory, session, plain)


async def _say(_: Memory, session: Session, plain: PlainSession, roles: object, __: bool) -> None:
    assert isinstance(roles, list)
    ids = [f"{role}-{next(_NUMBERS)}" for role in roles]
    await session.append([Message(role, one, one) for one, role in zip(ids, roles, strict=True)])
    plain.append(ids, roles)


async def _take_back(_: Memory, session: Session, plain: PlainSession, n: object, __: bool) -> None:
    assert isinstance(n, int)
    gone = plain.active[-n:]
    assert [message.id for message in await session.take_back(n)] == [one.id for one in gone]
    if gone:
        plain.supersede(gone)


async def _edit(_: Memory, session: Session, plain: PlainSession, which: object, __: bool) -> None:
    assert isinstance(which, int)
    if not plain.active:
        return
    old = plain.active[which % len(plain.active)]
    new_id = f"{old.role}-{next(_NUMBERS)}"
    edited = await session.edit(old.id, new_id, new_id=new_id)
    assert edited.seq == len(plain.said) + 1
    plain.supersede([one for one in plain.active if one.seq >= old.seq], by=new_id)
    plain.append([new_id], [old.role])


async def _regenerate(_: Memory, session: Session, plain: PlainSession, __: object, ___: bool) -> None:
    users = [one for one in plain.active if one.role == "user"]
    if not users:
        try:
            await session.regenerate()
        except MessageNotFound:
            return
        raise AssertionError("there is no question")
    await session.regenerate()
    if gone := [one for one in plain.active if one.seq > users[-1].seq]:
        plain.supersede(gone)


async def _reset(_: Memory, session: Session, plain: PlainSession, __: object, ___: bool) -> None:
    await session.reset()
    plain.reset_seq = len(plain.said)


async def _summarise(memory: Memory, session: Session, plain: PlainSession, length: object, summarises: bool) -> None:
    """Add a summary of the next messages, or merge all summaries."""
    assert isinstance(length, int)
    if not (summarises and plain.said):
        return
    counting = await memory.summaries.active(session.session_id)
    if len(counting) > 1 and length > 4:
        text = " ".join(one.text for one in counting)
        merged = Summary(session.session_id, counting[0].first_seq, counting[-1].last_seq, text, "m", "1", 1, level=2)
        assert await memory.summaries.add(merged, [one.id for one in counting])
        return
    after = counting[-1].last_seq if counting else plain.reset_seq
    covered = [one for one in plain.active if one.seq > after][:length]
    if covered:
        text = " ".join(one.id for one in covered)
        one = Summary(session.session_id, after + 1, covered[-1].seq, text, "m", "1", 1)
        assert await memory.summaries.add(one, last_id=covered[-1].id, revision=(await session.info()).revision)


async def _branch(memory: Memory, session: Session, plain: PlainSession, which: object, summarises: bool) -> None:
    assert isinstance(which, int)
    if not plain.said:
        return
    at = which % len(plain.said) + 1
    branch = await session.branch(at)
    expected = plain.branched(at)
    await check(branch, expected)
    if summarises:
        await check_summaries(memory, branch, expected)
    assert (await branch.info()).parent_seq == at
    await branch.take_back(1)
    await branch.append([Message("user", "more")])


type Step = Callable[[Memory, Session, PlainSession, object, bool], Awaitable[None]]

_STEP: dict[str, Step] = {
    "say": _say,
    "take back": _take_back,
    "edit": _edit,
    "regenerate": _regenerate,
    "reset": _reset,
    "summarise": _summarise,
    "branch": _branch,
}


def _seqs(gap: Exclusion) -> range:
    return range(gap.first_seq, gap.last_seq + 1)


def _ranges(seqs: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found


@given(steps=st.lists(_STEPS, min_size=1, max_size=14))
async def test_a_session_in_tables_matches_the_plain_model(
    memory: Memory, clock: SettableClock, steps: list[tuple[Kind, object]]
) -> None:
    session = memory.session(f"room:{next(_NUMBERS)}")
    await run(memory, session, steps, clock, summarises=True)


@settings(max_examples=settings().max_examples // 2)
@given(steps=st.lists(_STEPS, min_size=1, max_size=14))
async def test_a_conversation_of_an_agent_matches_the_plain_model(
    memory: Memory, clock: SettableClock, steps: list[tuple[Kind, object]]
) -> None:
    """The result does not depend on the chunks."""
    beside = await memory.namespace(GraphLayout(chunk_size=3), await memory.graph_store())
    session = beside.session(f"room:{next(_NUMBERS)}")
    await run(beside, session, steps, clock, summarises=False)


@settings(max_examples=settings().max_examples // 2)
@given(steps=st.lists(_STEPS, min_size=1, max_size=14))
async def test_a_session_in_a_graph_store_matches_the_plain_model(
    graph_memory: Memory, clock: SettableClock, steps: list[tuple[Kind, object]]
) -> None:
    """The session also has a row in the tables, to which its summaries refer."""
    session = graph_memory.session(f"room:{next(_NUMBERS)}")
    await run(graph_memory, session, steps, clock, summarises=True)
