"""Prometheus metrics that count events, in their own registry.

Labels come from closed sets; a session or a user is never a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from threadkeep.observe import events

METRICS: Mapping[str, str] = {
    "threadkeep_agent_history_key_resolution_failures_total": "Runs for which no candidate gave a valid session id.",
    "threadkeep_agent_history_store_read_failures_total": "Reads of the store that failed.",
    "threadkeep_agent_history_store_write_failures_total": "Tries to write a turn that failed.",
    "threadkeep_agent_history_truncation_events_total": "Windows that left older messages out or cut one.",
    "threadkeep_agent_history_pending_writes": "Turns that wait to be written.",
    "threadkeep_agent_history_store_read_latency_ms": "Duration of reads of the store in milliseconds.",
    "threadkeep_agent_history_store_write_latency_ms": "Duration of writes to the store in milliseconds.",
    "threadkeep_channel_updates_total": "Updates that platforms delivered, by what became of them.",
    "threadkeep_channel_refusals_total": "Updates that were ignored or refused, by reason.",
    "threadkeep_channel_deliveries_total": "Tries to deliver an answer, by how they ended.",
    "threadkeep_channel_failures_total": "Answers that a platform refused for good, by reason.",
    "threadkeep_channel_answer_latency_ms": "Duration from taking a message to delivering its answer in milliseconds.",
    "threadkeep_channel_troubles_total": "Work of channels that failed and is tried again.",
    "threadkeep_graphiti_episodes_total": "Messages for Graphiti, by what became of them.",
    "threadkeep_graphiti_dead_total": "Messages for Graphiti that were given up, by reason.",
    "threadkeep_graphiti_recalls_total": "Turns for which Graphiti was asked, by how that ended.",
    "threadkeep_graphiti_recalled_facts_total": "Facts of Graphiti that were shown to models.",
    "threadkeep_graphiti_recall_latency_ms": "Duration that a turn waited for Graphiti in milliseconds.",
    "threadkeep_graphiti_troubles_total": "Work for Graphiti that failed and is tried again.",
    "threadkeep_facts_proposed_total": "Facts that were proposed from what people said.",
    "threadkeep_learning_failures_total": "Sessions that could not be learned from, and are read again later.",
    "threadkeep_manifest_write_failures_total": "Tries to write the records of model calls that failed.",
    "threadkeep_manifests_dropped_total": "Records of model calls that were not kept, by reason.",
    "threadkeep_memory_trimmed_chars_total": "Characters that left a run's memory because of its limit.",
    "threadkeep_memory_trimmed_messages_total": "Messages that left a run's memory because of its limit of messages.",
    "threadkeep_model_call_messages": "Messages that a model call was sent.",
    "threadkeep_model_call_tokens": "Tokens of the messages that a model call was sent, as counted before it.",
    "threadkeep_model_failures_total": "Model calls that raised.",
    "threadkeep_model_tokens_total": "Tokens of model calls, as reported or as estimated.",
    "threadkeep_pruned_messages_total": "Messages that retention archived or deleted.",
    "threadkeep_pruned_runs_total": "Runs that retention deleted.",
    "threadkeep_pruning_failures_total": "Rounds of retention that were broken off.",
    "threadkeep_run_latency_ms": "Duration of runs from their beginning here to their end in milliseconds.",
    "threadkeep_run_retries_total": "Runs that failed in a way that may pass and were tried again.",
    "threadkeep_run_takeovers_total": "Runs that went on after their process had died.",
    "threadkeep_run_troubles_total": "Rounds of what looks after runs that failed.",
    "threadkeep_open_runs": "Runs of the database that are not over, or are set aside.",
    "threadkeep_runs_set_aside_total": "Runs that were set aside for a person.",
    "threadkeep_runs_total": "Runs that ended or began to wait for a person, by how.",
    "threadkeep_summaries_total": "Summaries that were stored, of messages and of summaries.",
    "threadkeep_summary_failures_total": "Tries to compress a session that failed, by reason.",
    "threadkeep_summary_latency_ms": "Duration of the making of a summary in milliseconds.",
    "threadkeep_turns_total": "Turns that ended, by how they ended.",
    "threadkeep_turn_latency_ms": "Duration of turns in milliseconds.",
}
"""Every metric by its full name, with its help text."""

LATENCY_BUCKETS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
ANSWER_BUCKETS_MS = (100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
RECALL_BUCKETS_MS = (10, 25, 50, 100, 250, 500, 1000, 2000, 5000)
TURN_BUCKETS_MS = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 120000)
MESSAGE_BUCKETS = (1, 2, 3, 5, 8, 13, 20, 30, 50, 80, 130, 200, 500)
TOKEN_BUCKETS = (50, 100, 250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000, 256_000, 1_000_000)

type _Count = Callable[[Any], None]
"""A function that counts events of one type."""

OTHER_WORKFLOW = "other"
RUN_STATES = ("queued", "running", "waiting", "set_aside")

_ESTIMATED = ("false", "true")
_FAILURES = tuple(outcome for outcome in events.OUTCOMES if outcome != "ok")
_STORE_LABELS = ("backend", "channel", "outcome")


class PrometheusObserver:
    """An observer that counts events; `render` returns the body of `/metrics`, which has the type `content_type`.

    The series of the current backend exist from the start, at zero, so that rates and alerts work from the first
    scrape. Runs are counted for each workflow in `workflows`, and all others together.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, backend: events.Backend = "sqlite", workflows: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._workflows = (*dict.fromkeys(workflows), OTHER_WORKFLOW)
        self._key_failures = self._counter("threadkeep_agent_history_key_resolution_failures_total", "channel")
        self._read_failures = self._counter("threadkeep_agent_history_store_read_failures_total", *_STORE_LABELS)
        self._write_failures = self._counter("threadkeep_agent_history_store_write_failures_total", *_STORE_LABELS)
        self._truncations = self._counter("threadkeep_agent_history_truncation_events_total", "channel")
        self._pending = self._gauge("threadkeep_agent_history_pending_writes", "backend")
        self._reads = self._histogram("threadkeep_agent_history_store_read_latency_ms", *_STORE_LABELS)
        self._writes = self._histogram("threadkeep_agent_history_store_write_latency_ms", *_STORE_LABELS)
        self._manifest_failures = self._counter("threadkeep_manifest_write_failures_total", "backend")
        self._manifests_dropped = self._counter("threadkeep_manifests_dropped_total", "backend", "reason")
        self._trimmed_chars = self._counter("threadkeep_memory_trimmed_chars_total")
        self._trimmed_messages = self._counter("threadkeep_memory_trimmed_messages_total")
        self._model_failures = self._counter("threadkeep_model_failures_total", "channel")
        self._tokens = self._counter("threadkeep_model_tokens_total", "direction", "estimated")
        self._call_messages = self._histogram("threadkeep_model_call_messages", buckets=MESSAGE_BUCKETS)
        self._call_tokens = self._histogram("threadkeep_model_call_tokens", buckets=TOKEN_BUCKETS)
        self._pruned = self._counter("threadkeep_pruned_messages_total", "action")
        self._pruned_runs = self._counter("threadkeep_pruned_runs_total")
        self._pruning_failures = self._counter("threadkeep_pruning_failures_total")
        self._add_runs()
        self._summaries = self._counter("threadkeep_summaries_total", "of")
        self._summary_failures = self._counter("threadkeep_summary_failures_total", "reason")
        self._summary_times = self._histogram("threadkeep_summary_latency_ms", buckets=TURN_BUCKETS_MS)
        self._proposed = self._counter("threadkeep_facts_proposed_total")
        self._learning_failures = self._counter("threadkeep_learning_failures_total")
        self._add_channels()
        self._add_graphiti()
        self._turns = self._counter("threadkeep_turns_total", "channel", "status")
        self._turn_times = self._histogram("threadkeep_turn_latency_ms", "status", buckets=TURN_BUCKETS_MS)
        self._counts = {**self._store_counts(), **self._call_counts(), **self._run_counts(), **self._far_counts()}
        self._start_at_zero(backend)

    def _add_channels(self) -> None:
        self._updates = self._counter("threadkeep_channel_updates_total", "channel", "result")
        self._refusals = self._counter("threadkeep_channel_refusals_total", "channel", "reason")
        self._deliveries = self._counter("threadkeep_channel_deliveries_total", "channel", "result")
        self._failures = self._counter("threadkeep_channel_failures_total", "channel", "reason")
        answers = "threadkeep_channel_answer_latency_ms"
        self._answer_times = self._histogram(answers, "channel", buckets=ANSWER_BUCKETS_MS)
        self._channel_troubles = self._counter("threadkeep_channel_troubles_total", "channel", "work")

    def _add_graphiti(self) -> None:
        self._episodes = self._counter("threadkeep_graphiti_episodes_total", "result")
        self._dead_episodes = self._counter("threadkeep_graphiti_dead_total", "reason")
        self._recalls = self._counter("threadkeep_graphiti_recalls_total", "result")
        self._recalled = self._counter("threadkeep_graphiti_recalled_facts_total")
        self._recall_times = self._histogram("threadkeep_graphiti_recall_latency_ms", buckets=RECALL_BUCKETS_MS)
        self._graphiti_troubles = self._counter("threadkeep_graphiti_troubles_total", "work")

    def _add_runs(self) -> None:
        self._runs_now = self._gauge("threadkeep_open_runs", "state")
        self._runs = self._counter("threadkeep_runs_total", "workflow", "status")
        self._run_times = self._histogram("threadkeep_run_latency_ms", "workflow", buckets=TURN_BUCKETS_MS)
        self._run_retries = self._counter("threadkeep_run_retries_total", "workflow")
        self._run_takeovers = self._counter("threadkeep_run_takeovers_total", "workflow")
        self._runs_set_aside = self._counter("threadkeep_runs_set_aside_total", "workflow")
        self._run_troubles = self._counter("threadkeep_run_troubles_total", "work")

    def set_runs(self, counts: Mapping[str, int] | None) -> None:
        """Set the number of runs of the database in each of `RUN_STATES`; None if it is unknown."""
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

    def _store_counts(self) -> Mapping[type[events.Event], _Count]:
        return {
            events.StoreRead: lambda e: self._reads.labels(*_store_labels(e)).observe(e.milliseconds),
            events.StoreWrite: lambda e: self._writes.labels(*_store_labels(e)).observe(e.milliseconds),
            events.ReadFailed: lambda e: self._read_failures.labels(*_store_labels(e)).inc(),
            events.WriteFailed: lambda e: self._write_failures.labels(*_store_labels(e)).inc(),
            events.ManifestWriteFailed: lambda e: self._manifest_failures.labels(
                _one_of(events.BACKENDS, e.backend)
            ).inc(),
            events.ManifestsDropped: lambda e: self._manifests_dropped.labels(
                _one_of(events.BACKENDS, e.backend), _one_of(events.MANIFEST_LOSSES, e.reason)
            ).inc(e.count),
            events.PendingWrites: lambda e: self._pending.labels(_one_of(events.BACKENDS, e.backend)).set(e.count),
            events.HistoryTruncated: lambda e: self._truncations.labels(_one_of(events.CHANNELS, e.channel)).inc(),
            events.KeyResolutionFailed: lambda e: self._key_failures.labels(_one_of(events.CHANNELS, e.channel)).inc(),
            events.MessagesPruned: lambda e: self._pruned.labels(_one_of(events.RETENTION_ACTIONS, e.action)).inc(
                e.messages
            ),
            events.RunsPruned: lambda e: self._pruned_runs.inc(e.runs),
            events.PruningFailed: lambda _: self._pruning_failures.inc(),
        }

    def _call_counts(self) -> Mapping[type[events.Event], _Count]:
        return {
            events.MemoryUpdated: self._count_trimmed,
            events.ContextBuilt: self._count_call,
            events.PromptSent: self._count_call,
            events.ModelFailed: lambda e: self._model_failures.labels(_one_of(events.CHANNELS, e.channel)).inc(),
            events.SummaryMade: self._count_summary,
            events.SummaryFailed: lambda e: self._summary_failures.labels(
                _one_of(events.SUMMARY_FAILURES, e.reason)
            ).inc(),
            events.FactsProposed: lambda e: self._proposed.inc(e.proposed),
            events.LearningFailed: lambda _: self._learning_failures.inc(),
        }

    def _run_counts(self) -> Mapping[type[events.Event], _Count]:
        return {
            events.TurnFinished: self._count_turn,
            events.RunFinished: self._count_run,
            events.RunRetried: lambda e: self._run_retries.labels(_one_of(self._workflows, e.workflow)).inc(),
            events.RunTakenOver: lambda e: self._run_takeovers.labels(_one_of(self._workflows, e.workflow)).inc(),
            events.RunTrouble: lambda e: self._run_troubles.labels(_one_of(events.RUN_WORKS, e.work)).inc(),
        }

    def _far_counts(self) -> Mapping[type[events.Event], _Count]:
        """Return the counts of events about channels and Graphiti."""
        return {
            events.UpdateReceived: self._count_update,
            events.AnswerSent: self._count_answer,
            events.ChannelTrouble: lambda e: self._channel_troubles.labels(
                _known(events.CHANNELS, e.channel), _known(events.CHANNEL_WORKS, e.work)
            ).inc(),
            events.EpisodesDelivered: self._count_episodes,
            events.GraphRecalled: self._count_recall,
            events.GraphitiTrouble: self._count_graphiti_trouble,
        }

    def _count_trimmed(self, event: events.MemoryUpdated) -> None:
        self._trimmed_chars.inc(event.trimmed_by_chars)
        self._trimmed_messages.inc(event.trimmed_by_count)

    def _count_call(self, event: events.ContextBuilt | events.PromptSent) -> None:
        self._call_messages.observe(event.messages)
        self._call_tokens.observe(event.tokens)

    def _count_summary(self, event: events.SummaryMade) -> None:
        self._summaries.labels(_one_of(events.SUMMARY_SOURCES, event.of)).inc()
        self._summary_times.observe(event.milliseconds)

    def _count_run(self, event: events.RunFinished) -> None:
        workflow = _one_of(self._workflows, event.workflow)
        self._runs.labels(workflow, _one_of(events.RUN_OUTCOMES, event.status)).inc()
        self._run_times.labels(workflow).observe(event.milliseconds)
        self._runs_set_aside.labels(workflow).inc(event.set_aside)

    def _count_turn(self, event: events.TurnFinished) -> None:
        status = _one_of(events.TURN_STATUSES, event.status)
        self._turns.labels(_one_of(events.CHANNELS, event.channel), status).inc()
        self._turn_times.labels(status).observe(event.milliseconds)
        estimated = _ESTIMATED[event.estimated]
        self._tokens.labels("input", estimated).inc(event.input_tokens)
        self._tokens.labels("output", estimated).inc(event.output_tokens)

    def _count_update(self, event: events.UpdateReceived) -> None:
        channel = _known(events.CHANNELS, event.channel)
        self._updates.labels(channel, _known(events.UPDATE_OUTCOMES, event.outcome)).inc()
        if event.reason is not None:
            self._refusals.labels(channel, _known(events.UPDATE_REASONS, event.reason)).inc()

    def _count_answer(self, event: events.AnswerSent) -> None:
        channel = _known(events.CHANNELS, event.channel)
        self._deliveries.labels(channel, _known(events.DELIVERY_OUTCOMES, event.outcome)).inc()
        if event.outcome == "delivered":
            self._answer_times.labels(channel).observe(event.milliseconds)
        if event.outcome == "failed":
            self._failures.labels(channel, _known(events.DELIVERY_FAILURES, event.error or "")).inc()

    def _count_episodes(self, event: events.EpisodesDelivered) -> None:
        if event.result in events.DELIVERY_RESULTS:
            self._episodes.labels(event.result).inc(event.count)
        if event.reason in events.DEAD_REASONS:
            self._dead_episodes.labels(event.reason).inc(event.count)

    def _count_recall(self, event: events.GraphRecalled) -> None:
        if event.outcome in events.GRAPH_RECALL_OUTCOMES:
            self._recalls.labels(event.outcome).inc()
            self._recalled.inc(event.facts)
            self._recall_times.observe(event.milliseconds)

    def _count_graphiti_trouble(self, event: events.GraphitiTrouble) -> None:
        if event.work in events.GRAPHITI_WORKS:
            self._graphiti_troubles.labels(event.work).inc()

    def _start_at_zero(self, backend: events.Backend) -> None:
        self._pending.labels(backend).set(0)
        self._manifest_failures.labels(backend)
        for loss in events.MANIFEST_LOSSES:
            self._manifests_dropped.labels(backend, loss)
        for channel in events.CHANNELS:
            for counter in (self._key_failures, self._truncations, self._model_failures):
                counter.labels(channel)
            for outcome in _FAILURES:
                self._read_failures.labels(backend, channel, outcome)
                self._write_failures.labels(backend, channel, outcome)
            for status in events.TURN_STATUSES:
                self._turns.labels(channel, status)
        for direction in ("input", "output"):
            for estimated in _ESTIMATED:
                self._tokens.labels(direction, estimated)
        self._start_background_at_zero()
        self._start_runs_at_zero()
        self._start_far_at_zero()
        self._start_channels_at_zero()
        for histogram in (self._reads, self._writes):
            histogram.labels(backend, "http", "ok")
            histogram.labels(backend, "other", "ok")

    def _start_background_at_zero(self) -> None:
        for action in events.RETENTION_ACTIONS:
            self._pruned.labels(action)
        for of in events.SUMMARY_SOURCES:
            self._summaries.labels(of)
        for reason in events.SUMMARY_FAILURES:
            self._summary_failures.labels(reason)

    def _start_far_at_zero(self) -> None:
        for result in events.DELIVERY_RESULTS:
            self._episodes.labels(result)
        for dead_reason in events.DEAD_REASONS:
            self._dead_episodes.labels(dead_reason)
        for outcome in events.GRAPH_RECALL_OUTCOMES:
            self._recalls.labels(outcome)
        for work in events.GRAPHITI_WORKS:
            self._graphiti_troubles.labels(work)

    def _start_channels_at_zero(self) -> None:
        for channel in (name for name in events.CHANNELS if name not in ("http", "other")):
            self._answer_times.labels(channel)
            for update in events.UPDATE_OUTCOMES:
                self._updates.labels(channel, update)
            for reason in events.UPDATE_REASONS:
                self._refusals.labels(channel, reason)
            for delivery in events.DELIVERY_OUTCOMES:
                self._deliveries.labels(channel, delivery)
            for failure in (*events.DELIVERY_FAILURES, "other"):
                self._failures.labels(channel, failure)
            for channel_work in events.CHANNEL_WORKS:
                self._channel_troubles.labels(channel, channel_work)

    def _start_runs_at_zero(self) -> None:
        for workflow in self._workflows:
            self._run_times.labels(workflow)
            for counter in (self._run_retries, self._run_takeovers, self._runs_set_aside):
                counter.labels(workflow)
            for status in events.RUN_OUTCOMES:
                self._runs.labels(workflow, status)
        for work in events.RUN_WORKS:
            self._run_troubles.labels(work)
        self.set_runs({})

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(name, METRICS[name], labels, registry=self.registry)

    def _gauge(self, name: str, *labels: str) -> Gauge:
        return Gauge(name, METRICS[name], labels, registry=self.registry)

    def _histogram(self, name: str, *labels: str, buckets: tuple[float, ...] = LATENCY_BUCKETS_MS) -> Histogram:
        return Histogram(name, METRICS[name], labels, buckets=buckets, registry=self.registry)


def _store_labels(
    event: events.StoreRead | events.StoreWrite | events.ReadFailed | events.WriteFailed,
) -> tuple[str, str, str]:
    return (
        _one_of(events.BACKENDS, event.backend),
        _one_of(events.CHANNELS, event.channel),
        _one_of(events.OUTCOMES, event.outcome),
    )


def _known(allowed: tuple[str, ...], value: str) -> str:
    """Return the value, or `other` if it is not allowed."""
    return value if value in allowed else "other"


def _one_of(allowed: tuple[str, ...], value: str) -> str:
    """Return the value, or the last allowed value for anything else: unknown values must not become labels."""
    return value if value in allowed else allowed[-1]
