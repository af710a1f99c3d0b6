"""Liveness, readiness and metrics of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from threadkeep.errors import DatabaseFileReplaced, StoreError
from threadkeep.history.memory import Memory
from threadkeep.store.migrations import known_migrations
from threadkeep.web.api.parameters import AppInUse
from threadkeep.web.callers import PUBLIC
from threadkeep.web.problems import ProblemRaised, documented, make_problem
from threadkeep.web.schemas import Health, Readiness

router = APIRouter(tags=["health"])

PATIENCE_SECONDS = 2.0


@router.get("/healthz", summary="Is the service alive?")
async def healthz() -> Health:
    """Return 200 as long as the process responds. No key is needed."""
    return Health()


@router.get("/readyz", summary="Can the service work?", responses=documented(503), openapi_extra=PUBLIC)
async def readyz(app: AppInUse) -> Readiness:
    """Return 200 if the database answers within two seconds, else 503. Without it, the chat has no history."""
    backend = app.settings.database.backend
    state = Readiness(
        backend=backend,
        # Opening the memory has migrated the database to this schema.
        schema_version=known_migrations(backend)[-1][0],
        pending_writes=app.memory.pending.count,
        unreadable_writes=len(await app.memory.pending.damaged()),
    )
    if (sentence := await _trouble(app.memory)) is not None:
        problem = make_problem(503, "database-unavailable", sentence)
        raise ProblemRaised(problem.model_copy(update={**state.model_dump(), "ready": False}))
    return state


@router.get("/metrics", summary="Get the metrics", response_class=PlainTextResponse, responses=documented(404))
async def metrics(app: AppInUse) -> Response:
    """Return all metrics in the text format of Prometheus."""
    if app.metrics is None:
        sentence = "Metrics are not installed: pip install 'threadkeep[metrics]', and restart the service."
        raise ProblemRaised(make_problem(404, "not-measured", sentence))
    app.metrics.set_runs(await _runs_now(app.memory))
    return Response(app.metrics.render(), media_type=app.metrics.content_type)


async def _runs_now(memory: Memory) -> Mapping[str, int] | None:
    """Return the numbers of runs for the metrics; None if the database fails or does not answer in time."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return asdict(await memory.runs.records.counts())
    except (StoreError, TimeoutError):
        return None


async def _trouble(memory: Memory) -> str | None:
    """Return the reason why the database is unavailable, with the cure; None if it answers."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await memory.check_database()
    except DatabaseFileReplaced as error:
        return error.CURE
    except (StoreError, TimeoutError):
        return "The database does not answer; check that it runs. Turns are kept until it does."
    return None
