"""Tests of names and texts in the form that Graphiti accepts."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.errors import InvalidInput
from threadkeep.knowledge.graphiti.turns import (
    MARK,
    clamped,
    cut,
    episode_name,
    group_id_of,
    sendable,
    turn_id,
)
from threadkeep.records.graphiti import check_group_id, normalised_endpoint
from threadkeep.records.knowledge import Scope

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        (" http://graph:8000/ ", "http://graph:8000"),
        ("https://e.com/api///", "https://e.com/api"),
        ("HTTP://Graph:8000", "http://graph:8000"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_an_endpoint_is_normalised(given: str, endpoint: str) -> None:
    assert normalised_endpoint(given) == endpoint


@pytest.mark.parametrize(
    "given",
    ["", "graph:8000", "not a url", "ftp://x", "http://", "http://a b", "http://u:p@graph:8000", "http://graph?x=1"],
)
def test_an_invalid_endpoint_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="A Graphiti endpoint"):
        normalised_endpoint(given)


def test_a_group_is_named_by_its_scope_and_a_hash() -> None:
    """The group id does not contain the id of the owner."""
    digest = hashlib.sha256(b"user:ann").hexdigest()[:32]
    assert group_id_of(Scope("user", "ann")) == f"threadkeep_user_{digest}"
    assert group_id_of(Scope("user", "ann")) != group_id_of(Scope("workspace", "ann"))


def test_a_raw_group_id_is_readable() -> None:
    """Other characters become one underscore, and a long id ends with a hash."""
    assert group_id_of(Scope("session", "telegram:-100//7"), "raw") == "threadkeep_session_telegram_100_7"
    assert group_id_of(Scope("workspace", "w" * 59), "raw") == f"threadkeep_workspace_{'w' * 59}"
    long = group_id_of(Scope("workspace", "w" * 300), "raw")
    assert re.fullmatch(r"threadkeep_workspace_w{42}_[0-9a-f]{16}", long)
    assert len(long) == 80


@given(st.text(min_size=1).filter(lambda text: text.strip() and text.isprintable()), st.sampled_from(["hashed", "raw"]))
def test_every_group_id_is_valid_for_the_server(owner: str, strategy: str) -> None:
    group_id = group_id_of(Scope("user", owner), strategy)  # type: ignore[arg-type]
    assert re.fullmatch(r"[A-Za-z0-9_]+", group_id)
    assert check_group_id(group_id) == group_id


@pytest.mark.parametrize("group_id", [None, "", "a.b", "a/b", "a b", "a\n", "ä", "x" * 201])
def test_an_id_that_would_stop_the_servers_worker_is_refused(group_id: str | None) -> None:
    """A trailing newline is refused too."""
    with pytest.raises(InvalidInput):
        check_group_id(group_id)  # type: ignore[arg-type]


def test_a_long_message_ends_with_a_mark() -> None:
    text = "0123456789abcdefghijklmnopqrstuvwxyz"
    assert cut(text, 20) == f"0123456{MARK}"
    assert cut(text, 13) == text[:13]
    assert cut(text, 36) == text
    assert len(MARK) == 13


@given(st.text(), st.integers(0, 50))
def test_a_sent_text_is_at_most_as_long_as_the_limit(text: str, limit: int) -> None:
    """The sent text has neither NUL nor a lone surrogate."""
    sent = sendable(text, limit)
    assert len(sent) <= limit
    assert "\x00" not in sent
    sent.encode()


def test_lone_surrogates_are_removed() -> None:
    """A lone surrogate would stop the worker of the server."""
    assert sendable("a\ud83d\x00b", 10) == "ab"


def test_a_time_is_in_the_range_of_the_server() -> None:
    assert clamped(datetime.min.replace(tzinfo=UTC), NOW).year == 2000
    assert clamped(NOW + timedelta(days=1), NOW) == NOW
    east = timezone(timedelta(hours=8))
    assert clamped(datetime(2026, 1, 1, tzinfo=east), NOW).isoformat() == "2025-12-31T16:00:00+00:00"


def test_the_names_of_a_turn_have_its_id() -> None:
    turn = turn_id("room:1", "m1", NOW)
    assert re.fullmatch(r"[0-9a-f]{32}", turn)
    assert turn == turn_id("room:1", "m1", NOW.astimezone(timezone(timedelta(hours=8))))
    assert episode_name(turn, "user") == f"threadkeep.turn.{turn}.user"
    assert episode_name(turn, "assistant", 2) == f"threadkeep.turn.{turn}-2.assistant"
