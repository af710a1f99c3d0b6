"""Named SQL statements from `.sql` files, most of them the same for SQLite and PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from importlib.resources import files
from typing import ClassVar, LiteralString

from threadkeep.errors import InvalidInput
from threadkeep.records.sessions import check_argument
from threadkeep.store.codec import clean_text
from threadkeep.store.driver import Driver, Parameters, Statement
from threadkeep.store.search_terms import fold, folds_into

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z][a-z0-9_]*)")
# The maximum length of a text to search for. No fact is longer, and SQLite allows LIKE patterns of 50,000 bytes.
_MOST_CHARACTERS = 10_000
_ROW = re.compile(r"^VALUES \((?P<row>[^()]*)\)$", re.MULTILINE)


@cache
def load_statements(*paths: str) -> Mapping[str, str]:
    """Return statements by name from files below `sql/`. A line `-- include: x` inserts the earlier statement `x`."""
    found: dict[str, str] = {}
    for path in paths:
        text = files("threadkeep.store").joinpath("sql", *path.split("/")).read_text(encoding="utf-8")
        parts = _NAME.split(text)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            found[name] = _COMMENT.sub("", _INCLUDE.sub(lambda include: found[include[1]], body)).strip()
    return found


def load_script(path: str) -> Sequence[str]:
    """Return the statements of a migration file, in order and without comments."""
    text = files("threadkeep.store").joinpath("sql", *path.split("/")).read_text(encoding="utf-8")
    return [part.strip() for part in _COMMENT.sub("", text).split(";\n") if part.strip()]


@lru_cache(maxsize=512)
def for_rows(sql: str, count: int) -> str:
    """Return a statement with its VALUES row repeated `count` times; in row i, the parameter `x` is named `x_i`."""
    if not (match := _ROW.search(sql)):
        raise ValueError("the statement has no VALUES row on a separate line")
    rows = ", ".join(f"({_PARAMETER.sub(rf':\1_{i}', match['row'])})" for i in range(count))
    return f"{sql[: match.start()]}VALUES {rows}{sql[match.end() :]}"


def row_parameters(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the parameters for a statement from `for_rows`; each mapping in `rows` is for one VALUES row."""
    return {f"{name}_{i}": value for i, row in enumerate(rows) for name, value in row.items()}


def for_values(sql: str, name: str, values: Collection[object], others: Parameters | None = None) -> Statement:
    """Return a statement with one VALUES row for each of `values` (parameter `name`), and all its parameters."""
    return for_rows(sql, len(values)), {**{f"{name}_{i}": value for i, value in enumerate(values)}, **(others or {})}


@lru_cache(maxsize=1024)
def for_psycopg(sql: str) -> LiteralString:
    """Return a statement from a file of this package in psycopg's notation, in which `:name` becomes `%(name)s`."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def like_pattern(text: str) -> str:
    r"""Return the LIKE pattern (for use with ESCAPE '\') of values that contain a text.

    Raises:
        InvalidInput: the text is too long.
    """
    if len(text) > _MOST_CHARACTERS:
        raise InvalidInput(f"The text that filters a list has at most {_MOST_CHARACTERS:,} characters; send less.")
    return "%" + re.sub(r"([\\%_])", r"\\\1", text) + "%"


def text_filter(text: str | None) -> dict[str, object]:
    """Return the parameters of a filter that selects values with this text, ignoring case; None selects all.

    Statements compare `translate(value, :capitals, :letters)` with `:pattern`. The characters are parameters, because
    PostgreSQL's `lower` depends on the locale of the database, and SQLite's `lower` converts ASCII letters only.

    Raises:
        InvalidInput: the text is too long, or is not a `str`.
    """
    check_argument("The text that filters a list", text, str)
    if text is None:
        return {"pattern": None, "capitals": None, "letters": None}
    pattern = like_pattern(fold(clean_text(text)))
    capitals, letters = folds_into(pattern)
    return {"pattern": pattern, "capitals": capitals, "letters": letters}


class Tables:
    """A base class for access to some tables of a database.

    A subclass passes the files of its statements as `sql`; `{backend}` stands for the database system.
    """

    _files: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, sql: Sequence[str] = ()) -> None:
        super().__init_subclass__()
        cls._files = tuple(sql) or cls._files

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.backend = driver.backend
        self._sql = load_statements(*(path.format(backend=driver.backend) for path in self._files))

    async def _execute(self, statement: str, parameters: Parameters) -> int:
        """Execute a statement as a write transaction of its own; return the number of changed rows."""
        async with self._driver.writing() as connection:
            return await connection.execute(self._sql[statement], parameters)


class ClockedTables(Tables):
    """A base class for access to tables that store times; `clock` returns the current time."""

    def __init__(self, driver: Driver, *, clock: Callable[[], datetime]) -> None:
        super().__init__(driver)
        self._clock = clock
