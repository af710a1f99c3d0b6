"""The services of a memory, such as facts and retention, with blocking methods."""

from __future__ import annotations

from threadkeep.history.blocking import Blocking, Iterated, MemoryLoop, Wrapper
from threadkeep.history.compressor import Compressor
from threadkeep.history.manifests import Manifests
from threadkeep.history.pending import PendingTurns
from threadkeep.history.retention import Pruner
from threadkeep.history.retention_rounds import RunPruner, RunRetention
from threadkeep.knowledge.episodes import Episodes
from threadkeep.knowledge.facts import Knowledge
from threadkeep.knowledge.graphiti.consent import Consents
from threadkeep.knowledge.graphiti.service import Graphiti
from threadkeep.knowledge.persons import Persons
from threadkeep.knowledge.procedures import Procedures
from threadkeep.knowledge.proposals import Proposals
from threadkeep.records import Retention
from threadkeep.store.spool import PendingTurn
from threadkeep.store.summaries import Summaries


class SyncPending(Wrapper[PendingTurns]):
    """The turns that are not stored in the database yet, with blocking methods."""

    deliver = Blocking(PendingTurns.deliver)
    drop = Blocking(PendingTurns.drop)
    damaged = Blocking(PendingTurns.damaged)

    @property
    def entries(self) -> tuple[PendingTurn, ...]:
        """The pending turns, oldest first."""
        return self.asynchronous.entries


class SyncRetention(Wrapper[Pruner]):
    """The service that archives and deletes old messages, with blocking methods."""

    of = Blocking(Pruner.of)
    change = Blocking(Pruner.change)
    plan = Iterated(Pruner.plan)
    prune = Blocking(Pruner.prune)
    has_work = Blocking(Pruner.has_work)
    reclaim_space = Blocking(Pruner.reclaim_space)

    @property
    def rules(self) -> Retention:
        """The limits of sessions that have no limits of their own."""
        return self.asynchronous.rules


class SyncRunRetention(Wrapper[RunPruner]):
    """The service that deletes old finished runs, with blocking methods."""

    plan = Iterated(RunPruner.plan)
    prune = Blocking(RunPruner.prune)
    has_work = Blocking(RunPruner.has_work)

    @property
    def rules(self) -> RunRetention:
        """The default limits, from the options with which the memory was opened."""
        return self.asynchronous.rules


class SyncManifests(Wrapper[Manifests]):
    """The records of model calls, with blocking methods."""

    of_run = Blocking(Manifests.of_run)
    of_runs = Blocking(Manifests.of_runs)
    of_session = Blocking(Manifests.of_session)
    texts = Blocking(Manifests.texts)
    flush = Blocking(Manifests.flush)


class SyncSummaries(Wrapper[Summaries]):
    """The summaries of sessions, with blocking methods."""

    active = Blocking(Summaries.active)
    all_of = Blocking(Summaries.all_of)


class SyncCompressor(Wrapper[Compressor]):
    """The compressor, which writes summaries of older messages, with blocking methods."""

    compress_now = Blocking(Compressor.compress_now)
    idle = Blocking(Compressor.idle)


class SyncKnowledge(Wrapper[Knowledge]):
    """The facts that a memory stores about sessions, workspaces and users, with blocking methods."""

    remember = Blocking(Knowledge.remember)
    fact = Blocking(Knowledge.fact)
    facts = Blocking(Knowledge.facts)
    facts_page = Blocking(Knowledge.facts_page)
    recall = Blocking(Knowledge.recall)
    rank = Blocking(Knowledge.rank)
    valid = Blocking(Knowledge.valid)
    forget = Blocking(Knowledge.forget)
    forget_keys = Blocking(Knowledge.forget_keys)
    forget_facts = Blocking(Knowledge.forget_facts)
    forget_all = Blocking(Knowledge.forget_all)
    restore = Blocking(Knowledge.restore)
    take_back = Blocking(Knowledge.take_back)


class SyncProcedures(Wrapper[Procedures]):
    """The stored instructions for kinds of tasks (procedures), with blocking methods."""

    teach = Blocking(Procedures.teach)
    procedure = Blocking(Procedures.procedure)
    all = Blocking(Procedures.all)
    page = Blocking(Procedures.page)
    recall = Blocking(Procedures.recall)
    used = Blocking(Procedures.used)
    forget = Blocking(Procedures.forget)


class SyncEpisodes(Wrapper[Episodes]):
    """Earlier questions with their answers and outcomes, with blocking methods."""

    latest = Blocking(Episodes.latest)
    recall = Blocking(Episodes.recall)


class SyncProposals(Wrapper[Proposals]):
    """The facts that were proposed from people's messages, with blocking methods."""

    proposal = Blocking(Proposals.proposal)
    page = Blocking(Proposals.page)
    accept = Blocking(Proposals.accept)
    reject = Blocking(Proposals.reject)
    undo = Blocking(Proposals.undo)


class SyncPersons(Wrapper[Persons]):
    """The known persons and their ids, with blocking methods."""

    resolve = Blocking(Persons.resolve)
    get = Blocking(Persons.get)
    all = Blocking(Persons.all)
    page = Blocking(Persons.page)
    merge = Blocking(Persons.merge)
    unmerge = Blocking(Persons.unmerge)
    forget = Blocking(Persons.forget)


class SyncConsents(Wrapper[Consents]):
    """The consents to sending data to Graphiti, and the trusted workspaces, with blocking methods."""

    granted = Blocking(Consents.granted)
    closed = Blocking(Consents.closed)
    check = Blocking(Consents.check)
    decide = Blocking(Consents.decide)
    decisions = Blocking(Consents.decisions)
    trust = Blocking(Consents.trust)
    distrust = Blocking(Consents.distrust)
    trusted = Blocking(Consents.trusted)


class SyncGraphiti(Wrapper[Graphiti]):
    """The Graphiti connection of a memory, with blocking methods."""

    recall = Blocking(Graphiti.recall)
    status = Blocking(Graphiti.status)
    grant = Blocking(Graphiti.grant)
    decline = Blocking(Graphiti.decline)
    deliveries = Blocking(Graphiti.deliveries)
    retry = Blocking(Graphiti.retry)
    drop = Blocking(Graphiti.drop)
    test = Blocking(Graphiti.test)
    promote = Blocking(Graphiti.promote)
    undo_promotion = Blocking(Graphiti.undo_promotion)
    retract = Blocking(Graphiti.retract)
    backfill = Blocking(Graphiti.backfill)
    purge = Blocking(Graphiti.purge)
    deliver = Blocking(Graphiti.deliver)

    def __init__(self, asynchronous: Graphiti, loop: MemoryLoop) -> None:
        super().__init__(asynchronous, loop)
        self.consents = SyncConsents(asynchronous.consents, loop)
