"""The search for facts in Graphiti, in the groups of all scopes in parallel, within one deadline."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import datetime

from threadkeep.context.cut import cut_end
from threadkeep.context.manifest import GraphOutcome, ScopeRecall
from threadkeep.errors import GraphitiClosure, GraphitiError
from threadkeep.knowledge.graphiti.client import Breaker, GraphFact, GraphitiClient
from threadkeep.knowledge.graphiti.consent import Consents, allowed_since, closure_in
from threadkeep.knowledge.graphiti.deliveries import Deliveries, GroupState
from threadkeep.knowledge.graphiti.turns import group_id_of, sendable
from threadkeep.knowledge.recall import normalised, take_of_each
from threadkeep.observe import GraphitiTrouble, GraphRecalled, GraphRecallOutcome, Observer
from threadkeep.records import Message
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.records.knowledge import SCOPE_KINDS, Scope, ScopeKind
from threadkeep.store.driver import Driver

_QUERY_CHARACTERS = 2_048
_FACT_CHARACTERS = 500
_BREAKER_SECONDS = 30.0
_LONGEST_BREAKER_SECONDS = 300.0
_OWN_THINGS = re.compile(
    r"\bprefer(?:s|red|ence|ences)?\b|\bterminology\b|\bglossary\b"
    r"|\bmy\b[^.?!\n]{0,40}\b(?:name|e-?mail|set-?up|styles?|conventions?|settings?)\b"
    r"|偏好|喜好|术语|我的[^。？！\n]{0,20}(?:名字|姓名|邮箱|邮件|设置|配置|风格|习惯|约定)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class RecalledFact:
    """A fact from Graphiti, and the scope of the group that contains it."""

    scope: ScopeKind
    id: str
    text: str
    since: datetime | None


@dataclass(frozen=True)
class GraphRecall:
    """The facts that Graphiti returned for a user's input, most specific scope first, and a report on each scope."""

    facts: tuple[RecalledFact, ...] = ()
    scopes: tuple[ScopeRecall, ...] = ()


@dataclass(frozen=True)
class RecallQuestion:
    """A search for facts: the text of the input, the messages before it, and the scopes with their owners.

    `workspace` is the workspace of the run, which must be trusted; None means the workspace in the options.
    """

    text: str
    scopes: Mapping[ScopeKind, Scope]
    recent: Sequence[Message] = ()
    session_id: str | None = None
    workspace: str | None = None


@dataclass(frozen=True)
class _Groups:
    """The groups to search in each scope, a report on each scope, and the earliest time of messages in the query."""

    ids: Mapping[ScopeKind, Sequence[str]]
    reports: Sequence[ScopeRecall]
    since: datetime


class GraphRecaller:
    """A finder of facts, which searches a Graphiti server once per turn.

    A turn waits at most until the deadline. After a missed deadline or a failure, turns do not search until a search in
    the background has succeeded.
    """

    def __init__(
        self,
        client: GraphitiClient,
        driver: Driver,
        deliveries: Deliveries,
        consents: Consents,
        options: GraphitiOptions,
        *,
        observer: Observer,
        clock: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._driver = driver
        self._deliveries = deliveries
        self._consents = consents
        self._options = options
        self._observer = observer
        self._clock = clock
        self._probing: asyncio.Task[None] | None = None
        self._breaker = Breaker(
            failures=1,
            first_seconds=_BREAKER_SECONDS,
            longest_seconds=_LONGEST_BREAKER_SECONDS,
            clock=lambda: clock().timestamp(),
        )

    async def recall(self, question: RecallQuestion) -> GraphRecall:
        """Return the facts that are relevant to an input, with any failures in the reports."""
        started = time.monotonic()
        kinds = scopes_asked(question.text, self._options)
        scopes = {kind: question.scopes.get(kind) if kind in kinds else None for kind in SCOPE_KINDS}
        asked = {kind: scope for kind, scope in scopes.items() if scope is not None or self._extra(kind)}
        if not asked:
            return GraphRecall()
        groups = await self._groups(asked, question.workspace or self._options.workspace)
        if not isinstance(groups, _Groups):
            return GraphRecall(scopes=tuple(ScopeRecall(kind, groups) for kind in asked))
        query = await self._query(question, groups.since)
        if self._breaker.is_open:
            self._probe(groups, query)
            self._notify("breaker_open", 0, started, question)
            return GraphRecall(scopes=tuple(replace(one, outcome="breaker_open") for one in groups.reports))
        left = self._options.recall_timeout_seconds - (time.monotonic() - started)
        answers = await self._ask(groups.ids, query, max(left, 0.0))
        recalled = self._merged(answers, groups.reports)
        outcome = self._judge(list(answers.values()))
        self._notify(outcome, len(recalled.facts), started, question)
        return recalled

    async def close(self) -> None:
        """Cancel the background search."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])

    async def _groups(
        self, asked: Mapping[ScopeKind, Scope | None], workspace: str | None
    ) -> _Groups | GraphitiClosure:
        """Return the Graphiti groups to search, or the reason why no search is allowed."""
        consent = self._consents.statements(workspace)
        owned = {kind: scope for kind, scope in asked.items() if scope is not None}
        statements = [*consent, *map(self._deliveries.groups_statement, owned.values())]
        async with self._driver.reading() as connection:
            rows = await connection.fetch_each(statements)
        closed = closure_in(rows[: len(consent)])
        if closed is not None:
            return closed
        found = dict(zip(owned, rows[len(consent) :], strict=True))
        given_up = await self._deliveries.dead_of_groups()
        ids: dict[ScopeKind, list[str]] = {}
        reports: list[ScopeRecall] = []
        for kind in asked:
            states = [GroupState(*row) for row in found.get(kind, ())]
            named = [one.group_id or await self._new_group_id(Scope(kind, one.owner)) for one in states]
            ids[kind] = list(dict.fromkeys([*named, *self._extra(kind)]))
            queued, unconfirmed = sum(one.queued for one in states), sum(one.sent for one in states)
            dead = sum(given_up.get(group_id, 0) for group_id in named)
            reports.append(ScopeRecall(kind, queued=queued, unconfirmed=unconfirmed, dead=dead))
        return _Groups(ids, reports, allowed_since(rows[: len(consent)]))

    async def _new_group_id(self, scope: Scope) -> str:
        """Return the id for a new group, hashed if the raw id already belongs to another owner."""
        group_id = group_id_of(scope, self._options.group_id_strategy)
        if self._options.group_id_strategy == "raw" and await self._deliveries.is_taken(group_id):
            return group_id_of(scope)
        return group_id

    def _extra(self, kind: ScopeKind) -> Sequence[str]:
        return self._options.recall_extra_group_ids if kind == "workspace" else ()

    async def _query(self, question: RecallQuestion, since: datetime) -> str:
        """Return the input and the messages before it, newest first, because the end of a long query is cut."""
        recent = [one.content for one in question.recent if one.created_at and one.created_at >= since]
        words = [question.text, *reversed(recent)]
        workspace = question.workspace or self._options.workspace
        if workspace is not None and self._options.git_folder and "git_metadata" in await self._consents.granted():
            words.insert(1, workspace)
        return sendable("\n".join(words), _QUERY_CHARACTERS)

    async def _ask(
        self, groups: Mapping[ScopeKind, Sequence[str]], query: str, seconds: float
    ) -> dict[ScopeKind, list[GraphFact] | GraphOutcome]:
        """Search the groups of all scopes within `seconds`; return the facts or the failure of each scope."""
        tasks = {
            kind: asyncio.create_task(
                self._client.search(group_ids, query, self._options.recall_max_facts, seconds=seconds)
            )
            for kind, group_ids in groups.items()
        }
        done, late = await asyncio.wait(tasks.values(), timeout=seconds)
        for task in late:
            task.cancel()
        answers: dict[ScopeKind, list[GraphFact] | GraphOutcome] = {}
        for kind, task in tasks.items():
            if task not in done:
                answers[kind] = "deadline"
                continue
            try:
                answers[kind] = task.result()
            except GraphitiError as error:
                self._observer.notify(GraphitiTrouble(work="recall", error=error.kind))
                answers[kind] = "deadline" if error.kind == "timeout" else "failed"
        return answers

    def _merged(
        self, answers: Mapping[ScopeKind, list[GraphFact] | GraphOutcome], waiting: Sequence[ScopeRecall]
    ) -> GraphRecall:
        now = self._clock()
        lists: list[list[RecalledFact]] = []
        reports: list[ScopeRecall] = []
        for report in waiting:
            answer = answers[report.scope]
            found = answer if isinstance(answer, list) else []
            current = [fact for fact in found if not fact.superseded(now)]
            cut = [(one, cut_end(one.fact, _FACT_CHARACTERS, len)) for one in current]
            lists.append([RecalledFact(report.scope, one.uuid, text, one.since) for one, text in cut])
            outcome: GraphOutcome = "ok" if isinstance(answer, list) else answer
            reports.append(replace(report, outcome=outcome, found=len(found), superseded=len(found) - len(current)))
        shown = take_of_each(lists, self._options.recall_max_facts, lambda fact: (fact.id, normalised(fact.text)))
        names = {name for fact in shown for name in (fact.id, normalised(fact.text))}
        reported: list[ScopeRecall] = []
        for report, facts in zip(reports, lists, strict=True):
            mine = sum(fact.scope == report.scope for fact in shown)
            again = sum(bool(names & {fact.id, normalised(fact.text)}) for fact in facts) - mine
            reported.append(replace(report, shown=mine, duplicate=again, over_quota=len(facts) - mine - again))
        return GraphRecall(tuple(shown), tuple(reported))

    def _judge(self, answers: Sequence[list[GraphFact] | GraphOutcome]) -> GraphRecallOutcome:
        """Report the success or failure of a search to the circuit breaker, and return the outcome."""
        failed = [answer for answer in answers if not isinstance(answer, list)]
        if "deadline" in failed or len(failed) == len(answers):
            self._breaker.failed()
            return "deadline" if "deadline" in failed else "failed"
        self._breaker.succeeded()
        return "partial" if failed else "ok"

    def _notify(self, outcome: GraphRecallOutcome, facts: int, started: float, question: RecallQuestion) -> None:
        milliseconds = (time.monotonic() - started) * 1000
        self._observer.notify(
            GraphRecalled(outcome=outcome, facts=facts, milliseconds=milliseconds, session_id=question.session_id)
        )

    def _probe(self, groups: _Groups, query: str) -> None:
        """Test the server with a search in the background, if the circuit breaker allows it."""
        if (self._probing is None or self._probing.done()) and self._breaker.allows():
            group_ids = next(iter(groups.ids.values()))
            self._probing = asyncio.create_task(
                self._search_in_background(group_ids, query), context=Context(), name="threadkeep-graphiti-probe"
            )

    async def _search_in_background(self, group_ids: Sequence[str], query: str) -> None:
        try:
            await self._client.search(group_ids, query, 1, seconds=self._options.recall_timeout_seconds)
            self._breaker.succeeded()
        except GraphitiError as error:
            self._breaker.failed(at_least_seconds=error.retry_after or 0.0)


def scopes_asked(text: str, options: GraphitiOptions) -> list[ScopeKind]:
    """Return the scopes to search for an input, as the option `recall_scopes` says.

    Its value `auto` means the session and the workspace, and also the user if the input is about the user's own things.
    """
    asked: list[ScopeKind] = []
    for name in options.recall_scopes:
        if name != "auto":
            asked.append(name)
            continue
        asked += ["session", "workspace"]
        # Only this part of the input is sent, and a search of a longer text would block the event loop.
        if _OWN_THINGS.search(text[:_QUERY_CHARACTERS]):
            asked.append("user")
    return list(dict.fromkeys(asked))
