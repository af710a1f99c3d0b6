"""Tests of Prometheus metrics: their names, labels and values."""

from __future__ import annotations

import re

import pytest

from threadkeep.observe.events import (
    BACKENDS,
    CHANNELS,
    OUTCOMES,
    RUN_OUTCOMES,
    AnswerSent,
    Backend,
    ChannelTrouble,
    ContextBuilt,
    HistoryTruncated,
    KeyResolutionFailed,
    ManifestsDropped,
    ManifestWriteFailed,
    MemoryUpdated,
    MessagesPruned,
    ModelFailed,
    PendingWrites,
    PromptSent,
    PruningFailed,
    ReadFailed,
    RunFinished,
    RunRetried,
    RunsPruned,
    RunTakenOver,
    RunTrouble,
    StoreRead,
    StoreWrite,
    SummaryFailed,
    SummaryMade,
    TurnFinished,
    UpdateReceived,
    WriteDeferred,
    WriteFailed,
)
from threadkeep.observe.prometheus import METRICS, RUN_STATES, PrometheusObserver

PREFIX = "threadkeep_agent_history_"


def test_messages_of_channels_are_counted() -> None:
    """Counters by platform and outcome start at zero. An unknown value is counted as `other`."""
    observer = PrometheusObserver()
    assert sample(observer, "threadkeep_channel_updates_total", channel="telegram", result="taken") == 0
    observer.notify(UpdateReceived(channel="telegram", bot="one", outcome="taken"))
    observer.notify(UpdateReceived(channel="telegram", bot="one", outcome="refused", reason="signature_wrong"))
    observer.notify(AnswerSent(channel="telegram", bot="one", outcome="postponed", milliseconds=5))
    observer.notify(AnswerSent(channel="telegram", bot="one", outcome="delivered", milliseconds=1500))
    for error in ("ReplyLimit", "a person's words"):
        observer.notify(AnswerSent(channel="telegram", bot="one", outcome="failed", error=error, milliseconds=5))
    observer.notify(ChannelTrouble(channel="a person", work="polling", error="Timeout"))  # type: ignore[arg-type]
    labels = {"channel": "telegram"}
    assert sample(observer, "threadkeep_channel_updates_total", **labels, result="taken") == 1
    assert sample(observer, "threadkeep_channel_refusals_total", **labels, reason="signature_wrong") == 1
    assert sample(observer, "threadkeep_channel_deliveries_total", **labels, result="delivered") == 1
    assert sample(observer, "threadkeep_channel_failures_total", **labels, reason="ReplyLimit") == 1
    assert sample(observer, "threadkeep_channel_failures_total", **labels, reason="other") == 1
    assert sample(observer, "threadkeep_channel_answer_latency_ms_sum", **labels) == 1500
    assert sample(observer, "threadkeep_channel_troubles_total", channel="other", work="polling") == 1


def test_pruned_messages_are_counted() -> None:
    observer = PrometheusObserver()
    name, failures = "threadkeep_pruned_messages_total", "threadkeep_pruning_failures_total"
    assert [sample(observer, name, action=action) for action in ("archive", "delete")] == [0, 0]
    assert sample(observer, failures) == 0
    observer.notify(MessagesPruned(action="delete", sessions=2, messages=30))
    observer.notify(PruningFailed(error="StoreUnavailable"))
    assert [sample(observer, name, action=action) for action in ("archive", "delete")] == [0, 30]
    assert sample(observer, failures) == 1


def test_runs_are_counted_by_known_workflows() -> None:
    """Unknown workflows are counted as `other`. Counters of outcomes, durations and troubles start at zero."""
    observer = PrometheusObserver(workflows=["chat", "desk"])
    for status in RUN_OUTCOMES:
        assert sample(observer, "threadkeep_runs_total", workflow="desk", status=status) == 0
    for name in ("desk", "secret-1", "secret-2"):
        observer.notify(RunFinished(workflow=name, status="failed", milliseconds=20.0, set_aside=name == "desk"))
        observer.notify(RunRetried(workflow=name, error="TimeoutError", attempt=2))
        observer.notify(RunTakenOver(workflow=name, attempt=3))
    observer.notify(RunTrouble(work="upkeep", error="StoreUnavailable"))
    observer.notify(RunsPruned(trees=2, runs=5))
    for workflow, count in (("chat", 0), ("desk", 1), ("other", 2)):
        assert sample(observer, "threadkeep_runs_total", workflow=workflow, status="failed") == count
        for name in ("run_latency_ms_count", "run_retries_total", "run_takeovers_total"):
            assert sample(observer, f"threadkeep_{name}", workflow=workflow) == count
    assert sample(observer, "threadkeep_runs_set_aside_total", workflow="desk") == 1
    assert sample(observer, "threadkeep_runs_set_aside_total", workflow="other") == 0
    assert sample(observer, "threadkeep_run_troubles_total", work="upkeep") == 1
    assert sample(observer, "threadkeep_pruned_runs_total") == 5
    assert b"secret" not in observer.render()


def test_open_runs_are_set_before_a_scrape() -> None:
    """If the counts are unknown, the metric has no value, which an alert can detect."""
    observer = PrometheusObserver()
    observer.set_runs({"queued": 3, "set_aside": 1})
    assert [sample(observer, "threadkeep_open_runs", state=state) for state in RUN_STATES] == [3, 0, 0, 1]
    observer.set_runs(None)
    assert sample(observer, "threadkeep_open_runs", state="queued") is None


def sample(observer: PrometheusObserver, name: str, **labels: str) -> float | None:
    """Return the value of a series, or None if it does not exist."""
    return observer.registry.get_sample_value(name, labels)


def test_all_metrics_exist_before_the_first_event() -> None:
    text = PrometheusObserver().render().decode()
    for name in METRICS:
        assert re.search(rf"^# HELP {name} ", text, re.MULTILINE), name
    for name in (
        "key_resolution_failures_total",
        "store_read_failures_total",
        "store_write_failures_total",
        "truncation_events_total",
        "pending_writes",
        "store_read_latency_ms_bucket",
        "store_write_latency_ms_count",
    ):
        assert re.search(rf"^{PREFIX}{name}\{{.*\}} 0\.0$", text, re.MULTILINE), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_failures_of_the_backend_in_use_start_at_zero(backend: Backend) -> None:
    observer = PrometheusObserver(backend)
    for name in ("store_read_failures_total", "store_write_failures_total"):
        for channel in CHANNELS:
            for outcome in ("fallback", "conflict", "error"):
                assert sample(observer, PREFIX + name, backend=backend, channel=channel, outcome=outcome) == 0


def test_reads_and_writes_are_timed() -> None:
    observer = PrometheusObserver()
    observer.notify(StoreRead(backend="postgres", channel="telegram", milliseconds=0.2))
    observer.notify(StoreWrite(backend="sqlite", channel="http", outcome="error", milliseconds=70))
    labels = {"backend": "postgres", "channel": "telegram", "outcome": "ok"}
    assert sample(observer, PREFIX + "store_read_latency_ms_bucket", le="0.1", **labels) == 0
    assert sample(observer, PREFIX + "store_read_latency_ms_bucket", le="0.25", **labels) == 1
    labels = {"backend": "sqlite", "channel": "http", "outcome": "error"}
    assert sample(observer, PREFIX + "store_write_latency_ms_sum", **labels) == 70


def test_failures_are_counted_once() -> None:
    """A failed write counts once, although the deferred turn has an event, too."""
    observer = PrometheusObserver()
    observer.notify(WriteFailed(backend="sqlite", outcome="fallback", error="StoreUnavailable"))
    observer.notify(WriteDeferred(backend="sqlite", messages=2))
    observer.notify(PendingWrites(backend="sqlite", count=1))
    observer.notify(ReadFailed(backend="sqlite", channel="wecom_dm", error="StoreUnavailable"))
    labels = {"backend": "sqlite", "channel": "other", "outcome": "fallback"}
    assert sample(observer, PREFIX + "store_write_failures_total", **labels) == 1
    assert sample(observer, PREFIX + "pending_writes", backend="sqlite") == 1
    labels = {"backend": "sqlite", "channel": "wecom_dm", "outcome": "error"}
    assert sample(observer, PREFIX + "store_read_failures_total", **labels) == 1


def test_turns_model_failures_and_key_failures_are_counted() -> None:
    observer = PrometheusObserver()
    observer.notify(HistoryTruncated(channel="http", dropped=3))
    observer.notify(KeyResolutionFailed(reason="empty_part"))
    observer.notify(ModelFailed(channel="http", error="TimeoutError"))
    observer.notify(TurnFinished(channel="http", status="failed", milliseconds=12, input_tokens=5, output_tokens=7))
    observer.notify(ContextBuilt(messages=3, tokens=9))
    assert sample(observer, PREFIX + "truncation_events_total", channel="http") == 1
    assert sample(observer, PREFIX + "key_resolution_failures_total", channel="other") == 1
    assert sample(observer, "threadkeep_model_failures_total", channel="http") == 1
    assert sample(observer, "threadkeep_turns_total", channel="http", status="failed") == 1
    assert sample(observer, "threadkeep_model_tokens_total", direction="output", estimated="false") == 7


def test_estimated_tokens_are_counted_separately() -> None:
    observer = PrometheusObserver()
    observer.notify(TurnFinished(milliseconds=1, input_tokens=5, output_tokens=7))
    observer.notify(TurnFinished(milliseconds=1, input_tokens=50, output_tokens=70, estimated=True))
    for estimated, tokens in (("false", 5), ("true", 50)):
        labels = {"direction": "input", "estimated": estimated}
        assert sample(observer, "threadkeep_model_tokens_total", **labels) == tokens


def test_the_size_of_model_calls_is_counted() -> None:
    observer = PrometheusObserver()
    assert sample(observer, "threadkeep_model_call_messages_count") == 0
    observer.notify(ContextBuilt(messages=3, tokens=90))
    observer.notify(PromptSent(messages=9, characters=1000, tokens=250))
    assert sample(observer, "threadkeep_model_call_messages_sum") == 12
    assert sample(observer, "threadkeep_model_call_messages_bucket", le="3.0") == 1
    assert sample(observer, "threadkeep_model_call_tokens_count") == 2
    assert sample(observer, "threadkeep_model_call_tokens_bucket", le="250.0") == 2
    assert sample(observer, "threadkeep_model_call_tokens_bucket", le="100.0") == 1


def test_trimming_of_a_runs_memory_is_counted() -> None:
    observer = PrometheusObserver()
    names = ("threadkeep_memory_trimmed_chars_total", "threadkeep_memory_trimmed_messages_total")
    assert [sample(observer, name) for name in names] == [0, 0]
    observer.notify(MemoryUpdated(before_count=9, after_count=7, trimmed_by_chars=50, trimmed_by_count=1))
    observer.notify(MemoryUpdated(before_count=8, after_count=8, trimmed_by_chars=3))
    observer.notify(PromptSent(messages=7, characters=100, tokens=25))
    assert [sample(observer, name) for name in names] == [53, 1]


def test_summaries_are_counted() -> None:
    observer = PrometheusObserver()
    assert sample(observer, "threadkeep_summary_failures_total", reason="too_long") == 0
    observer.notify(SummaryMade(messages=40, tokens=200, milliseconds=900))
    observer.notify(SummaryMade(messages=80, tokens=300, of="summaries", milliseconds=900))
    observer.notify(SummaryFailed(reason="too_long"))
    assert sample(observer, "threadkeep_summaries_total", of="messages") == 1
    assert sample(observer, "threadkeep_summaries_total", of="summaries") == 1
    assert sample(observer, "threadkeep_summary_latency_ms_bucket", le="1000.0") == 2
    assert sample(observer, "threadkeep_summary_failures_total", reason="too_long") == 1


def test_dropped_manifests_are_counted() -> None:
    """Counters are by reason and start at zero. A failed write alone is not a dropped manifest."""
    observer = PrometheusObserver("postgres")
    dropped = {"backend": "postgres", "reason": "crowded"}
    assert sample(observer, "threadkeep_manifests_dropped_total", **dropped) == 0
    observer.notify(ManifestWriteFailed(backend="postgres", error="StoreUnavailable", waiting=7))
    assert sample(observer, "threadkeep_manifest_write_failures_total", backend="postgres") == 1
    assert sample(observer, "threadkeep_manifests_dropped_total", **dropped) == 0
    observer.notify(ManifestsDropped(backend="postgres", count=3, reason="crowded"))
    assert sample(observer, "threadkeep_manifests_dropped_total", **dropped) == 3


def test_labels_are_a_closed_set() -> None:
    """An unknown value becomes `other`, and session ids are never labels."""
    observer = PrometheusObserver()
    wrong: str = "telegram:123"
    observer.notify(
        StoreRead(backend=wrong, channel=wrong, outcome=wrong, milliseconds=1, session_id=wrong)  # type: ignore[arg-type]
    )
    observer.notify(PendingWrites(backend=wrong, count=1))  # type: ignore[arg-type]
    text = observer.render().decode()
    assert wrong not in text
    for label, allowed in (("backend", BACKENDS), ("channel", CHANNELS), ("outcome", OUTCOMES)):
        assert set(re.findall(rf'{label}="([^"]*)"', text)) <= {*allowed, "other"}


def test_two_observers_do_not_share_a_registry() -> None:
    one, other = PrometheusObserver(), PrometheusObserver()
    one.notify(KeyResolutionFailed(reason="empty"))
    assert sample(other, PREFIX + "key_resolution_failures_total", channel="other") == 0


def test_the_content_type_is_the_text_format() -> None:
    assert PrometheusObserver.content_type.startswith("text/plain; version=")
