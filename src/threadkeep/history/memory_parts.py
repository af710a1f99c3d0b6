"""What a memory is made of: opened, and closed again, by whoever makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from threadkeep.context.tokens import TokenCounter
from threadkeep.history.compressor import Compressor
from threadkeep.history.graph_conversations import GraphConversations
from threadkeep.history.learned_factors import LearnedFactors
from threadkeep.history.manifests import Manifests
from threadkeep.history.pending import PendingTurns
from threadkeep.history.retention import Pruner
from threadkeep.history.run_retention import RunPruner
from threadkeep.observe import Observers
from threadkeep.store.archive import Restoring
from threadkeep.store.context_tables import ContextTables
from threadkeep.store.runs import Runs
from threadkeep.store.search import Search
from threadkeep.store.transcripts import Transcripts


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """Where sessions and runs are, what goes on beside them, and who counts, is told, and knows the time."""

    transcripts: Transcripts
    index: Search
    archive: Restoring
    runs: Runs
    tables: ContextTables
    conversations: GraphConversations
    manifests: Manifests
    pending: PendingTurns
    retention: Pruner
    run_retention: RunPruner
    compressor: Compressor
    learned_factors: LearnedFactors
    counter: TokenCounter
    observers: Observers
    clock: Callable[[], datetime]
