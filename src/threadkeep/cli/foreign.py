"""Detection of files and databases of other systems, and the base class of their importers' sources."""

from __future__ import annotations

import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from threadkeep.cli.problems import WrongUse
from threadkeep.history.archive_lines import SessionLine
from threadkeep.records import Message
from threadkeep.store.address import DatabaseAddress, parse_address
from threadkeep.store.codec import time_of
from threadkeep.store.opening import ForeignDatabase, open_foreign

type Kind = Literal["langgraph", "openai-agents", "graph-store", "chatgpt", "jsonl", "threadkeep"]
type LeftOut = Literal["tool_call", "tool_result", "system", "summary", "reasoning", "hidden", "empty", "other"]
"""Kinds of entries that an import skips: they are not messages of a person or an assistant."""

_NAMES: Mapping[Kind, str] = {
    "langgraph": "a LangGraph checkpoint database",
    "openai-agents": "a session database of the OpenAI Agents SDK",
    "graph-store": "a database of a LangGraph store",
    "chatgpt": "an export of ChatGPT",
    "jsonl": "an export of Threadkeep",
    "threadkeep": "a database of Threadkeep",
}
# The tables and columns by which each kind of database is recognised. A database may be of several kinds.
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

# Errors for first lines that are no JSON in UTF-8, such as gzip data. The first match counts.
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


@dataclass(frozen=True)
class Conversation:
    """A conversation of another system, in the form of the lines of a Threadkeep export."""

    line: SessionLine
    messages: Sequence[Message]


@dataclass(frozen=True)
class Unreadable:
    """A conversation that cannot be read, and the reason."""

    name: str
    sentence: str


@dataclass(kw_only=True)
class Source(ABC):
    """The conversations of another system, with the progress of reading them."""

    total: int
    done: int = 0
    left_out: Counter[LeftOut] = field(default_factory=Counter)

    @abstractmethod
    def conversations(self) -> AsyncIterator[Conversation | Unreadable]:
        """Yield the conversations in a stable order, even those without messages to import."""


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
        address = _address_of_file(path)
    async with open_foreign(address) as database:
        check_kind(source, wanted, _kinds_of_tables(database))
        yield address, database


async def check_file(source: str, wanted: Kind) -> None:
    """Reject a file of another kind. Unknown content, such as handwritten lines, counts as JSONL."""
    path = Path(source)
    if _head(path).startswith(_SQLITE):
        async with open_foreign(_address_of_file(path)) as database:
            check_kind(source, wanted, _kinds_of_tables(database))
    elif (kinds := kinds_of_file(path)) or wanted != "jsonl":
        check_kind(source, wanted, kinds)


def check_lines(first: bytes) -> None:
    """Reject input that does not begin like lines of JSON in UTF-8."""
    if sentence := next((sentence for beginning, sentence in _NO_LINES if beginning.match(first)), None):
        raise WrongUse(sentence)


def check_kind(source: str, wanted: Kind, kinds: Collection[Kind]) -> None:
    """Reject a source of another kind. The error names its kind and the right command."""
    if wanted in kinds:
        return
    if not kinds:
        if Path(source).is_fifo():
            raise WrongUse(f"Save {_NAMES[wanted]} to a file: only JSON lines can be read from a pipe.")
        raise WrongUse(f"This is not {_NAMES[wanted]}; see what can be imported with: threadkeep import --help")
    # A Threadkeep database can also have the tables of other kinds, so check `threadkeep` first.
    kind = "threadkeep" if "threadkeep" in kinds else next(iter(kinds))
    # Show the address instead of the URL, because the URL may contain a password.
    shown = source if (address := address_of(source)) is None else str(address)
    if kind == "threadkeep":
        command = f"threadkeep sessions export --all --database {shown}"
    else:
        command = f"threadkeep import {kind} {shown}"
    raise WrongUse(f"This is {_NAMES[kind]}; use `{command}`.")


def kinds_of_file(path: Path) -> list[Kind]:
    """Return the kind of a file that is not a database, or an empty list."""
    head = _head(path)
    if head.startswith(b"PK") and zipfile.is_zipfile(path):
        head = _head_in_zip(path)
    head = head.removeprefix(b"\xef\xbb\xbf")
    if _CHATGPT.match(head):
        return ["chatgpt"]
    return ["jsonl"] if _JSONL.match(head) else []


def chatgpt_members(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of the files with conversations in a ChatGPT export."""
    return sorted(name for name in archive.namelist() if re.fullmatch(r"(.*/)?conversations(-\d+)?\.json", name))


def utc_time(value: object) -> datetime | None:
    """Return a timestamp of another system, if the value is one. Without a zone, it counts as UTC."""
    try:
        moment = time_of(value) if isinstance(value, str) else value
    except ValueError:
        return None
    if not isinstance(moment, datetime):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _kinds_of_tables(database: ForeignDatabase) -> list[Kind]:
    return [
        kind
        for kind, tables in _COLUMNS.items()
        if all(columns <= database.columns.get(table, frozenset()) for table, columns in tables.items())
    ]


def _address_of_file(path: Path) -> DatabaseAddress:
    return DatabaseAddress("sqlite", path=path.absolute())


def _head_in_zip(path: Path) -> bytes:
    """Return the beginning of the first file with conversations, or an empty text if there is no such file."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in chatgpt_members(archive)[:1]:
                with archive.open(name) as member:
                    return member.read(_HEAD_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):  # RuntimeError: the archive is encrypted
        raise WrongUse("The zip archive is damaged or encrypted; download the export again.") from None
    return b""


def _head(path: Path) -> bytes:
    """Return the beginning of a file; of a pipe or a terminal, return none, because the import would then miss it."""
    if path.is_fifo() or path.is_char_device():
        return b""
    with path.open("rb") as stream:
        return stream.read(_HEAD_BYTES)
