"""Exports of ChatGPT: `conversations.json`, alone or in a zip. Only the last shown branch is read."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from threadkeep.cli.foreign import Conversation, LeftOut, Source, Unreadable, chatgpt_members, check_file
from threadkeep.errors import InvalidInput
from threadkeep.history.archive_lines import SessionLine
from threadkeep.records import Message, Role, Status

_STEP = 1 << 20
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant"}
_REASONING = ("thoughts", "reasoning_recap")
_INTERRUPTED = ("in_progress", "finished_partial_completion")
_MARKS = {
    "image_asset_pointer": "[image]",
    "audio_asset_pointer": "[recording]",
    "video_container_asset_pointer": "[video]",
    "real_time_user_audio_video_asset_pointer": "[recording]",
}
# A reference to a source or a name in a text: kind and arguments between private-use characters.
_CITATION = re.compile(" ?\ue200[^\ue200\ue201]*\ue201")


@asynccontextmanager
async def open_export(source: str, *, user_id: str | None) -> AsyncIterator[ChatGptExport]:
    """Open an export: a zip, or the JSON file in it. `user_id` becomes the owner of the sessions."""
    await check_file(source, "chatgpt")
    with ExitStack() as stack:
        files, total = _open_files(source, stack)
        yield ChatGptExport(files, user_id, total=total)


def _open_files(source: str, stack: ExitStack) -> tuple[list[IO[bytes]], int]:
    """Open the files with conversations; return them with their total size in bytes."""
    if zipfile.is_zipfile(source):
        archive = stack.enter_context(zipfile.ZipFile(source))
        names = chatgpt_members(archive)
        return [stack.enter_context(archive.open(name)) for name in names], sum(
            archive.getinfo(name).file_size for name in names
        )
    file = stack.enter_context(Path(source).open("rb"))  # noqa: SIM115 - the stack closes it
    return [file], os.fstat(file.fileno()).st_size


@dataclass
class ChatGptExport(Source):
    """The conversations of an export. `done` and `total` are in bytes."""

    files: list[IO[bytes]]
    user_id: str | None

    async def conversations(self) -> AsyncIterator[Conversation | Unreadable]:
        """Yield the conversations in the order of the files."""
        number, before = 0, 0
        for file in self.files:
            try:
                with io.TextIOWrapper(file, encoding="utf-8-sig") as text:
                    for item in _array_items(text):
                        number += 1
                        yield self._conversation(item, f"Conversation {number}")
                        self.done = before + file.tell()
            except (ValueError, RecursionError, EOFError, zipfile.BadZipFile, zlib.error):
                yield Unreadable(
                    f"After conversation {number}",
                    "The rest is not JSON, or is incomplete; unpack the export again.",
                )
            before = self.done

    def _conversation(self, item: object, name: str) -> Conversation | Unreadable:
        try:
            values = _mapping(item)
            session_id = values.get("conversation_id") or values.get("id")
            if not isinstance(session_id, str):
                raise InvalidInput("It has no id.")
            title = values.get("title")
            line = SessionLine(
                f"chatgpt:{session_id}",
                self.user_id,
                title=title if isinstance(title, str) and title else None,
                created_at=_moment(values.get("create_time")),
                updated_at=_moment(values.get("update_time")),
            )
            nodes = _active_branch(_mapping(values.get("mapping")), values.get("current_node"))
            return Conversation(line, self._messages(nodes, line.created_at))
        except InvalidInput as error:
            return Unreadable(name, str(error))

    def _messages(self, nodes: list[Mapping[str, Any]], moment: datetime | None) -> list[Message]:
        """Return the messages to import, and count the others."""
        messages: list[Message] = []
        for values in nodes:
            text = _text(values)
            if (reason := _left_out(values, text)) is not None:
                self.left_out[reason] += 1
                continue
            sent_at = _moment(values.get("create_time"))
            moment = sent_at or moment
            status: Status = "interrupted" if values.get("status") in _INTERRUPTED else "complete"
            role = _ROLES[values["author"]["role"]]
            messages.append(Message(role, text, id=values.get("id"), sent_at=sent_at, created_at=moment, status=status))
        return messages


def _array_items(stream: IO[str]) -> Iterator[object]:
    """Yield the items of a JSON array one by one, because the file may be too large for memory.

    Raise ValueError if the text is not a complete JSON array.
    """
    decoder = json.JSONDecoder()
    text = stream.read(_STEP).lstrip()
    if not text.startswith("["):
        raise ValueError("no array")
    position, step = 1, _STEP
    while True:
        while text[position : position + 1].isspace() or text[position : position + 1] == ",":
            position += 1
        if text[position : position + 1] == "]":
            return
        try:
            item, position = decoder.raw_decode(text, position)
        except ValueError:
            more = stream.read(step)
            if not more:
                raise
            # The item is incomplete. Read twice as much each time, so that a long item is parsed only a few times.
            text, position, step = text[position:] + more, 0, step * 2
        else:
            step = _STEP
            yield item


def _active_branch(mapping: Mapping[str, Any], current: object) -> list[Mapping[str, Any]]:
    """Return the messages from the root to the node `current`, by default to the newest leaf."""
    messages: list[Mapping[str, Any]] = []
    seen: set[str] = set()
    if current is None and mapping:
        leaves = (key for key, node in mapping.items() if not _mapping(node).get("children"))
        current = max(leaves, key=lambda key: _seconds(mapping[key].get("message")), default=None)
    while isinstance(current, str) and current not in seen:
        seen.add(current)
        if current not in mapping:
            raise InvalidInput("Its tree of messages has a gap.")
        node = _mapping(mapping[current])
        if isinstance(node.get("message"), dict):
            messages.append({"id": current, **node["message"]})
        current = node.get("parent")
    return messages[::-1]


def _left_out(values: Mapping[str, Any], text: str) -> LeftOut | None:
    """Return the reason for which a message is skipped, or None if it is imported."""
    role = _part_of(values, "author").get("role")
    kind = _part_of(values, "content").get("content_type")
    reasons: tuple[tuple[LeftOut, bool], ...] = (
        ("system", role == "system"),
        ("tool_result", role == "tool"),
        ("tool_call", values.get("recipient") not in (None, "all")),
        ("reasoning", kind in _REASONING),
        ("hidden", bool(_part_of(values, "metadata").get("is_visually_hidden_from_conversation"))),
        ("other", role not in _ROLES or kind not in ("text", "multimodal_text")),
        ("empty", not text.strip()),
    )
    return next((reason for reason, holds in reasons if holds), None)


def _text(values: Mapping[str, Any]) -> str:
    """Return the text of a message, with marks such as `[image]`."""
    parts = _part_of(values, "content").get("parts")
    pieces = [_piece(part) for part in parts] if isinstance(parts, list) else []
    spoken = any(piece and piece not in _MARKS.values() for piece in pieces)
    text = "\n".join(piece for piece in pieces if piece and not (spoken and piece == "[recording]"))
    return _without_citations(text, values)


def _without_citations(text: str, values: Mapping[str, Any]) -> str:
    """Replace or remove references, so that the text reads as ChatGPT shows it."""
    references = _part_of(values, "metadata").get("content_references")
    for reference in references if isinstance(references, list) else []:
        if not isinstance(reference, dict):
            continue
        mark, shown = reference.get("matched_text"), reference.get("alt")
        if isinstance(mark, str) and mark.startswith("\ue200") and isinstance(shown, str) and shown:
            text = text.replace(mark, shown)
    return _CITATION.sub("", text)


def _piece(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    text = part.get("text")
    return text if isinstance(text, str) else _MARKS.get(str(part.get("content_type")), "[part]")


def _part_of(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the object in a field of a message, or an empty object."""
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _seconds(message: object) -> float:
    """Return the time of a message in seconds since 1970, or 0 if the message has no time."""
    moment = _moment(message.get("create_time")) if isinstance(message, dict) else None
    return moment.timestamp() if moment is not None else 0.0


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput("It does not have the structure of an export.")
    return value


def _moment(value: object) -> datetime | None:
    """Return a time from seconds since 1970, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
