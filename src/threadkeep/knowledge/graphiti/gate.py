"""Consent for an endpoint and kinds of data, and the workspaces that the operator trusts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from threadkeep.errors import GraphitiClosed, GraphitiClosure, InvalidInput
from threadkeep.records.graphiti import CONSENT_VERSION, DATA_CLASSES, Consent, DataClass, Decision, GraphitiOptions
from threadkeep.records.knowledge import MAX_OWNER_CHARACTERS, check_name
from threadkeep.store.codec import time_of, time_text
from threadkeep.store.driver import Driver, Statement
from threadkeep.store.statements import load_statements


class Gate:
    """Tells whether something may go to Graphiti now.

    It is asked of the database each time: another process may have withdrawn consent a moment ago. The statements that
    note a turn and that mark a message as sent ask the same in themselves.
    """

    def __init__(self, driver: Driver, options: GraphitiOptions | None, *, clock: Callable[[], datetime]) -> None:
        self._driver = driver
        self._options = options
        self._clock = clock
        self._sql = load_statements("graph_consents.sql")

    @property
    def endpoint(self) -> str:
        """The endpoint that consent is asked for.

        Raises:
            GraphitiClosed: there is none.
        """
        if self._options is None or not self._options.enabled:
            raise GraphitiClosed("off")
        return self._options.endpoint

    async def granted(self) -> frozenset[DataClass]:
        """Return the kinds of data that may go to the endpoint now."""
        if self._options is None or not self._options.enabled:
            return frozenset()
        asked = {"endpoint": self._options.endpoint, "version": CONSENT_VERSION}
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["granted"], asked)
        return frozenset(_classes(rows[0][0])) if rows else frozenset()

    async def closed(self, workspace: str | None, data_class: DataClass = "chat_text") -> GraphitiClosure | None:
        """Return why this kind of data of a workspace may not be sent now; None if it may."""
        if self._options is None or not self._options.enabled:
            return "off"
        asked = {"endpoint": self._options.endpoint, "version": CONSENT_VERSION}
        statements: list[Statement] = [
            (self._sql["granted"], asked),
            (self._sql["is_trusted"], {"workspace": workspace}),
        ]
        async with self._driver.reading() as connection:
            granted, trusted = await connection.fetch_each(statements)
        if not granted or data_class not in _classes(granted[0][0]):
            return "no_consent"
        return None if trusted else "untrusted"

    async def check(self, workspace: str | None, data_class: DataClass = "chat_text") -> None:
        """Let this kind of data of a workspace pass.

        Raises:
            GraphitiClosed: it may not be sent now.
        """
        if (reason := await self.closed(workspace, data_class)) is not None:
            raise GraphitiClosed(reason)

    async def decide(self, decision: Decision, data_classes: Sequence[DataClass], *, by: str) -> Consent:
        """Keep a person's decision about the endpoint; it stands in the place of the one before.

        Raises:
            GraphitiClosed: Graphiti is off.
            InvalidInput: there are no such kinds of data, or nobody is named.
        """
        endpoint = self.endpoint
        check_name("person's name", by, MAX_OWNER_CHARACTERS)
        if not set(data_classes) <= set(DATA_CLASSES) or (decision == "granted" and "chat_text" not in data_classes):
            raise InvalidInput(f"Consent names chat_text, and any of {', '.join(DATA_CLASSES[1:])}.")
        ordered = tuple(name for name in DATA_CLASSES if name in data_classes)
        now = self._clock()
        row = {
            "version": CONSENT_VERSION,
            "endpoint": endpoint,
            "data_classes": f" {' '.join(ordered)} ",
            "decision": decision,
            "decided_by": by,
            "now": time_text(now),
        }
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["decide"], row)
        return Consent(
            version=CONSENT_VERSION,
            endpoint=endpoint,
            data_classes=ordered,
            decision=decision,
            decided_by=by,
            decided_at=now,
        )

    async def decisions(self, limit: int = 20) -> list[Consent]:
        """Return what was decided, the newest first, for any endpoint."""
        async with self._driver.reading() as connection:
            rows = await connection.fetch(self._sql["decisions"], {"limit": limit})
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
        """Trust a workspace: None is that of runs that name none."""
        check_name("person's name", by, MAX_OWNER_CHARACTERS)
        row = {"workspace": workspace or "", "trusted_by": by, "now": time_text(self._clock())}
        async with self._driver.writing() as connection:
            await connection.execute(self._sql["trust"], row)

    async def distrust(self, workspace: str | None) -> bool:
        """Trust a workspace no more; False if it was not trusted."""
        async with self._driver.writing() as connection:
            return await connection.execute(self._sql["distrust"], {"workspace": workspace or ""}) > 0

    async def trusted(self) -> list[str | None]:
        """Return the workspaces that are trusted; None is that of runs that name none."""
        async with self._driver.reading() as connection:
            return [row[0] or None for row in await connection.fetch(self._sql["trusted"], {})]


def _classes(text: str) -> tuple[DataClass, ...]:
    return tuple(name for name in DATA_CLASSES if name in text.split())
