"""What was said as a record for models to read: JSON, one message a line.

No text can end its own quotation or pretend to be another message.
"""

from __future__ import annotations

from datetime import UTC

from threadkeep.records import Json, Message, Summary, dump_json


def quoted_message(message: Message, content: str | None = None, *, part: str | None = None) -> str:
    """A message as one line of JSON: its place, time (UTC), speaker and text.

    Args:
        message: the message.
        content: a piece of its text that stands for all of it here.
        part: which piece it is, such as `2 of 5`.
    """
    at = message.sent_at or message.created_at
    said: dict[str, Json] = {"message": message.seq}
    if part is not None:
        said["part"] = part
    if at is not None:
        said["at"] = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    said["from"] = "note" if message.role == "system" else message.role
    if message.status != "complete":
        said["status"] = message.status
    said["text"] = message.content if content is None else content
    return _line(said)


def quoted_summary(summary: Summary, text: str | None = None) -> str:
    """A summary as one line of JSON: the messages that it stands for, and its text or a piece of it."""
    messages = f"{summary.first_seq}-{summary.last_seq}"
    return _line({"summary_of_messages": messages, "text": summary.text if text is None else text})


def quoted_text(name: str, text: str) -> str:
    """Some other text as one line of JSON, under a name."""
    return _line({name: text})


def _line(values: dict[str, Json]) -> str:
    # The slash is escaped, as JSON allows, so that no text can write the tag with which a prompt ends the record.
    return dump_json(values).replace("</", "<\\/")
