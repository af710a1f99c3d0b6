"""Tests of API keys: stored as digests, rotated and revoked, with the time of last use."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.databases import migrated_driver
from threadkeep.errors import ApiKeyNotFound, InvalidInput
from threadkeep.store.api_keys import ApiKeys, digest_of
from threadkeep.testing import SettableClock


@pytest.fixture
async def keys(database_url: str, clock: SettableClock) -> AsyncIterator[ApiKeys]:
    """Return the keys of an empty database of each engine."""
    async with migrated_driver(database_url) as driver:
        yield ApiKeys(driver, clock=clock)


async def test_a_key_is_stored_as_a_digest(keys: ApiKeys, clock: SettableClock) -> None:
    """A key has a scope, a user and a time of last use, which never goes back."""
    new = await keys.add("web", scope="read", user_id="ann", valid_for=timedelta(days=1))
    [key] = await keys.all()
    assert (key.name, key.scope, key.user_id, key.last_used_at) == ("web", "read", "ann", None)
    assert (key.digest, new.secret in repr(key)) == (digest_of(new.secret.encode()), False)
    assert key.created_at == clock()
    await keys.note_use(key.key_id, clock())
    await keys.note_use(key.key_id, clock() - timedelta(hours=1))
    assert (await keys.all())[0].last_used_at == clock()
    assert (key.is_valid(clock()), key.is_valid(clock() + timedelta(days=1))) == (True, False)


async def test_a_rotated_key_is_valid_for_the_time_of_the_overlap(keys: ApiKeys, clock: SettableClock) -> None:
    await keys.add("web", scope="read", user_id="ann")
    await keys.rotate("web", overlap=timedelta(hours=1))
    old, new = await keys.all()
    assert (new.scope, new.user_id, new.expires_at, old.expires_at) == (
        "read",
        "ann",
        None,
        clock() + timedelta(hours=1),
    )
    clock.advance(3600)
    assert (old.is_valid(clock()), new.is_valid(clock())) == (False, True)
    with pytest.raises(InvalidInput, match="valid key already has this name"):
        await keys.add("web")
    assert await keys.revoke("web") == 2
    for again in (keys.revoke("web"), keys.rotate("web", overlap=timedelta())):
        with pytest.raises(ApiKeyNotFound):
            await again
    await keys.add("web")


async def test_a_rotation_does_not_prolong_a_key(keys: ApiKeys, clock: SettableClock) -> None:
    added = await keys.add("guest", valid_for=timedelta(days=3))
    for _ in range(2):
        assert (await keys.rotate("guest", overlap=timedelta(hours=1))).expires_at == added.expires_at
    clock.advance(3 * 86_400)
    with pytest.raises(ApiKeyNotFound):
        await keys.rotate("guest", overlap=timedelta())


async def test_a_key_keeps_its_end_if_clocks_differ(keys: ApiKeys, clock: SettableClock) -> None:
    """The clock of the process that rotates a key is an hour behind that of the process that created it."""
    await keys.add("web", scope="read", user_id="ann")
    clock.advance(-3600)
    for _ in range(2):
        new = await keys.rotate("web", overlap=timedelta(days=1))
        assert (new.scope, new.user_id, new.expires_at) == ("read", "ann", None)


@pytest.mark.parametrize(
    ("values", "cure"),
    [
        ({"name": ""}, "1 to 64"),
        ({"name": "a\n"}, "printable"),
        ({"name": "a", "scope": "all"}, re.escape("read, write, admin")),
        ({"name": "a", "user_id": ""}, "1 to 512"),
        ({"name": "a", "user_id": " "}, "1 to 512"),
        ({"name": "a", "user_id": "ann", "scope": "admin"}, "take read or write"),
    ],
)
async def test_an_invalid_key_is_refused(keys: ApiKeys, values: dict[str, str], cure: str) -> None:
    with pytest.raises(InvalidInput, match=cure):
        await keys.add(**values)  # type: ignore[arg-type]
    assert await keys.all() == []
