"""The question that a run answered, and the agent input to answer it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from threadkeep.records import Message
from threadkeep.store.transcripts import END, Transcripts

if TYPE_CHECKING:
    from langchain_core.messages import AnyMessage

_PAGE_ROWS = 200
_REACH_ROWS = 10_000


class AgentInput(TypedDict):
    """The input of an agent or a graph, in LangChain's and LangGraph's format."""

    messages: list[AnyMessage | dict[str, Any]]


def agent_input(question: Message) -> AgentInput:
    """Return the agent input to ask a stored question again, under its id."""
    return {"messages": [{"role": question.role, "content": question.content, "id": str(question.id)}]}


async def question_of(transcripts: Transcripts, session_id: str, run: str | None) -> Message | None:
    """Return the question that a run answered, the message with this id, or (for None) the newest question.

    It looks at the newest 10,000 active messages.
    """
    if run is not None and (message := await transcripts.find(session_id, run)) is not None:
        return message if message.role == "user" else None
    before, looked, spoke = END, 0, False
    while looked < _REACH_ROWS:
        page = await transcripts.newest(session_id, limit=_PAGE_ROWS, before=before)
        for message in reversed(page.messages):
            if message.role == "user" and (spoke or run in (None, message.run_id)):
                return message
            if message.role != "user" and run is not None and message.run_id == run:
                if message.answers is not None and (asked := await transcripts.find(session_id, message.answers)):
                    return asked
                spoke = True
        looked += len(page.messages)
        if page.next_before is None:
            return None
        before = page.next_before
    return None
