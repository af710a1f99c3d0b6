"""Checks of databases for `threadkeep doctor`: connection, schema, rights, locks, damage and more."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from threadkeep.cli.terminal import Finding, counted, duration, file_size
from threadkeep.context.tokens import TokenFactor
from threadkeep.errors import InvalidSettings, SessionDamaged, StoreError
from threadkeep.graph_store.items import TableItems
from threadkeep.graph_store.layout import ConversationLayouts, GraphLayout
from threadkeep.graph_store.reading import ConversationReader
from threadkeep.history.memory_parts import is_in_use
from threadkeep.settings import Settings
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.backend import check_location
from threadkeep.store.codec import utc_now
from threadkeep.store.condition import (
    Condition,
    Integrity,
    LockHolder,
    MissingRights,
    check_integrity,
    lock_holders,
    missing_rights,
    read_condition,
)
from threadkeep.store.contexts import TokenFactors
from threadkeep.store.driver import Backend, Driver, RowLocked, StoreOptions
from threadkeep.store.migrations import check_schema, known_migrations, schema_version
from threadkeep.store.opening import open_database
from threadkeep.store.partitions import PartitionState, partition_state
from threadkeep.store.private_files import is_read_only, nearest_existing
from threadkeep.store.runs import Runs
from threadkeep.store.search import MUCH_UNINDEXED

_DATABASE_SECONDS = 5.0
_INTEGRITY_SECONDS = 60.0
_GRAPH_STORE_SECONDS = 30.0
_SLOW_SECONDS = 1.0
_LONG_QUEUED_SECONDS = 60.0
_MOST_NAMED = 5
_WRITING = "DELETE, INSERT, UPDATE"
_CAUSE_AND_CURE = re.compile(r"(.*?\))[.;] (.*)", re.DOTALL)
_DAMAGE_CURE = "Restore a backup. What can still be read is saved by: threadkeep sessions export --all"


async def check_database(settings: Settings) -> list[Finding]:
    """Check the configured database, except its integrity (see `check_all_integrity`), and return the findings."""
    address = settings.database
    if address.path is not None and not os.access(address.path, os.F_OK):
        folder = nearest_existing(address.path.parent)
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return [Finding("database", "ok", f"{address} does not exist yet; the first start creates it.")]
        detail = f"{address} cannot be created: {folder} is not a folder that this user may write to."
        cure = "Correct its permissions, or name another in THREADKEEP_DATABASE_URL."
        return [Finding("database", "fail", detail, cure)]
    try:
        async with open_database(address, _with_short_timeouts(settings.store_options())) as driver:
            started = time.perf_counter()
            condition = await read_condition(driver)
            seconds = time.perf_counter() - started
            found = [
                _answer(address, condition, seconds),
                _schema(driver.backend, condition),
                _durability(address, condition),
            ]
            found += await _location(driver, settings, condition)
            found += await _writing(driver, address, condition)
            found += _rights(await missing_rights(driver), condition)
            if grant := condition.engine.get("engine_grant"):
                detail = (
                    f"The role {condition.engine['role']} lacks rights on the engine's schema, so it executes no runs."
                )
                found.append(Finding("engine", "warn", detail, f"If this is not intended, as the owner: {grant}"))
            found += _partitions(await partition_state(driver), settings.partitions)
            found += _search(condition)
            if condition.schema == condition.newest:
                found += [await _runs(driver), await _token_factors(driver)]
            return found
    except (StoreError, ModuleNotFoundError) as error:
        holding = _holding(address, ()) if address.path is not None else []
        return [_unreachable("database", address, error), *holding]


def _unreachable(check: str, address: DatabaseAddress, error: StoreError | ModuleNotFoundError) -> Finding:
    if isinstance(error, ModuleNotFoundError):
        cure = "Install it with: pip install 'threadkeep[postgres]'"
        return Finding(check, "fail", f"{address} needs the package {error.name}.", cure)
    detail, cure = _explained(address, error)
    return Finding(check, "fail", f"{address}: {detail}", cure)


def _explained(address: DatabaseAddress, error: StoreError) -> tuple[str, str]:
    """Split an error's text into a description and advice. If it contains no advice, add general advice."""
    if isinstance(error, RowLocked):
        detail, _, _ = str(error).partition("; ")
        return f"{detail}.", "End that transaction (see `locks`), or wait for its end."
    if parts := _CAUSE_AND_CURE.fullmatch(str(error)):
        return f"{parts[1]}.", parts[2][:1].upper() + parts[2][1:]
    if address.backend == "postgres":
        cure = "Start the server and allow this machine to connect, or name another in THREADKEEP_DATABASE_URL."
    else:
        cure = "Repair the file or its permissions, restore a backup, or name another in THREADKEEP_DATABASE_URL."
    return str(error), cure


def _with_short_timeouts(options: StoreOptions) -> StoreOptions:
    """Return the options with timeouts of at most five seconds, because a person waits for `threadkeep doctor`."""
    return replace(
        options,
        lock_timeout_seconds=min(options.lock_timeout_seconds, _DATABASE_SECONDS),
        pool_timeout_seconds=min(options.pool_timeout_seconds, _DATABASE_SECONDS),
        pool_min_size=1,
        pool_max_size=2,
    )


def _answer(address: DatabaseAddress, condition: Condition, seconds: float) -> Finding:
    engine = condition.engine.get("version") or condition.engine.get("server_version", "")
    name = "SQLite" if address.backend == "sqlite" else "PostgreSQL"
    detail = f"{address} answers ({name} {engine}, {seconds * 1000:.0f} ms)"
    if condition.messages is not None:
        detail += f": {counted(condition.messages, 'message')} of {counted(condition.sessions or 0, 'session')}"
    if address.path is not None:
        detail += f", {file_size(address.path.stat().st_size)}"
        if condition.much_is_free:
            free = file_size(condition.free_bytes)
            detail += f", {free} of it free (threadkeep sessions prune --vacuum releases it)"
    if seconds > _SLOW_SECONDS:
        return Finding("database", "warn", f"{detail}.", "It is slow; check its load, its disk and the network.")
    return Finding("database", "ok", f"{detail}.")


def _schema(backend: Backend, condition: Condition) -> Finding:
    found, newest = condition.schema, condition.newest
    try:
        check_schema(backend, found)
    except StoreError as error:
        detail, _, cure = str(error).partition(": ")
        return Finding("schema", "fail", f"{detail}.", cure[:1].upper() + cure[1:])
    if found < newest:
        return Finding(
            "schema", "warn", f"The schema is {found}; this Threadkeep needs {newest}.", "Run: threadkeep migrate"
        )
    return Finding("schema", "ok", f"Up to date at {found}.")


async def _location(driver: Driver, settings: Settings, condition: Condition) -> list[Finding]:
    """Return a finding if sessions store messages elsewhere (tables or graph store) than the settings say."""
    try:
        if condition.schema == condition.newest and condition.sessions is not None:
            await check_location(driver, settings.transcripts)
    except InvalidSettings as error:
        cure = f"Restore the earlier {error.variable}, or name another database in THREADKEEP_DATABASE_URL."
        return [Finding("transcripts", "fail", str(error), cure)]
    return []


def _durability(address: DatabaseAddress, condition: Condition) -> Finding:
    engine = condition.engine
    if address.backend == "postgres":
        off = [name for name in ("fsync", "synchronous_commit") if engine.get(name) == "off"]
        if off:
            cure = f"Set {' and '.join(f'{name} = on' for name in off)} on the server."
            detail = f"The server has {' and '.join(off)} off: a power cut may lose acknowledged turns."
            return Finding("durability", "warn", detail, cure)
        return Finding("durability", "ok", "A power cut loses no acknowledged turn.")
    journal, synchronous = engine.get("journal_mode", ""), engine.get("synchronous", "")
    detail = f"Journal {journal}, synchronous {synchronous}"
    if address.path is not None and journal != "wal" and not is_read_only(address.path):
        cure = "Move the file to a local disk: WAL does not work on network file systems."
        return Finding("durability", "warn", f"{detail}: readers and writers wait for each other.", cure)
    if synchronous == "normal":
        cure = "Set THREADKEEP_SQLITE_SYNCHRONOUS=FULL unless this is intended."
        return Finding("durability", "warn", f"{detail}: a power cut may lose the last turns.", cure)
    return Finding("durability", "ok", f"{detail}: a power cut loses no acknowledged turn.")


async def _writing(driver: Driver, address: DatabaseAddress, condition: Condition) -> list[Finding]:
    if condition.engine.get("transaction_read_only") == "on":
        cure = "Name the primary server in THREADKEEP_DATABASE_URL."
        return [Finding("writing", "fail", "The server is read-only.", cure)]
    if address.path is not None and is_read_only(address.path):
        cure = "Make it writable for this user, or use a copy: `threadkeep backup FILE` makes one."
        return [Finding("writing", "fail", "The file, its folder or its mount is read-only.", cure)]
    try:
        await driver.write([])
    except StoreError as error:
        return [Finding("writing", "fail", *_explained(address, error)), *_holding(address, ())]
    return [
        Finding("writing", "ok", "A write transaction begins at once."),
        *_holding(address, condition.holders, hidden=condition.engine),
    ]


def _rights(missing: Sequence[MissingRights], condition: Condition) -> list[Finding]:
    """Return a finding if the database role lacks rights on PostgreSQL tables."""
    if not missing:
        return []
    role, schema = condition.engine["role"], missing[0].schema
    cure = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
    cure = f"As the role that owns the tables: {cure}; GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}"
    may_read = {one.rights for one in missing} <= {_WRITING, "USAGE"}
    if may_read and any((one.table, one.rights) == ("chat_messages", _WRITING) for one in missing):
        detail = f"The role {role} may only read, so it cannot store messages or index them for searches."
        return [Finding("rights", "warn", detail, f"If this is not intended: {cure[:1].lower()}{cure[1:]}")]
    names = [f"{one.table} ({one.rights})" for one in missing]
    return [Finding("rights", "fail", f"The role {role} lacks rights on {_some(names)}.", cure)]


def _holding(
    address: DatabaseAddress, holders: Sequence[LockHolder], *, hidden: Mapping[str, str] | None = None
) -> list[Finding]:
    """Return a finding about locks that may block others. `hidden` counts connections whose locks cannot be seen."""
    if address.path is not None:
        holders = lock_holders(address.path)
    busy = [holder for holder in holders if holder.doing != "open"]
    if busy:
        names = ", ".join(_name_of(holder) for holder in busy)
        cure = "If this is not intended, end the process, or only its transaction."
        if address.path is not None:
            return [Finding("locks", "warn", f"Other writes wait for {names}.", cure)]
        return [Finding("locks", "warn", f"Transactions have been open for long and may block others: {names}.", cure)]
    if holders:
        return [Finding("locks", "ok", f"Also open in {', '.join(_name_of(holder) for holder in holders)}.")]
    detail = "No other process is seen to hold a lock"
    if hidden and (count := int(hidden.get("hidden_connections", 0))):
        shown = f"GRANT pg_read_all_stats TO {hidden['role']} would show them"
        detail += f"; the transactions of {counted(count, 'connection')} of other roles are hidden ({shown})"
    return [Finding("locks", "ok", f"{detail}.")]


def _name_of(holder: LockHolder) -> str:
    name = f"{holder.name} " if holder.name else ""
    words = f"{name}(process {holder.pid})" if holder.pid else f"{name or 'a process'} outside of this container"
    if holder.doing != "open":
        words += f", {holder.doing}"
    return words + (f" for {duration(holder.seconds)}" if holder.seconds is not None else "")


def _partitions(state: PartitionState, wanted: int | None) -> list[Finding]:
    if state.is_begun:
        count = state.copied_into or wanted or "COUNT"
        cure = f"Run: threadkeep partition {count} (with --abandon to remove the copy)"
        return [Finding("partitions", "warn", "Partitioning is not complete; until then, writes cost more.", cure)]
    detail = f"Messages are in {state.partitions} partitions." if state.partitions else "Messages are in one table."
    if wanted not in (None, state.partitions):
        cure = f"Run: threadkeep partition {wanted}" if not state.partitions else "Set it to the existing number."
        return [Finding("partitions", "warn", f"{detail} THREADKEEP_PARTITIONS is {wanted}.", cure)]
    return [Finding("partitions", "ok", detail)] if state.partitions else []


def _search(condition: Condition) -> list[Finding]:
    if condition.unindexed is None:
        return []
    if condition.unindexed >= MUCH_UNINDEXED:
        cure = "Run: threadkeep migrate (it fills the index); a running service does it, too."
        return [Finding("search", "warn", f"{counted(condition.unindexed, 'message')} not indexed yet.", cure)]
    return [Finding("search", "ok", f"{counted(condition.unindexed, 'message')} to be indexed.")]


async def _runs(driver: Driver) -> Finding:
    """Return a finding about unfinished runs, and about runs that were set aside or whose workflow a worker lacks."""
    runs = Runs(driver, clock=utc_now)
    counts = await runs.records.counts()
    detail = f"{counts.queued:,} queued, {counts.running:,} running, {counts.waiting:,} waiting for a person"
    detail += f", {counts.set_aside:,} set aside after too many failures" if counts.set_aside else ""
    if gone := await runs.records.without_workflow():
        names = _some([f"{run_id} ({workflow})" for run_id, workflow in gone])
        detail += f". A worker lacks the workflows of these runs, and later turns of their sessions wait: {names}."
        cure = f"Start a worker that has the workflow, or end the run: threadkeep runs cancel {gone[0][0]}"
        return Finding("runs", "fail", detail, cure)
    if counts.set_aside:
        cure = "See the reasons, then retry them: threadkeep runs list --set-aside"
        return Finding("runs", "warn", f"{detail}.", cure)
    if await runs.order.ready(limit=1, waited_seconds=_LONG_QUEUED_SECONDS):
        cure = "Start `threadkeep serve` or `threadkeep worker` on this database, or more of them."
        return Finding("runs", "warn", f"{detail}; some have been queued for more than a minute.", cure)
    return Finding("runs", "ok", f"{detail}.")


async def _token_factors(driver: Driver) -> Finding:
    """Return the finding about the corrections of token estimates that were learned for each model."""
    stored = sorted((await TokenFactors(driver, clock=utc_now).all()).items())
    factors = [TokenFactor(key, *values) for key, values in stored if is_in_use(key)]
    if not factors:
        return Finding("token factors", "ok", "None learned yet: no provider has reported a different count.")
    learned = [f"{factor.model} {factor.label} ({counted(factor.samples, 'call')})" for factor in factors]
    detail = f"Estimates are corrected for {', '.join(learned)}."
    far = [factor.model for factor in factors if factor.is_at_limit]
    if far:
        cure = f"The correction for {', '.join(far)} is at its limit: the provider may not report tokens."
        return Finding("token factors", "warn", detail, cure)
    return Finding("token factors", "ok", detail)


async def check_all_integrity(settings: Settings, *, reachable: bool) -> list[Finding]:
    """Check the databases of the memory (if `reachable`), of the graph store and of the runs for damage."""
    found = await _check_integrity(settings, "integrity", settings.database, transcripts=True) if reachable else []
    if settings.graph_store != settings.database:
        found += await _check_integrity(settings, "graph store database", settings.graph_store, writing=True)
    try:
        from threadkeep.runs.engine.lease import engine_path
    except ModuleNotFoundError:
        return found
    if (path := settings.database.path) is not None:
        # Omit the key, because the workflow engine's own file is not encrypted; see `engine_path`.
        settings = settings.model_copy(update={"database_key": None})
        found += await _check_integrity(settings, "runs database", DatabaseAddress("sqlite", path=engine_path(path)))
    return found


async def _check_integrity(
    settings: Settings, check: str, address: DatabaseAddress, *, transcripts: bool = False, writing: bool = False
) -> list[Finding]:
    if address.path is not None and not os.access(address.path, os.F_OK):
        return [Finding(check, "ok", f"{address} does not exist yet; the first use creates it.")] if writing else []
    started = time.perf_counter()
    try:
        async with (
            asyncio.timeout(_INTEGRITY_SECONDS),
            open_database(address, _with_short_timeouts(settings.store_options())) as driver,
        ):
            if writing:
                await driver.write([])
            newest = known_migrations(driver.backend)[-1][0]
            integrity = await check_integrity(
                driver, transcripts=transcripts and await schema_version(driver) == newest
            )
    except TimeoutError:
        detail = f"{address} could not be checked within {_INTEGRITY_SECONDS:g} seconds."
        return [Finding(check, "warn", detail, "Check the load of its disk, and try again at a quiet time.")]
    except (StoreError, ModuleNotFoundError) as error:
        return [_unreachable(check, address, error)]
    return [_integrity(check, address, integrity, time.perf_counter() - started)]


def _integrity(check: str, address: DatabaseAddress, integrity: Integrity, seconds: float) -> Finding:
    if integrity.damage:
        detail = f"{address} is damaged: {'; '.join(integrity.damage[:_MOST_NAMED])}."
        return Finding(check, "fail", detail, _DAMAGE_CURE)
    if integrity.gaps:
        named = [f"{gap.session_id} ({gap.found:,} of {gap.expected:,})" for gap in integrity.gaps[:_MOST_NAMED]]
        detail = f"{counted(len(integrity.gaps), 'session')} of {address} with a wrong number of messages: "
        return Finding(check, "fail", f"{detail}{', '.join(named)}.", _DAMAGE_CURE)
    indexes = ""
    if address.backend == "postgres" and integrity.indexes is None:
        indexes = "; with the extension amcheck, indexes would be checked, too"
    elif address.backend == "postgres":
        indexes = f", {counted(integrity.indexes or 0, 'index', 'indexes')} checked"
    return Finding(check, "ok", f"{address} has no damage{indexes} ({seconds:.1f} s).")


async def check_graph_store(settings: Settings, integrity: Sequence[Finding]) -> list[Finding]:
    """Check for up to 30 seconds that the graph store can be read. Omit a failure that `integrity` already reports."""
    address, found = settings.graph_store, _Conversations()
    try:
        layouts = await _layouts(settings)
        if not layouts or (address.path is not None and not os.access(address.path, os.F_OK)):
            return []
        async with open_database(address, settings.store_options()) as driver:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRAPH_STORE_SECONDS):
                    for layout in layouts:
                        await found.read(ConversationReader(TableItems(driver), layout))
                found.complete = True
    except (StoreError, ModuleNotFoundError) as error:
        if any(finding.check == "graph store database" and finding.level == "fail" for finding in integrity):
            return []
        cure = "Check the finding on the database, and the settings of the graph store."
        return [Finding("graph store", "fail", f"The graph store cannot be read: {error}", cure)]
    return [found.finding()]


async def _layouts(settings: Settings) -> list[GraphLayout]:
    """Return the layouts (namespaces and field names) with which conversations are stored in the graph store."""
    found = [GraphLayout()] if settings.transcripts == "graph_store" else []
    if settings.database.path is None or os.access(settings.database.path, os.F_OK):
        async with open_database(settings.database, settings.store_options()) as driver:
            condition = await read_condition(driver)
            if condition.schema == condition.newest:
                noted = await ConversationLayouts(driver, clock=utc_now).all()
                found += [layout for layout in noted if not any(layout.finds_same_as(other) for other in found)]
    return found


@dataclass
class _Conversations:
    """A check of the conversations in a graph store. `missing` maps a session id to its number of lost messages."""

    count: int = 0
    damaged: list[SessionDamaged] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    complete: bool = False

    async def read(self, reader: ConversationReader) -> None:
        """Read all conversations that `reader` finds, and count their lost messages."""
        try:
            async for conversation in reader.all():
                self.count += 1
                expected, found = conversation.last_seq - conversation.deleted_seq, 0
                with suppress(SessionDamaged):
                    async for _ in reader.down(conversation, conversation.last_seq, 1):
                        found += 1
                    if found != expected:
                        self.missing[conversation.session_id] = expected - found
        finally:
            self.damaged += reader.damages.of()

    def finding(self) -> Finding:
        """Return the result of the check for all conversations that were read."""
        partly = "" if self.complete else f" Not all could be checked within {_GRAPH_STORE_SECONDS:g} seconds."
        if self.damaged:
            sessions = list({error.session_id: None for error in self.damaged})
            named = [f"{error.session_id} ({error.item} {error.problem})" for error in self.damaged]
            detail = f"{counted(len(sessions), 'conversation')} cannot be read: {_some(named)}.{partly}"
            cure = f"Repair these items, for example from a backup, or delete: threadkeep sessions delete {sessions[0]}"
            return Finding("graph store", "fail", detail, cure)
        if self.missing:
            named = [f"{session_id} ({counted(count, 'message')})" for session_id, count in self.missing.items()]
            conversations = counted(len(self.missing), "conversation")
            cure = "If they are needed, import them from a backup or an export; nothing else depends on them."
            return Finding(
                "graph store", "warn", f"Messages are missing in {conversations}: {_some(named)}.{partly}", cure
            )
        return Finding("graph store", "ok", f"{counted(self.count, 'conversation')} can be read.{partly}")


def _some(named: Sequence[str]) -> str:
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return ", ".join(named[:_MOST_NAMED]) + more
