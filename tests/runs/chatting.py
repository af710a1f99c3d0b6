"""Helpers for tests of the chat: requests, chats and their events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from tests.runs.desk import IN_MEMORY, QUICK
from threadkeep import Memory
from threadkeep.agent.turn_options import ChatOptions
from threadkeep.app import resources_of
from threadkeep.runs.chat import Chat, OfflineRuns, RunsOnDemand
from threadkeep.runs.chat_turns import ChatEvent, ChatToken, ChatTurn
from threadkeep.runs.options import RunServiceOptions
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService, open_runs
from threadkeep.runs.streams import InFlightMessages
from threadkeep.workflows.built_in import chat_workflow
from threadkeep.workflows.definition import Workflow
from threadkeep.workflows.registry import Workflows

ROOM = "room:1"
WATCHFUL = replace(QUICK, reap_seconds=0.05, upkeep_seconds=0.05)
"""Options with which the death of another process is detected soon."""


class Chats:
    """A factory of chats as the service makes them, over an engine in the test's process. It also closes them."""

    def __init__(self) -> None:
        self._opened: list[tuple[Chat, RunsOnDemand]] = []

    def __call__(
        self,
        memory: Memory,
        model: BaseChatModel,
        options: ChatOptions | None = None,
        tools: Sequence[BaseTool] = (),
        *,
        others: Sequence[Workflow] = (),
        runs: RunServiceOptions = QUICK,
        elsewhere_seconds: float = 60.0,
    ) -> Chat:
        """Return a new chat."""
        options = options or ChatOptions()
        options.check_room(model)
        resources = resources_of(memory, model, options)
        workflows = Workflows(others, chat=chat_workflow(options, tools))

        @asynccontextmanager
        async def opening(in_flight: InFlightMessages) -> AsyncIterator[RunService]:
            async with open_runs(
                memory,
                IN_MEMORY,
                workflows,
                resources,
                checkpointer=InMemorySaver(),
                store=InMemoryStore(),
                options=runs,
                in_flight=in_flight,
            ) as service:
                yield service

        on_demand = RunsOnDemand(opening)
        offline = OfflineRuns(memory, workflows, resources)
        chat = Chat(memory, workflows, on_demand, offline, elsewhere_seconds=elsewhere_seconds)
        self._opened.append((chat, on_demand))
        return chat

    async def close(self, chat: Chat | None = None, seconds: float = 0.0) -> None:
        """Close a chat, or all of them, as the service does."""
        for each, runs in self._opened:
            if chat in (None, each):
                await each.close(seconds)
                await runs.close()


def said(
    message: str, message_id: str | None = None, *, session_id: str | None = ROOM, user_id: str | None = None
) -> RunRequest:
    """Return a chat request, by default to the session `ROOM`."""
    return RunRequest(workflow="chat", text=message, session_id=session_id, user_id=user_id, message_id=message_id)


async def events_of(turn: ChatTurn) -> list[ChatEvent]:
    """Return all events that a follower receives."""
    return [event async for event in turn.follow()]


def words_of(events: Sequence[ChatEvent]) -> str:
    """Return the joined pieces of an answer."""
    return "".join(event.text for event in events if isinstance(event, ChatToken))
