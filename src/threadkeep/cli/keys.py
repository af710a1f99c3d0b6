"""`threadkeep keys`: keys of the HTTP service."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import opened_memory
from threadkeep.cli.options import one_of, verbs
from threadkeep.cli.terminal import relative, terminal

if TYPE_CHECKING:
    from threadkeep.store.api_keys import NewKey

commands = verbs("Add, list, rotate and revoke keys of the HTTP service.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")]


@commands.command("add")
async def add_key(
    name: _Name,
    *,
    scope: Annotated[str, typer.Option(help="read, write or admin; each includes the ones before it.")] = "write",
    user_id: Annotated[str | None, typer.Option("--user", metavar="ID", help="Requests for this user only.")] = None,
    days: Annotated[
        float | None, typer.Option(min=0.001, max=36_500, help="Days of validity; by default no limit.")
    ] = None,
) -> None:
    """Add a key, and show it once: only its digest is stored. A running service accepts it within seconds."""
    from threadkeep.store.api_keys import KEY_SCOPES

    wanted = one_of("--scope", scope, KEY_SCOPES) or "write"
    async with opened_memory() as memory:
        valid_for = None if days is None else timedelta(days=days)
        _show(await memory.api_keys.add(name, scope=wanted, user_id=user_id, valid_for=valid_for))


@commands.command("list")
async def list_keys() -> None:
    """List all keys with their last use, revoked ones included. The last use is up to a minute late."""
    async with opened_memory() as memory:
        keys, now = await memory.api_keys.all(), memory.clock()
    names = ("created_at", "expires_at", "revoked_at", "last_used_at")
    values = [
        {"name": key.name, "scope": key.scope, "user_id": key.user_id, "valid": key.is_valid(now)}
        | {name: getattr(key, name) for name in names}
        for key in keys
    ]
    rows = [
        (
            key.name,
            key.scope,
            key.user_id or "",
            "valid" if key.is_valid(now) else "revoked" if key.revoked_at else "expired",
            relative(key.created_at),
            "never" if key.last_used_at is None else relative(key.last_used_at),
        )
        for key in keys
    ]
    terminal.listing(
        {"keys": values},
        ["key", "scope", "user", "state", "created", "last used"],
        rows,
        nothing="There is no key; add one with: threadkeep keys add NAME",
    )


@commands.command("rotate")
async def rotate_key(
    name: _Name,
    hours: Annotated[float, typer.Option(min=0, max=876_000, help="Hours that the old key stays valid.")] = 24.0,
) -> None:
    """Add a key in the place of the one with this name, which stays valid for a day, or as long as you say."""
    async with opened_memory() as memory:
        _show(await memory.api_keys.rotate(name, overlap=timedelta(hours=hours)))


@commands.command("revoke")
async def revoke_key(name: _Name) -> None:
    """Revoke all keys of this name. A running service refuses them within seconds."""
    async with opened_memory() as memory:
        count = await memory.api_keys.revoke(name)
    terminal.result({"revoked": count}, "Revoked.")


def _show(key: NewKey) -> None:
    values = {"name": key.name, "scope": key.scope, "user_id": key.user_id, "expires_at": key.expires_at}
    terminal.result({**values, "key": key.secret}, key.secret)
    terminal.note("Keep it now: it is shown once. Send it as `Authorization: Bearer KEY` or as `X-API-Key: KEY`.")
