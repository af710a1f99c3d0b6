"""Pages of the service's health, of channels (bots), and of knowledge (facts) with the deliveries to Graphiti."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import chain
from statistics import median
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from threadkeep.records.knowledge import MAX_OWNER_CHARACTERS, FactQuery, ProposalQuery
from threadkeep.records.messages import OPEN_STATUSES
from threadkeep.records.runs import Run, RunQuery
from threadkeep.store.codec import clean_text
from threadkeep.web.api.facts import FactId
from threadkeep.web.api.parameters import AppInUse, read_cursor, write_cursor
from threadkeep.web.callers import CallerInUse
from threadkeep.web.console.rendering import Column, ConsoleRoute, Form, SeenAs, knowledge_address, page, redirect

_RUNS = 500
_COLUMNS = 24

router = APIRouter(prefix="/console", route_class=ConsoleRoute, include_in_schema=False)


@router.get("/health")
async def show_health(request: Request, app: AppInUse) -> Response:
    """Show turns that wait to be written, counts of runs, retention rules, and durations of turns (newest 500 runs)."""
    memory = app.memory
    runs, _ = await (await app.runs.service()).list(RunQuery(limit=_RUNS))
    ended = [run for run in reversed(runs) if run.over and run.parent_run_id is None and run.inputs]
    turns, durations = _over_time(ended)
    seconds = [_seconds(run) for run in ended]
    path = app.settings.database.path
    files = [] if path is None else [path, path.with_name(f"{path.name}-wal")]
    file_bytes = sum(file.stat().st_size for file in files if file.exists()) or None
    return page(
        request,
        "health.html",
        pending=memory.pending.entries,
        damaged=await memory.pending.damaged(),
        counts=await memory.runs.records.counts(),
        rules=memory.retention.rules,
        settings=app.settings,
        bytes=file_bytes,
        turns=turns,
        durations=durations,
        runs=runs,
        seconds=seconds,
        median=median(seconds) if seconds else None,
    )


def _over_time(runs: Sequence[Run]) -> tuple[list[Column], list[Column]]:
    """Return the columns of two charts over time: the number of turns in each interval, and their median duration."""
    if not runs:
        return [], []
    first = runs[0].created_at
    width = max((runs[-1].created_at - first) / _COLUMNS, timedelta(seconds=1))
    turns: list[Column] = []
    durations: list[Column] = []
    for index in range(_COLUMNS):
        begins = first + index * width
        if begins > runs[-1].created_at:
            break
        last = index == _COLUMNS - 1
        some = [run for run in runs if begins <= run.created_at and (last or run.created_at < begins + width)]
        failed = sum(run.status != "done" for run in some)
        label = f"{begins:%d %b %H:%M} UTC" if width < timedelta(days=1) else f"{begins:%d %b %Y}"
        turns.append(Column(label, {"window": len(some) - failed, "steps": failed}))
        seconds = median([_seconds(run) for run in some]) if some else 0.0
        durations.append(Column(label, {"selected": seconds * 1000}))
    return turns, durations


def _seconds(run: Run) -> float:
    return ((run.ended_at or run.created_at) - run.created_at).total_seconds()


_SHOWN = 50


@router.get("/channels")
async def show_channels(request: Request, app: AppInUse) -> Response:
    """Show the bots that have ever received or sent a message, and 50 undelivered answers, failed ones first."""
    outbox = app.memory.channels.outbox
    found = [await outbox.entries(status=status, limit=_SHOWN) for status in reversed(OPEN_STATUSES)]
    first = [*chain.from_iterable(found)][:_SHOWN]
    return page(request, "channels.html", channels=await outbox.states(), open=OPEN_STATUSES, outbox=first)


_PAGE = 50
_DEAD = 20


@router.get("/knowledge")
async def show_knowledge(
    *,
    request: Request,
    app: AppInUse,
    user: SeenAs = None,
    q: Annotated[str | None, Query(max_length=200)] = None,
    past: Annotated[bool, Query()] = False,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    proposals_cursor: Annotated[str | None, Query(alias="proposals", max_length=1000)] = None,
) -> Response:
    """Show undecided proposals and stored facts, both with the last changed ones first, and Graphiti's state."""
    words = clean_text(q.strip()) if q and q.strip() else None
    query = FactQuery(text=words, past=past, user_id=user, limit=_PAGE, cursor=read_cursor("facts", cursor))
    facts, following = await app.memory.knowledge.facts_page(query)
    open_ones = ProposalQuery("open", user_id=user, limit=_PAGE, cursor=read_cursor("proposals", proposals_cursor))
    proposals, other_proposals = await app.memory.proposals.page(open_ones)
    graphiti = app.memory.graphiti
    # Deliveries and consent concern all users, so show them only if no user is chosen.
    status = await graphiti.status() if user is None else None
    return page(
        request,
        "knowledge.html",
        facts=facts,
        proposals=proposals,
        next_proposals=write_cursor("proposals", other_proposals),
        q=words or "",
        user=user or "",
        past=past,
        next_cursor=write_cursor("facts", following),
        status=status,
        consents=await graphiti.consents.decisions() if user is None else [],
        dead=await graphiti.deliveries(status="dead", limit=_DEAD) if user is None else [],
    )


@router.post("/knowledge/proposals/{proposal_id}/{decision}")
async def decide(
    *,
    proposal_id: FactId,
    decision: Literal["accept", "reject"],
    form: Form,
    app: AppInUse,
    caller: CallerInUse,
    user: SeenAs = None,
) -> Response:
    """Accept or reject a proposed fact, and record the caller's name with the decision."""
    proposals = app.memory.proposals
    decide_on = proposals.accept if decision == "accept" else proposals.reject
    await decide_on(proposal_id, by=caller.name[:MAX_OWNER_CHARACTERS], user_id=user)
    return redirect(knowledge_address(user_id=user))
