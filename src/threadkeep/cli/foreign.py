"""Detects files and databases from other systems for imports, defines `Source`, and reads exports from ChatGPT."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import zipfile
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from threadkeep.cli.terminal import WrongUse
from threadkeep.errors import InvalidInput
from threadkeep.history.archive_lines import SessionLine
from threadkeep.records import Message, Role, Status
from threadkeep.store.address import DatabaseAddress, parse_address
from threadkeep.store.codec import in_utc, time_of
from threadkeep.store.opening import ForeignDatabase, open_foreign

type Kind = Literal["langgraph", "openai-agents", "graph-store", "chatgpt", "jsonl", "threadkeep"]
type LeftOut = Literal["tool_call", "tool_result", "system", "summary", "reasoning", "hidden", "empty", "other"]
"""The kinds of entries that an import skips, because they are not messages of a person or an assistant."""

_NAMES: Mapping[Kind, str] = {
    "langgraph": "a LangGraph checkpoint database",
    "openai-agents": "a session database of the OpenAI Agents SDK",
    "graph-store": "a database of a LangGraph store",
    "chatgpt": "an export of ChatGPT",
    "jsonl": "an export of Threadkeep",
    "threadkeep": "a database of Threadkeep",
}
# The tables and columns that identify each kind of database. A database may be of several kinds.
_COLUMNS: Mapping[Kind, Mapping[str, frozenset[str]]] = {
    "langgraph": {"checkpoints": frozenset({"thread_id", "checkpoint_ns", "checkpoint"})},
    "openai-agents": {"agent_messages": frozenset({"id", "session_id", "message_data"})},
    "graph-store": {"store": frozenset({"prefix", "key", "value"})},
    "threadkeep": {"chat_sessions": frozenset({"session_id"}), "chat_messages": frozenset({"session_id", "seq"})},
}
_SQLITE = b"SQLite format 3\0"
_HEAD_BYTES = 65_536
_CHATGPT = re.compile(rb'^\s*\[\s*(\]|\{.*"mapping"\s*:)', re.DOTALL)
_JSONL = re.compile(rb'^\s*\{[^\n]*"type"\s*:\s*"(session|message|summary)"')

# Errors for input that does not begin with JSON in UTF-8, such as gzip data. The first match is reported.
_NO_LINES = (
    (re.compile(rb"\x1f\x8b"), "The file is compressed; decompress it first with `gzip -d`."),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "The file is compressed; decompress it first with `zstd -d`."),
    (re.compile(rb"PK\x03\x04"), "The file is a zip archive; unpack it first with `unzip`."),
    (
        re.compile(rb"\xff\xfe|\xfe\xff|\{\0|\0\{"),
        "The file is text in UTF-16; convert it first with `iconv -f UTF-16 -t UTF-8`.",
    ),
    (
        re.compile(rb"(\xef\xbb\xbf)?+\s*\[|[^\n]*[\0-\x08\x0e-\x1f]"),
        "The first line is not a JSON object; name a file that `threadkeep sessions export` wrote.",
    ),
)

_STEP = 1 << 20
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant"}
_REASONING = ("thoughts", "reasoning_recap")
_NEVER = datetime.fromtimestamp(0, UTC)
_INTERRUPTED = ("in_progress", "finished_partial_completion")
_MARKS = {
    "image_asset_pointer": "[image]",
    "audio_asset_pointer": "[recording]",
    "video_container_asset_pointer": "[video]",
    "real_time_user_audio_video_asset_pointer": "[recording]",
}
# A citation or an entity name in a text from ChatGPT: its kind and arguments, between private-use characters.
_CITATION = re.compile(" ?\ue200[^\ue200\ue201]*\ue201")


@dataclass(frozen=True)
class Conversation:
    """A conversation from another system, converted to the records of a Threadkeep export."""

    line: SessionLine
    messages: Sequence[Message]


@dataclass(frozen=True)
class Unreadable:
    """A conversation that cannot be read, and the reason."""

    name: str
    sentence: str


type Conversations = AsyncGenerator[Conversation | Unreadable | None]
"""First None, when the source is open; then its conversations in a stable order, even without messages to import."""


@dataclass
class Reading:
    """The progress of reading another system: `done` of `total` bytes or conversations, and counts of skipped entries.

    `has_channel` becomes true when a LangGraph state with the channel to import was found.
    """

    total: int = 0
    done: int = 0
    left_out: Counter[LeftOut] = field(default_factory=Counter)
    has_channel: bool = False


def address_of(source: str) -> DatabaseAddress | None:
    """Return the address of a database if the argument is a URL, or None if it is a path."""
    return parse_address(source, variable="The database to import") if "://" in source else None


@asynccontextmanager
async def open_source_database(source: str, wanted: Kind) -> AsyncIterator[tuple[DatabaseAddress, ForeignDatabase]]:
    """Open a database of the kind `wanted` for reading; yield its address and the database."""
    address = address_of(source)
    if address is None:
        path = Path(source)
        if not _head(path).startswith(_SQLITE):
            check_kind(source, wanted, kinds_of_file(path))
        address = DatabaseAddress("sqlite", path=path.absolute())  # noqa: ASYNC240 - reads no file
    async with open_foreign(address) as database:
        kinds = [
            kind
            for kind, tables in _COLUMNS.items()
            if all(columns <= database.columns.get(table, frozenset()) for table, columns in tables.items())
        ]
        check_kind(source, wanted, kinds)
        yield address, database


async def check_file(source: str, wanted: Kind) -> None:
    """Reject a file whose kind is not `wanted`. Unknown content, such as handwritten lines, counts as JSONL."""
    path = Path(source)
    if _head(path).startswith(_SQLITE):
        async with open_source_database(source, wanted):
            pass
    elif (kinds := kinds_of_file(path)) or wanted != "jsonl":
        check_kind(source, wanted, kinds)


def check_lines(first: bytes) -> None:
    """Reject input that does not begin like lines of JSON in UTF-8."""
    if sentence := next((sentence for beginning, sentence in _NO_LINES if beginning.match(first)), None):
        raise WrongUse(sentence)


def check_kind(source: str, wanted: Kind, kinds: Collection[Kind]) -> None:
    """Reject a source whose kind is not `wanted`. The error names the kind and the command for it."""
    if wanted in kinds:
        return
    if not kinds:
        if Path(source).is_fifo():
            raise WrongUse(f"Save {_NAMES[wanted]} to a file: only JSON lines can be read from a pipe.")
        raise WrongUse(f"This is not {_NAMES[wanted]}; see what can be imported with: threadkeep import --help")
    # A Threadkeep database can also contain tables of another kind, such as a graph store. Try `threadkeep` first.
    kind = "threadkeep" if "threadkeep" in kinds else next(iter(kinds))
    # Show the address instead of the URL, because the URL may contain a password.
    shown = source if (address := address_of(source)) is None else str(address)
    command = "sessions export --all --database" if kind == "threadkeep" else f"import {kind}"
    raise WrongUse(f"This is {_NAMES[kind]}; use `threadkeep {command} {shlex.quote(shown)}`.")


def kinds_of_file(path: Path) -> list[Kind]:
    """Return the kind of a file that is not a database. The list has one item, or none if the kind is unknown."""
    head = _head(path)
    if head.startswith(b"PK\x03\x04"):
        head = _head_in_zip(path)
    head = head.removeprefix(b"\xef\xbb\xbf")
    if _CHATGPT.match(head):
        return ["chatgpt"]
    return ["jsonl"] if _JSONL.match(head) else []


def chatgpt_members(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of the files with conversations in a ChatGPT export."""
    return sorted(name for name in archive.namelist() if re.fullmatch(r"(.*/)?conversations(-\d+)?\.json", name))


def utc_time(value: object) -> datetime | None:
    """Convert another system's timestamp (UTC if it has no zone) to UTC; None if it is invalid or out of range."""
    try:
        moment = time_of(value) if isinstance(value, str | datetime) else None
        moment = moment and in_utc(moment.replace(tzinfo=moment.tzinfo or UTC))
    except ValueError:
        return None
    # Leave out the years 1 and 9999, because an import of JSONL rejects them.
    return moment if moment and 1 < moment.year < 9999 else None


def _head_in_zip(path: Path) -> bytes:
    """Return the beginning of the first file with conversations in a zip, or an empty text if it has no such file."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in chatgpt_members(archive)[:1]:
                with archive.open(name) as member:
                    return member.read(_HEAD_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):  # RuntimeError: the archive is encrypted
        raise WrongUse("The zip archive is damaged or encrypted; download the export again.") from None
    return b""


def _head(path: Path) -> bytes:
    """Return the beginning of a file. Read nothing from a pipe or a terminal: the import could not read it again."""
    if path.is_fifo() or path.is_char_device():
        return b""
    with path.open("rb") as stream:
        return stream.read(_HEAD_BYTES)


async def read_export(source: str, reading: Reading, *, user_id: str | None) -> Conversations:
    """Yield the conversations of a ChatGPT export: a zip, or the JSON file in it, in the order of the files.

    `user_id` becomes the owner of the sessions. The progress is in bytes.
    """
    await check_file(source, "chatgpt")
    number, before = 0, 0
    with ExitStack() as stack:
        files, reading.total = _open_files(source, stack)
        yield None
        for file in files:
            try:
                with io.TextIOWrapper(file, encoding="utf-8-sig") as text:
                    for item in _array_items(text):
                        number += 1
                        yield _conversation(item, f"Conversation {number}", reading, user_id)
                        reading.done = before + file.tell()
            except (ValueError, RecursionError, EOFError, zipfile.BadZipFile, zlib.error):
                yield Unreadable(
                    f"After conversation {number}",
                    "The rest is not JSON, or is incomplete; unpack the export again.",
                )
            before = reading.done


def _open_files(source: str, stack: ExitStack) -> tuple[list[IO[bytes]], int]:
    """Open the files with conversations; return them with their total size in bytes."""
    if zipfile.is_zipfile(source):
        archive = stack.enter_context(zipfile.ZipFile(source))
        members = [archive.getinfo(name) for name in chatgpt_members(archive)]
        return [stack.enter_context(archive.open(one)) for one in members], sum(one.file_size for one in members)
    file = stack.enter_context(Path(source).open("rb"))  # noqa: SIM115 - the stack closes it
    return [file], os.fstat(file.fileno()).st_size


def _conversation(item: object, name: str, reading: Reading, user_id: str | None) -> Conversation | Unreadable:
    try:
        values = _mapping(item)
        session_id = values.get("conversation_id") or values.get("id")
        if not isinstance(session_id, str):
            raise InvalidInput("It has no id.")
        title = values.get("title")
        line = SessionLine(
            f"chatgpt:{session_id}",
            user_id,
            title=title if isinstance(title, str) and title else None,
            created_at=_moment(values.get("create_time")),
            updated_at=_moment(values.get("update_time")),
        )
        nodes = _active_branch(_mapping(values.get("mapping")), values.get("current_node"))
        return Conversation(line, list(_messages(nodes, line.created_at, reading)))
    except InvalidInput as error:
        return Unreadable(name, str(error))


def _messages(nodes: Iterable[Mapping[str, Any]], moment: datetime | None, reading: Reading) -> Iterator[Message]:
    """Yield the messages to import. A message without a time gets the time of the one before it, the first `moment`."""
    for values in nodes:
        text = _text(values)
        if (reason := _left_out(values, text)) is not None:
            reading.left_out[reason] += 1
            continue
        sent_at = _moment(values.get("create_time"))
        moment = sent_at or moment
        status: Status = "interrupted" if values.get("status") in _INTERRUPTED else "complete"
        role = _ROLES[values["author"]["role"]]
        yield Message(role, text, id=values.get("id"), sent_at=sent_at, created_at=moment, status=status)


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
    """Return the messages of the branch that ends with the node `current`, by default with the newest leaf."""
    messages: list[Mapping[str, Any]] = []
    seen: set[str] = set()
    if current is None and mapping:
        leaves = (key for key, node in mapping.items() if not _mapping(node).get("children"))
        times = {key: _moment(_part_of(mapping[key], "message").get("create_time")) for key in leaves}
        current = max(times, key=lambda key: times[key] or _NEVER, default=None)
    while current is not None:
        if not isinstance(current, str) or current not in mapping:
            raise InvalidInput("Its tree of messages has a gap.")
        if current in seen:
            break
        seen.add(current)
        node = _mapping(mapping[current])
        if node.get("message") is not None:
            messages.append({"id": current, **_mapping(node["message"])})
        current = node.get("parent")
    return messages[::-1]


def _left_out(values: Mapping[str, Any], text: str) -> LeftOut | None:
    """Return the reason why a message is skipped, or None if it is imported."""
    role = _part_of(values, "author").get("role")
    kind = _part_of(values, "content").get("content_type")
    reasons: tuple[tuple[LeftOut, bool], ...] = (
        ("system", role == "system"),
        ("tool_result", role == "tool"),
        ("tool_call", values.get("recipient") not in (None, "all")),
        ("reasoning", kind in _REASONING),
        ("hidden", bool(_part_of(values, "metadata").get("is_visually_hidden_from_conversation"))),
        ("other", str(role) not in _ROLES or kind not in ("text", "multimodal_text")),
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
    """Replace or remove the codes of citations, so that the text reads as ChatGPT shows it."""
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
    """Return the JSON object in the field `name`, or an empty object if the field has no object."""
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput("It does not have the structure of an export.")
    return value


def _moment(value: object) -> datetime | None:
    """Return a time from seconds since 1970, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return utc_time(datetime.fromtimestamp(value, UTC))
    except (ValueError, OverflowError, OSError):
        return None
