"""Tests of errors: each is a problem document and contains neither the request's text nor internals."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.web.services import check_problem, settings_for
from threadkeep.app import App, open_app
from threadkeep.errors import BudgetTooSmall, InvalidSettings, StoreClosed, StoreUnavailable, ThreadkeepError
from threadkeep.web.problems import RETRY_SECONDS, problem_of

CANARY = "canary-5e1f"
JSON = {"content-type": "application/json"}


async def test_a_body_that_is_nested_too_deeply_is_refused_as_such(client: httpx2.AsyncClient) -> None:
    content = b'{"message": %s}' % (b"[" * 100_000 + b"]" * 100_000)
    problem = check_problem(await client.post("/api/v1/chat", content=content, headers=JSON), 400, "unreadable-body")
    assert "nested too deeply" in problem["detail"]


async def test_an_integer_of_too_many_digits_is_refused_as_such(client: httpx2.AsyncClient) -> None:
    content = b'{"message": "hi", "metadata": {"number": %s}}' % (b"7" * 5_000)
    problem = check_problem(await client.post("/api/v1/chat", content=content, headers=JSON), 400, "unreadable-body")
    assert "integer" in problem["detail"]


@pytest.mark.parametrize("path", ["/nope", "/api/v1", "/api/v1/chat/", "/docs/", "/api/v1/sessions/s1/nope"])
async def test_an_unknown_path_is_a_404(client: httpx2.AsyncClient, path: str) -> None:
    check_problem(await client.get(path), 404, "not-found")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/api/v1/chat", "POST"),
        ("/api/v1/sessions", "GET, HEAD"),
        ("/api/v1/sessions/s1", "DELETE, GET, HEAD, PATCH"),
        ("/threads/t1", "DELETE, GET, HEAD, PATCH"),
        ("/docs", "GET, HEAD"),
        ("/docs/files/swagger-ui.css", "GET, HEAD"),
    ],
)
async def test_an_unsupported_method_is_a_405(client: httpx2.AsyncClient, path: str, allowed: str) -> None:
    """The header `Allow` has the methods of all routes of the path, and HEAD wherever GET is."""
    response = await client.put(path)
    check_problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize(
    "content",
    [
        b'{"message": "%s' % CANARY.encode(),
        b'{"message": "%s", "%s": 1}' % (CANARY.encode(), CANARY.encode()),
        b'{"message": ["%s"]}' % CANARY.encode(),
        b'{"message": "hi", "metadata": "%s"}' % CANARY.encode(),
        b'{"message": "hi", "metadata": {"%s": NaN}}' % CANARY.encode(),
        b'{"message": "hi", "session_id": "%s\\n"}' % CANARY.encode(),
        b'{"message": "hi", "session_id": "%s\\ud800"}' % CANARY.encode(),
        b'{"message": "hi", "workflow": "%s"}' % CANARY.encode(),
        b'{"message": "hi", "message_id": "%s\\n"}' % CANARY.encode(),
        b'"%s"' % CANARY.encode(),
        CANARY.encode(),
    ],
)
async def test_a_problem_does_not_quote_the_request(client: httpx2.AsyncClient, content: bytes) -> None:
    """A problem quotes no text of the request, because clients log problems."""
    response = await client.post("/api/v1/chat", content=content, headers=JSON)
    assert response.status_code in (404, 422)
    assert response.headers["content-type"] == "application/problem+json"
    assert CANARY not in response.text


async def test_a_validation_problem_has_pointers_and_sentences(client: httpx2.AsyncClient) -> None:
    """Each error has a pointer into the body and a sentence, and nothing else."""
    body = {"session_id": 5, "user_id": "a\nb", "more": 1, "metadata": {"a": float("1e10")}}
    response = await client.post("/api/v1/chat", json=body)
    assert check_problem(response, 422, "invalid-request")["errors"] == [
        {"detail": "Field required", "pointer": "/message"},
        {"detail": "Input should be a valid string", "pointer": "/session_id"},
        {"detail": "An id has printable characters only; remove the others.", "pointer": "/user_id"},
        {
            "detail": "The request has an unknown field; the known ones are message, session_id, user_id, workflow, "
            "message_id, metadata.",
            "pointer": "",
        },
    ]


async def test_a_limit_of_a_text_is_in_characters(client: httpx2.AsyncClient) -> None:
    await client.post("/api/v1/chat", json={"message": "hi", "session_id": "s"})
    response = await client.patch("/api/v1/sessions/s", json={"title": "t" * 201, "tags": [""]})
    assert check_problem(response, 422, "invalid-request")["errors"] == [
        {"detail": "String should have at most 200 characters", "pointer": "/title"},
        {"detail": "String should have at least 1 character", "pointer": "/tags/0"},
    ]


@pytest.mark.parametrize(
    ("path", "body", "known"),
    [
        ("/api/v1/sessions/s/branch", {"seq": 1}, "the known ones are at,"),
        ("/api/v1/workflows/chat/runs", {"budget": {"tokens": 1}}, "/docs lists the known ones"),
    ],
)
async def test_an_unknown_field_is_answered_with_the_known_ones(
    client: httpx2.AsyncClient, path: str, body: dict[str, object], known: str
) -> None:
    """The error lists the known fields of the body. For a nested object it refers to /docs."""
    [found] = check_problem(await client.post(path, json=body), 422, "invalid-request")["errors"]
    assert f"unknown field; {known}" in found["detail"]


@pytest.mark.parametrize(
    "content", [b'{"message": "\xff"}', b"[" * 100_000, b'{"message": "hi", "metadata": ' + b"1" * 5000 + b"}"]
)
async def test_a_body_that_is_not_json_in_utf8_is_a_400_or_422(client: httpx2.AsyncClient, content: bytes) -> None:
    response = await client.post("/api/v1/chat", content=content, headers=JSON)
    assert response.status_code in (400, 422)
    check_problem(response, response.status_code, response.json()["type"].rpartition(":")[2])


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"", "application/json"),
        (b"[]", "application/json"),
        (b"5", "application/json"),
        (b'{"message": "hi"}', "text/plain"),
        (b'{"message": "hi"}', "application/x-www-form-urlencoded"),
    ],
)
async def test_a_body_that_is_not_a_json_object_is_refused_with_the_cure(
    client: httpx2.AsyncClient, content: bytes, media_type: str
) -> None:
    """The error names the expected body and the header `Content-Type`, which curl does not set itself."""
    response = await client.post("/api/v1/chat", content=content, headers={"content-type": media_type})
    [found] = check_problem(response, 422, "invalid-request")["errors"]
    assert found["pointer"] == ""
    assert "a JSON object with Content-Type: application/json" in found["detail"]


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_only_json_is_read(client: httpx2.AsyncClient, media_type: str | None) -> None:
    """Other media types are refused, because a page of another site could send them without a preflight."""
    headers = {} if media_type is None else {"content-type": media_type}
    response = await client.post("/api/v1/chat", content=b'{"message": "hi"}', headers=headers)
    check_problem(response, 422, "invalid-request")


async def test_an_unexpected_error_is_a_500_without_details(
    app: App, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError(CANARY)

    monkeypatch.setattr(app.memory, "sessions_page", broken)
    response = await client.get("/api/v1/sessions")
    problem = check_problem(response, 500, "internal-error")
    assert CANARY not in response.text
    assert "RuntimeError" not in response.text
    assert set(problem) == {"type", "title", "status", "detail"}
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-security-policy"] == "frame-ancestors 'none'"


@pytest.mark.parametrize("error", [StoreUnavailable("inside"), StoreClosed("inside")])
async def test_an_unavailable_database_is_a_503_with_retry_after(
    app: App, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(app.memory, "sessions_page", broken)
    response = await client.get("/api/v1/sessions")
    check_problem(response, 503, "database-unavailable")
    assert response.headers["retry-after"] == str(RETRY_SECONDS)
    assert "inside" not in response.text


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError(CANARY), "internal-error"),
        (ThreadkeepError(CANARY), "internal-error"),
        (BudgetTooSmall(CANARY), "context-too-small"),
    ],
)
async def test_a_500_is_logged_by_class_and_location(
    app: App,
    client: httpx2.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    kind: str,
) -> None:
    """The log has the class and the location of the error.

    Its text, which may quote people, is neither logged nor returned.
    """

    async def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(app.memory, "sessions_page", broken)
    response = await client.get("/api/v1/sessions")
    check_problem(response, 500, kind)
    [record] = [record for record in caplog.records if record.name == "threadkeep.web"]
    assert type(error).__name__ in record.getMessage()
    assert "test_problems.py:" in record.getMessage()
    assert CANARY not in caplog.text
    assert CANARY not in response.text


async def test_a_service_whose_system_prompt_leaves_no_room_does_not_start(tmp_path: Path) -> None:
    """The service does not start, because it would answer every message with a 500."""
    settings = settings_for(tmp_path, system_prompt="Be kind. " * 99, history_max_tokens=50)
    with pytest.raises(InvalidSettings, match="THREADKEEP_SYSTEM_PROMPT has"):
        async with open_app(settings):
            pass


@pytest.mark.parametrize("error", [ThreadkeepError("inside"), KeyError("inside")])
def test_an_error_that_is_not_in_the_table_is_internal(error: Exception) -> None:
    """The text of an unknown error is not returned, because it was not written for callers."""
    problem = problem_of(error)
    assert (problem.status, problem.type) == (500, "urn:threadkeep:internal-error")
    assert "inside" not in problem.detail


async def test_every_response_is_safe_in_a_browser(client: httpx2.AsyncClient) -> None:
    """Every response has the headers against caching, sniffing, referrers and framing, and none of CORS."""
    for path in ("/healthz", "/nope", "/api/v1/sessions", "/docs"):
        headers = (await client.get(path, headers={"origin": "http://localhost:3000"})).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["content-security-policy"] == "frame-ancestors 'none'"
        assert not [name for name in headers if name.startswith("access-control")]
