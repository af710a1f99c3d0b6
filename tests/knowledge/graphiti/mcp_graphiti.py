"""A small MCP server with the tools of Graphiti, which can refuse requests by HTTP status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from langchain_core.utils.uuid import uuid7
from mcp.server import MCPServer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threadkeep.web.server import bind


class McpGraphiti:
    """The episodes of the server, and its faults.

    `refused` returns the status for a request's body, or None. Each message releases `calls`, and is stored once
    `may_store` is set.
    """

    def __init__(self) -> None:
        self.episodes: list[dict[str, str]] = []
        self.url = ""
        self.refused: Callable[[bytes], int | None] = lambda _: None
        self.may_store = asyncio.Event()
        self.may_store.set()
        self.calls = asyncio.Semaphore(0)

    @property
    def bodies(self) -> list[str]:
        """The texts of the episodes, in order."""
        return [one["body"] for one in self.episodes]

    def server(self) -> MCPServer[object]:
        """Return the MCP server."""
        server: MCPServer[object] = MCPServer("graphiti", log_level="ERROR")

        @server.tool()
        async def add_memory(
            name: str, episode_body: str, group_id: str, source: str, source_description: str, reference_time: str
        ) -> dict[str, Any]:
            self.calls.release()
            await self.may_store.wait()
            self.episodes.append({"uuid": str(uuid7()), "name": name, "group": group_id, "body": episode_body})
            return {"message": f"queued: {source} {source_description} {reference_time}"}

        @server.tool()
        async def get_episodes(group_ids: list[str], max_episodes: int) -> dict[str, Any]:
            return {"episodes": [one for one in self.episodes if one["group"] in group_ids][:max_episodes]}

        @server.tool()
        async def delete_episode(uuid: str, group_id: str) -> dict[str, Any]:
            self.episodes = [one for one in self.episodes if one["uuid"] != uuid]
            return {"message": f"deleted from {group_id}"}

        return server

    def refusing(self, app: ASGIApp) -> ASGIApp:
        """Wrap an app, so that requests are refused as `refused` says."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            body = b""
            while (part := await receive()).get("more_body"):
                body += part["body"]
            body += part.get("body", b"")
            if (status := self.refused(body)) is not None:
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send({"type": "http.response.body", "body": b"refused"})
                return
            parts: list[Message] = [{"type": "http.request", "body": body}]

            async def again() -> Message:
                return parts.pop() if parts else await receive()

            await app(scope, again, send)

        return serve


@asynccontextmanager
async def mcp_graphiti() -> AsyncIterator[McpGraphiti]:
    """Serve on a free port until the block ends."""
    graphiti = McpGraphiti()
    app = graphiti.server().streamable_http_app()
    listening = bind("127.0.0.1", 0)
    graphiti.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(graphiti.refusing(app), lifespan="off", log_config=None))
    async with app.router.lifespan_context(app):
        # `_serve` leaves the handlers of signals as they are.
        serving = asyncio.create_task(server._serve(sockets=[listening]))  # noqa: SLF001
        try:
            yield graphiti
        finally:
            server.should_exit = server.force_exit = True
            await serving
