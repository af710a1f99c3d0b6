"""The prompt of an event: its message's text, then its prompt annotations, under one id."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, ValidationError

from threadkeep.errors import InvalidInput
from threadkeep.records import Json
from threadkeep.store.codec import clean_text

type Event = Mapping[str, Json]


@dataclass(frozen=True)
class Prompt:
    """Return a human message with the event's text and a stable id; None if the event has no text.

    The id is that of the event's message, or else of the event; where both have none, it is made of the annotations'
    ids and times. The same words twice are two messages, so text alone makes no id.
    """

    text: str
    message_id: str | None


class _Annotation(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True, coerce_numbers_to_str=True, validate_by_name=True)

    id: str = ""
    text: str | None = Field(None, validation_alias=AliasChoices("value", "text"))
    created_at: datetime | None = Field(None, validation_alias=AliasChoices("created_at", "createdAt"))

    @property
    def time(self) -> datetime | None:
        """When it was made; a time without a zone is in UTC."""
        made = self.created_at
        return made.replace(tzinfo=UTC) if made is not None and made.tzinfo is None else made


class _Fields(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True, coerce_numbers_to_str=True, validate_by_name=True)

    text: str | None = Field(None, validation_alias=AliasChoices(AliasPath("message", "text"), "text"))
    message_id: str | None = Field(None, validation_alias=AliasPath("message", "id"))
    event_id: str | None = Field(None, validation_alias=AliasChoices("id", "correlation_id", "correlationId"))
    annotations: list[Mapping[str, object]] | None = None


def prompt_of(event: Event) -> Prompt | None:
    """The prompt of an event; None if it asks nothing.

    The text of the event's message (or the message, if it is a text) comes first, then the annotations of kind `prompt`
    by time and id (those without a time last); an annotation that says the same as the message is left out.

    Raises:
        InvalidInput: a field has a value of the wrong kind; the sentence names the field.
    """
    if not isinstance(event, Mapping):
        raise InvalidInput("An event is a JSON object, with a text or with prompt annotations. Correct the event.")
    fields = _read(_Fields, event, "event")
    message = event.get("message")
    base = fields.text or (message if isinstance(message, str) else "")
    annotations = sorted(
        (
            _read(_Annotation, annotation, f"event.annotations.{place}")
            for place, annotation in enumerate(fields.annotations or ())
            if annotation.get("kind") == "prompt"
        ),
        key=lambda one: (one.time is None, one.time or datetime.min.replace(tzinfo=UTC), one.id),
    )
    added = [one.text for one in annotations if one.text and one.text.strip() != base.strip()]
    parts = [part for part in (base, *added) if part.strip()]
    if not parts:
        return None
    text = clean_text("\n\n".join(parts))
    return Prompt(text, fields.message_id or fields.event_id or _id_of(text, annotations))


def _id_of(text: str, annotations: Sequence[_Annotation]) -> str | None:
    known = [(one.id, one.time.isoformat() if one.time else "") for one in annotations if one.id or one.time]
    return f"event-{sha256(json.dumps([text, known]).encode()).hexdigest()[:32]}" if known else None


def _read[M: BaseModel](kind: type[M], value: object, name: str) -> M:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        # Only the place and pydantic's own words: the value is what people said.
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join([name, *map(str, first["loc"])])
        raise InvalidInput(f"{place} cannot be used: {first['msg']}. Correct the event.") from None
