"""Reading the answer of a run from its session, if the run's own result was deleted or replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Final, TypeGuard

from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import Json, Message
from threadkeep.records.runs import Run

_MOST_MESSAGES: Final = 500
"""The maximum number of messages that are searched for the newest question of a turn."""


async def with_answer(memory: Memory, run: Run) -> Run:
    """Return a run; if its result was deleted or replaced, return it with the answer from its session."""
    if run.status != "done" or run.message_id is None:
        return run
    if run.result is not None:
        return await _with_replaced_answer(memory, run, run.result)
    answer = await _answer_of_turn(memory, run, run.message_id)
    return run if answer is None else replace(run, result=result_of_answer(answer))


async def _with_replaced_answer(memory: Memory, run: Run, result: Mapping[str, Json]) -> Run:
    """Return a run with the answer that replaced its own answer, if there is one."""
    own_id = result.get("message_id")
    if run.session_id is None or not isinstance(own_id, str):
        return run
    session = memory.session(run.session_id)
    own = answer = await session.find(own_id)
    if own is not None and own.seq is None:
        # Record that a caller gets the pending answer now.
        await session.tell(own_id)
    while answer is not None and answer.superseded_by is not None:
        answer = await session.find(answer.superseded_by)
    if own is None and run.message_id is not None:
        # The run's own answer is not stored: it was deleted, or a caller got another one while the database was down.
        answer = await _answer_of_turn(memory, run, run.message_id)
        if answer is not None and answer.status != "complete":
            return run
    if answer is None or answer is own or (own is not None and answer.answers != own.answers):
        return run
    output = {"text": answer.content} if result.get("output") == {"text": result.get("text")} else result.get("output")
    return replace(run, result={**result, "output": output, **result_of_answer(answer)})


async def with_own_answer(memory: Memory, run: Run, message_id: str) -> Run:
    """Return a run with the answer to `message_id`, one of several messages that it has answered.

    The answer may come from another run, or be the answer to the newest message of the turn.
    """
    answer = await _answer_of_turn(memory, run, message_id)
    return replace(run, result=result_of_answer(answer)) if _is_of_other(answer, run) else run


async def with_unanswered(memory: Memory, run: Run) -> Run:
    """Return a run without messages that other runs have answered; if they have answered all, return it unchanged."""
    rest = [
        one
        for one in run.inputs
        if one.message_id is None or not _is_of_other(await _answer(memory, run, one.message_id), run)
    ]
    return replace(run, inputs=tuple(rest)) if rest else run


async def stored_answer_of(memory: Memory, run: Run) -> Mapping[str, Json] | None:
    """Return the stored answer to a run's newest message, in the form of a result; None unless it is complete."""
    message_id = run.inputs[-1].message_id if run.inputs else None
    answer = None if message_id is None else await _answer(memory, run, message_id)
    return None if answer is None or answer.status != "complete" else result_of_answer(answer)


def _is_of_other(answer: Message | None, run: Run) -> TypeGuard[Message]:
    """Return True if an answer is complete and was given by another run."""
    return answer is not None and answer.run_id != run.run_id and answer.status == "complete"


async def _answer_of_turn(memory: Memory, run: Run, message_id: str) -> Message | None:
    """Return the answer to a message or, if it has none, the answer to the newest message of its turn."""
    if (answer := await _answer(memory, run, message_id)) is not None or run.session_id is None:
        return answer
    session = memory.session(run.session_id)
    question = await session.find(message_id)
    if question is None or question.seq is None or question.run_id is None:
        return None
    following = await session.at(range(question.seq + 1, question.seq + _MOST_MESSAGES))
    of_turn = takewhile(lambda one: one.role == "user" and one.run_id == question.run_id, following)
    newest = next(reversed([*of_turn]), None)
    return None if newest is None or newest.id is None else await _answer(memory, run, newest.id)


async def _answer(memory: Memory, run: Run, message_id: str) -> Message | None:
    return None if run.session_id is None else await newest_answer(memory.session(run.session_id), message_id)


async def newest_answer(session: Session, message_id: str) -> Message | None:
    """Return the newest answer to a message, whether it is stored or still waits to be stored."""
    question = await session.find(message_id)
    answers = [] if question is None else await session.answers_to(question)
    return answers[-1] if answers else None


def result_of_answer(answer: Message) -> dict[str, Json]:
    """Return a stored answer in the form of a run's result."""
    result: dict[str, Json] = {
        "text": answer.content,
        "message_id": answer.id,
        "confidence": answer.confidence,
        "escalated": answer.escalated,
    }
    return {name: value for name, value in result.items() if value is not None}
