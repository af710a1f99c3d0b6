"""The parts of a memory; their creator opens and closes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from threadkeep.context.tokens import TokenCounter
from threadkeep.history.compressor import Compressor
from threadkeep.history.graph_conversations import GraphConversations
from threadkeep.history.manifests import Manifests
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.history.older_turns import OlderTurns
from threadkeep.history.pending import PendingTurns
from threadkeep.history.retention import Pruner
from threadkeep.history.run_retention import RunPruner
from threadkeep.history.searching import Searching
from threadkeep.history.stored_values import LearnedFactors
from threadkeep.observe import Observers
from threadkeep.records.graphiti import GraphitiOptions
from threadkeep.store.address import DatabaseAddress
from threadkeep.store.archive import Restoring
from threadkeep.store.backend import DamageRegister
from threadkeep.store.channel_tables import ChannelTables
from threadkeep.store.context_tables import ContextTables
from threadkeep.store.contexts import Contexts
from threadkeep.store.driver import Driver
from threadkeep.store.runs import Runs
from threadkeep.store.transcripts import Transcripts


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The place where the sessions of a memory are stored: their transcripts, and what belongs to these alone."""

    transcripts: Transcripts
    index: Searching
    archive: Restoring
    damages: DamageRegister
    contexts: Contexts
    older_turns: OlderTurns
    pending: PendingTurns
    retention: Pruner


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """The stores, background services, token counter, observers and clock of a memory."""

    address: DatabaseAddress
    options: MemoryOptions
    driver: Driver
    backend: Backend
    runs: Runs
    tables: ContextTables
    channels: ChannelTables
    conversations: GraphConversations
    manifests: Manifests
    run_retention: RunPruner
    compressor: Compressor
    learned_factors: LearnedFactors
    counter: TokenCounter
    observers: Observers
    clock: Callable[[], datetime]
    graphiti: GraphitiOptions | None = None
