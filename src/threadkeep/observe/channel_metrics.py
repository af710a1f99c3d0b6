"""Metrics of channels: received updates, sent answers, and the time between them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram

from threadkeep.observe.channel_events import (
    CHANNEL_WORKS,
    DELIVERY_OUTCOMES,
    UPDATE_OUTCOMES,
    UPDATE_REASONS,
    AnswerSent,
    ChannelTrouble,
    UpdateReceived,
)
from threadkeep.observe.events import CHANNELS, Event

CHANNEL_METRICS: Mapping[str, str] = {
    "threadkeep_channel_updates_total": "Updates that platforms delivered, by what became of them.",
    "threadkeep_channel_refusals_total": "Updates that were ignored or refused, by reason.",
    "threadkeep_channel_deliveries_total": "Tries to deliver an answer, by how they ended.",
    "threadkeep_channel_answer_latency_ms": "Duration from taking a message to delivering its answer in milliseconds.",
    "threadkeep_channel_troubles_total": "Work of channels that failed and is tried again.",
}

_BUCKETS_MS = (100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
# The last label stands for every other value that untyped code passes.
_OTHER = "other"


class ChannelMetrics:
    """A counter of channel events in a registry; the series of all platforms exist from the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        names = iter(CHANNEL_METRICS.items())
        self._updates = Counter(*next(names), ["channel", "result"], registry=registry)
        self._refusals = Counter(*next(names), ["channel", "reason"], registry=registry)
        self._deliveries = Counter(*next(names), ["channel", "result"], registry=registry)
        self._times = Histogram(*next(names), ["channel"], buckets=_BUCKETS_MS, registry=registry)
        self._troubles = Counter(*next(names), ["channel", "work"], registry=registry)
        for channel in (name for name in CHANNELS if name not in ("http", _OTHER)):
            self._times.labels(channel)
            for counter, values in (
                (self._updates, UPDATE_OUTCOMES),
                (self._refusals, UPDATE_REASONS),
                (self._deliveries, DELIVERY_OUTCOMES),
                (self._troubles, CHANNEL_WORKS),
            ):
                for value in values:
                    counter.labels(channel, value)

    def count(self, event: Event) -> None:
        """Count the event if it belongs to a channel."""
        match event:
            case UpdateReceived(channel=channel):
                self._updates.labels(_known(CHANNELS, channel), _known(UPDATE_OUTCOMES, event.outcome)).inc()
                if event.reason is not None:
                    self._refusals.labels(_known(CHANNELS, channel), _known(UPDATE_REASONS, event.reason)).inc()
            case AnswerSent(channel=channel):
                self._deliveries.labels(_known(CHANNELS, channel), _known(DELIVERY_OUTCOMES, event.outcome)).inc()
                if event.outcome == "delivered":
                    self._times.labels(_known(CHANNELS, channel)).observe(event.milliseconds)
            case ChannelTrouble(channel=channel):
                self._troubles.labels(_known(CHANNELS, channel), _known(CHANNEL_WORKS, event.work)).inc()
            case _:
                pass


def _known(allowed: tuple[str, ...], value: str) -> str:
    return value if value in allowed else _OTHER
