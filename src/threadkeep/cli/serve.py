"""The servers `threadkeep serve`, `worker` and `mcp`, and the commands for API keys (`keys`) and the benchmark."""

from __future__ import annotations

import asyncio
import logging
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from threadkeep.cli.shared import (
    check_others_see,
    command_settings,
    handled_signals,
    one_of,
    opened_app,
    opened_memory,
    read_settings,
)
from threadkeep.cli.terminal import Reach, WrongUse, stopped_by_ctrl_c, terminal
from threadkeep.records import Message
from threadkeep.version import __version__

if TYPE_CHECKING:
    from threadkeep.history.session import Session
    from threadkeep.memory import Memory
    from threadkeep.store.api_keys import NewKey

_WARM_UP = 5
_QUESTION = "Which of the two trains arrives earlier, and from which platform does it leave? "
_ANSWER = "The one at nine arrives earlier, a quarter of an hour before the other; it leaves from platform seven. " * 3
type _Measured = tuple[str, float, float]
"""The name of an operation, and the median and the 95th percentile of its durations in milliseconds."""


async def serve_http(
    host: Annotated[str | None, typer.Option(help="Address to listen on, instead of THREADKEEP_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port, instead of THREADKEEP_PORT; 0 takes a free one.")
    ] = None,
) -> None:
    """Start the HTTP service.

    Ctrl-C, SIGTERM or a closed terminal stops it after the running turns are done. With --json it logs JSON lines.
    """
    settings = read_settings(host=host, port=port, log_json=True if terminal.as_json else None)
    with terminal.waiting("Starting"), stopped_by_ctrl_c():
        # Import this while the spinner turns: FastAPI, LangChain and LangGraph take some seconds on a slow machine.
        from threadkeep.web.service import serve

    await serve(settings, lambda text: terminal.result({"announcement": text.splitlines()}, text))


async def work() -> None:
    """Execute queued runs, and runs abandoned by other processes. `serve` does this, too.

    Ctrl-C, SIGTERM or a closed terminal stops it after the active runs are done. With --json it logs JSON lines.
    """
    settings = read_settings(log_json=True if terminal.as_json else None)
    check_others_see(settings)

    with stopped_by_ctrl_c():
        from threadkeep.app import stop_signals
        from threadkeep.observe.log import LogObserver, configure_logging
        from threadkeep.settings import unknown_variables

    configure_logging(settings.log_level, json=settings.log_json)
    for sentence in unknown_variables():
        logging.getLogger("threadkeep.worker").warning(sentence)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        stop.set()
        # Let a second Ctrl-C end the process, but not a second SIGHUP: the shell and the kernel may both send it.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    with handled_signals(dict.fromkeys(stop_signals(), end)):
        async with opened_app(settings, works=True, waits=True, observers=[LogObserver()]) as app:
            await app.runs.service()
            started = f"Threadkeep {__version__} executes the runs of {settings.database} (Ctrl+C stops it)"
            with suppress(OSError):  # stdout may be closed or full
                terminal.result({"announcement": [started]}, started)
            await stop.wait()
            seconds = f"{settings.shutdown_timeout:g} seconds"
            with suppress(OSError):  # the terminal may be closed
                terminal.note(f"Stopping: active runs may finish within {seconds}; then other workers continue them.")


async def bench(
    turns: Annotated[int, typer.Option(min=10, max=100_000, help="The number of turns to append.")] = 200,
) -> None:
    """Measure the speed of the memory on this machine.

    Appends turns to a new session, reads them, and deletes the session.
    """
    database = str(command_settings().database)
    async with opened_memory(creates=True) as memory:
        session = memory.session(f"bench:{uuid4()}")
        try:
            with terminal.progress("Measuring", 3 * turns) as reach:
                results = await _measure(session, turns, reach)
        finally:
            await session.delete()
    rows = [{"name": name, "median_ms": median, "p95_ms": p95, "rounds": turns} for name, median, p95 in results]
    cells = [(name, f"{median:.2f}", f"{p95:.2f}", f"{turns:,}") for name, median, p95 in results]
    columns = ("operation", "median ms", "p95 ms", "rounds")
    terminal.listing({"database": database, "results": rows}, columns, cells, right=columns[1:], nothing="")
    terminal.note(f"Measured on {database} with one caller at a time. The session is deleted.")


async def _measure(session: Session, turns: int, reach: Reach) -> list[_Measured]:
    turn = [Message(role="user", content=_QUESTION), Message(role="assistant", content=_ANSWER)]
    operations: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("append a turn of two messages", lambda: session.append(turn)),
        ("tail(20)", lambda: session.tail(20)),
        ("window(20 messages, 4000 tokens)", lambda: session.window(20, 4000)),
    ]
    results: list[_Measured] = []
    for number, (name, operation) in enumerate(operations):
        for _ in range(_WARM_UP):
            await operation()
        times: list[float] = []
        for done in range(turns):
            started = time.perf_counter()
            await operation()
            times.append((time.perf_counter() - started) * 1000)
            reach(number * turns + done + 1, name)
        results.append((name, statistics.median(times), statistics.quantiles(times, n=20)[-1]))
    return results


async def serve_mcp(
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="Over stdio: the user of the client.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Offer tools that store messages and delete sessions.")
    ] = False,
    http: Annotated[bool, typer.Option("--http", help="Serve streamable HTTP at /mcp instead of stdio.")] = False,
    host: Annotated[str, typer.Option(help="Over HTTP: the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Over HTTP: the port to listen on.")] = 8701,
) -> None:
    """Serve the memory to clients of the Model Context Protocol. It is read-only without --write.

    Over stdio, --user names the user; without --user, all sessions can be read. Over HTTP, each request needs a key of
    the service, which determines the user.
    """
    if http and user is not None:
        raise WrongUse("Over HTTP the key determines the user; omit --user, or serve stdio.")
    from threadkeep.adapters.mcp import McpCaller, memory_server

    async with opened_memory(background=True, creates=True) as memory:
        if http:
            await _serve_http(memory, host, port, write=write)
            return
        memory.session("mcp", user_id=user)  # validates the user
        caller = McpCaller(user, writes=write)
        await memory_server(memory, lambda: caller, writes=write).run_stdio_async()


async def _serve_http(memory: Memory, host: str, port: int, *, write: bool) -> None:
    from threadkeep.web.mcp_keys import keyed_server, serve_keyed
    from threadkeep.web.server import address_of, bind

    settings = command_settings().model_copy(update={"host": host})  # the default rate limits depend on the host
    address = address_of(host, port)
    with bind(host, port, host_name="--host", port_name="--port") as listening:
        server = await keyed_server(memory, settings, address, writes=write)
        started = f"Threadkeep serves MCP at {address}/mcp (Ctrl+C stops it)"
        await serve_keyed(server, settings, listening, on_start=lambda: terminal.note(started))


_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")]


async def add_key(
    name: _Name,
    *,
    scope: Annotated[str, typer.Option(help="read, write or admin; each includes the ones before it.")] = "write",
    user_id: Annotated[str | None, typer.Option("--user", metavar="ID", help="Limit the key to this user.")] = None,
    days: Annotated[
        float | None, typer.Option(min=0.001, max=36_500, help="Days of validity; by default no limit.")
    ] = None,
) -> None:
    """Add an API key, and show it once: only its digest is stored. A running service accepts it within seconds."""
    from threadkeep.store.api_keys import KEY_SCOPES

    wanted = one_of("--scope", scope, KEY_SCOPES) or "write"
    async with opened_memory(creates=True) as memory:
        valid_for = None if days is None else timedelta(days=days)
        _show(await memory.api_keys.add(name, scope=wanted, user_id=user_id, valid_for=valid_for))


async def list_keys() -> None:
    """List all API keys, even revoked ones, with the time of their last use, which may be a minute late."""
    async with opened_memory() as memory:
        keys, now = await memory.api_keys.all(), memory.clock()
    names = ("name", "scope", "user_id", "created_at", "expires_at", "revoked_at", "last_used_at")
    values = [{name: getattr(key, name) for name in names} | {"valid": key.is_valid(now)} for key in keys]
    states = ["valid" if key.is_valid(now) else "revoked" if key.revoked_at else "expired" for key in keys]
    terminal.listing(
        {"keys": values},
        ("key", "scope", "user", "state", "created", "last used"),
        [
            (key.name, key.scope, key.user_id, state, key.created_at, key.last_used_at or "never")
            for key, state in zip(keys, states, strict=True)
        ],
        nothing="There is no key; add one with: threadkeep keys add NAME",
    )


async def rotate_key(
    name: _Name,
    hours: Annotated[float, typer.Option(min=0, max=876_000, help="Hours that the old key stays valid.")] = 24.0,
) -> None:
    """Add a new key with the old key's name, scope, user and expiry. The old key stays valid for a day, or --hours."""
    async with opened_memory() as memory:
        _show(await memory.api_keys.rotate(name, overlap=timedelta(hours=hours)))


async def revoke_key(name: _Name) -> None:
    """Revoke all API keys with this name. A running service rejects them within seconds."""
    async with opened_memory() as memory:
        count = await memory.api_keys.revoke(name)
    terminal.result({"revoked": count}, "Revoked.")


def _show(key: NewKey) -> None:
    values = {"name": key.name, "scope": key.scope, "user_id": key.user_id, "expires_at": key.expires_at}
    terminal.result({**values, "key": key.secret}, key.secret)
    terminal.note("Save the key: it is shown only once. Send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`.")
