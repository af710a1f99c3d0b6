"""Prompts as text: prompts read from events, and templates for models that accept one text instead of messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from langchain_core.messages import BaseMessage, ChatMessage, ToolMessage
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, ValidationError

from threadkeep.agent.conversion import role_of, text_of
from threadkeep.errors import InvalidInput
from threadkeep.records import Json
from threadkeep.store.codec import clean_text

type Event = Mapping[str, Json]


@dataclass(frozen=True)
class Prompt:
    """The prompt of an event (a person's message with annotations): its text and a stable id.

    `message_id` is the first of these that exists: the id of the event's message, the id of the event, a hash of the
    text and the annotations' ids and times. Otherwise, it is None: the text alone does not identify a message.
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
        """The time of creation; None if it is unknown. A time without a zone is taken as UTC."""
        made = self.created_at
        return made.replace(tzinfo=UTC) if made is not None and made.tzinfo is None else made


class _Fields(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True, coerce_numbers_to_str=True, validate_by_name=True)

    text: str | None = Field(None, validation_alias=AliasChoices(AliasPath("message", "text"), "text"))
    message_id: str | None = Field(None, validation_alias=AliasPath("message", "id"))
    event_id: str | None = Field(None, validation_alias=AliasChoices("id", "correlation_id", "correlationId"))
    annotations: list[Mapping[str, object]] | None = None


def prompt_of(event: Event) -> Prompt | None:
    """Return the prompt of an event, if it has a text.

    The text of the event's message comes first. The annotations of kind `prompt` follow, by time and id.

    Raises:
        InvalidInput: a field has a value of the wrong type; the error names the field.
    """
    if not isinstance(event, Mapping):
        raise InvalidInput("An event must be a JSON object with a text or prompt annotations. Correct the event.")
    fields = _read(_Fields, event, "event")
    message = event.get("message")
    base = fields.text or (message if isinstance(message, str) else "")
    annotations = sorted(
        (
            _read(_Annotation, annotation, f"event.annotations.{index}")
            for index, annotation in enumerate(fields.annotations or ())
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
        # Show only the field and pydantic's message, because the value may be private.
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = ".".join([name, *map(str, first["loc"])])
        raise InvalidInput(f"{field} cannot be used: {first['msg']}. Correct the event.") from None


_PLACEHOLDER = re.compile(r"\{\{\s*([\w.-]*)\s*\}\}")
_NEEDED: Mapping[str, str] = {
    "history": "earlier messages would be left out without a word",
    "input": "the new message would not reach the model",
}
_OPTIONAL = ("system", "summary", "context")


def flatten_messages(messages: Sequence[BaseMessage]) -> str:
    """Return the messages as one text: `(role) content`, joined by blank lines.

    The role is `system`, `user`, `assistant`, `tool`, or a chat message's own role. Only text is included.
    """
    return "\n\n".join(f"({_label(message)}) {text_of(message)}" for message in messages)


@dataclass(frozen=True)
class PromptTemplate:
    """The template of a model's prompt. It must have the placeholders `{{history}}` and `{{input}}`.

    It may also have `{{system}}`, `{{summary}}` and `{{context}}`.

    Raises:
        InvalidInput: a required placeholder is missing, or a placeholder is unknown.
    """

    text: str

    def __post_init__(self) -> None:
        """Check that the required placeholders are there, and that no placeholder is unknown."""
        named = self._named()
        for name in sorted(named - {*_NEEDED, *_OPTIONAL}):
            known = ", ".join(f"{{{{{one}}}}}" for one in (*_NEEDED, *_OPTIONAL))
            raise InvalidInput(
                f"The prompt template has {{{{{name}}}}}, and there is no such value: placeholders are {known}."
            )
        for name, harm in _NEEDED.items():
            if name not in named:
                raise InvalidInput(f"The prompt template has no {{{{{name}}}}}, so {harm}: add it where it belongs.")

    def render(self, messages: Sequence[BaseMessage], *, summary: str = "", context: str = "") -> str:
        """Return the text for these messages. Braces in messages are not treated as placeholders.

        `{{input}}` becomes the newest user message and all later ones. `{{history}}` becomes all earlier messages, as
        `flatten_messages` writes them. Without `{{system}}`, system messages are part of the history.

        Raises:
            InvalidInput: a summary or context is given, but the template has no placeholder for it.
        """
        named = self._named()
        given = {"summary": summary, "context": context}
        for name, text in given.items():
            if text and name not in named:
                raise InvalidInput(f"The prompt template has no {{{{{name}}}}}, and one is given: add the placeholder.")
        system = [one for one in messages if role_of(one) == "system"] if "system" in named else []
        shown = [one for one in messages if not system or role_of(one) != "system"]
        start = max((index for index, one in enumerate(shown) if role_of(one) == "user"), default=len(shown))
        later = [flatten_messages(rest)] if (rest := shown[start + 1 :]) else []
        values = {
            "system": "\n\n".join(map(text_of, system)),
            "history": flatten_messages(shown[:start]),
            "input": "\n\n".join([*map(text_of, shown[start : start + 1]), *later]),
            **given,
        }
        # Substitute in one pass, so that inserted text is not rendered again.
        return _PLACEHOLDER.sub(lambda found: values[found[1]], self.text)

    def _named(self) -> set[str]:
        return set(_PLACEHOLDER.findall(self.text))


def _label(message: BaseMessage) -> str:
    if isinstance(message, ToolMessage):
        return "tool"
    return role_of(message) or (message.role if isinstance(message, ChatMessage) else message.type)
