"""Structured log lines for events, and other libraries' log lines without private text."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, TextIO

import structlog
from pydantic.alias_generators import to_snake
from structlog.types import EventDict, Processor, WrappedLogger

from threadkeep.observe import events

type Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

_LEVELS: Mapping[type[events.Event], int] = {
    events.StoreRead: logging.DEBUG,
    events.StoreWrite: logging.DEBUG,
    events.ContextBuilt: logging.DEBUG,
    events.HistoryTruncated: logging.DEBUG,
    events.MemoryUpdated: logging.DEBUG,
    events.PromptSent: logging.DEBUG,
    events.AgentOutsideTurn: logging.INFO,
    events.AnswerDiscarded: logging.WARNING,
    events.HistoryDiffers: logging.WARNING,
    events.TurnWaits: logging.WARNING,
    events.BudgetCrossed: logging.WARNING,
    events.ChannelTrouble: logging.WARNING,
    events.EmbeddingsSkipped: logging.WARNING,
    events.KeyResolutionFailed: logging.WARNING,
    events.ManifestsDropped: logging.WARNING,
    events.ManifestWriteFailed: logging.WARNING,
    events.ExtraNotFound: logging.WARNING,
    events.GraphitiTrouble: logging.WARNING,
    events.LearningFailed: logging.WARNING,
    events.LearningSkipped: logging.WARNING,
    events.PruningFailed: logging.WARNING,
    events.ReadFailed: logging.WARNING,
    events.RecallIndexNotStored: logging.WARNING,
    events.RunRetried: logging.WARNING,
    events.RunTakenOver: logging.WARNING,
    events.RunTrouble: logging.WARNING,
    events.SummaryFailed: logging.WARNING,
    events.TurnBegunInTool: logging.WARNING,
    events.WriteDeferred: logging.WARNING,
    events.WriteDropped: logging.WARNING,
    events.ModelFailed: logging.ERROR,
    events.WriteFailed: logging.ERROR,
}
_TRUSTED = ("threadkeep", "uvicorn")
_MAX_FRAMES = 12
_DECIMALS = 3


class LogObserver:
    """An observer that writes one line for each event to the logger `threadkeep.events`."""

    def __init__(self) -> None:
        # Wrap a separate logger: structlog's global configuration belongs to the application.
        self._target = logging.getLogger("threadkeep.events")
        self._logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
            self._target,
            processors=[structlog.stdlib.filter_by_level, *_own_processors()],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    def notify(self, event: events.Event, /) -> None:
        """Write the event's name and the fields that have a value."""
        level = _LEVELS.get(type(event), logging.INFO)
        if isinstance(event, events.RunFinished) and event.status == "done" and event.session_id is not None:
            level = logging.DEBUG  # because `TurnFinished` is logged as INFO for the same turn
        if isinstance(event, events.AnswerSent) and event.outcome == "failed":
            level = logging.WARNING  # because a person waits for the answer, which is not sent again
        if not self._target.isEnabledFor(level):
            return
        known = {
            name: round(value, _DECIMALS) if isinstance(value, float) else value
            for name, value in vars(event).items()
            if value is not None
        }
        self._logger.log(level, to_snake(type(event).__name__), **known)


class _Handler(logging.StreamHandler[TextIO]):
    """The handler that `configure_logging` adds. A later call finds the handler by its class, and replaces it."""


def configure_logging(level: Level = "INFO", *, json: bool = False, stream: TextIO | None = None) -> None:
    """Send all logging to one stream (stderr by default) as readable lines or as JSON.

    `level` applies to Threadkeep's own logger. Other libraries log at WARNING and above, uvicorn at INFO and above,
    because more detailed logs contain request data. Messages of other libraries, except uvicorn, are logged without
    their arguments. Errors are logged without their messages, and requests without their query strings.
    """
    target = sys.stderr if stream is None else stream
    handler = _Handler(target)
    handler.setFormatter(_formatter(json=json, colors=target.isatty()))
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    chosen = logging.getLevelNamesMapping()[level]
    root.setLevel(max(chosen, logging.WARNING))
    logging.getLogger("uvicorn").setLevel(max(chosen, logging.INFO))
    logging.getLogger("threadkeep").setLevel(chosen)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.add_logger_name, *_own_processors()],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _own_processors() -> list[Processor]:
    return [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ]


def _formatter(*, json: bool, colors: bool) -> structlog.stdlib.ProcessorFormatter:
    renderer: Processor = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=colors)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            _message_of_others,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[_name_error, structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        use_get_message=False,
        pass_foreign_args=True,
    )


def _message_of_others(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace a log message by its template without arguments, which may be private, unless its logger is trusted."""
    record: logging.LogRecord = event["_record"]
    arguments = event.pop("positional_args", ())
    template = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
    if record.name == "uvicorn.access" and isinstance(arguments, tuple) and len(arguments) == 5:
        _, method, path, _, status = arguments
        event.update(event="http_request", method=method, path=str(path).partition("?")[0], status=status)
        return event
    if record.name.partition(".")[0] in _TRUSTED and arguments:
        template = template % arguments
    event["event"] = template.partition("\n")[0]
    return event


def _name_error(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace an error with its class and its locations in the code, without its message."""
    given = event.pop("exc_info", None)
    error = given[1] if isinstance(given, tuple) else sys.exception() if given is True else given
    if isinstance(error, BaseException):
        event["error"] = type(error).__name__
        event["at"] = _locations(error.__traceback__)
    return event


def _locations(trace: TracebackType | None) -> list[str]:
    """Return the last 12 locations of a traceback, innermost last."""
    frames = traceback.extract_tb(trace)[-_MAX_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
