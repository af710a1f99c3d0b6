"""The service for the requests of a page, called without a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2

from tests.docs.examples import differences, events_of
from tests.docs.shell import Command
from tests.limits import HANG_SECONDS
from threadkeep.app import open_app
from threadkeep.settings import load_settings
from threadkeep.web.service import create_service

JSON = "application/json"


@dataclass(frozen=True)
class Request:
    """An HTTP request of a page."""

    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None


@asynccontextmanager
async def opened_service(**overrides: object) -> AsyncIterator[httpx2.AsyncClient]:
    """Open the service with the settings of the environment, and yield a client."""
    async with open_app(load_settings(**overrides)) as app:
        service = create_service(app)
        transport = httpx2.ASGITransport(service, raise_app_exceptions=False)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8700", timeout=HANG_SECONDS
        ) as client:
            yield client


async def send(client: httpx2.AsyncClient, request: Request) -> httpx2.Response:
    """Return the response of the service."""
    return await client.request(request.method, request.target, headers=request.headers, content=request.body)


def request_of_curl(command: Command) -> Request:
    """Return the request that a curl command sends."""
    method, target, headers, body = "", "", {}, None
    words = iter(command.arguments)
    for word in words:
        match word:
            case "-X":
                method = next(words)
            case "-H":
                name, _, value = next(words).partition(":")
                headers[name.strip()] = value.strip()
            case "-d":
                body = next(words)
            case "-s" | "-N" | "-sN" | "-i" | "-f":
                pass
            case _:
                target = word if "://" in word else f"http://{word}"
    return Request(method or ("GET" if body is None else "POST"), target, headers, body)


def request_of_block(text: str) -> Request:
    """Return the request of an `http` block: request line, headers, an empty line, the body."""
    head, _, body = text.partition("\n\n")
    first, *lines = head.splitlines()
    method, target, *_ = first.split()
    headers = dict(line.split(": ", 1) for line in lines)
    return Request(method, target, headers, body or None)


def check_response(shown: str, response: httpx2.Response, where: str) -> None:
    """Compare a response with the `http` block that shows it: status, content type, body."""
    head, _, body = shown.partition("\n\n")
    first, *lines = head.splitlines()
    assert first.split()[1] == str(response.status_code), f"{where}: {response.status_code} {response.text}"
    for line in lines:
        name, value = line.split(": ", 1)
        assert response.headers.get(name, "").split(";")[0] == value, f"{where}: {name}"
    check_body(body, response, where)


def check_body(shown: str, response: httpx2.Response, where: str) -> None:
    """Compare a body with the block that shows it."""
    kind = response.headers.get("content-type", "")
    found: list[str]
    if "event-stream" in kind:
        wanted, real = events_of(shown), events_of(response.text)
        assert [name for name, _ in wanted] == [name for name, _ in real], f"{where}: {response.text}"
        found = [one for (_, a), (_, b) in zip(wanted, real, strict=True) for one in differences(a, b)]
    elif response.text and "json" in kind:
        found = differences(json.loads(shown), response.json())
    else:
        lines = response.text.splitlines()
        found = [f"{line} is only in the docs" for line in shown.splitlines() if line != "…" and line not in lines]
    assert not found, f"{where}: {'; '.join(found)}\n{response.text}"
