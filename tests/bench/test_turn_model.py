"""Tests of the model of the chaos bench, served in the process of the tests."""

from __future__ import annotations

import logging
import random

from bench.turn_model import TurnModel, serving_model

_LOGGERS = ("", "uvicorn", "uvicorn.access", "uvicorn.asgi", "uvicorn.error")


def logging_now() -> list[tuple[object, ...]]:
    """Return the state of the loggers that a server may change."""
    loggers = map(logging.getLogger, _LOGGERS)
    return [(one.name, one.level, one.propagate, one.disabled, one.handlers[:]) for one in loggers]


async def test_serving_a_model_leaves_logging_unchanged() -> None:
    """Other tests of the same process read the log of uvicorn."""
    before = logging_now()
    async with serving_model(TurnModel(random.Random(1), (0.0, 0.0))):
        assert logging_now() == before
    assert logging_now() == before
