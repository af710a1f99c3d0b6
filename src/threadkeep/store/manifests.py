"""Manifests (records of the parts of model calls), and the texts of parts that are in no transcript."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from itertools import batched
from typing import Literal

from threadkeep.errors import RecordUnreadable
from threadkeep.records import Json, dump_json
from threadkeep.store.codec import clean_json, clean_json_text, short_time, time_of, time_text
from threadkeep.store.compressed_json import compress, json_of, reads_record, unpack_manifest
from threadkeep.store.driver import GROUP_LOCK_SECONDS, Connection, DuplicateRow, Parameters, Row, Statement
from threadkeep.store.statements import ClockedTables, for_values

# A placeholder for a value that is stored in a column of the row, or in the transcript.
_ELSEWHERE: Json = True
type Cursor = tuple[datetime, str, int]

_TRIES = 5
_LAST: Cursor = (datetime.max.replace(tzinfo=UTC), "~", 2**31 - 1)
_ROWS_AT_ONCE = 500
# A text's `used_at` is renewed only if it is older than this. Otherwise every model call would write its texts again.
_RENEWAL = timedelta(hours=1)
# The largest expected difference between the clocks of two processes.
_CLOCKS_DIFFER = timedelta(minutes=1)


@dataclass(frozen=True)
class NotedManifest:
    """A record of a model call that is not stored yet. It will belong to the call's session, or else to the call's run.

    `manifest` is called when the record is written, and returns the manifest. `short_json` returns the JSON of
    `without_ids(manifest())` at lower cost, and `message_ids` the `seq` and the id of each transcript message in it.
    `texts` maps digests to those texts of the model call that are in no transcript. `again` means that an earlier
    attempt may have stored the record.
    """

    session_id: str | None
    run_id: str
    created_at: datetime
    manifest: Callable[[], Mapping[str, Json]]
    texts: Mapping[str, str] = field(default_factory=dict)
    again: bool = False
    short_json: Callable[[], str] | None = None
    message_ids: Callable[[], Collection[tuple[int, str]]] | None = None

    @cached_property
    def values(self) -> dict[str, Json]:
        """The manifest as JSON values; reading it raises `InvalidMessage` if the manifest is not JSON."""
        return clean_json(dict(self.manifest()))

    @cached_property
    def seqs(self) -> set[int]:
        """The `seq` of each transcript message in the manifest."""
        return {seq for seq, _ in self.message_ids()} if self.message_ids else seqs_of_ids(self.values)

    @property
    def lock_key(self) -> tuple[bool, str]:
        """A sort key: the session, or else the run, that is locked when the record is stored. Sessions come first."""
        return self.session_id is None, self.session_id or self.run_id


@dataclass(frozen=True)
class StoredManifest:
    """The record of one model call; `call` is 1, 2, 3 … in each run. `origin` is the `Memory` that has read the record.

    `session_id` is None if the record belongs to its run. A record that cannot be read has the manifest `{"error":
    "RecordUnreadable"}`.
    """

    session_id: str | None
    run_id: str
    call: int
    created_at: datetime
    manifest: Mapping[str, Json]
    origin: object = field(default=None, compare=False, repr=False)

    @property
    def cursor(self) -> Cursor:
        """The cursor for the page of records that are older than this record."""
        return self.created_at, self.run_id, self.call


@dataclass(frozen=True)
class _Owner:
    """The session or the run to which records of model calls belong. They are deleted with it."""

    column: Literal["session_id", "run_id"]
    name: str

    @property
    def session_id(self) -> str | None:
        """The id of the session; None for a run."""
        return self.name if self.column == "session_id" else None

    def statement(self, name: str) -> str:
        """Return the variant of a statement's name for this owner: `name` for a session, `{name}_of_run` for a run."""
        return name if self.column == "session_id" else f"{name}_of_run"


class ManifestRows(ClockedTables, sql=("manifests.sql", "{backend}/sessions.sql", "{backend}/runs.sql")):
    """The tables `chat_manifests` and `chat_context_texts`, and the two tables for runs without a session.

    A text is stored under its digest once per session (or run), as long as model calls use it. Manifests and texts are
    deleted with their session or run.
    """

    async def add(self, entries: Iterable[NotedManifest]) -> int:
        """Store a group of records in one transaction; return how many are in the database now.

        If the session of a record does not exist yet, the record is stored with its run. The same is done for a record
        that is older than its session, because it belongs to an earlier session with the same id. If the run does not
        exist either, the record is skipped.

        Raises:
            InvalidMessage: a manifest is not JSON; nothing was stored.
            RowLocked: another transaction has locked one of the sessions; nothing was stored.
            DuplicateRow: in five tries, other processes used the same number for a call of the run; nothing was stored.
        """
        # Lock sessions and runs in the order that all writers use, which prevents deadlocks.
        rows = sorted(entries, key=lambda entry: entry.lock_key)
        for _ in range(_TRIES - 1):
            with suppress(DuplicateRow):  # two processes have given the same number to two calls of one run
                return await self._add(rows)
        return await self._add(rows)

    def joined(self, entry: NotedManifest) -> list[Statement]:
        """Return the statements that store a record in the transaction that stores its session's messages.

        The manifest is stored without the ids of its transcript messages, so these must be the ids in the transcript.
        """
        session_id = str(entry.session_id)
        now, key = self._clock(), {"session_id": session_id, "run_id": entry.run_id}
        short = dump_json(without_ids(entry.manifest(), key)) if entry.short_json is None else entry.short_json()
        packed, created_at = compress(clean_json_text(short)), short_time(entry.created_at, self.backend)
        used = {"session_id": session_id, "now": time_text(now), "worn": time_text(now - _RENEWAL)}
        return [
            (self._sql["insert_manifest"], {**key, "created_at": created_at, "manifest": packed}),
            *[
                (self._sql["use_worn_text"], {**used, "digest": digest, "body": body.encode("utf-8", "surrogatepass")})
                for digest, body in sorted(entry.texts.items())
            ],
            *([self._dropping(session_id, [entry])] if entry.texts else []),
        ]

    def _dropping(self, session_id: str, entries: Iterable[NotedManifest]) -> Statement:
        """Return the statement that deletes a session's texts if an erasure took place after the first of `entries`."""
        begun = min(entry.created_at for entry in entries) - _CLOCKS_DIFFER
        key = {"session_id": session_id, "marker": erase_marker(session_id), "begun": time_text(begun)}
        return self._sql["drop_texts_after_erase"], key

    async def of_run(self, run_id: str, *, user_id: str | None = None) -> list[StoredManifest]:
        """Return a run's records of model calls in order; with `user_id`, only if this user owns the run or session."""
        found = await self._fetch("of_run", {"run_id": run_id, "user_id": user_id})
        return sorted(found, key=lambda stored: (stored.session_id or "", stored.call))

    async def of_runs(self, run_ids: Iterable[str]) -> list[StoredManifest]:
        """Return the records of the model calls of several runs, in any order."""
        found: list[StoredManifest] = []
        async with self._driver.reading() as connection:
            for some in batched(sorted(set(run_ids)), _ROWS_AT_ONCE):
                rows = await connection.fetch(*for_values(self._sql["of_runs"], "run_id", some))
                found += await self._whole(connection, [_manifest_of(row) for row in rows])
        return found

    async def of_session(
        self, session_id: str, *, user_id: str | None = None, limit: int = 50, before: Cursor | None = None
    ) -> list[StoredManifest]:
        """Return the records of a session's model calls that are older than the cursor `before`, newest first."""
        moment, run_id, call = before or _LAST
        parameters = {"created_at": short_time(moment, self.backend), "run_id": run_id, "call": call, "limit": limit}
        return await self._fetch("of_session", {"session_id": session_id, "user_id": user_id, **parameters})

    async def texts(
        self, session_id: str | None, digests: Iterable[str], *, run_id: str | None = None
    ) -> dict[str, str]:
        """Return the stored texts of a session and of a run by digest; unknown digests are left out."""
        wanted = sorted(set(digests))
        if not wanted:
            return {}
        owners = {"session_id": session_id, "run_id": run_id}
        rows = await self._driver.fetch(*for_values(self._sql["texts"], "digest", wanted, owners))
        return {str(digest): bytes(body).decode("utf-8", "surrogatepass") for digest, body in rows}

    async def purge(self, before: datetime, limit: int) -> int:
        """Delete manifests and texts that are older than `before`, up to `limit` rows per table; return the number."""
        manifests: Parameters = {"before": short_time(before, self.backend), "limit": limit}
        texts: Parameters = {"before": time_text(before - _RENEWAL), "limit": limit}
        async with self._driver.writing() as connection:
            steps = [("purge_manifests", manifests), ("purge_run_manifests", manifests)]
            steps += [("purge_texts", texts), ("purge_run_texts", texts)]
            return sum([await connection.execute(self._sql[statement], given) for statement, given in steps])

    async def _fetch(self, statement: str, parameters: Mapping[str, object]) -> list[StoredManifest]:
        async with self._driver.reading() as connection:
            found = [_manifest_of(row) for row in await connection.fetch(self._sql[statement], parameters)]
            return await self._whole(connection, found)

    async def _whole(self, connection: Connection, found: Sequence[StoredManifest]) -> list[StoredManifest]:
        """Return the manifests with their omitted message ids restored from the transcript."""
        seqs: dict[str | None, set[int]] = {}
        for each in found:
            seqs.setdefault(each.session_id, set()).update(seqs_of_ids(each.manifest))
        ids = {session_id: await self._ids_at(connection, session_id, some) for session_id, some in seqs.items()}
        return [replace(each, manifest=with_ids(each.manifest, ids[each.session_id])) for each in found]

    async def _ids_at(self, connection: Connection, session_id: str | None, seqs: Collection[int]) -> dict[int, str]:
        """Return the ids of the session's messages at `seqs`; none without a session."""
        ids: dict[int, str] = {}
        for some in batched(sorted(seqs) if session_id else (), _ROWS_AT_ONCE):
            wanted = for_values(self._sql["ids_at"], "seq", some, {"session_id": session_id})
            ids |= dict(await connection.fetch(*wanted))
        return ids

    async def _add(self, entries: Sequence[NotedManifest]) -> int:
        async with self._driver.writing(lock_timeout_seconds=GROUP_LOCK_SECONDS) as connection:
            left = [entry for entry in entries if entry.session_id is None]
            stored = 0
            for session_id in dict.fromkeys(entry.session_id for entry in entries if entry.session_id is not None):
                mine = [entry for entry in entries if entry.session_id == session_id]
                session = await connection.fetch(self._sql["keep_session"], {"session_id": session_id})
                kept = [entry for entry in mine if session and entry.created_at >= time_of(session[0][0])]
                stored += await self._keep(connection, _Owner("session_id", session_id), kept)
                left += [entry for entry in mine if entry not in kept]
            for run_id in sorted({entry.run_id for entry in left}):
                if await connection.fetch(self._sql["keep_run"], {"run_id": run_id}):
                    mine = [entry for entry in left if entry.run_id == run_id]
                    stored += await self._keep(connection, _Owner("run_id", run_id), mine)
        return stored

    async def _keep(self, connection: Connection, owner: _Owner, entries: Sequence[NotedManifest]) -> int:
        seqs = {seq for entry in entries for seq in entry.seqs}
        ids = await self._ids_at(connection, owner.session_id, seqs)
        parameters: list[dict[str, object]] = []
        for entry in entries:
            key = {
                "run_id": entry.run_id,
                "created_at": short_time(entry.created_at, self.backend),
                owner.column: owner.name,
            }
            if not (entry.again and await self._is_there(connection, owner, key, entry)):
                parameters.append({**key, "manifest": compress(_short_json(entry, owner, ids))})
        if parameters:
            await connection.execute_many(self._sql[owner.statement("insert_manifest")], parameters)
        texts = {digest: text for entry in entries for digest, text in sorted(entry.texts.items())}
        if texts:
            await self._use_texts(connection, owner, texts)
            if owner.session_id is not None:
                await connection.execute(*self._dropping(owner.session_id, entries))
        return len(entries)

    async def _is_there(self, connection: Connection, owner: _Owner, key: Parameters, entry: NotedManifest) -> bool:
        """Return True if an earlier attempt has stored the record, for its session or for its run."""
        found: list[StoredManifest] = []
        for each in dict.fromkeys((owner, _Owner("run_id", entry.run_id))):
            rows = await connection.fetch(self._sql[each.statement("noted_then")], key)
            found += [_manifest_of((each.session_id, entry.run_id, 0, entry.created_at, stored)) for (stored,) in rows]
        return any(dump_json(each.manifest) == dump_json(entry.values) for each in await self._whole(connection, found))

    async def _use_texts(self, connection: Connection, owner: _Owner, texts: Mapping[str, str]) -> None:
        now = self._clock()
        whose: dict[str, object] = {owner.column: owner.name}
        others = {**whose, "worn": time_text(now - _RENEWAL)}
        rows = await connection.fetch(*for_values(self._sql[owner.statement("fresh_texts")], "digest", texts, others))
        fresh = {digest for (digest,) in rows}
        used: list[dict[str, object]] = [
            {**whose, "digest": digest, "body": texts[digest].encode("utf-8", "surrogatepass"), "now": time_text(now)}
            for digest in sorted(texts.keys() - fresh)
        ]
        if used:
            await connection.execute_many(self._sql[owner.statement("use_text")], used)


def erase_marker(session_id: str) -> str:
    """Return the name under which the time of an erasure in a session is stored; it does not reveal the id."""
    return sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()


def _columns(session_id: str | None, run_id: str) -> dict[str, str]:
    """Return the fields of a manifest that are also stored in columns of their own."""
    return ({} if session_id is None else {"session_id": session_id}) | {"run_id": run_id}


def _short_json(entry: NotedManifest, owner: _Owner, ids: Mapping[int, str]) -> str:
    """Return the JSON of a record without the values of its columns and without the message ids that equal `ids`."""
    pairs = () if entry.message_ids is None else entry.message_ids()
    if entry.short_json and owner.session_id and all(ids.get(seq) == message_id for seq, message_id in pairs):
        return clean_json_text(entry.short_json())
    return dump_json(without_ids(entry.values, _columns(owner.session_id, entry.run_id), ids))


def _manifest_of(row: Row) -> StoredManifest:
    session_id, run_id, call, created_at, stored = row
    columns = _columns(session_id, run_id)
    try:
        manifest = _values_of(stored, columns)
    except RecordUnreadable as error:
        manifest = {"error": type(error).__name__}
    return StoredManifest(session_id, run_id, int(call), time_of(created_at), manifest)


@reads_record
def _values_of(stored: bytes, columns: Mapping[str, str]) -> dict[str, Json]:
    short = unpack_manifest(json_of(stored, dict), columns)
    return {name: value if value is not _ELSEWHERE else columns.get(name, value) for name, value in short.items()}


def seqs_of_ids(manifest: Mapping[str, Json]) -> set[int]:
    """Return the `seq` values of a manifest's transcript messages, even if their ids are omitted."""
    return {seq for entry in _entries(manifest) if (seq := _seq_of(entry)) is not None}


def without_ids(
    manifest: Mapping[str, Json], columns: Mapping[str, str], ids: Mapping[int, str] | None = None
) -> dict[str, Json]:
    """Return a manifest in which `true` replaces the ids of transcript messages, and the values in `columns`.

    These values are stored elsewhere, so this saves space. With `ids`, replace only ids that equal `ids[seq]`.
    """
    short = {**manifest, **{name: _ELSEWHERE for name, value in columns.items() if manifest.get(name) == value}}
    if isinstance(entries := manifest.get("entries"), list):
        short["entries"] = entries = list(entries)
        for index, entry in enumerate(entries):
            seq = _seq_of(entry)
            if seq is not None and isinstance(entry, dict) and (ids is None or ids.get(seq) == entry["id"]):
                entries[index] = {**entry, "id": _ELSEWHERE}
    return short


def with_ids(manifest: Mapping[str, Json], ids: Mapping[int, str]) -> dict[str, Json]:
    """Return the manifest with its omitted ids restored; `ids` maps `seq` values to message ids."""

    def whole(entry: Json) -> Json:
        if not isinstance(entry, Mapping) or entry.get("id") is not _ELSEWHERE:
            return entry
        known = ids.get(_seq_of(entry) or 0)
        return {name: value if name != "id" else known for name, value in entry.items() if name != "id" or known}

    entries = manifest.get("entries")
    return {**manifest, "entries": [whole(one) for one in entries]} if isinstance(entries, list) else dict(manifest)


def _entries(manifest: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    entries = manifest.get("entries")
    return [one for one in entries if isinstance(one, Mapping)] if isinstance(entries, list) else []


def _seq_of(entry: Json) -> int | None:
    if not isinstance(entry, dict) or entry.get("source") != "transcript":
        return None
    seq, known = entry.get("seq"), entry.get("id")
    return seq if type(seq) is int and (type(known) is str or known is _ELSEWHERE) else None
