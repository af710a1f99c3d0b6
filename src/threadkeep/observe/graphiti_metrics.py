"""Metrics of Graphiti: messages on their way, recalls, and the time that turns waited for them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram

from threadkeep.observe.events import Event
from threadkeep.observe.graphiti_events import (
    DELIVERY_RESULTS,
    GRAPH_RECALL_OUTCOMES,
    GRAPHITI_WORKS,
    EpisodesDelivered,
    GraphitiTrouble,
    GraphRecalled,
)

GRAPHITI_METRICS: Mapping[str, str] = {
    "threadkeep_graphiti_episodes_total": "Messages for Graphiti, by what became of them.",
    "threadkeep_graphiti_recalls_total": "Turns for which Graphiti was asked, by how that ended.",
    "threadkeep_graphiti_recalled_facts_total": "Facts of Graphiti that were shown to models.",
    "threadkeep_graphiti_recall_latency_ms": "Duration that a turn waited for Graphiti in milliseconds.",
    "threadkeep_graphiti_troubles_total": "Work for Graphiti that failed and is tried again.",
}

_BUCKETS_MS = (10, 25, 50, 100, 250, 500, 1000, 2000, 5000)


class GraphitiMetrics:
    """A counter of Graphiti events in a registry; all series exist from the start, at zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        names = iter(GRAPHITI_METRICS.items())
        self._episodes = Counter(*next(names), ["result"], registry=registry)
        self._recalls = Counter(*next(names), ["result"], registry=registry)
        self._facts = Counter(*next(names), registry=registry)
        self._times = Histogram(*next(names), buckets=_BUCKETS_MS, registry=registry)
        self._troubles = Counter(*next(names), ["work"], registry=registry)
        for counter, values in (
            (self._episodes, DELIVERY_RESULTS),
            (self._recalls, GRAPH_RECALL_OUTCOMES),
            (self._troubles, GRAPHITI_WORKS),
        ):
            for value in values:
                counter.labels(value)

    def count(self, event: Event) -> None:
        """Count the event if it belongs to Graphiti."""
        match event:
            case EpisodesDelivered() if event.result in DELIVERY_RESULTS:
                self._episodes.labels(event.result).inc(event.count)
            case GraphRecalled() if event.outcome in GRAPH_RECALL_OUTCOMES:
                self._recalls.labels(event.outcome).inc()
                self._facts.inc(event.facts)
                self._times.observe(event.milliseconds)
            case GraphitiTrouble() if event.work in GRAPHITI_WORKS:
                self._troubles.labels(event.work).inc()
            case _:
                pass
