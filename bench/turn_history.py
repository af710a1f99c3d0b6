"""The events of a run of the bench: answers to callers, stored messages, and model calls."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_QUESTION = "question "
_ANSWER = re.compile(r"#(\d+) to (\S+) as (\S+)\. .*\Z", re.DOTALL)


def question_text(message_id: str) -> str:
    """Return the text of a question. It contains the message id, so that a model call shows its question."""
    return f"{_QUESTION}{message_id}"


def question_id(text: str) -> str | None:
    """Return the message id of the question with this text; None if the text is no question of the bench."""
    return text.removeprefix(_QUESTION) if text.startswith(_QUESTION) else None


def answer_text(number: int, message_id: str, speaker: str, words: str) -> str:
    """Return the answer of one model call; every call has a different answer."""
    return f"#{number} to {message_id} as {speaker}. {words}."


class Answer(NamedTuple):
    """The parts of an answer of a model."""

    call: int
    message_id: str
    speaker: str

    @classmethod
    def of(cls, text: str) -> Answer | None:
        """Return the parts of a text, or None if no model of the bench wrote it."""
        found = _ANSWER.match(text)
        return None if found is None else cls(int(found[1]), found[2], found[3])


@dataclass(frozen=True)
class Asked:
    """A question, and the time when it was first sent."""

    session_id: str
    message_id: str
    at: float


@dataclass(frozen=True)
class Told:
    """An answer that a caller received: its service, its start and end, and its chunks if it was streamed."""

    session_id: str
    message_id: str
    text: str
    service: str
    begun_at: float
    at: float
    run_id: str
    pieces: str | None = None
    replaced: bool = False
    final: bool = False


@dataclass(frozen=True)
class Refused:
    """An HTTP status that a caller received instead of an answer."""

    message_id: str
    service: str
    at: float
    status: int


@dataclass(frozen=True)
class ModelCall:
    """A model call: role and text of its messages, and the answer; None if the model failed."""

    number: int
    at: float
    messages: Sequence[tuple[str, str]]
    answer: str | None
    final: bool = False


@dataclass(frozen=True)
class Stored:
    """A message of a transcript. `author`, `answers` and `ordinal` are None if the message has none."""

    session_id: str
    seq: int
    message_id: str
    role: str
    content: str
    status: str
    author: str | None = None
    answers: str | None = None
    ordinal: int | None = None
    superseded: bool = False


@dataclass(frozen=True)
class RunRow:
    """A run as the service shows it at the end."""

    run_id: str
    session_id: str | None
    message_id: str | None
    status: str
    text: str
    error: str | None = None


@dataclass(frozen=True)
class Outage:
    """A period in which a service may have had no access to its database, its disk, or a row that it needs."""

    service: str
    begun_at: float
    ended_at: float
    what: str


@dataclass(frozen=True)
class TurnHistory:
    """All events of one run of the bench."""

    asked: Sequence[Asked] = ()
    told: Sequence[Told] = ()
    refused: Sequence[Refused] = ()
    calls: Sequence[ModelCall] = ()
    stored: Sequence[Stored] = ()
    runs: Sequence[RunRow] = ()
    outages: Sequence[Outage] = ()
    errors: Sequence[str] = ()
    speakers: Sequence[str] = ("assistant",)
    window_messages: int = 18

    def write(self, path: Path) -> None:
        """Save the history as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> TurnHistory:
        """Return a history that was saved."""
        saved: dict[str, Any] = json.loads(path.read_text())
        kinds = {
            "asked": Asked,
            "told": Told,
            "refused": Refused,
            "calls": ModelCall,
            "stored": Stored,
            "runs": RunRow,
            "outages": Outage,
        }
        records: dict[str, Any] = {name: [kind(**each) for each in saved.pop(name)] for name, kind in kinds.items()}
        return cls(**records, **saved)
