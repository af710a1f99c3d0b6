"""Messages that a chat front end sends, and the turn that answers them.

These front ends send the whole conversation with each request, but the history comes from the transcript. Only the
user's messages at the end of a request are new. Earlier messages are stored only if the session is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from threadkeep.agent.conversion import from_langchain, id_of
from threadkeep.app import App
from threadkeep.errors import InvalidInput
from threadkeep.records.runs import Run
from threadkeep.runs.chat_turns import ChatTurn
from threadkeep.runs.requests import RunRequest, text_of_input
from threadkeep.web.langgraph.states import asked_text, new_messages


@dataclass(frozen=True)
class Sent:
    """A request from a chat front end: its messages in LangChain's form, its session and its user.

    Without a `session_id`, the user's last session continues, or a new one starts. `message_id` is the default id of
    the question.
    """

    messages: Sequence[BaseMessage]
    session_id: str | None
    user_id: str | None
    workflow: str
    message_id: str | None = None

    async def begin(self, app: App, *, stream: bool) -> ChatTurn:
        """Start the turn that answers the new messages, or join the turn that already answers them.

        Raises:
            InvalidInput: the last message is not the user's, or it has no text.
            InvalidKey, WorkflowNotFound, WrongUser, StoreUnavailable: as for every other turn.
        """
        asked = await self._unknown(app, new_messages(self.messages))
        text = asked_text(asked)
        if not text.strip():
            raise InvalidInput("The last message must be a user message with text.")
        app.workflows.get(self.workflow)
        if self.session_id is not None:
            session = app.memory.session(self.session_id, user_id=self.user_id)
            before = self.messages[: len(self.messages) - len(asked)]
            rows = [from_langchain(one) for one in before if one.type in ("human", "ai")]
            earlier = [one for one in rows if one.content.strip()]
            if earlier and not await session.count(view="history"):
                await session.append(earlier)
        request = RunRequest(
            text=text,
            session_id=self.session_id,
            user_id=self.user_id,
            message_id=id_of(asked[-1]) or self.message_id,
            workflow=self.workflow,
        )
        return app.chat.begin(request, stream=stream)

    async def _unknown(self, app: App, asked: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
        """Return the messages of `asked` after the last message that is already stored.

        The last message of `asked` is always returned, so that a repeated request joins the turn that it started.
        """
        if self.session_id is not None:
            session = app.memory.session(self.session_id, user_id=self.user_id)
            for position in range(len(asked) - 1, 0, -1):
                known = id_of(asked[position - 1])
                if known and await session.find(known) is not None:
                    return asked[position:]
        return asked


def join_run(app: App, run: Run) -> ChatTurn:
    """Join the turn of a run, and return it. The newest message of the run must have an id."""
    asked = run.inputs[-1]
    request = RunRequest(
        text=text_of_input(asked),
        session_id=run.session_id,
        user_id=run.user_id,
        message_id=asked.message_id,
        workflow=run.workflow,
    )
    return app.chat.begin(request, stream=True)
