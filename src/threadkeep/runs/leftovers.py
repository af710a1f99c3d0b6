"""What is left of a run that is no longer kept: which message it answered, and in the session what it said."""

from __future__ import annotations

from dataclasses import replace

from threadkeep.history.memory import Memory
from threadkeep.records import Json
from threadkeep.records.runs import Run


async def with_answer(memory: Memory, run: Run) -> Run:
    """The run; one that is done and has no result any more, with the answer that its session still has."""
    if run.status != "done" or run.result is not None or run.session_id is None or run.message_id is None:
        return run
    session = memory.session(run.session_id)
    question = await session.find(run.message_id)
    answer = None if question is None else await session.answer_to(question)
    if answer is None:
        return run
    said: dict[str, Json] = {
        "text": answer.content,
        "message_id": answer.id,
        "confidence": answer.confidence,
        "escalated": answer.escalated,
    }
    return replace(run, result={name: value for name, value in said.items() if value is not None})
