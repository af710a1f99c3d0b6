"""The text of an answer in the outbox, from its run."""

from __future__ import annotations

from threadkeep.channels.bot import Bot
from threadkeep.history.memory import Memory
from threadkeep.records.runs import RunResult
from threadkeep.runs.kept_answers import with_answer
from threadkeep.store.outbox import Outgoing


async def answer_text(memory: Memory, bot: Bot, message: Outgoing) -> str:
    """Return the text to send; empty if the message gets no answer of its own."""
    if message.run_id is None:
        return message.content or ""
    run = await memory.runs.run(message.run_id)
    if run is None:
        return ""
    return _answer_to(message, RunResult.of(await with_answer(memory, run)), bot)


def _answer_to(message: Outgoing, result: RunResult, bot: Bot) -> str:
    """Return the answer to a message; of several messages of one run, only the newest gets the answer."""
    inputs = result.run.inputs
    if inputs and inputs[-1].message_id != message.message_id:
        return ""
    match result.status:
        case "done":
            return message.content or result.text
        case "failed" | "interrupted":
            return bot.texts.failed
        case "waiting":
            return _question(result)
        case _:
            return ""


def _question(result: RunResult) -> str:
    """Return a run's question to a person, if it is a text."""
    asked = [one.get("value") for one in result.interrupts]
    return "\n".join(value for value in asked if isinstance(value, str))
