"""A model behind a socket that gives a different answer to every call, and records its calls."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.turn_history import ModelCall, answer_text

_FRAME = {"id": "chatcmpl-1", "created": 1, "model": "gpt-test"}
_WORDS = "word " * 12
_SPEAKER = "You are "


class TurnModel:
    """An OpenAI-compatible provider on loopback. A call takes a random time between the two limits in seconds."""

    def __init__(self, chance: random.Random, seconds: tuple[float, float], failing: float = 0.0) -> None:
        self.calls: list[ModelCall] = []
        self.address = ""
        self.final = False
        self._chance = chance
        self._seconds = seconds
        self._failing = failing

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a service use this provider."""
        return {
            "THREADKEEP_MODEL": "openai:gpt-test",
            "OPENAI_BASE_URL": f"{self.address}/v1",
            "OPENAI_API_KEY": "sk-test",
        }

    async def answer(self, request: Request) -> Response:
        """Record a call and answer it, as a whole or in chunks."""
        at, body = time.monotonic(), await request.json()
        messages = [(message["role"], _text(message["content"])) for message in body["messages"]]
        number, failed = len(self.calls) + 1, self._chance.random() < self._failing
        answer = None if failed else _answer(number, messages)
        # The answer is recorded before it is sent, so that every received answer is known.
        self.calls.append(ModelCall(number, at, messages, answer, self.final))
        seconds = self._chance.uniform(*self._seconds)
        if answer is not None and body.get("stream"):
            return StreamingResponse(_events(answer, seconds), media_type="text/event-stream")
        await asyncio.sleep(seconds)
        if answer is None:
            return JSONResponse({"error": {"message": "overloaded", "type": "server_error"}}, 500)
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        return JSONResponse({**_FRAME, "object": "chat.completion", "choices": [choice], "usage": _usage()})


@asynccontextmanager
async def serving_model(model: TurnModel) -> AsyncIterator[TurnModel]:
    """Serve a model on loopback inside the block."""
    app = Starlette(routes=[Route("/v1/chat/completions", model.answer, methods=["POST"])])
    server = _Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        model.address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield model
        finally:
            server.should_exit = True
            await task


class _Server(uvicorn.Server):
    """A server that installs no signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _answer(number: int, messages: list[tuple[str, str]]) -> str:
    system = next((text for role, text in messages if role in ("system", "developer")), "")
    speaker = system.removeprefix(_SPEAKER).strip(".") if system.startswith(_SPEAKER) else "assistant"
    question = next((text for role, text in reversed(messages) if role == "user"), "question none")
    return answer_text(number, question.removeprefix("question "), speaker, _WORDS.strip())


async def _events(answer: str, seconds: float) -> AsyncIterator[str]:
    pieces = answer.split(" ")
    for index, word in enumerate(pieces):
        await asyncio.sleep(seconds / len(pieces))
        text = word if index == len(pieces) - 1 else f"{word} "
        yield _chunk({"delta": {"role": "assistant", "content": text}, "finish_reason": None})
    yield _chunk({"delta": {}, "finish_reason": "stop"})
    yield "data: [DONE]\n\n"


def _chunk(choice: dict[str, Any]) -> str:
    chunk = {**_FRAME, "object": "chat.completion.chunk", "choices": [{"index": 0, **choice}]}
    return f"data: {json.dumps(chunk)}\n\n"


def _usage() -> dict[str, int]:
    return {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
