"""Property tests of the OpenAPI document: every request is answered as it says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scripts.write_reference import openapi_document
from tests.limits import HANG_SECONDS
from tests.web.services import opened_app, served, settings_for
from threadkeep.agent.demo import DemoModel

# Only slow tests need Schemathesis. Each process that collects the tests imports this module.
if TYPE_CHECKING:
    from schemathesis import Case
    from schemathesis.schemas import BaseSchema


def ended_soon(service: ASGIApp) -> ASGIApp:
    """Disconnect callers of `/stream/events` soon and complete their response, which stays open for later runs."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/stream/events"):
            await service(scope, receive, send)
            return
        is_open = asked = False

        async def heard() -> Message:
            nonlocal asked
            if not asked:
                message = await receive()
                asked = not message.get("more_body", False)
                return message
            await asyncio.sleep(0.05)
            return {"type": "http.disconnect"}

        async def sent(message: Message) -> None:
            nonlocal is_open
            await send(message)
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)

        await service(scope, heard, sent)
        if is_open:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return answer


class Served(threading.Thread):
    """A service in a thread with its own event loop, for a test tool that blocks."""

    def __init__(self, folder: pytest.TempPathFactory) -> None:
        super().__init__(daemon=True)
        self._folder = folder.mktemp("openapi")
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._up = threading.Event()
        self.address = ""

    def __enter__(self) -> str:
        """Start the service, and return its address."""
        self.start()
        assert self._up.wait(HANG_SECONDS)
        return self.address

    def __exit__(self, *_: object) -> None:
        """Stop the service."""
        self._loop.call_soon_threadsafe(self._end.set)
        self.join()

    def run(self) -> None:
        """Serve until the service is stopped."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        settings = settings_for(self._folder, database_url=f"sqlite:///{self._folder}/threadkeep.db")
        async with opened_app(DemoModel(), settings) as app, served(app, wrapped_in=ended_soon) as (client, _):
            self.address = str(client.base_url)
            self._up.set()
            await self._end.wait()


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    """Return the OpenAPI document of a running service."""
    import schemathesis

    with Served(tmp_path_factory) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


def test_operations_have_readable_names() -> None:
    """Operation ids are unique, and usable as names in a generated client."""
    document = openapi_document()
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names) > 60
    assert {"chat", "list_sessions", "erase_user"} <= set(names)
    assert [name for name in names if "api_v1" in name or "__" in name] == []


SENT_WHOLE = (
    *("AssistantBody", "Completion", "CompletionMessage", "ModelsBody", "FactView", "Forgotten", "Health", "Readiness"),
    *("ProcedureView", "TaskBody", "ThreadBody", "ThreadRunBody", "ThreadStateBody", "Person"),
)


def test_what_is_always_sent_is_required() -> None:
    """A field that is always sent is required, even with a default. A generated client need not check for it."""
    schemas = openapi_document()["components"]["schemas"]
    for name in SENT_WHOLE:
        assert set(schemas[name]["required"]) == set(schemas[name]["properties"]), name


# The engine of runs uses random pauses in another thread, which Hypothesis attributes to the strategies.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.hypothesis
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_whatever_is_sent_is_answered_as_documented(document: BaseSchema, mode: str) -> None:
    """No request causes a 500, or a status, media type or schema that is not in the document."""
    from schemathesis import GenerationMode
    from schemathesis.core.result import Ok

    found = list(document.get_all_operations())
    operations = [each.ok() for each in found if isinstance(each, Ok)]
    assert len(operations) == len(found) > 60
    for operation in operations:
        if mode == "positive" or any(operation.iter_parameters()) or operation.body:
            _try(operation.as_strategy(generation_mode=GenerationMode(mode)))


def _try(cases: SearchStrategy[Case[Any]]) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    # Without `positive_data_acceptance`: no pattern that all tools support can require printable ids.
    agreed = [
        not_a_server_error,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.status_code_conformance,
        checks.negative_data_rejection,
        checks.response_headers_conformance,
        checks.unsupported_method,
    ]

    # For some bodies most generated cases are valid and are filtered out of the negative mode.
    @settings(max_examples=settings().max_examples // 3, suppress_health_check=[HealthCheck.filter_too_much])
    @given(case=cases)
    def answered_as_documented(case: Case[Any]) -> None:
        case.call_and_validate(checks=agreed, timeout=HANG_SECONDS)

    answered_as_documented()
