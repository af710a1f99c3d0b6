"""Tests of database URLs: valid forms, errors, fingerprints, and that no password is shown."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import pytest

from threadkeep import InvalidSettings, Memory, open_memory
from threadkeep.store.address import parse_address

_SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////var/lib/threadkeep/threadkeep.db", "/var/lib/threadkeep/threadkeep.db"),
        ("sqlite:////var/lib/a%20b.db", "/var/lib/a b.db"),
        ("sqlite:////var/lib/聊天.db", "/var/lib/聊天.db"),
        ("sqlite://", None),
        ("sqlite:///", None),
        ("sqlite:///:memory:", None),
    ],
)
def test_an_sqlite_url_names_an_absolute_file_or_memory(url: str, path: str | None) -> None:
    """Four slashes and a path name a file; no path means a database in memory."""
    address = parse_address(url)
    assert address.backend == "sqlite"
    assert address.path == (path and Path(path))


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_postgres_url_becomes_a_dsn(scheme: str) -> None:
    """Both common schemes become the scheme that libpq accepts."""
    address = parse_address(f"{scheme}://me:{_SECRET}@db:5433/chat?sslmode=require")
    assert address.backend == "postgres"
    assert address.dsn == f"postgresql://me:{_SECRET}@db:5433/chat?sslmode=require"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "is not a database URL"),
        (None, "is not a database URL"),
        (Path("threadkeep.db"), "is not a database URL"),
        ("/var/lib/threadkeep.db", "is not a database URL"),
        ("threadkeep.db", "is not a database URL"),
        ("sqlite:///relative.db", "relative path"),
        ("sqlite://relative.db", "relative path"),
        ("sqlite:///~/threadkeep.db", "relative path"),
        ("sqlite:////~/threadkeep.db", "relative path"),
        ("mysql://me@db/chat", "starts with mysql://"),
        ("postgresql://me@db:port/chat", "has a port that is not a number"),
        ("postgresql://me@db:99999/chat", "has a port that is not a number"),
        ("postgresql://me:50%off@db/chat", "write a % as %25"),
        ("postgresql://me@db/chat?application_name=%", "write a % as %25"),
    ],
)
def test_an_invalid_url_is_refused(url: Any, says: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        parse_address(url, variable="THREADKEEP_SOMETHING_URL")
    sentence = str(refused.value)
    assert says in sentence
    assert sentence.startswith("THREADKEEP_SOMETHING_URL ")
    assert "sqlite:////absolute/path.db" in sentence
    assert refused.value.variable == "THREADKEEP_SOMETHING_URL"


@pytest.mark.parametrize("url", ["sqlite:///my chats.db", "sqlite://my%20chats.db"])
async def test_the_error_of_a_relative_path_shows_a_url_that_works(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller in Python sees no name of an environment variable, which need not exist."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSettings, match="The database URL has a relative path") as refused:
        await Memory.open(url)
    [shown] = re.findall(r"as in (\S+)\. ", str(refused.value))
    async with open_memory(shown):
        assert (tmp_path / "my chats.db").exists()
    folder = tmp_path / "not utf-8 \udcff"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidSettings, match="four slashes\\. Write"):
        parse_address(url)
    folder.rmdir()
    with pytest.raises(InvalidSettings, match="four slashes\\. Write"):
        parse_address(url)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{_SECRET}@db:5432/chat",
        f"postgresql:///chat?host=/run/postgresql&user=me&password={_SECRET}",
        f"postgresql://db/chat?sslpassword={_SECRET}",
    ],
)
def test_an_address_never_shows_its_password(url: str) -> None:
    address = parse_address(url)
    for shown in (str(address), repr(address), f"{address}", address.fingerprint, repr([address])):
        assert _SECRET not in shown


@pytest.mark.parametrize(
    "url", [f"postgresql://me:{_SECRET}#1@db/chat", f"postgres://me:{_SECRET}/x@db/chat", f"mysql://me:{_SECRET}@db/c"]
)
def test_an_error_never_shows_the_password(url: str) -> None:
    """The traceback has no password either; a # or / in it would look like a wrong port."""
    with pytest.raises(InvalidSettings) as refused:
        parse_address(url)
    assert _SECRET not in "".join(traceback.format_exception(refused.value))


def test_different_databases_have_different_fingerprints() -> None:
    """Host, port, user and database name count, in the URL or in its parameters."""
    urls = [
        "sqlite:////var/lib/a.db",
        "sqlite:////var/lib/b.db",
        "postgresql://db/chat",
        "postgresql://db/other",
        "postgresql://db:5433/chat",
        "postgresql://elsewhere/chat",
        "postgresql:///chat?host=/run/a",
        "postgresql:///chat?host=/run/b",
        "postgresql:///chat?host=/run/b&port=5433",
        "postgresql:///?host=/run/b&dbname=other",
        "postgresql://db/chat?options=-csearch_path%3Dtenant",
        "postgresql://db/?user=alice",
        "postgresql://db/?user=bob",
        "postgresql://a,b/chat",
        "postgresql://a:5433,b/chat",
        "postgresql://a:5433,b:5433/chat",
    ]
    assert len({parse_address(url).fingerprint for url in urls}) == len(urls)


@pytest.mark.parametrize(
    "urls",
    [
        ["postgresql://db/chat", "postgresql://db:5432/chat", "postgres://DB/chat", "postgresql:///chat?host=db"],
        ["postgresql:///chat?host=db", "postgresql:///?host=db&dbname=chat", "postgresql://db?dbname=chat&port=5432"],
        ["postgresql://db/chat", "postgresql://db/%63hat", "postgresql://elsewhere/other?host=db&dbname=chat"],
        ["postgresql://me@db/chat", "postgresql://db/chat?user=me", "postgresql://db/chat?user=me&password=x"],
        ["postgresql://me@db/me", "postgresql://me@db", "postgresql://me@db/", "postgresql://db/?user=me"],
        ["postgresql://a,b/chat", "postgresql://a:5432,b:5432/chat", "postgresql:///chat?host=a,b&port=5432,5432"],
        ["postgresql://[::1]/chat", "postgresql://[::1]:5432/chat"],
        ["postgresql://", "postgresql:///"],
    ],
)
def test_equivalent_urls_have_the_same_fingerprint(urls: list[str]) -> None:
    """A value that libpq adds by default counts like the same value in the URL."""
    assert len({parse_address(url).fingerprint for url in urls}) == 1


def test_a_url_may_have_several_hosts() -> None:
    """libpq tries the hosts in turn; a wrong port among them is refused."""
    address = parse_address(f"postgresql://me:{_SECRET}@h1:5432,[::1]:5433,h3/chat?target_session_attrs=read-write")
    assert str(address) == "postgresql://me@h1:5432,[::1]:5433,h3/chat"
    with pytest.raises(InvalidSettings, match="has a port that is not a number"):
        parse_address("postgresql://h1:5432,h2:port/chat")


def test_a_new_password_does_not_change_the_fingerprint() -> None:
    urls = [
        "postgresql://me:old@db/chat?sslmode=require",
        "postgresql://me:new@db/chat?sslmode=require",
        "postgres://me@db/chat?sslmode=require",
        "postgresql://me@db/chat?connect_timeout=3&password=newer",
    ]
    assert len({parse_address(url).fingerprint for url in urls}) == 1
