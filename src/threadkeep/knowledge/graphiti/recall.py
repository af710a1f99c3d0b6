"""Recall from Graphiti: all scopes are asked at once, within one deadline."""

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
from threadkeep.errors import GraphitiError
from threadkeep.knowledge.graphiti.breaker import Breaker
from threadkeep.knowledge.graphiti.client import GraphFact, GraphitiClient
from threadkeep.knowledge.graphiti.deliveries import Deliveries
from threadkeep.knowledge.graphiti.gate import Gate
from threadkeep.knowledge.graphiti.names import group_id_of, group_key, sendable
from threadkeep.knowledge.recall import normalised, take_of_each
from threadkeep.observe import GraphitiTrouble, GraphRecalled, GraphRecallOutcome, Observer
from threadkeep.records.graphiti import GraphitiOptions, GroupStrategy
from threadkeep.records.knowledge import SCOPE_KINDS, Scope, ScopeKind

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
    """A fact of Graphiti, and the scope in whose group it was found."""

    scope: ScopeKind
    id: str
    text: str
    since: datetime | None


@dataclass(frozen=True)
class GraphRecall:
    """Facts for an input, the most specific scope first, and for each scope what became of asking it."""

    facts: tuple[RecalledFact, ...] = ()
    scopes: tuple[ScopeRecall, ...] = ()


@dataclass(frozen=True)
class RecallQuestion:
    """An input that facts are looked for: the new message, the last ones before it, and whose it is.

    `workspace` is that of the run, which has to be trusted; by default that of the options.
    """

    text: str
    scopes: Mapping[ScopeKind, Scope]
    recent: Sequence[str] = ()
    session_id: str | None = None
    workspace: str | None = None


class GraphRecaller:
    """Asks a Graphiti server once a turn.

    Whatever the server does, a turn waits for the deadline at most. When that was reached, or nothing answered, nobody
    waits again until the server has answered a question that no turn waits for.
    """

    def __init__(
        self,
        client: GraphitiClient,
        deliveries: Deliveries,
        gate: Gate,
        options: GraphitiOptions,
        *,
        observer: Observer,
        clock: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._deliveries = deliveries
        self._gate = gate
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
        """Return the facts that bear on an input; what fails is told in the answer.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        started = time.monotonic()
        kinds = scopes_asked(question.text, self._options)
        scopes = [(kind, question.scopes.get(kind)) for kind in SCOPE_KINDS if kind in kinds]
        asked = [(kind, scope) for kind, scope in scopes if scope is not None or self._is_extra(kind)]
        if not asked:
            return GraphRecall()
        closed = await self._gate.closed(question.workspace or self._options.workspace)
        if closed is not None:
            return GraphRecall(scopes=tuple(ScopeRecall(kind, closed) for kind, _ in asked))
        groups, waiting = await self._groups(asked)
        query = await self._query(question)
        if self._breaker.is_open:
            self._probe(groups, query)
            reports = tuple(replace(one, outcome="breaker_open") for one in waiting)
            self._tell("breaker_open", 0, started, question)
            return GraphRecall(scopes=reports)
        left = self._options.recall_timeout_seconds - (time.monotonic() - started)
        answers = await self._ask(groups, query, max(left, 0.0))
        recalled = self._merged(answers, waiting)
        self._judge(answers, len(recalled.facts), started, question)
        return recalled

    async def close(self) -> None:
        """End what goes on."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])

    async def _ask(
        self, groups: Mapping[ScopeKind, Sequence[str]], query: str, seconds: float
    ) -> dict[ScopeKind, list[GraphFact] | GraphOutcome]:
        """Return what each scope answers within the time, or how asking it ended."""
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
            lists.append([_recalled(report.scope, fact) for fact in current])
            outcome: GraphOutcome = "ok" if isinstance(answer, list) else answer
            reports.append(replace(report, outcome=outcome, found=len(found), superseded=len(found) - len(current)))
        shown = take_of_each(lists, self._options.recall_max_facts, lambda fact: (fact.id, normalised(fact.text)))
        names = {name for fact in shown for name in (fact.id, normalised(fact.text))}
        told = []
        for report, facts in zip(reports, lists, strict=True):
            mine = sum(fact.scope == report.scope for fact in shown)
            again = sum(bool(names & {fact.id, normalised(fact.text)}) for fact in facts) - mine
            told.append(replace(report, shown=mine, duplicate=again, over_quota=len(facts) - mine - again))
        return GraphRecall(tuple(shown), tuple(told))

    def _judge(
        self,
        answers: Mapping[ScopeKind, list[GraphFact] | GraphOutcome],
        facts: int,
        started: float,
        question: RecallQuestion,
    ) -> None:
        """Open the breaker where a turn waited in vain, and tell how it went."""
        failed = [answer for answer in answers.values() if not isinstance(answer, list)]
        outcome: GraphRecallOutcome = "ok"
        if "deadline" in failed or len(failed) == len(answers):
            self._breaker.failed()
            outcome = "deadline" if "deadline" in failed else "failed"
        else:
            self._breaker.succeeded()
            outcome = "partial" if failed else "ok"
        self._tell(outcome, facts, started, question)

    def _tell(self, outcome: GraphRecallOutcome, facts: int, started: float, question: RecallQuestion) -> None:
        waited = (time.monotonic() - started) * 1000
        self._observer.notify(
            GraphRecalled(outcome=outcome, facts=facts, milliseconds=waited, session_id=question.session_id)
        )

    def _probe(self, groups: Mapping[ScopeKind, Sequence[str]], query: str) -> None:
        """Ask again beside the turn, which does not wait, if it is time for that."""
        if (self._probing is None or self._probing.done()) and self._breaker.allows():
            group_ids = next(iter(groups.values()))
            self._probing = asyncio.create_task(
                self._ask_beside(group_ids, query), context=Context(), name="threadkeep-graphiti-probe"
            )

    async def _ask_beside(self, group_ids: Sequence[str], query: str) -> None:
        try:
            await self._client.search(group_ids, query, 1, seconds=self._options.recall_timeout_seconds)
            self._breaker.succeeded()
        except GraphitiError as error:
            self._breaker.failed(at_least_seconds=error.retry_after or 0.0)

    async def _groups(
        self, asked: Sequence[tuple[ScopeKind, Scope | None]]
    ) -> tuple[dict[ScopeKind, list[str]], list[ScopeRecall]]:
        """Return the groups of each scope, and what of it is not there yet.

        A person has those of all ids, and with a workspace those of other programs are asked.
        """
        owners: dict[ScopeKind, list[Scope]] = {kind: [] if scope is None else [scope] for kind, scope in asked}
        if person := owners.get("user"):
            owners["user"] = [Scope("user", alias) for alias in await self._deliveries.aliases(person[0].owner)]
        known = await self._deliveries.groups([group_key(one) for each in owners.values() for one in each])
        groups: dict[ScopeKind, list[str]] = {}
        reports = []
        for kind, each in owners.items():
            states = [known.get(group_key(one)) for one in each]
            found = [
                group_id_of(one, await self._strategy(one)) if state is None else state.group_id
                for one, state in zip(each, states, strict=True)
            ]
            extra = self._options.recall_extra_group_ids if self._is_extra(kind) else ()
            groups[kind] = list(dict.fromkeys([*found, *extra]))
            there = [state for state in states if state is not None]
            queued, unconfirmed = sum(one.queued for one in there), sum(one.sent for one in there)
            reports.append(ScopeRecall(kind, queued=queued, unconfirmed=unconfirmed))
        return groups, reports

    async def _strategy(self, scope: Scope) -> GroupStrategy:
        """Return how a group that nothing was sent to yet will be called: the raw id may be another owner's."""
        if self._options.group_id_strategy == "raw":
            return "hashed" if await self._deliveries.is_taken(group_id_of(scope, "raw")) else "raw"
        return "hashed"

    def _is_extra(self, kind: ScopeKind) -> bool:
        return kind == "workspace" and bool(self._options.recall_extra_group_ids)

    async def _query(self, question: RecallQuestion) -> str:
        """Return what the server is asked: the new message first, since the end is cut."""
        words = [question.text, *reversed(question.recent)]
        workspace = question.workspace or self._options.workspace
        if workspace is not None and self._options.git_folder and "git_metadata" in await self._gate.granted():
            words.insert(1, workspace)
        return sendable("\n".join(words), _QUERY_CHARACTERS)


def scopes_asked(text: str, options: GraphitiOptions) -> list[ScopeKind]:
    """Return the scopes that are asked for an input: `auto` asks the user's where it is about the user's own things."""
    asked: list[ScopeKind] = []
    for name in options.recall_scopes:
        if name != "auto":
            asked.append(name)
            continue
        asked += ["session", "workspace"]
        if _OWN_THINGS.search(text):
            asked.append("user")
    return list(dict.fromkeys(asked))


def _recalled(scope: ScopeKind, fact: GraphFact) -> RecalledFact:
    text = cut_end(fact.fact, _FACT_CHARACTERS, len) if len(fact.fact) > _FACT_CHARACTERS else fact.fact
    return RecalledFact(scope, fact.uuid, text, fact.since)
