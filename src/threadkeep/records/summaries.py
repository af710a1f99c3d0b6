"""Text that stands for messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

from threadkeep.errors import InvalidInput

_MOST = 2**53


@dataclass(frozen=True)
class Summary:
    """Text that stands for an exact range of a session's messages, both ends included.

    `level` is 1 for a summary of messages, one more for a summary of summaries. `model` and `prompt_version` say how it
    was made. `created_at` is the store's, unless it is given.
    """

    session_id: str
    first_seq: int
    last_seq: int
    text: str
    model: str
    prompt_version: str
    tokens: int
    level: int = 1
    id: str = field(default_factory=lambda: str(uuid4()))
    created_at: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse what stands for nothing.

        Raises:
            InvalidInput: names the field, never its text.
        """
        for name in ("session_id", "model", "prompt_version", "text", "id"):
            if not isinstance(value := getattr(self, name), str) or not value.strip():
                raise InvalidInput(f"A summary's {name} is text that is not blank.")
        for name, least in (("first_seq", 1), ("last_seq", self.first_seq), ("tokens", 0), ("level", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _MOST:
                raise InvalidInput(f"A summary's {name} is a whole number from {least}.")
        if self.created_at is not None and self.created_at.tzinfo is None:
            raise InvalidInput("A summary's created_at is a datetime with a time zone, or None.")
