"""Answers that sessions have and runs have not: of runs that are no longer kept, or from before the run came to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from threadkeep.history.memory import Memory
from threadkeep.records import Json, Message
from threadkeep.records.runs import Run


async def with_answer(memory: Memory, run: Run) -> Run:
    """The run; one that is done and has no result any more, with the answer that its session still has."""
    if run.status != "done" or run.result is not None or run.message_id is None:
        return run
    answer = await _answer(memory, run, run.message_id)
    return run if answer is None else _answering(run, answer)


async def with_own_answer(memory: Memory, run: Run, message_id: str) -> Run:
    """A run that is done as whoever sent one of its messages sees it, which may have been answered without the run."""
    answer = await _answer_of_others(memory, run, message_id) if len(run.inputs) > 1 else None
    return run if answer is None else _answering(run, answer)


async def with_unanswered(memory: Memory, run: Run) -> Run:
    """A run of several messages without those that were answered already, as the database did not take it then."""
    if len(run.inputs) < 2:
        return run
    rest = [
        one
        for one in run.inputs
        if one.message_id is None or await _answer_of_others(memory, run, one.message_id) is None
    ]
    return replace(run, inputs=tuple(rest)) if rest else run


async def said_without(memory: Memory, run: Run) -> Mapping[str, Json] | None:
    """What the newest message of a run was answered without a record of it; None where nobody has stored that."""
    message_id = run.inputs[-1].message_id if run.inputs else None
    answer = None if message_id is None else await _answer(memory, run, message_id)
    return None if answer is None or answer.status != "complete" else _said(answer)


async def _answer_of_others(memory: Memory, run: Run, message_id: str) -> Message | None:
    answer = await _answer(memory, run, message_id)
    return None if answer is None or answer.run_id == run.run_id or answer.status != "complete" else answer


async def _answer(memory: Memory, run: Run, message_id: str) -> Message | None:
    if run.session_id is None:
        return None
    session = memory.session(run.session_id)
    question = await session.find(message_id)
    return None if question is None else await session.answer_to(question)


def _answering(run: Run, answer: Message) -> Run:
    return replace(run, result=_said(answer))


def _said(answer: Message) -> dict[str, Json]:
    said: dict[str, Json] = {
        "text": answer.content,
        "message_id": answer.id,
        "confidence": answer.confidence,
        "escalated": answer.escalated,
    }
    return {name: value for name, value in said.items() if value is not None}
