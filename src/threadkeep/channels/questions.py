"""Questions of runs to a person, and the messages of a chat that answer them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from threadkeep.channels.bots import Bot, Texts
from threadkeep.channels.contract import IncomingMessage
from threadkeep.memory import Memory
from threadkeep.records.runs import Run, RunQuery, interrupts_of
from threadkeep.runs.service import RunService

_NEWEST = 50


def question_text(run: Run, texts: Texts) -> str:
    """Return what a run that waits asks; if the chat cannot answer it, also that it is answered elsewhere."""
    asked = [text for text in _questions(run) if text is not None]
    return "\n".join(asked if is_answered_by_text(run) else [*asked, *filter(None, [texts.asked_elsewhere])])


def is_answered_by_text(run: Run) -> bool:
    """Return whether a run asks one question, which is a text or has one as its `question`."""
    asked = _questions(run)
    return len(asked) == 1 and asked[0] is not None


async def question_for(memory: Memory, runs: RunService, bot: Bot, message: IncomingMessage) -> Run | None:
    """Return the run whose question a message answers; None if the message begins a run.

    It is the newest run of the sender in the conversation, the question can be answered by a text, and was sent.
    """
    if not await _runs_of(runs, message, RunQuery(session_id=message.session_id, status="waiting", limit=_NEWEST)):
        return None
    newest = await _runs_of(runs, message, RunQuery(session_id=message.session_id, limit=_NEWEST))
    own = [run for run in newest if message.private or _is_by(message, run)]
    run = own[0] if own else None
    if run is None or run.status != "waiting" or not is_answered_by_text(run):
        return None
    if run.trigger != "webhook" or run.newest_message_id is None:
        return None  # the person did not see its question in this chat
    sent = await memory.channels.outbox.find(bot.name, message.session_id or "", run.newest_message_id)
    # The outbox forgets old messages. A message that is being sent may have arrived.
    is_sent = sent is None or sent.status == "delivered" or (sent.status == "ready" and sent.tries > 0)
    return run if is_sent else None


async def end_questions(runs: RunService, message: IncomingMessage) -> None:
    """Cancel the runs of a conversation that wait for an answer in the chat."""
    query = RunQuery(session_id=message.session_id, status="waiting", limit=_NEWEST)
    for run in await _runs_of(runs, message, query):
        if run.trigger == "webhook":
            await runs.cancel(run.run_id)


async def _runs_of(runs: RunService, message: IncomingMessage, query: RunQuery) -> Sequence[Run]:
    found, _ = await runs.list(query)
    return [run for run in found if run.parent_run_id is None and message.user_id in (None, run.user_id)]


def _is_by(message: IncomingMessage, run: Run) -> bool:
    """Return whether a run answers a message of the same sender; a group has several."""
    if message.sender is None:
        return False
    known = [one.values.get("metadata") for one in run.inputs]
    return any(isinstance(one, Mapping) and one.get("sender_id") == message.sender.id for one in known)


def _questions(run: Run) -> list[str | None]:
    asked = [one.get("value") for one in interrupts_of(run)]
    texts = [value.get("question") if isinstance(value, Mapping) else value for value in asked]
    return [text if isinstance(text, str) and text.strip() else None for text in texts]
