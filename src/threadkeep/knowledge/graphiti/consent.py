"""Consent to sending data to a Graphiti server, by kind of data, and the workspaces that the operator trusts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from threadkeep.errors import GraphitiClosed, GraphitiClosure, InvalidInput
from threadkeep.records.graphiti import CONSENT_VERSION, DATA_CLASSES, Consent, DataClass, Decision, GraphitiOptions
from threadkeep.records.knowledge import MAX_OWNER_CHARACTERS, check_name
from threadkeep.records.sessions import check_argument, check_each
from threadkeep.store.codec import clean_text, time_of, time_text
from threadkeep.store.driver import Driver, Row, Statement
from threadkeep.store.statements import ClockedTables


class Consents(ClockedTables, sql=("graph_consents.sql",)):
    """The tables of consents and trusted workspaces.

    Each check reads the database, because another process may just have withdrawn consent. The SQL statements that
    record a turn, or mark a message as sent, make the same check themselves.
    """

    def __init__(self, driver: Driver, options: GraphitiOptions | None, *, clock: Callable[[], datetime]) -> None:
        super().__init__(driver, clock=clock)
        self._options = options if options is not None and options.enabled else None

    async def granted(self) -> frozenset[DataClass]:
        """Return the kinds of data that may be sent to the configured server, according to the current consent."""
        if self._options is None:
            return frozenset()
        rows = await self._driver.fetch(*self._granted_statement(self._options))
        return _granted_in(rows)

    async def closed(self, workspace: str | None, data_class: DataClass = "chat_text") -> GraphitiClosure | None:
        """Return why this kind of data may not be sent to Graphiti from a workspace now, or None if it may."""
        if self._options is None:
            return "off"
        async with self._driver.reading() as connection:
            return closure_in(await connection.fetch_each(self.statements(workspace)), data_class)

    async def check(self, workspace: str | None, data_class: DataClass = "chat_text") -> None:
        """Check that this kind of data of a workspace may be sent to Graphiti now.

        Raises:
            GraphitiClosed: the data may not be sent; the error has the reason.
        """
        if (reason := await self.closed(workspace, data_class)) is not None:
            raise GraphitiClosed(reason, data_class)

    def statements(self, workspace: str | None) -> list[Statement]:
        """Return the SQL statements that read the consent and the trust in the workspace, for `closure_in`."""
        if self._options is None:
            return []
        named = None if workspace is None else clean_text(workspace)
        return [self._granted_statement(self._options), (self._sql["is_trusted"], {"workspace": named})]

    async def decide(self, decision: Decision, data_classes: Sequence[DataClass], *, by: str) -> Consent:
        """Store a person's decision about the server. It replaces the previous one, which `decisions` still returns.

        Raises:
            GraphitiClosed: Graphiti is off.
            InvalidInput: a kind of data does not exist, a grant lacks `chat_text`, or the person's name is not valid.
        """
        check_each("data_classes", data_classes, str)
        if self._options is None:
            raise GraphitiClosed("off")
        check_name("person's name", by, MAX_OWNER_CHARACTERS)
        if not set(data_classes) <= set(DATA_CLASSES) or (decision == "granted" and "chat_text" not in data_classes):
            raise InvalidInput(f"Consent must name chat_text, and optionally {', '.join(DATA_CLASSES[1:])}.")
        consent = Consent(
            version=CONSENT_VERSION,
            endpoint=self._options.endpoint,
            data_classes=tuple(name for name in DATA_CLASSES if name in data_classes),
            decision=decision,
            decided_by=by,
            decided_at=self._clock(),
        )
        row = {
            **vars(consent),
            "data_classes": f" {' '.join(consent.data_classes)} ",
            "now": time_text(consent.decided_at),
        }
        await self._execute("decide", row)
        return consent

    async def decisions(self, limit: int = 20) -> list[Consent]:
        """Return the newest `limit` decisions about consent, for all Graphiti servers, newest first."""
        rows = await self._driver.fetch(self._sql["decisions"], {"limit": limit})
        return [
            Consent(
                version=version,
                endpoint=endpoint,
                data_classes=_classes(classes),
                decision=decision,
                decided_by=by,
                decided_at=time_of(at),
            )
            for version, endpoint, classes, decision, by, at in rows
        ]

    async def trust(self, workspace: str | None, *, by: str) -> None:
        """Record that the person `by` trusts a workspace; None means runs without a workspace."""
        check_name("person's name", by, MAX_OWNER_CHARACTERS)
        row = {"workspace": _workspace(workspace), "trusted_by": by, "now": time_text(self._clock())}
        await self._execute("trust", row)

    async def distrust(self, workspace: str | None) -> bool:
        """Stop trusting a workspace; return False if it was not trusted."""
        return await self._execute("distrust", {"workspace": _workspace(workspace)}) > 0

    async def trusted(self) -> list[str | None]:
        """Return the trusted workspaces; None means runs without a workspace."""
        return [row[0] or None for row in await self._driver.fetch(self._sql["trusted"], {})]

    def _granted_statement(self, options: GraphitiOptions) -> Statement:
        return self._sql["granted"], {"endpoint": options.endpoint, "version": CONSENT_VERSION}


def _workspace(name: str | None) -> str:
    """Return the stored name of a workspace, which is empty for runs without a workspace.

    Raises:
        InvalidInput: the name is not a valid name of a workspace.
    """
    check_argument("workspace", name, str)
    if name:
        check_name("workspace's name", name, MAX_OWNER_CHARACTERS)
    return name or ""


def closure_in(rows: Sequence[Sequence[Row]], data_class: DataClass = "chat_text") -> GraphitiClosure | None:
    """Return why data of this class may not go to Graphiti, or None if it may. `rows`: see `Consents.statements`."""
    if not rows:
        return "off"
    granted, trusted = rows
    if data_class not in _granted_in(granted):
        return "no_consent"
    return None if trusted else "untrusted"


def allowed_since(rows: Sequence[Sequence[Row]]) -> datetime:
    """Return the earliest time of a message that may be sent to Graphiti. Call only if `closure_in(rows)` is None."""
    [granted], [trusted] = rows
    if "backfill" in _classes(granted[0]):
        return datetime.min.replace(tzinfo=UTC)
    since: datetime = max(time_of(granted[1]), time_of(trusted[0]))
    return since


def _granted_in(rows: Sequence[Row]) -> frozenset[DataClass]:
    return frozenset(_classes(rows[0][0])) if rows else frozenset()


def _classes(text: str) -> tuple[DataClass, ...]:
    return tuple(name for name in DATA_CLASSES if name in text.split())


CACHED_SECONDS = 30.0
_TIMEOUT_SECONDS = 5.0


class GitMetadata:
    """The state of a Git working tree, cached for half a minute."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._read_at = 0.0
        self._known: dict[str, object] | None = None

    async def read(self) -> dict[str, object] | None:
        """Return the branch, the commit, and whether tracked files have changes, or None if git fails."""
        if self._folder is None:
            return None
        if self._read_at and time.monotonic() - self._read_at < CACHED_SECONDS:
            return self._known
        printed = await self._status()
        self._known = None
        if printed is not None:
            lines = printed.splitlines()
            head = dict(line.split(" ", 2)[1:] for line in lines if line.startswith("# "))
            branch, commit = head["branch.head"], head["branch.oid"]
            if commit != "(initial)":
                dirty = any(not line.startswith("# ") for line in lines)
                self._known = {
                    "branch": "HEAD" if branch == "(detached)" else branch,
                    "commit": commit[:12],
                    "dirty": dirty,
                }
        self._read_at = time.monotonic()
        return self._known

    async def _status(self) -> str | None:
        """Return the output of `git status` for the folder, or None if git fails or is not installed."""
        options = ("--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no")
        command = ["git", "-C", str(self._folder), "status", *options]
        null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=pipe, stderr=null)
        except OSError:
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                printed, _ = await process.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            return None
        return printed.decode(errors="replace") if process.returncode == 0 else None
