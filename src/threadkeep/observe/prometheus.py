"""Prometheus metrics that count events, in their own registry.

The values of labels come from closed sets; no label names a session or a user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any, Final, TypeAliasType, get_args

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
    "threadkeep_memory_trimmed_chars_total": "Characters that left a run's memory because of its limit.",
    "threadkeep_memory_trimmed_messages_total": "Messages that left a run's memory because of its limit of messages.",
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

type _Counts = Mapping[type[events.Event], _Count]

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
    """An observer that counts events. `render` returns the body of `/metrics`, with the media type `content_type`.

    The time series of the given backend exist from the start with the value zero, so that rates and alerts work from
    the first scrape. Runs are counted for each workflow in `workflows`, and together for all other workflows.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, backend: events.Backend = "sqlite", workflows: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        name = "threadkeep_open_runs"
        self._runs_now = Gauge(name, METRICS[name], ("state",), registry=self.registry)
        self.set_runs({})
        self._counts: _Counts = {
            **self._store(backend),
            **self._manifests(backend),
            **self._retention(),
            **self._turns(),
            **self._model_calls(),
            **self._background(),
            **self._runs((*dict.fromkeys(workflows), OTHER_WORKFLOW)),
            **self._channels(),
            **self._graphiti(),
        }

    def set_runs(self, counts: Mapping[str, int] | None) -> None:
        """Set the number of runs in the database for each of `RUN_STATES`; with None (unknown), remove the numbers."""
        if counts is None:
            self._runs_now.clear()
            return
        for state in RUN_STATES:
            self._runs_now.labels(state).set(counts.get(state, 0))

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def notify(self, event: events.Event, /) -> None:
        """Count the event if there is a metric for it."""
        count = self._counts.get(type(event))
        if count is not None:
            count(event)

    def _store(self, backend: events.Backend) -> _Counts:
        labels = {"backend": events.BACKENDS, "channel": events.CHANNELS, "outcome": events.OUTCOMES}
        ok = {"backend": (backend,), "channel": ("http", _OTHER), "outcome": ("ok",)}
        failed = {"backend": (backend,), "outcome": _FAILURES}
        reads = self._histogram("threadkeep_agent_history_store_read_latency_ms", LATENCY_BUCKETS_MS, ok, **labels)
        writes = self._histogram("threadkeep_agent_history_store_write_latency_ms", LATENCY_BUCKETS_MS, ok, **labels)
        read_failures = self._counter("threadkeep_agent_history_store_read_failures_total", failed, **labels)
        write_failures = self._counter("threadkeep_agent_history_store_write_failures_total", failed, **labels)
        name = "threadkeep_agent_history_pending_writes"
        gauge = Gauge(name, METRICS[name], ("backend",), registry=self.registry)
        pending = _Series(gauge, {"backend": events.BACKENDS}, {"backend": (backend,)})
        return {
            events.StoreRead: lambda e: reads.of(e.backend, e.channel, e.outcome).observe(e.milliseconds),
            events.StoreWrite: lambda e: writes.of(e.backend, e.channel, e.outcome).observe(e.milliseconds),
            events.ReadFailed: lambda e: read_failures.of(e.backend, e.channel, e.outcome).inc(),
            events.WriteFailed: lambda e: write_failures.of(e.backend, e.channel, e.outcome).inc(),
            events.PendingWrites: lambda e: pending.of(e.backend).set(e.count),
        }

    def _manifests(self, backend: events.Backend) -> _Counts:
        own = {"backend": (backend,)}
        failures = self._counter("threadkeep_manifest_write_failures_total", own, backend=events.BACKENDS)
        dropped = self._counter(
            "threadkeep_manifests_dropped_total", own, backend=events.BACKENDS, reason=_values(events.ManifestLoss)
        )
        return {
            events.ManifestWriteFailed: lambda e: failures.of(e.backend).inc(),
            events.ManifestsDropped: lambda e: dropped.of(e.backend, e.reason).inc(e.count),
        }

    def _retention(self) -> _Counts:
        messages = self._counter("threadkeep_pruned_messages_total", action=_values(events.RetentionAction))
        runs = self._counter("threadkeep_pruned_runs_total")
        failures = self._counter("threadkeep_pruning_failures_total")
        return {
            events.MessagesPruned: lambda e: messages.of(e.action).inc(e.messages),
            events.RunsPruned: lambda e: runs.of().inc(e.runs),
            events.PruningFailed: lambda _: failures.of().inc(),
        }

    def _turns(self) -> _Counts:
        key_failures = self._counter("threadkeep_agent_history_key_resolution_failures_total", channel=events.CHANNELS)
        turns = self._counter("threadkeep_turns_total", channel=events.CHANNELS, status=_values(events.TurnStatus))
        times = self._histogram("threadkeep_turn_latency_ms", TURN_BUCKETS_MS, status=_values(events.TurnStatus))
        tokens = self._counter("threadkeep_model_tokens_total", direction=("input", "output"), estimated=_ESTIMATED)

        def count(event: events.TurnFinished) -> None:
            turns.of(event.channel, event.status).inc()
            times.of(event.status).observe(event.milliseconds)
            tokens.of("input", _ESTIMATED[event.estimated]).inc(event.input_tokens)
            tokens.of("output", _ESTIMATED[event.estimated]).inc(event.output_tokens)

        return {
            events.KeyResolutionFailed: lambda e: key_failures.of(e.channel).inc(),
            events.TurnFinished: count,
        }

    def _model_calls(self) -> _Counts:
        truncations = self._counter("threadkeep_agent_history_truncation_events_total", channel=events.CHANNELS)
        failures = self._counter("threadkeep_model_failures_total", channel=events.CHANNELS)
        messages = self._histogram("threadkeep_model_call_messages", MESSAGE_BUCKETS)
        tokens = self._histogram("threadkeep_model_call_tokens", TOKEN_BUCKETS)
        trimmed_chars = self._counter("threadkeep_memory_trimmed_chars_total")
        trimmed_messages = self._counter("threadkeep_memory_trimmed_messages_total")

        def count(event: events.ContextBuilt | events.PromptSent) -> None:
            messages.of().observe(event.messages)
            tokens.of().observe(event.tokens)

        def count_trimmed(event: events.MemoryUpdated) -> None:
            trimmed_chars.of().inc(event.trimmed_by_chars)
            trimmed_messages.of().inc(event.trimmed_by_count)

        return {
            events.HistoryTruncated: lambda e: truncations.of(e.channel).inc(),
            events.ModelFailed: lambda e: failures.of(e.channel).inc(),
            events.ContextBuilt: count,
            events.PromptSent: count,
            events.MemoryUpdated: count_trimmed,
        }

    def _background(self) -> _Counts:
        summaries = self._counter("threadkeep_summaries_total", of=_values(events.SummarySource))
        times = self._histogram("threadkeep_summary_latency_ms", TURN_BUCKETS_MS)
        failures = self._counter("threadkeep_summary_failures_total", reason=_values(events.SummaryFailure))
        proposed = self._counter("threadkeep_facts_proposed_total")
        learning_failures = self._counter("threadkeep_learning_failures_total")
        skips = self._counter("threadkeep_learning_skips_total")

        def count(event: events.SummaryMade) -> None:
            summaries.of(event.of).inc()
            times.of().observe(event.milliseconds)

        return {
            events.SummaryMade: count,
            events.SummaryFailed: lambda e: failures.of(e.reason).inc(),
            events.FactsProposed: lambda e: proposed.of().inc(e.proposed),
            events.LearningFailed: lambda _: learning_failures.of().inc(),
            events.LearningSkipped: lambda _: skips.of().inc(),
        }

    def _runs(self, workflows: tuple[str, ...]) -> _Counts:
        runs = self._counter("threadkeep_runs_total", workflow=workflows, status=events.RUN_OUTCOMES)
        times = self._histogram("threadkeep_run_latency_ms", TURN_BUCKETS_MS, workflow=workflows)
        retries = self._counter("threadkeep_run_retries_total", workflow=workflows)
        takeovers = self._counter("threadkeep_run_takeovers_total", workflow=workflows)
        set_aside = self._counter("threadkeep_runs_set_aside_total", workflow=workflows)
        troubles = self._counter("threadkeep_run_troubles_total", work=_values(events.RunWork))

        def count(event: events.RunFinished) -> None:
            runs.of(event.workflow, event.status).inc()
            times.of(event.workflow).observe(event.milliseconds)
            set_aside.of(event.workflow).inc(event.set_aside)

        return {
            events.RunFinished: count,
            events.RunRetried: lambda e: retries.of(e.workflow).inc(),
            events.RunTakenOver: lambda e: takeovers.of(e.workflow).inc(),
            events.RunTrouble: lambda e: troubles.of(e.work).inc(),
        }

    def _channels(self) -> _Counts:
        updates = self._platform_counter("threadkeep_channel_updates_total", result=_values(events.UpdateOutcome))
        refusals = self._platform_counter("threadkeep_channel_refusals_total", reason=_values(events.UpdateReason))
        deliveries = self._platform_counter(
            "threadkeep_channel_deliveries_total", result=_values(events.DeliveryOutcome)
        )
        failures = self._platform_counter(
            "threadkeep_channel_failures_total", reason=(*events.DELIVERY_FAILURES, _OTHER)
        )
        troubles = self._platform_counter("threadkeep_channel_troubles_total", work=_values(events.ChannelWork))
        platforms = {"channel": _PLATFORMS}
        name = "threadkeep_channel_answer_latency_ms"
        times = self._histogram(name, ANSWER_BUCKETS_MS, platforms, channel=events.CHANNELS)

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

        return {
            events.UpdateReceived: count_update,
            events.AnswerSent: count_answer,
            events.ChannelTrouble: lambda e: troubles.of(e.channel, e.work).inc(),
        }

    def _graphiti(self) -> _Counts:
        episodes = self._counter("threadkeep_graphiti_episodes_total", result=_values(events.DeliveryResult))
        dead = self._counter("threadkeep_graphiti_dead_total", reason=_values(events.DeadReason))
        recalls = self._counter("threadkeep_graphiti_recalls_total", result=_values(events.GraphRecallOutcome))
        facts = self._counter("threadkeep_graphiti_recalled_facts_total")
        times = self._histogram("threadkeep_graphiti_recall_latency_ms", RECALL_BUCKETS_MS)
        troubles = self._counter("threadkeep_graphiti_troubles_total", work=_values(events.GraphitiWork))

        def count_episodes(event: events.EpisodesDelivered) -> None:
            episodes.of(event.result).inc(event.count)
            if event.reason is not None:
                dead.of(event.reason).inc(event.count)

        def count_recall(event: events.GraphRecalled) -> None:
            recalls.of(event.outcome).inc()
            facts.of().inc(event.facts)
            times.of().observe(event.milliseconds)

        return {
            events.EpisodesDelivered: count_episodes,
            events.GraphRecalled: count_recall,
            events.GraphitiTrouble: lambda e: troubles.of(e.work).inc(),
        }

    def _counter(self, name: str, first: _Labels | None = None, **labels: tuple[str, ...]) -> _Series[Counter]:
        return _Series(Counter(name, METRICS[name], labels, registry=self.registry), labels, first or {})

    def _platform_counter(self, name: str, **labels: tuple[str, ...]) -> _Series[Counter]:
        return self._counter(name, {"channel": _PLATFORMS}, channel=events.CHANNELS, **labels)

    def _histogram(
        self,
        name: str,
        buckets: tuple[float, ...],
        first: _Labels | None = None,
        **labels: tuple[str, ...],
    ) -> _Series[Histogram]:
        histogram = Histogram(name, METRICS[name], labels, buckets=buckets, registry=self.registry)
        return _Series(histogram, labels, first or {})


class _Series[M: MetricWrapperBase]:
    """The time series of a metric, whose label values come from closed sets.

    All series exist from the start, except series with label values that `first` leaves out; these are added when they
    first occur.
    """

    def __init__(self, metric: M, labels: _Labels, first: _Labels) -> None:
        self._metric = metric
        self._allowed = tuple(labels.values())
        for values in product(*(first.get(name, allowed) for name, allowed in labels.items())):
            self.of(*values)

    def of(self, *values: str) -> M:
        """Return the series with these label values; a value that is not in the closed set becomes `other`."""
        if not values:
            return self._metric
        known = zip(values, self._allowed, strict=True)
        return self._metric.labels(*[value if value in allowed else _OTHER for value, allowed in known])
