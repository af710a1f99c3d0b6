"""Where a database is: the URL that users write, checked and taken apart."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from threadkeep.errors import InvalidSettings
from threadkeep.store.driver import Backend

_FORMS = "Write sqlite:////absolute/path.db, sqlite:// (in memory), or postgresql://user@host/database."

# The parameters of a DSN that say which database it is: `postgresql:///chat?host=/run/postgresql`.
_NAMING = frozenset({"host", "hostaddr", "port", "dbname", "service", "options"})


@dataclass(frozen=True)
class DatabaseAddress:
    """A database: `path` for SQLite (None in memory), `dsn` for PostgreSQL.

    The DSN may hold a password; `str()` and `repr()` never show it.
    """

    backend: Backend
    path: Path | None = None
    dsn: str | None = None

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"DatabaseAddress({self.shown!r})"

    @property
    def shown(self) -> str:
        """The address without its secrets."""
        if self.dsn is not None:
            parts = urlsplit(self.dsn)
            host = parts.hostname or ""
            port = f":{parts.port}" if parts.port else ""
            user = f"{parts.username}@" if parts.username else ""
            return f"postgresql://{user}{host}{port}{parts.path}"
        return f"sqlite:///{self.path}" if self.path else "sqlite://"

    @property
    def fingerprint(self) -> str:
        """A short name that is the same for the same database, for files that belong to it."""
        named = [pair for pair in parse_qsl(urlsplit(self.dsn or "").query) if pair[0] in _NAMING]
        whole = f"{self.shown}?{urlencode(named)}" if named else self.shown
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def parse_address(url: str, *, variable: str = "THREADKEEP_DATABASE_URL") -> DatabaseAddress:
    """The database that a URL names.

    Raises:
        InvalidSettings: the URL is relative, uses `~`, or names neither SQLite nor PostgreSQL.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise InvalidSettings(f"{variable} is not a database URL. {_FORMS}", variable=variable)
    if scheme in ("postgresql", "postgres"):
        try:
            urlsplit(url).port  # noqa: B018  reading it checks it
        except ValueError:
            # From None: what stands in the port's place may be half of a password.
            raise InvalidSettings(
                f"{variable} has a port that is not a number (in a password write # / : as %23 %2F %3A). {_FORMS}",
                variable=variable,
            ) from None
        return DatabaseAddress("postgres", dsn=f"postgresql://{rest}")
    if scheme != "sqlite":
        raise InvalidSettings(
            f"{variable} starts with {scheme}://, which is not known here. {_FORMS}", variable=variable
        )
    if rest in ("", "/", "/:memory:"):
        return DatabaseAddress("sqlite")
    path = Path(unquote(rest[1:]))
    if not rest.startswith("/") or not path.is_absolute() or (path.parts[1:2] and path.parts[1].startswith("~")):
        raise InvalidSettings(
            f"{variable} names a relative path (or one with ~); SQLite needs an absolute one, four slashes. {_FORMS}",
            variable=variable,
        )
    return DatabaseAddress("sqlite", path=path)
