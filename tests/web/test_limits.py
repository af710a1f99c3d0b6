"""Tests of the body limit: a body above it returns 413, whatever its headers say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.web.services import UnreadBody, check_problem, client_of, listening, opened_app, settings_for
from threadkeep.agent.demo import DemoModel

LIMIT = 2048
JSON = {"content-type": "application/json"}


def body_of(size: int) -> bytes:
    """Return a chat request with a number of bytes."""
    frame = len(json.dumps({"message": ""}))
    return json.dumps({"message": "x" * (size - frame)}).encode()


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body in pieces, without a content length."""
    for start in range(0, len(body), 500):
        yield body[start : start + 500]


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client of a service that accepts bodies up to `LIMIT`."""
    async with opened_app(DemoModel(), settings_for(tmp_path, body_limit=LIMIT)) as app, client_of(app) as client:
        yield client


async def test_a_body_may_be_as_long_as_the_limit(limited: httpx2.AsyncClient) -> None:
    assert (await limited.post("/api/v1/chat", content=body_of(LIMIT), headers=JSON)).status_code == 200
    assert (await limited.post("/api/v1/chat", content=pieces(body_of(LIMIT)), headers=JSON)).status_code == 200


async def test_a_body_above_the_limit_is_refused(limited: httpx2.AsyncClient) -> None:
    for path in ("/api/v1/chat", "/api/v1/chat/stream"):
        problem = check_problem(
            await limited.post(path, content=body_of(LIMIT + 1), headers=JSON), 413, "body-too-large"
        )
        assert str(LIMIT) in problem["detail"]
        check_problem(await limited.post(path, content=pieces(body_of(LIMIT + 1)), headers=JSON), 413, "body-too-large")


@pytest.mark.parametrize("length", ["10", "0", "-1", "many", "٣"])
async def test_a_wrong_content_length_is_ignored(limited: httpx2.AsyncClient, length: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", length.encode())]
    response = await limited.post("/api/v1/chat", content=pieces(body_of(LIMIT + 1)), headers=headers)
    check_problem(response, 413, "body-too-large")


async def test_a_content_length_above_the_limit_is_refused(limited: httpx2.AsyncClient) -> None:
    """A body with a `Content-Length` above the limit is refused before it is read."""
    headers = {**JSON, "content-length": str(LIMIT + 1)}
    check_problem(await limited.post("/api/v1/chat", content=UnreadBody(), headers=headers), 413, "body-too-large")


async def test_a_connection_can_be_used_after_a_refusal(tmp_path: Path) -> None:
    async with opened_app(DemoModel(), settings_for(tmp_path, body_limit=LIMIT)) as app, listening(app) as client:
        for content in (body_of(LIMIT + 1), pieces(body_of(LIMIT * 100))):
            check_problem(await client.post("/api/v1/chat", content=content, headers=JSON), 413, "body-too-large")
        assert (await client.post("/api/v1/chat", content=body_of(LIMIT), headers=JSON)).status_code == 200
