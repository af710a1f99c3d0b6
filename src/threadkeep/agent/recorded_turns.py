"""The turns of a recorded graph: what is stored before it runs, what it is given, and what is stored when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.callbacks import GraphCallbackHandler, GraphInterruptEvent
from langgraph.runtime import RunControl
from langgraph.types import GraphOutput

from threadkeep.agent.agent_calls import final_answer
from threadkeep.agent.conversion import id_of, text_of, to_langchain
from threadkeep.agent.invocation import metadata_of, question_in, run_id_of, session_for
from threadkeep.agent.node_turns import identify
from threadkeep.agent.participation import Caller, Participation
from threadkeep.agent.quoted_turns import section_message
from threadkeep.agent.recorded_ends import (
    GraphEnd,
    GraphEnds,
    State,
    kept_values,
    restored_values,
    upto,
)
from threadkeep.agent.root_runs import root_run
from threadkeep.agent.sendable_messages import NO_ANSWER, OPENING
from threadkeep.agent.session_order import order_of
from threadkeep.agent.turn_options import AUTO_TOKENS, TurnOptions
from threadkeep.context.quotation import summary_message_text
from threadkeep.context.window import Limits
from threadkeep.history.memory import Memory
from threadkeep.history.recollection import Past
from threadkeep.records import Message

type GraphInput = Any
"""The input of a LangGraph graph: a state, or a command."""


class GraphTurns:
    """The turns of a graph on the event loop of one memory."""

    def __init__(self, memory: Memory, options: TurnOptions, *, has_saver: bool, name: str) -> None:
        self._memory = memory
        self._options = options
        self._has_saver = has_saver
        self._name = name

    async def begin(self, given: GraphInput, config: RunnableConfig) -> GraphTurn:
        """Store the question, after the turns of the session that came before."""
        memory, options = self._memory, self._options
        session, control = session_for(memory, options, config), RunControl()
        root = root_run(memory, control, session.session_id)
        part = Participation(memory, session, options, root, None, (id(control), "", 0))
        messages = _messages_in(given)
        part.resumed = not messages
        if options.ordered:
            await order_of(memory).enter(session.session_id, root)
        ends = GraphEnds(memory, session, self._name)
        turn = GraphTurn(self, part, ends, given, messages, config)
        root.call_begins()
        try:
            part.enter(messages)
            if messages:
                await part.begin(messages, Caller(run_id_of(config), metadata_of(config)))
                await turn.find_end()
                if turn.ended is None and not self._has_saver:
                    await turn.add_history()
        except BaseException:
            self._leave(part)
            raise
        return turn

    def leave_soon(self, turn: GraphTurn) -> None:
        """Let the next turn of the session begin, from any thread."""
        self._memory.loop.post(lambda: self._leave(turn.part))

    def _leave(self, part: Participation) -> None:
        part.root.call_ends()
        order_of(self._memory).leave(part.session.session_id, part.root)


class Ending(GraphCallbackHandler):
    """The output of the graph that is called with it; None if it was interrupted."""

    run_inline = True

    def __init__(self) -> None:
        self.output: object = None
        self._interrupted = False
        self._run_id: UUID | None = None

    @property
    def ignore_llm(self) -> bool:
        """Leave model calls out."""
        return True

    ignore_agent = ignore_chat_model = ignore_custom_event = ignore_retriever = ignore_retry = ignore_llm

    def on_chain_start(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Note the first run, which is the graph's."""
        self._run_id = self._run_id or run_id

    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        """Note that the graph waits for a person."""
        self._interrupted = True

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """Note the output of the graph."""
        if run_id == self._run_id and not self._interrupted:
            self.output = outputs


class GraphTurn:
    """The turn of one call of a graph."""

    def __init__(
        self,
        turns: GraphTurns,
        part: Participation,
        ends: GraphEnds,
        given: GraphInput,
        messages: list[BaseMessage],
        config: RunnableConfig,
    ) -> None:
        self.turns = turns
        self.part = part
        self.control: Any = part.root.control
        self.ended: GraphEnd | None = None
        self._ends = ends
        self._messages = messages
        self.ending = Ending()
        self.given = {**given, "messages": messages} if messages and isinstance(given, Mapping) else given
        self.config = _with_callback(config, self.ending)
        self._caller = Caller(run_id_of(config), metadata_of(config))
        self._history: set[str | None] = set()

    async def add_history(self) -> None:
        """Put the earlier turns in front of the input."""
        options, turn = self.part.options, self.part.turn
        if turn is None or options.no_history:
            return
        tokens = AUTO_TOKENS if options.max_tokens == "auto" else options.max_tokens
        past = Past(
            Limits(options.message_limit, tokens),
            before_id=turn.question_id,
            before_seq=turn.contexts.question_seq,
            questions=turn.contexts.questions,
        )
        found = (await self.part.session.recall(past)).without_failures()
        given = await turn.contexts.as_stored(self.given["messages"])
        asked = {id_of(message) for message in given}
        earlier = _as_talk([row for row in found.messages if row.id not in asked])
        if found.summaries:
            earlier = [section_message("summary", summary_message_text(found.summaries)), *earlier]
        identify(earlier)
        self._history = {message.id for message in earlier}
        self.given = {**self.given, "messages": [*earlier, *given]}

    async def find_end(self) -> None:
        """Look whether the message is a repeat, and its turn has ended."""
        if self.part.turn is not None:
            self.ended = await self._ends.of(self.part.turn)

    def final_state(self, saved: State | None, names: Sequence[str], classes: Mapping[str, type]) -> State:
        """Return the state with which the turn has ended before.

        Args:
            saved: the state that a checkpointer has, which may have newer turns.
            names: the names of the graph's outputs.
            classes: the classes that values of the state have had.
        """
        end = self.ended or GraphEnd(())
        values = dict(saved or {})
        messages = upto(values.get("messages", []), end.answers[-1].id) if end.answers else None
        if saved is None and isinstance(self.given, Mapping):
            values = {name: value for name, value in self.given.items() if name in names}
        told = [*self._messages, *end.messages] if messages is None else messages
        return {**values, "messages": told, **restored_values(end.values, classes)}

    async def end(self, state: object) -> AIMessage | None:
        """Store the final answer, unless an agent of the graph has; return the answer that was stored before it."""
        if not isinstance(state, Mapping) or not state.get("messages"):
            return None
        answer = final_answer(cast("Any", state), ())
        if answer is None or answer.tool_calls or not text_of(answer).strip() or id_of(answer) in self._history:
            return None
        messages, root = list(state["messages"]), self.part.root
        spoken = next((one for one in reversed(messages) if isinstance(one, AIMessage)), answer)
        same = (one for one in root.answers if id_of(one) == id_of(answer) or text_of(one) == text_of(answer))
        if (stored := next(same, None)) is not None and self.part.turn is not None:
            await self._ends.keep(self.part.turn, str(id_of(stored)), kept_values(state))
            return None
        self.part.author = spoken.name
        turn = await self.part.begin(messages, self._caller)
        turn.speak_as(type(turn.speaker)(self.part.author, root.claim(self.part.author, self)))
        winner = turn.answered or await turn.close(answer)
        await self._ends.keep(turn, str(id_of(winner or answer)), kept_values(state))
        return winner

    def without_history(self, result: Any, winner: AIMessage | None) -> Any:
        """Return the result of a call without the earlier turns, and with the answer that counts."""
        if isinstance(result, GraphOutput):
            return replace(result, value=self.without_history(result.value, winner))
        if not isinstance(result, Mapping) or "messages" not in result or not (self._history or winner):
            return result
        messages = [message for message in result["messages"] if getattr(message, "id", None) not in self._history]
        if winner is not None and messages:
            messages[-1] = winner
        return {**result, "messages": messages}


def _as_talk(rows: Sequence[Message]) -> list[BaseMessage]:
    """Return earlier turns as providers take them: a user message first, a mark after a question without an answer."""
    spoken = {row.run_id for row in rows if row.role == "assistant"}
    found: list[BaseMessage] = [HumanMessage(OPENING)] if rows and rows[0].role == "assistant" else []
    for row, following in zip_longest(rows, rows[1:]):
        found.append(to_langchain(row))
        next_run = None if following is None else following.run_id
        asked = row.role == "user" and row.run_id is not None and row.run_id not in spoken
        if asked and row.run_id != next_run and (following is None or following.role == "user"):
            found.append(AIMessage(NO_ANSWER))
    return found


def _messages_in(state: object) -> list[BaseMessage]:
    given = state.get("messages") if isinstance(state, Mapping) else None
    if not given:
        return []
    messages = convert_to_messages(given if isinstance(given, Sequence) and not isinstance(given, str) else [given])
    identify(question_in(messages))
    return messages


def _with_callback(config: RunnableConfig, handler: BaseCallbackHandler) -> RunnableConfig:
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(handler, inherit=False)
        return {**config, "callbacks": manager}
    return {**config, "callbacks": [*(callbacks or []), handler]}
