"""An agent with `SessionMemory` behind HTTP, as in a program that uses the library without the service."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from threadkeep import SessionMemory, open_memory
from threadkeep.errors import ThreadkeepError
from threadkeep.settings import load_settings

_MODEL_SECONDS = 60.0


def serve_agent() -> None:
    """Serve the agent on a free port until the process ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        asyncio.run(_serve(listening))


async def _serve(listening: socket.socket) -> None:
    settings = load_settings()
    url = settings.database_url.get_secret_value()
    async with open_memory(url, options=settings.memory_options()) as memory:
        model = init_chat_model(settings.model, timeout=_MODEL_SECONDS)
        agent = create_agent(model, middleware=[SessionMemory(memory)])

        async def answer(request: Request) -> Response:
            body = await request.json()
            question = HumanMessage(body["message"], id=body["message_id"])
            # A caller that disconnects does not stop the turn, as in the service.
            config: RunnableConfig = {"configurable": {"thread_id": body["session_id"]}}
            try:
                state = await asyncio.shield(agent.ainvoke({"messages": [question]}, config))
            except ThreadkeepError as error:
                return JSONResponse({"title": type(error).__name__}, 503)
            except Exception as error:  # noqa: BLE001 - the model failed, and the caller repeats the question
                return JSONResponse({"title": type(error).__name__}, 502)
            ids = {name: body[name] for name in ("session_id", "message_id")}
            return JSONResponse({**ids, "run_id": "", "response": state["messages"][-1].text})

        async def readyz(request: Request) -> Response:
            return JSONResponse({"pending_writes": memory.pending.count})

        @asynccontextmanager
        async def announce(_: Starlette) -> AsyncIterator[None]:
            print(f"listens on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
            yield

        routes = [Route("/api/v1/chat", answer, methods=["POST"]), Route("/readyz", readyz)]
        app = Starlette(routes=routes, lifespan=announce)
        await uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).serve(sockets=[listening])
