"""The doctor's look at the database: does it answer, is its schema ours, may we write, who holds it up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from threadkeep.cli.findings import Finding
from threadkeep.cli.wording import counted, duration, size
from threadkeep.context.calibration import GREATEST_FACTOR, LEAST_FACTOR
from threadkeep.errors import SchemaTooNew, StoreError
from threadkeep.history.memory_options import utc_now
from threadkeep.settings import Settings
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.condition import Condition, LockHolder, can_write, read_condition
from threadkeep.store.driver import Driver, StoreOptions
from threadkeep.store.file_locks import lock_holders
from threadkeep.store.opening import open_database
from threadkeep.store.runs.order import RunOrder
from threadkeep.store.runs.records import RunRecords
from threadkeep.store.runs.runs import STALE_SECONDS
from threadkeep.store.search import MUCH_UNINDEXED
from threadkeep.store.token_factors import TokenFactors

_PATIENCE_SECONDS = 5.0
_SLOW_SECONDS = 1.0
_LONG_QUEUED_SECONDS = 60.0


async def check_database(settings: Settings) -> list[Finding]:
    """All findings on the database that the settings name."""
    address = settings.database
    if address.path is not None and not address.path.exists():
        return [Finding("database", "ok", f"{address} is not there yet; the first start makes it.")]
    try:
        async with open_database(address, _impatient(settings.store_options())) as driver:
            started = time.perf_counter()
            condition = await read_condition(driver)
            seconds = time.perf_counter() - started
            found = [_answer(address, condition, seconds), _schema(condition), _durability(address, condition)]
            found += await _writing(driver, address, condition)
            found += [*_search(condition), *await _runs(driver, condition)]
            return [*found, *await _token_factors(driver, condition)]
    except ModuleNotFoundError as error:
        cure = "Install it with: pip install 'threadkeep[postgres]'"
        return [Finding("database", "fail", f"{address} needs the package {error.name}.", cure)]
    except StoreError as error:
        holding = _holding(address, ()) if address.path is not None else []
        return [Finding("database", "fail", f"{address}: {error}", _cure(address)), *holding]


def _impatient(options: StoreOptions) -> StoreOptions:
    """A doctor does not wait as long as a service may."""
    return replace(
        options,
        lock_timeout_seconds=min(options.lock_timeout_seconds, _PATIENCE_SECONDS),
        pool_timeout_seconds=min(options.pool_timeout_seconds, _PATIENCE_SECONDS),
        pool_min_size=1,
        pool_max_size=2,
    )


def _cure(address: DatabaseAddress) -> str:
    if address.backend == "postgres":
        return "Start the server and let this machine connect, or name another in THREADKEEP_DATABASE_URL."
    return "Mend the file or its permissions, restore a backup, or name another in THREADKEEP_DATABASE_URL."


def _answer(address: DatabaseAddress, condition: Condition, seconds: float) -> Finding:
    engine = condition.engine.get("version") or condition.engine.get("server_version", "")
    name = "SQLite" if address.backend == "sqlite" else "PostgreSQL"
    detail = f"{address} answers ({name} {engine}, {seconds * 1000:.0f} ms)"
    if condition.messages is not None:
        detail += f": {counted(condition.messages, 'message')} of {counted(condition.sessions or 0, 'session')}"
    if address.path is not None:
        detail += f", {size(address.path.stat().st_size)}"
        if condition.much_is_free:
            detail += f", {size(condition.free_bytes)} of it free (threadkeep sessions prune --vacuum gives that back)"
    if seconds > _SLOW_SECONDS:
        return Finding("database", "warn", f"{detail}.", "It is slow: look at its load, its disk and the network.")
    return Finding("database", "ok", f"{detail}.")


def _schema(condition: Condition) -> Finding:
    found, newest = condition.schema, condition.newest
    if found > newest:
        sentence = str(SchemaTooNew(found=found, known=newest))
        detail, _, cure = sentence.partition(": ")
        return Finding("schema", "fail", f"{detail}.", cure[:1].upper() + cure[1:])
    if found < newest:
        return Finding(
            "schema", "warn", f"The schema is {found}, this Threadkeep's is {newest}.", "Run: threadkeep migrate"
        )
    return Finding("schema", "ok", f"Up to date at {found}.")


def _durability(address: DatabaseAddress, condition: Condition) -> Finding:
    engine = condition.engine
    if address.backend == "postgres":
        off = [name for name in ("fsync", "synchronous_commit") if engine.get(name) == "off"]
        if off:
            return Finding(
                "durability",
                "warn",
                f"The server has {' and '.join(off)} off: a power cut may lose acknowledged turns.",
                f"Set {' and '.join(f'{name} = on' for name in off)} on the server.",
            )
        return Finding("durability", "ok", "A power cut loses no acknowledged turn.")
    journal, synchronous = engine.get("journal_mode", ""), engine.get("synchronous", "")
    detail = f"Journal {journal}, synchronous {synchronous}"
    if address.path is not None and journal != "wal":
        cure = "Move the file to a local disk: WAL is not for network file systems."
        return Finding("durability", "warn", f"{detail}: readers and writers wait for each other.", cure)
    if synchronous == "normal":
        cure = "Set THREADKEEP_SQLITE_SYNCHRONOUS=FULL unless that is meant."
        return Finding("durability", "warn", f"{detail}: a power cut may lose the last turns.", cure)
    return Finding("durability", "ok", f"{detail}: a power cut loses no acknowledged turn.")


async def _writing(driver: Driver, address: DatabaseAddress, condition: Condition) -> list[Finding]:
    if condition.engine.get("transaction_read_only") == "on":
        cure = "Name the primary server in THREADKEEP_DATABASE_URL."
        return [Finding("writing", "fail", "The server takes no writes here.", cure)]
    try:
        await can_write(driver)
    except StoreError as error:
        return [Finding("writing", "fail", str(error), _cure(address)), *_holding(address, ())]
    return [Finding("writing", "ok", "A write transaction begins at once."), *_holding(address, condition.holders)]


def _holding(address: DatabaseAddress, holders: Sequence[LockHolder]) -> list[Finding]:
    """Who has the database open, and who may hold others up."""
    if address.path is not None:
        holders = lock_holders(address.path)
    busy = [holder for holder in holders if holder.doing != "open"]
    if busy:
        names = ", ".join(_named(holder) for holder in busy)
        cure = "If that is not meant, end the process (or the transaction) that holds the others up."
        return [Finding("locks", "warn", f"Held up by {names}.", cure)]
    if holders:
        return [Finding("locks", "ok", f"Also open in {', '.join(_named(holder) for holder in holders)}.")]
    return [Finding("locks", "ok", "Nobody holds a lock that can be seen from here.")]


def _named(holder: LockHolder) -> str:
    name = f"{holder.name} " if holder.name else ""
    told = f"{name}(process {holder.pid})" if holder.pid else f"{name or 'a process'} outside of this container"
    if holder.doing != "open":
        told += f", {holder.doing}"
    return told + (f" for {duration(holder.seconds)}" if holder.seconds is not None else "")


def _search(condition: Condition) -> list[Finding]:
    if condition.unindexed is None:
        return []
    if condition.unindexed >= MUCH_UNINDEXED:
        cure = "Run: threadkeep migrate (it fills the index); a running service does so by itself."
        return [Finding("search", "warn", f"The index still lacks {counted(condition.unindexed, 'message')}.", cure)]
    return [Finding("search", "ok", f"{counted(condition.unindexed, 'message')} to be indexed.")]


async def _runs(driver: Driver, condition: Condition) -> list[Finding]:
    """What there is to do, and whether anybody does it."""
    if condition.schema != condition.newest:
        return []
    records, order = RunRecords(driver), RunOrder(driver, clock=utc_now, stale=timedelta(seconds=STALE_SECONDS))
    counts = await records.counts()
    detail = f"{counts.queued:,} queued, {counts.running:,} at work, {counts.waiting:,} wait for a person"
    if counts.set_aside:
        cure = "See why, and have them tried again: threadkeep runs list --set-aside"
        return [Finding("runs", "warn", f"{detail}, {counts.set_aside:,} are set aside.", cure)]
    if await order.ready(limit=1, waited_seconds=_LONG_QUEUED_SECONDS):
        cure = "Start `threadkeep serve` or `threadkeep worker` on this database, or more of them."
        return [Finding("runs", "warn", f"{detail}; some have been in the queue for long.", cure)]
    return [Finding("runs", "ok", f"{detail}.")]


async def _token_factors(driver: Driver, condition: Condition) -> list[Finding]:
    """How far the estimate of tokens is from what each model's provider counts, as far as that was learned."""
    if condition.schema != condition.newest:
        return []
    factors = await TokenFactors(driver, clock=utc_now).all()
    if not factors:
        return [Finding("token factors", "ok", "None learned yet: no provider has reported a count that differs.")]
    told = [f"{model} ×{value:.2f} ({counted(calls, 'call')})" for model, (value, calls) in sorted(factors.items())]
    detail = f"Estimates are corrected for {', '.join(told)}."
    far = [model for model, (value, _) in sorted(factors.items()) if not LEAST_FACTOR < value < GREATEST_FACTOR]
    if far:
        cure = f"For {', '.join(far)} the correction is at its limit: what that provider reports may not be tokens."
        return [Finding("token factors", "warn", detail, cure)]
    return [Finding("token factors", "ok", detail)]
