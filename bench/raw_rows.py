"""The rows of a turn as raw SQL stores and reads them, the same on both engines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

from bench.contenders import TurnTexts

COLUMNS = (
    "session_id",
    "seq",
    "id",
    "role",
    "content",
    "tokens",
    "status",
    "confidence",
    "escalated",
    "run_id",
    "metadata",
    "original",
    "sent_at",
    "created_at",
    "author",
    "answers",
    "ordinal",
)
_QUESTION_TOKENS = 25
_ANSWER_TOKENS = 130


def now_text() -> str:
    """Return the current time in the format of the tables."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def rows_of(session_id: str, last_seq: int, turn: TurnTexts, now: str) -> list[tuple[object, ...]]:
    """Return the two rows of a turn that ends at `last_seq`, in the order of `COLUMNS`."""
    rest = ("complete", None, False, None, "{}", None, None, now, None, None, None)
    return [
        (session_id, last_seq - 1, str(uuid4()), "user", turn.user, _QUESTION_TOKENS, *rest),
        (session_id, last_seq, str(uuid4()), "assistant", turn.assistant, _ANSWER_TOKENS, *rest),
    ]


def dict_of(row: Sequence[object]) -> dict[str, object]:
    """Return a row as a dict; its times and JSON stay as the driver returned them."""
    return dict(zip(COLUMNS, row, strict=True))
