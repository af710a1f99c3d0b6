"""The connection of a memory to Graphiti: consent, deliveries, recall, and actions that a person starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import GraphitiClosed, GraphitiClosure, InvalidInput
from threadkeep.knowledge.facts import Knowledge
from threadkeep.knowledge.graphiti.client import GraphitiClient
from threadkeep.knowledge.graphiti.consent import CACHED_SECONDS, Consents, GitMetadata
from threadkeep.knowledge.graphiti.deliveries import Deliveries
from threadkeep.knowledge.graphiti.maintenance import (
    Backfill,
    Backfilled,
    Check,
    Purged,
    Retracted,
    purge,
    retract,
    smoke_test,
    timed,
)
from threadkeep.knowledge.graphiti.recall import GraphRecall, GraphRecaller, RecallQuestion
from threadkeep.knowledge.graphiti.turns import Outbound, TurnQueue, fact_episode
from threadkeep.knowledge.graphiti.worker import DeliveryWorker
from threadkeep.knowledge.promotion import Promotion
from threadkeep.observe import GraphitiTrouble, Observer
from threadkeep.records.graphiti import Consent, DataClass, Delivery, DeliveryStatus, GraphitiOptions
from threadkeep.records.json_values import DESCRIBED
from threadkeep.records.knowledge import MAX_OWNER_CHARACTERS, Evidence, Fact, Scope, check_name
from threadkeep.records.sessions import check_argument
from threadkeep.store.codec import clean_text
from threadkeep.store.driver import Connection, Driver
from threadkeep.store.duties import ChannelState

_REPO_CLASSES: tuple[DataClass, ...] = ("git_metadata", "promoted_facts")


@dataclass(frozen=True, kw_only=True)
class GraphitiStatus:
    """The consent to send data to Graphiti, and the progress of sending."""

    __pydantic_config__ = DESCRIBED

    enabled: bool
    endpoint: str | None
    transport: str | None
    granted: tuple[DataClass, ...]
    """The kinds of data that a person has allowed for this endpoint."""
    wanted: tuple[DataClass, ...]
    """The kinds of data that the settings would send."""
    trusted: tuple[str | None, ...]
    """The trusted workspaces; null means runs without a workspace."""
    counts: dict[str, int]
    """Messages by status; `turns` is the number of turns that are not yet split into messages."""
    dead: dict[str, int]
    """Messages that were given up, by reason."""
    repeats: int
    """The number of times that a message was sent again because the server did not store it."""
    troubles: dict[str, int]
    """Groups that cannot be delivered now, by their error."""


@dataclass(frozen=True)
class Promoted:
    """A stored fact, and the number of messages queued for Graphiti or the reason (`closed`) why it may not be sent."""

    fact: Fact
    queued: int
    closed: GraphitiClosure | None


class Graphiti:
    """The Graphiti connection of a memory (`memory.graphiti`), which is off by default."""

    def __init__(
        self,
        driver: Driver,
        options: GraphitiOptions | None,
        knowledge: Knowledge,
        *,
        observer: Observer,
        clock: Callable[[], datetime],
    ) -> None:
        self.options = options if options is not None and options.enabled else None
        self.consents = Consents(driver, options, clock=clock)
        self._driver = driver
        self._knowledge = knowledge
        self._observer = observer
        self._clock = clock
        self._client: GraphitiClient | None = None
        self._worker: DeliveryWorker | None = None
        self._recaller: GraphRecaller | None = None
        self._git = GitMetadata(None if self.options is None else self.options.git_folder)
        endpoint = "" if self.options is None else self.options.endpoint
        self._deliveries = Deliveries(driver, endpoint, observer=observer, clock=clock)
        if self.options is not None:
            self._turns = TurnQueue(driver, self.options, observer=observer, clock=clock)

    @property
    def is_on(self) -> bool:
        """True if Graphiti is turned on. Consent is checked separately."""
        return self.options is not None

    @property
    def workspace(self) -> str | None:
        """The workspace of runs that do not name a workspace; None if the options have no default."""
        return None if self.options is None else self.options.workspace

    @property
    def recalls(self) -> bool:
        """True if facts from Graphiti are added to model calls. Consent is checked separately."""
        return self.options is not None and self.options.recall_enabled

    async def recall(self, question: RecallQuestion) -> GraphRecall:
        """Return facts that are relevant to an input, within the configured deadline, or no facts if recall is off.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        check_argument("question", question, RecallQuestion, required=True)
        if self.options is None or not self.options.recall_enabled:
            return GraphRecall()
        if self._recaller is None:
            parts = self.client(), self._driver, self._deliveries, self.consents, self.options
            self._recaller = GraphRecaller(*parts, observer=self._observer, clock=self._clock)
        return await self._recaller.recall(question)

    async def status(self) -> GraphitiStatus:
        """Return the consent to send data to Graphiti, and the progress of sending.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        options = self.options
        counts, dead, repeats = await self._deliveries.counts()
        return GraphitiStatus(
            enabled=options is not None,
            endpoint=None if options is None else options.endpoint,
            transport=None if options is None else options.transport,
            granted=tuple(sorted(await self.consents.granted())),
            wanted=() if options is None else options.needed_classes(),
            trusted=tuple(await self.consents.trusted()),
            counts=counts,
            dead=dead,
            repeats=repeats,
            troubles=await self._deliveries.troubles(),
        )

    async def grant(self, data_classes: Sequence[DataClass], *, by: str) -> Consent:
        """Record that a person allows these kinds of data to be sent to the configured Graphiti server.

        Raises:
            GraphitiClosed: Graphiti is off.
            InvalidInput: a kind of data does not exist, or `chat_text` is missing.
        """
        consent = await self.consents.decide("granted", data_classes, by=by)
        self._enabled()
        await self._deliveries.wake()
        self.wake()
        return consent

    async def decline(self, *, by: str) -> Consent:
        """Record that nothing may be sent. Queued and unconfirmed messages are given up; `retry` can queue them later.

        Raises:
            GraphitiClosed: Graphiti is off.
        """
        before = await self.consents.granted()
        consent = await self.consents.decide("withdrawn" if before else "declined", (), by=by)
        while await self._turns.make_deliveries():
            pass
        self._enabled()
        await self._deliveries.give_up_open("consent_withdrawn")
        return consent

    async def deliveries(
        self, *, status: DeliveryStatus | None = None, after: int = 0, limit: int = 100
    ) -> list[Delivery]:
        """Return up to `limit` messages for Graphiti whose numbers are above `after`; a status of None means any.

        Raises:
            InvalidInput: the limit is not from 1 to 1,000.
        """
        for name, number in (("after", after), ("limit", limit)):
            check_argument(name, number, int, required=True)
        if not 1 <= limit <= 1000:
            raise InvalidInput("A page has 1 to 1000 entries; use its cursor to get more.")
        return await self._deliveries.entries(status, after=after, limit=limit)

    async def retry(self, number: int | None = None) -> int:
        """Queue a given-up (dead) message again. Return how many messages were queued.

        Without a `number`, queue all given-up messages except dropped and deleted ones.

        Raises:
            GraphitiClosed: Graphiti is off, or there is no consent.
            KnowledgeNotFound: no dead message has this number.
        """
        check_argument("number", number, int)
        self._enabled()
        if not await self.consents.granted():
            raise GraphitiClosed("no_consent")
        count = await self._deliveries.retry(number)
        await self._deliveries.wake()
        self.wake()
        return count

    async def drop(self, number: int | None = None, *, status: DeliveryStatus | None = None) -> int:
        """Permanently drop queued or dead messages: one by number, all with a status, or all. Return how many.

        Raises:
            KnowledgeNotFound: no queued or dead message has this number.
        """
        check_argument("number", number, int)
        return await self._deliveries.drop(number, status)

    async def test(self, *, smoke: bool = False) -> list[Check]:
        """Check the server. If `smoke` is true, also write, find and delete a test message.

        Raises:
            GraphitiClosed: Graphiti is off.
        """
        checks = [await timed(name, step) for name, step in self.client().checks()]
        if smoke and all(one.ok for one in checks):
            checks += await smoke_test(self.client(), clock=self._clock)
        return checks

    async def promote(self, promotion: Promotion, owner: str, *, evidence: Evidence | None = None) -> Promoted:
        """Store a fact, and queue it for Graphiti if a person's consent covers it.

        Args:
            promotion: the fact, with its kind, its text and its relations.
            owner: the session, workspace or person of its scope.
            evidence: the message or the run that the fact comes from.

        Raises:
            InvalidInput: the fact cannot be stored, or looks like a secret.
            SessionNotFound: the scope is a session that does not exist.
        """
        check_argument("promotion", promotion, Promotion, required=True)
        scope = Scope(promotion.scope, owner)
        fact = await self._knowledge.remember(
            scope, promotion.fact_key, promotion.text, kind=promotion.fact_kind, evidence=evidence
        )
        return await self.send_fact(fact, promotion)

    async def send_fact(self, fact: Fact, promotion: Promotion) -> Promoted:
        """Queue a stored fact for Graphiti if consent covers it, even if sending the fact was given up before."""
        check_argument("fact", fact, Fact, required=True)
        check_argument("promotion", promotion, Promotion, required=True)
        closed = await self.fact_closure(fact.scope)
        if closed is not None:
            return Promoted(fact, 0, closed)
        async with self._driver.writing() as connection:
            queued = await self.queue_fact(connection, fact, promotion)
        self.notify_queued(queued)
        return Promoted(fact, queued, None)

    async def fact_closure(self, scope: Scope) -> GraphitiClosure | None:
        """Return why facts of a scope may not be sent to Graphiti now; None if they may be sent."""
        check_argument("scope", scope, Scope, required=True)
        return await self.consents.closed(self._workspace_of(scope), "promoted_facts")

    async def queue_fact(self, connection: Connection, fact: Fact, promotion: Promotion) -> int:
        """Queue a stored fact for Graphiti in the caller's transaction; return 0 if it is queued or sent already."""
        text, workspace = clean_text(promotion.episode(fact.scope.owner)), self._workspace_of(fact.scope)
        name = fact_episode(fact.id)
        outbound = Outbound(fact.id, name, "user", fact.updated_at, len(text), content=text, workspace=workspace)
        queued = await self._turns.add(connection, [fact.scope], [outbound])
        return queued or await self._turns.revive(connection, fact.scope, outbound)

    def notify_queued(self, count: int) -> None:
        """Report newly queued messages, and wake the worker that sends them; call this after the commit."""
        if count:
            self._turns.notify_queued(count)
            self.wake()

    def _workspace_of(self, scope: Scope) -> str | None:
        return scope.owner if scope.kind == "workspace" else self.workspace

    async def note_repo_state(self) -> Promoted | None:
        """If the state of the configured Git folder has changed, store it as a fact and queue it for Graphiti.

        The folder is read only if consent covers both `git_metadata` and `promoted_facts`.
        """
        options = self.options
        if options is None or options.git_folder is None or options.workspace is None:
            return None
        for data_class in _REPO_CLASSES:
            if await self.consents.closed(options.workspace, data_class) is not None:
                return None
        state = await self._git.read()
        if state is None:
            return None
        changes = "with changes that are not committed" if state["dirty"] else "with nothing uncommitted"
        promotion = Promotion("repo_state", f"Branch {state['branch']} at commit {state['commit']}, {changes}.")
        known = await self._knowledge.facts(Scope("workspace", options.workspace), key=promotion.fact_key)
        if known and known[0].value == promotion.text:
            return None
        return await self.promote(promotion, options.workspace)

    async def _watch_repo_state(self) -> None:
        while True:
            with ErrorBoundary(self._report):
                await self.note_repo_state()
            await asyncio.sleep(CACHED_SECONDS)

    def _report(self, error: Exception) -> None:
        self._observer.notify(GraphitiTrouble(work="delivery", error=type(error).__name__))

    async def undo_promotion(self, fact_id: str) -> Retracted:
        """Undo all calls that stored or confirmed a promoted fact, in the database and in Graphiti.

        Raises:
            KnowledgeNotFound: there is no such fact.
            InvalidInput: the fact was never queued for the graph.
        """
        check_name("fact's id", fact_id, MAX_OWNER_CHARACTERS)
        if await self._deliveries.episode_of(fact_episode(fact_id)) is None:
            await self._knowledge.fact(fact_id)
            raise InvalidInput("This fact was never sent to the graph; forget it: threadkeep facts forget KEY")
        while await self._knowledge.take_back(fact_id):
            pass
        return await self.retract(fact_id)

    async def retract(self, fact_id: str) -> Retracted:
        """Delete the episode in which a forgotten fact was sent to the server, and check that it is gone.

        If Graphiti is off, or without consent, no request is sent: the episode stays on the server, and the result says
        so.
        """
        check_name("fact's id", fact_id, MAX_OWNER_CHARACTERS)
        client = self.client() if await self.consents.granted() else None
        return await retract(client, self._deliveries, fact_id)

    async def backfill(
        self, session_ids: Sequence[str] | None = None, *, user_id: str | None = None, limit: int = 1_000
    ) -> Backfilled:
        """Queue up to `limit` earlier turns of some sessions, of a user, or of all, for Graphiti. Call again for more.

        They are sent after new turns, with a limit per minute. Stored messages do not record their workspace, so all
        turns count as turns of the workspace in the options. If runs used other workspaces, name the sessions.

        Raises:
            GraphitiClosed: earlier turns may not be sent.
            SessionNotFound: a session does not exist.
        """
        check_argument("session_ids", session_ids, Collection)
        check_argument("limit", limit, int, required=True)
        for name in (*(session_ids or ()), *(() if user_id is None else (user_id,))):
            check_name("session's or user's id", name, MAX_OWNER_CHARACTERS)
        await self.consents.check(self.workspace, "backfill")
        backfill = Backfill(self._driver, clock=self._clock)
        named = await backfill.sessions(user_id) if session_ids is None else session_ids
        queued = await backfill.queue(named, self.workspace, self._turns, limit=limit)
        self.wake()
        return queued

    async def purge(self, scope: Scope, *, all_ids: bool = True) -> Purged:
        """Delete the group of a scope on the server, and check that it is gone.

        For a person, the groups of all of the person's ids are deleted, unless `all_ids` is False.

        Raises:
            GraphitiClosed: Graphiti is off.
            GraphitiError: the server failed.
        """
        check_argument("scope", scope, Scope, required=True)
        deliveries, client = self._deliveries, self.client()
        while await self._turns.make_deliveries():
            pass
        async with self._driver.writing() as connection:
            group_ids = [await self._turns.group_of(connection, scope)]
        group_ids += await deliveries.groups_of(scope) if all_ids else ()
        state, expires_at = ChannelState(self._driver, clock=self._clock), self._clock() + timedelta(hours=1)
        found = [
            await purge(client, deliveries, group_id, state=state, expires_at=expires_at, deliver=self.deliver)
            for group_id in dict.fromkeys(group_ids)
        ]
        left = "; ".join(one.remains for one in found if one.remains)
        return Purged(group_ids[0], sum(one.dropped for one in found), left)

    def wake(self) -> None:
        """Wake this process's worker, which sends queued messages to Graphiti."""
        if self._worker is not None:
            self._worker.wake()

    async def deliver(self) -> None:
        """Deliver all messages for Graphiti that are due now. Inside `delivering`, background tasks do this."""
        await self._delivery_worker().deliver_due(wait=True)

    @asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        """Deliver queued messages to Graphiti in the background while the block runs."""
        if self.options is None:
            yield
            return
        work = [self._delivery_worker().keep_delivering()]
        if self.options.git_folder is not None:
            work.append(self._watch_repo_state())
        tasks = [asyncio.create_task(one, name="threadkeep-graphiti-worker") for one in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections to the server."""
        if self._recaller is not None:
            await self._recaller.close()
        if self._client is not None:
            await self._client.close()

    def client(self) -> GraphitiClient:
        """Return the client of the Graphiti server; the first call creates it.

        Raises:
            GraphitiClosed: Graphiti is off.
            InvalidInput: the extra `graphiti` is not installed.
        """
        options = self._enabled()
        if self._client is None:
            self._client = open_client(options)
        return self._client

    def _delivery_worker(self) -> DeliveryWorker:
        options = self._enabled()
        if self._worker is None:
            parts = self.client(), self._deliveries, self._turns, self.consents, options
            self._worker = DeliveryWorker(*parts, observer=self._observer, clock=self._clock)
        return self._worker

    def _enabled(self) -> GraphitiOptions:
        if self.options is None:
            raise GraphitiClosed("off")
        return self.options


def open_client(options: GraphitiOptions) -> GraphitiClient:
    """Create a client for the transport (REST or MCP) that the options name.

    Raises:
        InvalidInput: the required packages are not installed.
    """
    try:
        if options.transport == "mcp":
            from threadkeep.knowledge.graphiti.mcp_server import McpClient

            return McpClient(options.endpoint, api_key=options.api_key, timeout_seconds=options.timeout_seconds)
        from threadkeep.knowledge.graphiti.rest import RestClient
    except ImportError as error:
        raise InvalidInput(f"Graphiti needs {error.name}: install threadkeep[graphiti].") from None
    return RestClient(options.endpoint, api_key=options.api_key, timeout_seconds=options.timeout_seconds)
