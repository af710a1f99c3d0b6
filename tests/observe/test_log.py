"""Tests of the log: one line for an event, and no text of people or models from any logger."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest
import structlog

from threadkeep.observe.events import (
    AnswerSent,
    ContextBuilt,
    DeliveryOutcome,
    RunFinished,
    RunOutcome,
    StoreRead,
    TurnFinished,
    WriteFailed,
)
from threadkeep.observe.log import Level, LogObserver, configure_logging

CANARY = "canary-7f3a"


def configured(level: Level = "DEBUG", *, as_json: bool = True) -> io.StringIO:
    """Configure logging, and return the stream that it writes to."""
    stream = io.StringIO()
    configure_logging(level, json=as_json, stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    """Return the logged JSON lines."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_of_its_fields() -> None:
    stream = configured()
    LogObserver().notify(WriteFailed(backend="sqlite", error="StoreUnavailable", session_id="telegram:1"))
    (line,) = lines(stream)
    assert line.pop("timestamp")
    assert line == {
        "event": "write_failed",
        "level": "error",
        "backend": "sqlite",
        "channel": "other",
        "outcome": "error",
        "error": "StoreUnavailable",
        "session_id": "telegram:1",
    }


def test_numbers_are_rounded() -> None:
    stream = configured()
    LogObserver().notify(TurnFinished(milliseconds=5068.267446993559))
    assert lines(stream)[0]["milliseconds"] == 5068.267


@pytest.mark.parametrize(("level", "names"), [("DEBUG", ["store_read", "turn_finished"]), ("INFO", ["turn_finished"])])
def test_the_level_decides_what_is_written(level: Level, names: list[str]) -> None:
    stream = configured(level)
    observer = LogObserver()
    observer.notify(StoreRead(backend="sqlite", milliseconds=1))
    observer.notify(TurnFinished(milliseconds=1))
    assert [line["event"] for line in lines(stream)] == names


@pytest.mark.parametrize(("session_id", "status", "written"), [("s", "done", 0), (None, "done", 1), ("s", "failed", 1)])
def test_a_finished_run_of_a_session_has_no_line(session_id: str | None, status: RunOutcome, written: int) -> None:
    """The turn has a line already. A run without a session, or one that failed, has a line of its own."""
    stream = configured("INFO")
    LogObserver().notify(RunFinished(workflow="chat", status=status, milliseconds=1, session_id=session_id))
    assert len(lines(stream)) == written


@pytest.mark.parametrize(("outcome", "level"), [("delivered", "info"), ("postponed", "info"), ("failed", "warning")])
def test_a_permanently_refused_reply_is_a_warning(outcome: DeliveryOutcome, level: str) -> None:
    stream = configured()
    LogObserver().notify(AnswerSent(channel="wecom_cs", bot="one", outcome=outcome, error="ReplyLimit", milliseconds=1))
    [line] = lines(stream)
    assert (line["event"], line["level"], line["error"]) == ("answer_sent", level, "ReplyLimit")


def test_text_lines_have_no_colors_in_a_file() -> None:
    stream = configured(as_json=False)
    LogObserver().notify(ContextBuilt(messages=3, tokens=10))
    assert "context_built" in stream.getvalue()
    assert "messages=3" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_second_configuration_replaces_the_first() -> None:
    first, second = configured(), configured()
    LogObserver().notify(TurnFinished(milliseconds=1))
    assert (len(lines(first)), len(lines(second))) == (0, 1)


def test_an_observer_may_be_created_before_the_configuration() -> None:
    observer = LogObserver()
    stream = configured()
    observer.notify(TurnFinished(milliseconds=1))
    assert len(lines(stream)) == 1


@pytest.mark.parametrize("as_json", [True, False])
def test_the_log_has_no_text_of_people(as_json: bool) -> None:
    """Details of libraries, arguments and error messages do not reach the log, even at DEBUG."""
    stream = configured(as_json=as_json)
    logging.getLogger("openai._base_client").debug("Request options: %s", {"messages": [CANARY]})
    logging.getLogger("langchain_core.callbacks").warning("Error in callback: %s", CANARY)
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: ValueError(%r)", CANARY)
    logging.getLogger("other").error(ValueError(CANARY))
    logging.getLogger("uvicorn.access").info(
        '%s - "%s %s HTTP/%s" %d', "127.0.0.1:5", "GET", f"/api/v1/search?q={CANARY}", "1.1", 200
    )
    try:
        raise ValueError(CANARY)
    except ValueError as error:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
        structlog.get_logger("x").error("failed", exc_info=error)
        logging.getLogger("threadkeep.web").exception("The request failed.")
    assert CANARY not in stream.getvalue()
    assert stream.getvalue().count("ValueError") == 4
    assert "test_the_log_has_no_text_of_people" in stream.getvalue()


def test_requests_have_method_path_and_status() -> None:
    stream = configured()
    arguments = ("127.0.0.1:5", "GET", "/api/v1/sessions?user_id=u1", "1.1", 200)
    logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', *arguments)
    (line,) = lines(stream)
    assert (line["event"], line["method"], line["path"], line["status"]) == (
        "http_request",
        "GET",
        "/api/v1/sessions",
        200,
    )


def test_messages_of_trusted_loggers_are_formatted() -> None:
    stream = configured()
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    logging.getLogger("threadkeep.observe").warning("The observer %s failed with %s.", "Sink", "OSError")
    assert [line["event"] for line in lines(stream)] == [
        "Started server process [7]",
        "The observer Sink failed with OSError.",
    ]


async def test_an_unretrieved_exception_is_logged_by_its_class() -> None:
    stream = configured()
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": "Task exception was never retrieved", "exception": ValueError(CANARY)})
    (line,) = lines(stream)
    assert (line["event"], line["error"]) == ("Task exception was never retrieved", "ValueError")
    assert CANARY not in stream.getvalue()
