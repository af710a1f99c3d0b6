"""Tests of the prompt of an event: its parts, their order and its id."""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep import InvalidInput
from threadkeep.agent.prompts import prompt_of


def text_of(event: dict[str, Any]) -> str | None:
    """Return the text of an event's prompt."""
    prompt = prompt_of(event)
    return None if prompt is None else prompt.text


def id_of(event: dict[str, Any]) -> str | None:
    """Return the id of an event's prompt."""
    prompt = prompt_of(event)
    assert prompt is not None
    return prompt.message_id


def annotation(value: object, **fields: object) -> dict[str, object]:
    """Return a prompt annotation."""
    return {"kind": "prompt", "value": value, **fields}


@pytest.mark.parametrize(
    "event",
    [
        {"message": {"text": "Hi"}, "text": "other"},
        {"text": "Hi"},
        {"message": "Hi"},
        MappingProxyType({"message": MappingProxyType({"text": "Hi"})}),
        {"annotations": [annotation("Hi")]},
        {"annotations": [{"kind": "prompt", "text": "Hi"}]},
        {"message": None, "text": "Hi", "annotations": None},
        {"message": {"id": "m"}, "text": "Hi", "annotations": [annotation("Hi"), annotation(None), annotation(" ")]},
    ],
)
def test_the_text_comes_from_message_event_or_annotation(event: dict[str, Any]) -> None:
    assert text_of(event) == "Hi"


@pytest.mark.parametrize(
    ("times", "order"),
    [
        # Compared as text, the first time would be the later one.
        (("2026-01-01T10:00:00.5Z", "2026-01-01T10:00:00Z"), "b a"),
        (("2026-01-01T10:00:00+02:00", "2026-01-01T09:00:00Z"), "a b"),
        (("2026-01-01T10:00:00", "2026-01-01T09:59:59Z"), "b a"),
        ((None, "2026-01-01T10:00:00Z"), "b a"),
        ((None, None), "a b"),
        ((1767261600000, "2026-01-01T09:59:59Z"), "b a"),
    ],
)
def test_annotations_are_sorted_by_time(times: tuple[object, object], order: str) -> None:
    annotations = [annotation(name, id=name, createdAt=time) for name, time in zip("ab", times, strict=True)]
    assert text_of({"annotations": annotations}) == order.replace(" ", "\n\n")


@given(order=st.permutations(["a", "b", "c", "d"]))
def test_the_order_in_which_annotations_arrive_makes_no_difference(order: list[str]) -> None:
    times = {"a": "2026-01-01T10:00:00Z", "b": "2026-01-01T10:00:00Z", "c": "2026-01-01T10:00:01Z", "d": None}
    event = {"text": "Hi", "annotations": [annotation(one, id=one, created_at=times[one]) for one in order]}
    assert text_of(event) == "Hi\n\na\n\nb\n\nc\n\nd"
    assert id_of(event) == id_of({**event, "annotations": sorted(event["annotations"], key=str)})


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"message": {"id": "telegram:42", "text": "Hi"}, "id": "e1", "correlationId": "c1"}, "telegram:42"),
        ({"message": "Hi", "message_id": "telegram:42", "id": "e1"}, "telegram:42"),
        ({"text": "Hi", "id": "e1", "correlationId": "c1"}, "e1"),
        ({"text": "Hi", "correlation_id": "c1"}, "c1"),
        ({"text": "Hi", "correlationId": "c1"}, "c1"),
        ({"message": {"id": "", "text": "Hi"}, "id": 7}, "7"),
        ({"text": "Hi"}, None),
        ({"text": "Hi", "annotations": [annotation("there")]}, None),
    ],
)
def test_the_id_is_that_of_the_message_or_the_event(event: dict[str, Any], expected: str | None) -> None:
    """The id is that of the message or the event; text alone makes no id."""
    assert id_of(event) == expected


def test_without_an_id_annotations_determine_the_id() -> None:
    """Without an id, the id of the prompt depends on ids, times and texts of the annotations."""
    events: list[dict[str, Any]] = [
        {"annotations": [annotation("Hi", id="a")]},
        {"annotations": [annotation("Hi", id="b")]},
        {"annotations": [annotation("Hi", created_at="2026-01-01T10:00:00Z")]},
        {"annotations": [annotation("Ho", id="a")]},
        {"text": "Hi", "annotations": [annotation("Ho", id="a")]},
    ]
    for one, other in itertools.combinations(events, 2):
        assert id_of(one) != id_of(other)
    assert [id_of(event) for event in events] == [id_of(event) for event in events]


@pytest.mark.parametrize(
    ("event", "place"),
    [
        ({"text": 5.5, "annotations": []}, None),
        ({"text": ["canary"]}, "event.text"),
        ({"message": {"text": {"canary": 1}}}, "event.message.text"),
        ({"annotations": "canary"}, "event.annotations"),
        ({"annotations": ["canary"]}, "event.annotations.0"),
        ({"annotations": [annotation(["canary"])]}, "event.annotations.0.value"),
        ({"annotations": [annotation("Hi", createdAt="canary")]}, "event.annotations.0.createdAt"),
    ],
)
def test_a_wrong_field_is_named_and_not_quoted(event: dict[str, Any], place: str | None) -> None:
    if place is None:
        assert text_of(event) == "5.5"
        return
    with pytest.raises(InvalidInput) as caught:
        prompt_of(event)
    assert str(caught.value).startswith(f"{place} cannot be used: ")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("event", ["canary", ["canary"], 7])
def test_an_event_is_an_object(event: Any) -> None:
    with pytest.raises(InvalidInput, match="An event must be a JSON object") as caught:
        prompt_of(event)
    assert "canary" not in str(caught.value)
