"""Options, consent and deliveries of the Graphiti connection."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args
from urllib.parse import urlsplit

from threadkeep.errors import InvalidInput
from threadkeep.records.knowledge import ScopeKind

type Transport = Literal["rest", "mcp"]
type GroupStrategy = Literal["hashed", "raw"]
type RecallScopes = Literal["auto", "session", "workspace", "user"]
type DataClass = Literal["chat_text", "system_messages", "git_metadata", "promoted_facts", "backfill"]
type Decision = Literal["granted", "declined", "withdrawn"]
type DeliveryStatus = Literal["queued", "sent", "confirmed", "dead"]

DATA_CLASSES: tuple[DataClass, ...] = get_args(DataClass.__value__)
DELIVERY_STATUSES: tuple[DeliveryStatus, ...] = get_args(DeliveryStatus.__value__)

CONSENT_VERSION = 1
"""The version of the question that asks for consent. Consent to another version does not count."""

_LONGEST_ENDPOINT = 2_000


def normalised_endpoint(text: str) -> str:
    """Return a Graphiti server's address in a uniform spelling.

    Raises:
        InvalidInput: the text is not an http or https address with a host, or it has a user, a query or a fragment.
    """
    trimmed = text.strip().rstrip("/")
    try:
        parts = urlsplit(trimmed)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_valid = urlsplit(""), False
    if not is_valid or any(part.isspace() for part in trimmed) or len(trimmed) > _LONGEST_ENDPOINT:
        raise InvalidInput("A Graphiti endpoint is an http or https address with a host, such as http://graph:8000.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidInput("A Graphiti endpoint has no user, query or fragment; put a key into GRAPHITI_API_KEY.")
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


@dataclass(frozen=True, kw_only=True)
class GraphitiOptions:
    """Options of the Graphiti connection. Times are in seconds; sizes are in characters or bytes.

    Turns are sent to the Graphiti groups of `scopes`, and facts are read from `recall_scopes`. `auto` means the session
    and the workspace, and also the user if the message mentions a preference or, for example, "my name".

    A sent message must appear as an episode. If it does not, it is sent again, up to `max_attempts` times in all, but
    not before `confirm_seconds` have passed since messages were last sent or confirmed. This wait grows with the number
    of unconfirmed messages and with each attempt. If `promotes` is true, facts are sent too; consent must cover them.
    """

    endpoint: str = ""
    enabled: bool = True
    api_key: str | None = field(default=None, repr=False)
    transport: Transport = "rest"
    timeout_seconds: float = 10.0
    max_batch: int = 20
    max_queue: int = 10_000
    max_queue_bytes: int = 50_000_000
    max_message_chars: int = 4_000
    scopes: tuple[ScopeKind, ...] = ("session", "workspace")
    group_id_strategy: GroupStrategy = "hashed"
    include_system: bool = False
    git_folder: str | None = None
    promotes: bool = False
    workspace: str | None = None
    recall_enabled: bool = False
    recall_max_facts: int = 10
    recall_timeout_seconds: float = 2.0
    recall_scopes: tuple[RecallScopes, ...] = ("auto",)
    recall_extra_group_ids: tuple[str, ...] = ()
    confirm_seconds: float = 60.0
    confirm_seconds_each: float = 5.0
    max_attempts: int = 5
    first_pause_seconds: float = 0.5
    longest_pause_seconds: float = 30.0
    poll_seconds: float = 1.0
    backfill_per_minute: int = 60

    def __post_init__(self) -> None:
        """Reject invalid options; `InvalidInput` names the option."""
        object.__setattr__(self, "endpoint", normalised_endpoint(self.endpoint))
        for name in (
            "timeout_seconds", "max_batch", "max_queue", "max_queue_bytes", "max_message_chars", "recall_max_facts",
            "recall_timeout_seconds", "confirm_seconds", "max_attempts", "first_pause_seconds", "poll_seconds",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} of GraphitiOptions is a number above 0.")
        for group_id in self.recall_extra_group_ids:
            check_group_id(group_id)

    def needed_classes(self) -> tuple[DataClass, ...]:
        """Return the classes of data that these options send; consent must cover each of them."""
        more: list[tuple[DataClass, bool]] = [
            ("system_messages", self.include_system),
            ("git_metadata", self.git_folder is not None),
            ("promoted_facts", self.promotes or self.git_folder is not None),
        ]
        return ("chat_text", *(name for name, wanted in more if wanted))


def check_group_id(group_id: str) -> str:
    """Check the id of a Graphiti group, and return it.

    Raises:
        InvalidInput: the id is not valid. A Graphiti server would accept it, but could not store the messages later.
    """
    if not (isinstance(group_id, str) and re.fullmatch("[A-Za-z0-9_-]{1,200}", group_id)):
        raise InvalidInput("A Graphiti group id has 1 to 200 letters, digits, - and _.")
    return group_id


@dataclass(frozen=True, kw_only=True)
class Consent:
    """A person's decision about the classes of data that may be sent to a Graphiti endpoint."""

    version: int
    endpoint: str
    data_classes: tuple[DataClass, ...]
    decision: Decision
    decided_by: str
    decided_at: datetime


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A message or a promoted fact on its way to the Graphiti group of a scope. A message's text is in the transcript.

    Status `sent`: it is being sent, or Graphiti has accepted it and will store it later. `confirmed`: Graphiti has
    shown it as an episode. `dead`: it is not sent any more; `reason` says why. `repeats` counts how often it was queued
    again because Graphiti had accepted it and never stored it.
    """

    number: int
    group_id: str
    scope: ScopeKind
    session_id: str | None
    message_id: str
    name: str
    role: str
    status: DeliveryStatus
    reason: str | None
    attempts: int
    repeats: int
    created_at: datetime
    sent_at: datetime | None
    ended_at: datetime | None
