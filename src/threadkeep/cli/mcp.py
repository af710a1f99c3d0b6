"""`threadkeep mcp`: the server of the Model Context Protocol, over stdio or HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.opening import command_settings
from threadkeep.cli.problems import WrongUse
from threadkeep.cli.terminal import terminal

if TYPE_CHECKING:
    from threadkeep.memory import Memory
    from threadkeep.settings import Settings


async def serve_mcp(
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="Over stdio: the user for whom the client speaks.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Offer tools that store messages and delete sessions.")
    ] = False,
    http: Annotated[bool, typer.Option("--http", help="Serve streamable HTTP at /mcp instead of stdio.")] = False,
    host: Annotated[str, typer.Option(help="Over HTTP: the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Over HTTP: the port to listen on.")] = 8701,
) -> None:
    """Serve the memory to clients of the Model Context Protocol; read-only without --write.

    Over stdio the user is --user; without it all sessions can be read. Over HTTP each request needs a key of the
    service, whose user is the user.
    """
    if http and user is not None:
        raise WrongUse("Over HTTP the user is that of the key; leave --user out, or serve stdio.")
    try:
        from threadkeep.adapters import mcp as _  # noqa: F401 - says at once if it is not installed
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("threadkeep"):
            raise
        raise WrongUse("The extra `mcp` is not installed; install it with: pip install 'threadkeep[mcp]'") from None
    from threadkeep.memory import open_memory

    settings = command_settings()
    url = settings.database_url.get_secret_value()
    async with open_memory(url, options=settings.memory_options()) as memory:
        if http:
            await _serve_http(memory, settings, host, port, write=write)
        else:
            await _serve_stdio(memory, user, write=write)


async def _serve_stdio(memory: Memory, user: str | None, *, write: bool) -> None:
    from threadkeep.adapters.mcp import McpCaller, memory_server

    caller = McpCaller(user, writes=write)
    await memory_server(memory, lambda: caller, writes=write).run_stdio_async()


async def _serve_http(memory: Memory, settings: Settings, host: str, port: int, *, write: bool) -> None:
    from threadkeep.web.mcp_keys import keyed_server

    server = await keyed_server(memory, settings, f"http://{host}:{port}", writes=write)
    terminal.note(f"Threadkeep serves MCP at http://{host}:{port}/mcp (Ctrl+C stops it)")
    await server.run_streamable_http_async(host=host, port=port, stateless_http=True, json_response=True)
