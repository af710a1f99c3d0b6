"""Prometheus metrics that count events, in their own registry.

The values of labels come from closed sets; no label names a session or a user.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any, Final, TypeAliasType, get_args, get_type_hints

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from threadkeep.observe import events

METRICS: Mapping[str, str] = {
    "threadkeep_agent_history_key_resolution_failures_total": "Runs for which no candidate gave a valid session id.",
    "threadkeep_agent_history_store_read_failures_total": "Reads of the store that failed.",
    "threadkeep_agent_history_store_write_failures_total": "Failed attempts to write a turn.",
    "threadkeep_agent_history_truncation_events_total": "Windows that excluded older messages or shortened one.",
    "threadkeep_agent_history_pending_writes": "Turns that wait to be written.",
    "threadkeep_agent_history_store_read_latency_ms": "Duration of reads of the store in milliseconds.",
    "threadkeep_agent_history_store_write_latency_ms": "Duration of writes to the store in milliseconds.",
    "threadkeep_channel_updates_total": "Updates that platforms delivered, by outcome.",
    "threadkeep_channel_refusals_total": "Updates that were ignored or refused, by reason.",
    "threadkeep_channel_deliveries_total": "Attempts to deliver an answer, by outcome.",
    "threadkeep_channel_failures_total": "Answers that a platform rejected for good, by reason.",
    "threadkeep_channel_answer_latency_ms": "Duration from taking a message to delivering its answer in milliseconds.",
    "threadkeep_channel_troubles_total": "Failures of channel work that is retried.",
    "threadkeep_graphiti_episodes_total": "Messages for Graphiti, by outcome.",
    "threadkeep_graphiti_dead_total": "Messages for Graphiti that are not retried any more, by reason.",
    "threadkeep_graphiti_recalls_total": "Turns that requested facts from Graphiti, by outcome.",
    "threadkeep_graphiti_recalled_facts_total": "Facts from Graphiti that were sent to models.",
    "threadkeep_graphiti_recall_latency_ms": "Time that a turn waited for Graphiti in milliseconds.",
    "threadkeep_graphiti_troubles_total": "Failures of Graphiti work that is retried.",
    "threadkeep_facts_proposed_total": "Facts that were proposed from people's messages.",
    "threadkeep_learning_failures_total": "Failures to learn facts from a session, which is read again later.",
    "threadkeep_learning_skips_total": "Parts of sessions from which no facts are learned: the model refused them.",
    "threadkeep_manifest_write_failures_total": "Failed attempts to write records of model calls.",
    "threadkeep_manifests_dropped_total": "Records of model calls that were dropped, by reason.",
    "threadkeep_memory_trimmed_chars_total": "Characters removed from a run's memory: it had too many characters.",
    "threadkeep_memory_trimmed_messages_total": "Messages removed from a run's memory: it had too many messages.",
    "threadkeep_model_call_messages": "Messages sent in a model call.",
    "threadkeep_model_call_tokens": "Tokens of the messages sent in a model call, as counted before the call.",
    "threadkeep_model_failures_total": "Model calls that raised an error.",
    "threadkeep_model_tokens_total": "Tokens of model calls, reported or estimated.",
    "threadkeep_pruned_messages_total": "Messages that retention archived or deleted.",
    "threadkeep_pruned_runs_total": "Runs that retention deleted.",
    "threadkeep_pruning_failures_total": "Retention passes that were interrupted.",
    "threadkeep_run_latency_ms": "Duration of runs in milliseconds, from their start in this process.",
    "threadkeep_run_retries_total": "Runs that failed with a temporary error and were retried.",
    "threadkeep_run_takeovers_total": "Runs that were taken over after their process died.",
    "threadkeep_run_troubles_total": "Failures of background work for runs.",
    "threadkeep_open_runs": "Runs in the database that have not ended, or are set aside.",
    "threadkeep_runs_set_aside_total": "Runs that were set aside for a person.",
    "threadkeep_runs_total": "Runs that ended or began to wait for a person, by status.",
    "threadkeep_summaries_total": "Summaries that were stored, of messages and of summaries.",
    "threadkeep_summary_failures_total": "Failed attempts to compress a session, by reason.",
    "threadkeep_summary_latency_ms": "Duration of the creation of a summary in milliseconds.",
    "threadkeep_turns_total": "Turns that ended, by status.",
    "threadkeep_turn_latency_ms": "Duration of turns in milliseconds.",
}
"""Maps the full name of each metric to its help text."""

LATENCY_BUCKETS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
ANSWER_BUCKETS_MS = (100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
RECALL_BUCKETS_MS = (10, 25, 50, 100, 250, 500, 1000, 2000, 5000)
TURN_BUCKETS_MS = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 120000)
MESSAGE_BUCKETS = (1, 2, 3, 5, 8, 13, 20, 30, 50, 80, 130, 200, 500)
TOKEN_BUCKETS = (50, 100, 250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000, 256_000, 1_000_000)

type _Count = Callable[[Any], object]
"""A function that counts events of one type."""

type _Labels = Mapping[str, tuple[str, ...]]
"""The allowed values of each label."""

OTHER_WORKFLOW = "other"
RUN_STATES = ("queued", "running", "waiting", "set_aside")

_ESTIMATED = ("false", "true")
_FAILURES = tuple(outcome for outcome in events.OUTCOMES if outcome != "ok")
_PLATFORMS = tuple(channel for channel in events.CHANNELS if channel not in ("http", "other"))
_OTHER: Final = "other"


def _values(closed_set: TypeAliasType) -> tuple[str, ...]:
    return get_args(closed_set.__value__)


class PrometheusObserver:
    """An observer that counts events. `render` returns the body of `/metrics`.

    The time series of the memory's `backend` exist from the start with the value zero, so that rates and alerts work
    from the first scrape. Runs are counted for each workflow in `workflows`, and in total for all other workflows.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, backend: events.Backend = "sqlite", workflows: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._workflows = (*dict.fromkeys(workflows), OTHER_WORKFLOW)
        self._counts: defaultdict[type[events.Event], list[_Count]] = defaultdict(list)
        name = "threadkeep_open_runs"
        self._runs_now = Gauge(name, METRICS[name], ("state",), registry=self.registry)
        self.set_runs({})
        self._add_store(backend)
        self._add_turns()
        self._add_model_calls()
        self._add_background()
        self._add_runs()
        self._add_channels()
        self._add_graphiti()

    def set_runs(self, counts: Mapping[str, int] | None) -> None:
        """Set the numbers of runs in the database by state; None (unknown) removes all numbers."""
        if counts is None:
            self._runs_now.clear()
            return
        for state in RUN_STATES:
            self._runs_now.labels(state).set(counts.get(state, 0))

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def notify(self, event: events.Event, /) -> None:
        """Count the event in the metrics for its type, if there are any."""
        for count in self._counts.get(type(event), ()):
            count(event)

    def _add_store(self, backend: events.Backend) -> None:
        labels = ("backend", "channel", "outcome")
        ok = {"backend": (backend,), "channel": ("http", _OTHER), "outcome": ("ok",)}
        failed = {"backend": (backend,), "outcome": _FAILURES}
        prefix = "threadkeep_agent_history_store"
        self._time(events.StoreRead, f"{prefix}_read_latency_ms", LATENCY_BUCKETS_MS, *labels, zeros=ok)
        self._time(events.StoreWrite, f"{prefix}_write_latency_ms", LATENCY_BUCKETS_MS, *labels, zeros=ok)
        self._count(events.ReadFailed, f"{prefix}_read_failures_total", *labels, zeros=failed)
        self._count(events.WriteFailed, f"{prefix}_write_failures_total", *labels, zeros=failed)
        name = "threadkeep_agent_history_pending_writes"
        gauge = Gauge(name, METRICS[name], ("backend",), registry=self.registry)
        pending = _Series(gauge, {"backend": events.BACKENDS}, {"backend": (backend,)})
        self._counts[events.PendingWrites].append(lambda e: pending.of(e.backend).set(e.count))
        own = {"backend": (backend,)}
        self._count(events.ManifestWriteFailed, "threadkeep_manifest_write_failures_total", "backend", zeros=own)
        name = "threadkeep_manifests_dropped_total"
        self._count(events.ManifestsDropped, name, "backend", "reason", amount="count", zeros=own)

    def _add_turns(self) -> None:
        name = "threadkeep_agent_history_key_resolution_failures_total"
        self._count(events.KeyResolutionFailed, name, "channel")
        self._count(events.TurnFinished, "threadkeep_turns_total", "channel", "status")
        self._time(events.TurnFinished, "threadkeep_turn_latency_ms", TURN_BUCKETS_MS, "status")
        labels = {"direction": ("input", "output"), "estimated": _ESTIMATED}
        tokens = self._counter("threadkeep_model_tokens_total", labels)

        def count(event: events.TurnFinished) -> None:
            tokens.of("input", _ESTIMATED[event.estimated]).inc(event.input_tokens)
            tokens.of("output", _ESTIMATED[event.estimated]).inc(event.output_tokens)

        self._counts[events.TurnFinished].append(count)

    def _add_model_calls(self) -> None:
        name = "threadkeep_agent_history_truncation_events_total"
        self._count(events.HistoryTruncated, name, "channel")
        self._count(events.ModelFailed, "threadkeep_model_failures_total", "channel")
        messages = self._histogram("threadkeep_model_call_messages", MESSAGE_BUCKETS)
        tokens = self._histogram("threadkeep_model_call_tokens", TOKEN_BUCKETS)
        self._count(events.MemoryUpdated, "threadkeep_memory_trimmed_chars_total", amount="trimmed_by_chars")
        self._count(events.MemoryUpdated, "threadkeep_memory_trimmed_messages_total", amount="trimmed_by_count")
        for kind in (events.ContextBuilt, events.PromptSent):
            self._follow(kind, messages, "messages")
            self._follow(kind, tokens, "tokens")

    def _add_background(self) -> None:
        self._count(events.MessagesPruned, "threadkeep_pruned_messages_total", "action", amount="messages")
        self._count(events.RunsPruned, "threadkeep_pruned_runs_total", amount="runs")
        self._count(events.PruningFailed, "threadkeep_pruning_failures_total")
        self._count(events.SummaryMade, "threadkeep_summaries_total", "of")
        self._time(events.SummaryMade, "threadkeep_summary_latency_ms", TURN_BUCKETS_MS)
        self._count(events.SummaryFailed, "threadkeep_summary_failures_total", "reason")
        self._count(events.FactsProposed, "threadkeep_facts_proposed_total", amount="proposed")
        self._count(events.LearningFailed, "threadkeep_learning_failures_total")
        self._count(events.LearningSkipped, "threadkeep_learning_skips_total")

    def _add_runs(self) -> None:
        self._count(events.RunFinished, "threadkeep_runs_total", "workflow", "status")
        self._time(events.RunFinished, "threadkeep_run_latency_ms", TURN_BUCKETS_MS, "workflow")
        self._count(events.RunRetried, "threadkeep_run_retries_total", "workflow")
        self._count(events.RunTakenOver, "threadkeep_run_takeovers_total", "workflow")
        self._count(events.RunFinished, "threadkeep_runs_set_aside_total", "workflow", amount="set_aside")
        self._count(events.RunTrouble, "threadkeep_run_troubles_total", "work")

    def _add_channels(self) -> None:
        platforms, channels = {"channel": _PLATFORMS}, {"channel": events.CHANNELS}
        outcomes, sent = _values(events.UpdateOutcome), _values(events.DeliveryOutcome)
        updates = self._counter("threadkeep_channel_updates_total", {**channels, "result": outcomes}, platforms)
        reasons = {**channels, "reason": _values(events.UpdateReason)}
        refusals = self._counter("threadkeep_channel_refusals_total", reasons, platforms)
        deliveries = self._counter("threadkeep_channel_deliveries_total", {**channels, "result": sent}, platforms)
        errors = {**channels, "reason": (*events.DELIVERY_FAILURES, _OTHER)}
        failures = self._counter("threadkeep_channel_failures_total", errors, platforms)
        self._count(events.ChannelTrouble, "threadkeep_channel_troubles_total", "channel", "work", zeros=platforms)
        times = self._histogram("threadkeep_channel_answer_latency_ms", ANSWER_BUCKETS_MS, channels, platforms)

        def count_update(event: events.UpdateReceived) -> None:
            updates.of(event.channel, event.outcome).inc()
            if event.reason is not None:
                refusals.of(event.channel, event.reason).inc()

        def count_answer(event: events.AnswerSent) -> None:
            deliveries.of(event.channel, event.outcome).inc()
            if event.outcome == "delivered":
                times.of(event.channel).observe(event.milliseconds)
            if event.outcome == "failed":
                failures.of(event.channel, event.error or _OTHER).inc()

        self._counts[events.UpdateReceived].append(count_update)
        self._counts[events.AnswerSent].append(count_answer)

    def _add_graphiti(self) -> None:
        self._count(events.EpisodesDelivered, "threadkeep_graphiti_episodes_total", "result", amount="count")
        dead = self._counter("threadkeep_graphiti_dead_total", {"reason": _values(events.DeadReason)})
        outcomes = {"result": _values(events.GraphRecallOutcome)}
        recalls = self._counter("threadkeep_graphiti_recalls_total", outcomes)
        self._count(events.GraphRecalled, "threadkeep_graphiti_recalled_facts_total", amount="facts")
        self._time(events.GraphRecalled, "threadkeep_graphiti_recall_latency_ms", RECALL_BUCKETS_MS)
        self._count(events.GraphitiTrouble, "threadkeep_graphiti_troubles_total", "work")

        def count_dead(event: events.EpisodesDelivered) -> None:
            if event.reason is not None:
                dead.of(event.reason).inc(event.count)

        self._counts[events.EpisodesDelivered].append(count_dead)
        self._counts[events.GraphRecalled].append(lambda e: recalls.of(e.outcome).inc())

    def _count(
        self, kind: type[events.Event], name: str, *labels: str, amount: str | None = None, zeros: _Labels | None = None
    ) -> None:
        """Register a counter of the events of a kind, or of the sum of their field `amount`. `labels` name fields."""
        self._follow(kind, self._counter(name, self._closed_sets(kind, labels), zeros), amount, *labels)

    def _time(
        self,
        kind: type[events.Event],
        name: str,
        buckets: tuple[float, ...],
        *labels: str,
        zeros: _Labels | None = None,
    ) -> None:
        """Register a histogram of the field `milliseconds` of the events of a kind. `labels` name fields."""
        self._follow(
            kind, self._histogram(name, buckets, self._closed_sets(kind, labels), zeros), "milliseconds", *labels
        )

    def _follow(
        self, kind: type[events.Event], series: _Series[Counter] | _Series[Histogram], amount: str | None, *labels: str
    ) -> None:
        """Update a metric at each event of a kind, by the event's field `amount` or by 1. `labels` name fields."""

        def count(event: Any) -> None:
            metric = series.of(*[getattr(event, label) for label in labels])
            value = 1 if amount is None else getattr(event, amount)
            if isinstance(metric, Histogram):
                metric.observe(value)
            else:
                metric.inc(value)

        self._counts[kind].append(count)

    def _closed_sets(self, kind: type[events.Event], fields: tuple[str, ...]) -> _Labels:
        hints = get_type_hints(kind)
        return {field: self._workflows if field == "workflow" else _values(hints[field]) for field in fields}

    def _counter(self, name: str, labels: _Labels, zeros: _Labels | None = None) -> _Series[Counter]:
        return _Series(Counter(name, METRICS[name], tuple(labels), registry=self.registry), labels, zeros or {})

    def _histogram(
        self, name: str, buckets: tuple[float, ...], labels: _Labels | None = None, zeros: _Labels | None = None
    ) -> _Series[Histogram]:
        known = labels or {}
        histogram = Histogram(name, METRICS[name], tuple(known), buckets=buckets, registry=self.registry)
        return _Series(histogram, known, zeros or {})


class _Series[M: MetricWrapperBase]:
    """The time series of a metric, whose label values come from closed sets.

    For each label, series with value zero exist from the start: for its values in `zeros` or, by default, for all.
    """

    def __init__(self, metric: M, labels: _Labels, zeros: _Labels) -> None:
        self._metric = metric
        self._allowed = tuple(labels.values())
        first = product(*(zeros.get(name, allowed) for name, allowed in labels.items()))
        self._series = {values: metric.labels(*values) if values else metric for values in first}

    def of(self, *values: str) -> M:
        """Return the series with these label values; unknown values become `other`."""
        if values in self._series:
            return self._series[values]
        known = zip(values, self._allowed, strict=True)
        return self._metric.labels(*[value if value in allowed else _OTHER for value, allowed in known])
