"""The same memory for plain `StateGraph` users: a turn around any model call, and a ready node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.utils.uuid import uuid7
from langgraph.errors import GraphBubbleUp

from threadkeep.context.budget import input_budget
from threadkeep.history.memory import Memory
from threadkeep.workflow.call_measure import ModelUse
from threadkeep.workflow.invocation import metadata_of, question_before, run_id_of, session_for
from threadkeep.workflow.model_facts import facts_of
from threadkeep.workflow.partial import PartialAnswer, listening
from threadkeep.workflow.turn_options import TurnOptions, place_in
from threadkeep.workflow.turns import OpenTurn


class SessionTurn:
    """A turn inside a node: what to send the model, and where to put its answer.

    `answered` is the answer that is stored already when the question is a repeat: hand it on and call no model.
    """

    def __init__(self, turn: OpenTurn, state: Sequence[BaseMessage]) -> None:
        self._turn = turn
        self._state = state
        self.answered = turn.answered
        self.reply: BaseMessage | str | None = None

    async def messages(
        self, system: SystemMessage | None = None, *, model: BaseChatModel | None = None, tools: Sequence[object] = ()
    ) -> list[BaseMessage]:
        """What the model call is sent: the system message, earlier turns, the state's messages, within the limits.

        With the `model` (and the `tools` that it is told of) its context window counts as a limit too.
        """
        sent = await self._turn.context(self._state, system, ModelUse(model, tools))
        return [*([sent.system] if sent.system else []), *sent.messages]

    def answer(self, reply: BaseMessage | str) -> None:
        """The assistant's answer; it is stored when the block ends. A message without an id gets one."""
        if isinstance(reply, BaseMessage):
            _identify([reply])
        self._turn.contexts.report(reply if isinstance(reply, AIMessage) else None)
        self.reply = reply


@asynccontextmanager
async def session_turn(
    memory: Memory,
    messages: Sequence[BaseMessage],
    config: RunnableConfig | None = None,
    options: TurnOptions | None = None,
) -> AsyncIterator[SessionTurn]:
    """A turn of the run's session around a model call, in any node or function.

    ::

        async with session_turn(memory, state["messages"], config) as turn:
            reply = turn.answered or await model.ainvoke(await turn.messages())
            turn.answer(reply)

    The question (the newest human messages) is stored when the block begins, the answer when it ends; what a model had
    streamed when the block was cancelled or failed is stored as `interrupted` or `failed`. Use it once in a run.
    Questions without an id get one.

    Raises:
        InvalidKey: the config names no session.
        WrongUser: the session is another user's.
    """
    config = ensure_config(config)
    options = options or TurnOptions()
    session = session_for(memory, options, config)
    question = question_before(messages)
    _identify(question)
    turn = OpenTurn(memory, session, options, question, place_in(options, config))
    await turn.begin(run_id_of(config), metadata_of(config))
    inside = SessionTurn(turn, messages)
    partial = PartialAnswer()
    token = var_child_runnable_config.set(listening(config, partial))
    try:
        yield inside
    except asyncio.CancelledError:
        await turn.close(partial.text, "interrupted")
        raise
    except GraphBubbleUp:
        turn.contexts.keep()
        raise
    except Exception:
        await turn.close(partial.text, "failed")
        raise
    finally:
        var_child_runnable_config.reset(token)
    if inside.reply is not None and inside.answered is None:
        await turn.close(inside.reply)


def _identify(messages: Sequence[BaseMessage]) -> None:
    """Give ids to messages that have none, in place as LangGraph does: state and transcript hold the same messages."""
    for message in messages:
        message.id = message.id or str(uuid7())


class MessagesUpdate(TypedDict):
    """What the node adds to the state."""

    messages: list[BaseMessage]


def memory_node(
    memory: Memory,
    model: BaseChatModel,
    *,
    system_prompt: str | None = None,
    options: TurnOptions | None = None,
) -> Callable[[dict[str, Any], RunnableConfig], Awaitable[MessagesUpdate]]:
    """A node that calls a model with the session's memory: `graph.add_node("chat", memory_node(memory, model))`.

    It reads and writes the state's `messages`.

    Raises:
        BudgetTooSmall: the model's context window leaves no room for a prompt; names the three numbers.
    """
    limits = options or TurnOptions()
    facts = facts_of(model, limits.context_window)
    input_budget(facts.name, limits.max_output_tokens, facts.window)
    system = SystemMessage(system_prompt) if system_prompt else None

    async def chat(state: dict[str, Any], config: RunnableConfig) -> MessagesUpdate:
        async with session_turn(memory, state["messages"], config, options) as turn:
            reply: AIMessage = turn.answered or await model.ainvoke(await turn.messages(system, model=model))
            turn.answer(reply)
        return {"messages": [reply]}

    return chat
