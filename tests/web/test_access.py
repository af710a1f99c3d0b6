"""Tests of access: a service with keys requires one, and a service without keys serves this machine only."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from scripts.write_reference import openapi_document
from tests.web.services import UnreadBody, check_problem, client_of, opened_app, settings_for
from threadkeep.agent.demo import DemoModel
from threadkeep.web.middleware import OPEN_PATHS

CLOSED = [
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/api/v1/sessions"),
    ("GET", "/api/v1/search?q=a"),
    ("GET", "/api/v1/chat/history/s1"),
    ("POST", "/api/v1/chat"),
    ("POST", "/api/v1/chat/stream"),
    ("DELETE", "/api/v1/sessions/s1"),
    ("GET", "/nope"),
    ("GET", "/healthz/"),
    ("GET", "//healthz"),
]


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client without a key, of a service that requires one."""
    settings = settings_for(tmp_path, api_keys="web:k-one,bot:k-zwei-ü", host="0.0.0.0")  # noqa: S104
    async with opened_app(DemoModel(), settings) as app, client_of(app) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), CLOSED)
async def test_without_a_key_everything_but_health_and_docs_is_a_401(
    guarded: httpx2.AsyncClient, method: str, path: str
) -> None:
    """Unknown paths return 401 too, so that a stranger does not learn which exist."""
    response = await guarded.request(method, path)
    assert check_problem(response, 401, "api-key-needed")["title"] == "API key needed"
    assert response.headers["www-authenticate"] == "Bearer"


async def test_docs_load_nothing_from_other_hosts(client: httpx2.AsyncClient) -> None:
    """The scripts and styles of /docs are the service's own, so that the page works without a network."""
    page = (await client.get("/docs")).text
    assert re.findall(r"https?://[^'\"]+", page) == []
    named = re.findall(r"(?:href|src)=\"([^\"]+)\"", page)
    assert len(named) == 3
    assert set(named) <= OPEN_PATHS


@pytest.mark.parametrize("path", sorted(OPEN_PATHS - {"/openapi.json"}))
async def test_health_and_docs_are_open(guarded: httpx2.AsyncClient, path: str) -> None:
    """A load balancer has no key, and a browser cannot send one when it opens a page."""
    assert (await guarded.get(path)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer k-one"},
        {b"authorization": b"bearer  k-one"},
        {b"x-api-key": b"k-one"},
        {b"X-API-Key": "k-zwei-ü".encode()},
        {b"authorization": b"Basic xyz", b"x-api-key": b"k-one"},
    ],
)
async def test_any_key_is_accepted_in_either_header(guarded: httpx2.AsyncClient, headers: dict[bytes, bytes]) -> None:
    response = await guarded.get("/api/v1/sessions", headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer k-on"},
        {"authorization": "Bearer k-one k-one"},
        {"authorization": "Bearer "},
        {"authorization": "k-one"},
        {"authorization": "Bearer web"},
        {"authorization": "Bearer wrong", "x-api-key": "k-one"},
        {"x-api-key": "K-ONE"},
        {"x-api-key": ""},
        {"cookie": "x-api-key=k-one"},
    ],
)
async def test_other_credentials_are_refused(guarded: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    """A wrong key, a malformed header, and a key in the URL, where it would be logged, are refused."""
    check_problem(await guarded.get("/api/v1/sessions", headers=headers), 401, "api-key-needed")
    check_problem(await guarded.get("/api/v1/sessions?api_key=k-one", headers=headers), 401, "api-key-needed")


async def test_the_key_is_checked_before_the_body_is_read(guarded: httpx2.AsyncClient) -> None:
    check_problem(await guarded.post("/api/v1/chat", content=UnreadBody()), 401, "api-key-needed")


@pytest.mark.parametrize("host", ["127.0.0.1:8700", "localhost", "LOCALHOST:8700", "[::1]:8700", "127.8.8.8"])
async def test_without_keys_loopback_names_are_served(client: httpx2.AsyncClient, host: str) -> None:
    assert (await client.get("/api/v1/sessions", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8700"},
        {"host": "localhost@evil.example"},
        {"host": "[::1"},
        {"host": ""},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
async def test_without_keys_pages_of_other_sites_are_refused(
    client: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    """A host name that resolves to 127.0.0.1 is refused too."""
    check_problem(await client.post("/api/v1/sessions/s1/reset", headers=headers), 403, "foreign-host")


async def test_the_openapi_document_has_the_security_schemes(guarded: httpx2.AsyncClient) -> None:
    """The document is open too."""
    response = await guarded.get("/openapi.json")
    assert response.status_code == 200
    closed = response.json()
    assert closed["paths"]["/api/v1/chat"]["post"]["security"] == [{"HTTPBearer": []}, {"APIKeyHeader": []}]
    assert "k-one" not in str(closed)


def test_without_keys_the_openapi_document_has_no_security_schemes() -> None:
    assert "securitySchemes" not in openapi_document()["components"]


@pytest.mark.parametrize("keys", ["", "web:k-one"])
async def test_pages_of_named_origins_may_call_the_service(tmp_path: Path, keys: str) -> None:
    """The preflight of a configured origin succeeds without a key, and its requests may read the response headers."""
    origin = "https://chat.example.com"
    settings = settings_for(tmp_path, api_keys=keys, cors_origins=origin)
    asks = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    asks |= {"access-control-request-private-network": "true"}
    async with opened_app(DemoModel(), settings) as app, client_of(app) as client:
        asked = await client.options("/api/v1/chat", headers=asks)
        read = await client.get("/api/v1/sessions", headers={"origin": origin, "x-api-key": "k-one"})
        refused = await client.options("/api/v1/chat", headers={**asks, "origin": "https://other.example.com"})
        foreign = await client.get("/api/v1/sessions", headers={"origin": "https://other.example.com"})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == origin
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert asked.headers["access-control-allow-headers"] == "x-api-key"
    assert asked.headers["access-control-allow-private-network"] == "true"
    assert read.status_code == 200
    assert read.headers["access-control-allow-origin"] == origin
    assert "Content-Location" in read.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in refused.headers
    assert foreign.status_code == (401 if keys else 403)
    assert "access-control-allow-origin" not in foreign.headers


async def test_no_page_may_call_the_service_unless_its_origin_is_named(client: httpx2.AsyncClient) -> None:
    """CORS is off by default, for pages of this machine too."""
    response = await client.get("/api/v1/sessions", headers={"origin": "http://localhost:3000"})
    assert "access-control-allow-origin" not in response.headers
