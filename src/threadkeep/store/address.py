"""Addresses of databases: parsing and validation of the URLs that users write."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode

from threadkeep.errors import InvalidSettings
from threadkeep.store.driver import Backend

type TranscriptLocation = Literal["tables", "graph_store"]
"""The kind of store that has the messages of sessions: the tables, or a LangGraph store."""

_FORMS = "Write sqlite:////absolute/path.db, sqlite:// (in memory), or postgresql://user@host/database."

# Query parameters of a DSN that help to identify a database, besides host, port, user and database name.
_NAMING = ("hostaddr", "service", "options")
_DEFAULT_PORT = "5432"
_DSN = re.compile(
    r"postgresql://(?:(?P<account>[^/?#]*)@)?(?P<hosts>[^/?#@]*)(?:/(?P<name>[^?#]*))?(?:\?(?P<query>.*))?.*", re.DOTALL
)
_HOST = re.compile(r"(?P<host>\[[^]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{0,5}))?")


@dataclass(frozen=True)
class DatabaseAddress:
    """The address of a database: the `path` of a SQLite file, or the `dsn` of PostgreSQL. SQLite in memory has neither.

    `memory_name` is the name by which further connections of this process open the same SQLite database in memory. The
    DSN may contain a password, which `str()` and `repr()` never show.
    """

    backend: Backend
    path: Path | None = None
    dsn: str | None = None
    memory_name: str | None = None

    def __repr__(self) -> str:
        return f"DatabaseAddress({str(self)!r})"

    @property
    def in_memory(self) -> bool:
        """True if this is an SQLite database in memory."""
        return self.path is None and self.dsn is None

    def __str__(self) -> str:
        """Return the address without its password and query parameters."""
        if self.dsn is not None:
            parts = _parts(self.dsn)
            user = parts["account"].partition(":")[0]
            name = f"/{parts['name']}" if parts["name"] else ""
            return f"postgresql://{user}{'@' if user else ''}{parts['hosts']}{name}"
        return f"sqlite:///{self.path}" if self.path else "sqlite://"

    @property
    def fingerprint(self) -> str:
        """A short hash that identifies the database in the names of local files."""
        whole = str(self) if self.dsn is None else urlencode(_identity(self.dsn))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def parse_address(url: str, *, variable: str = "The database URL") -> DatabaseAddress:
    """Parse the URL of a database. Errors begin with `variable`, which names the setting that contains the URL.

    Raises:
        InvalidSettings: the URL names neither SQLite nor PostgreSQL, its path is relative or has `~`, its port is
            not a number, or a % has no code after it.
    """

    def refusal(reason: str) -> InvalidSettings:
        return InvalidSettings(f"{variable} {reason}. {_FORMS}", variable=variable)

    scheme, separator, rest = str(url or "").partition("://")  # None is the value of an unset variable
    if not separator:
        raise refusal("is not a database URL")
    if scheme in ("postgresql", "postgres"):
        address = DatabaseAddress("postgres", dsn=f"postgresql://{rest}")
        hosts = map(_HOST.fullmatch, _parts(f"postgresql://{rest}")["hosts"].split(","))
        if not all(host is not None and int(host["port"] or 0) <= 65535 for host in hosts):
            # Do not quote the port, because it may be part of a password.
            raise refusal("has a port that is not a number (in a password write # / : as %23 %2F %3A)")
        if re.search("%(?![0-9A-Fa-f]{2})", rest):
            raise refusal("has a % without a code after it; write a % as %25")
        return address
    if scheme != "sqlite":
        raise refusal(f"starts with {scheme}://, which is not supported")
    if rest in ("", "/", "/:memory:"):
        return DatabaseAddress("sqlite")
    path = Path(unquote(rest[1:]))
    if not rest.startswith("/") or not path.is_absolute() or (path.parts[1:2] and path.parts[1].startswith("~")):
        named, example = unquote(rest).lstrip("/"), ""
        with suppress(OSError, UnicodeEncodeError):  # the working folder may be gone, or a name may not be UTF-8
            example = "" if named.startswith("~") else f", as in sqlite:///{quote(str(Path(named).absolute()))}"
        raise refusal(f"has a relative path (or one with ~); SQLite needs an absolute path, so four slashes{example}")
    return DatabaseAddress("sqlite", path=path)


def _parts(dsn: str) -> dict[str, str]:
    """Split a DSN into `account`, `hosts`, `name` and `query`, still percent-encoded; a missing part is empty."""
    match = _DSN.fullmatch(dsn)
    return match.groupdict(default="") if match else {"account": "", "hosts": "", "name": "", "query": ""}


def _identity(dsn: str) -> list[tuple[str, str]]:
    """Return the parameters of a DSN that identify the database to which libpq connects, without secrets."""
    parts = _parts(dsn)
    given = dict(parse_qsl(parts["query"]))
    written = [match for text in parts["hosts"].split(",") if (match := _HOST.fullmatch(text))]
    hosts = given["host"].split(",") if "host" in given else [unquote(match["host"]) for match in written]
    ports = given["port"].split(",") if "port" in given else [match["port"] or "" for match in written]
    # A single port applies to all hosts.
    ports = ports * len(hosts) if len(ports) == 1 else ports
    user = given.get("user") or unquote(parts["account"].partition(":")[0])
    return [
        # Host names are case-insensitive; socket folders are not.
        ("host", ",".join(host if host.startswith(("/", "@")) else host.strip("[]").lower() for host in hosts)),
        ("port", ",".join(port or _DEFAULT_PORT for port in ports)),
        ("user", user),
        ("dbname", given.get("dbname") or unquote(parts["name"]) or user),
        *((name, given[name]) for name in _NAMING if name in given),
    ]
