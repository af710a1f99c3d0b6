"""The turns of a graph that `recorded` wraps: the input, the stored question and answer, and the stored end."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import zip_longest
from typing import Any, Final, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import RunControl, Runtime
from langgraph.types import Command, GraphOutput, Overwrite
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from threadkeep.agent.answers import final_answer, storable
from threadkeep.agent.callbacks import Asked, Ending, RootCall, overwriting, root_callbacks, with_callback
from threadkeep.agent.conversion import ENDS, STRUCTURED, id_of, identify, text_of, to_langchain, transcript_text
from threadkeep.agent.counting import is_text
from threadkeep.agent.extras import section_message
from threadkeep.agent.invocation import control_of, metadata_of, run_id_of, session_for
from threadkeep.agent.participation import Participation
from threadkeep.agent.provider_messages import NO_ANSWER, OPENING, first_since, superseded_indexes
from threadkeep.agent.questions import messages_in, question_before
from threadkeep.agent.root_runs import begun_turn, forget, root_run, tool_of_sessions
from threadkeep.agent.turn_options import AUTO_TOKENS, TurnOptions
from threadkeep.agent.turns import OpenTurn
from threadkeep.boundary import OnFailure
from threadkeep.context.quotation import summary_message_text
from threadkeep.context.window import Limits
from threadkeep.errors import MiddlewareWarning
from threadkeep.history.memory import Memory
from threadkeep.history.recollection import Past
from threadkeep.history.session import in_time
from threadkeep.records import Json, Message, dump_json
from threadkeep.store.contexts import Steps

type GraphInput = Any
"""The input of a LangGraph graph: a state, or a command."""


class GraphTurns:
    """A service that begins the turns of a graph that `recorded` wraps, on the event loop of one memory."""

    def __init__(
        self,
        memory: Memory,
        options: TurnOptions,
        *,
        name: str | None,
        redacted: frozenset[str],
        direct_tools: frozenset[str],
    ) -> None:
        self.direct_tools = direct_tools
        self._memory = memory
        self._options = options
        self._name = name
        self._redacted = redacted

    async def begin(
        self, given: GraphInput, config: RunnableConfig, context: object = None, *, has_saver: bool
    ) -> GraphTurn:
        """Store the question. If turns are ordered, first wait for the session's earlier turns.

        A graph inside the turn of another graph takes part in that turn. A graph in a tool of an agent with the same
        session neither reads nor writes the session.
        """
        memory, options = self._memory, self._options
        session = session_for(memory, options, config, None if context is None else Runtime(context=context))
        messages = messages_in(given)
        outer = begun_turn(memory, control_of(), session.session_id)
        root = outer or root_run(memory, RunControl(), session.session_id)
        key, run_id, metadata = (id(root.control), "", id(given)), run_id_of(config), metadata_of(config)
        part = Participation(memory, session, options, root, None, key, run_id, metadata)
        identify(question_before(messages))
        part.resumed = not messages
        turn = GraphTurn(self, part, f"threadkeep:graph:{self._name or ''}", given, messages, config)
        if (memory.identity, session.session_id) in tool_of_sessions.get():
            part.silent = True
            return turn
        turn.role, turn.is_root = "guest" if root.recorded else "owner", outer is None
        root.recorded = True
        root.open_calls += 1
        with OnFailure(turn.close):
            if options.ordered:
                await root.order.acquire(root, memory.observers)
            stored = [self._without_redacted(message) for message in messages]
            if not (given is None or isinstance(given, Command)):
                begun = root.begun
                part.enter(stored)
                if messages and not begun and (run := root_callbacks.call) is not None:
                    turn.use_first_attempt(run, run.first_of(given))
            if messages and not part.silent:
                await part.begin(stored)
                root.release(None, key)  # the graph's answer gets its number at the end
                await turn.find_end()
                if turn.ended is None and turn.role == "owner" and not has_saver:
                    await turn.add_history()
        return turn

    def _without_redacted(self, message: BaseMessage) -> BaseMessage:
        """Return a human message without the data that the graph's `PIIMiddleware` will redact."""
        if not isinstance(message, HumanMessage):
            return message
        content: Any = message.content
        storing = self._redacted_block(content) if isinstance(content, str) else [*map(self._redacted_block, content)]
        return message if storing == content else message.model_copy(update={"content": storing})

    def _redacted_block(self, block: Any) -> Any:
        if isinstance(block, str):
            return storable(block, self._redacted, is_complete=True)
        return {**block, "text": self._redacted_block(block.get("text", ""))} if is_text(block) else block


class GraphTurn:
    """A call of a `recorded` graph. It owns its turn, joins an outer graph's turn (`guest`), or has none (`silent`)."""

    def __init__(
        self,
        turns: GraphTurns,
        part: Participation,
        author: str,
        given: GraphInput,
        messages: list[BaseMessage],
        config: RunnableConfig,
    ) -> None:
        self.turns = turns
        self.part = part
        self.control: Any = part.root.control
        self.graph: Any = None
        self.options: Mapping[str, Any] = {}
        self.ended: GraphEnd | None = None
        self.role: Literal["owner", "guest", "silent"] = "silent"
        self.is_root = False
        self._author = author
        self._messages = messages
        self.ending = Ending()
        self.given = _with_messages(given, messages) if messages else given
        self.config = with_callback(config, self.ending, inherit=False)
        self._history: set[str | None] = set()
        self._attempts: RootCall | None = None

    def close(self) -> None:
        """End the call. If it owns its turn, let the session's next turn begin. Any OS thread may call this."""
        root = self.part.root
        if self.role == "silent":
            return
        root.call_ends()
        if self._attempts is not None:
            self._attempts.asked[root.session_id] = [root.question, root.sent]
        if self.role == "owner":
            root.recorded = False
            root.release_session()
        if self.is_root:
            forget(self.part.memory, root)

    def use_first_attempt(self, run: RootCall, first: Asked) -> None:
        """Use the question of a failed attempt of `with_retry()`. `run` is the run around this call."""
        self._attempts, root = run, self.part.root
        root.use_first_attempt(first)
        self._messages = root.with_question(self._messages)
        self.given = _with_messages(self.given, self._messages)

    async def add_history(self) -> None:
        """Insert the summaries and the earlier turns of the session before the input's messages."""
        options, turn = self.part.options, self.part.turn
        if turn is None or options.no_history:
            return
        tokens = AUTO_TOKENS if options.max_tokens == "auto" else options.max_tokens
        past = Past(
            Limits(options.message_limit, tokens),
            before_id=turn.question_id,
            before_seq=turn.question_seq,
            questions=turn.questions,
        )
        found = (await self.part.session.recall(past)).without_failures()
        given = await turn.as_stored(self.part.root.with_question(self._messages))
        asked = {id_of(message) for message in given}
        earlier = _as_conversation([row for row in found.messages if row.id not in asked])
        if found.summaries:
            earlier = [section_message("summary", summary_message_text(found.summaries)), *earlier]
        identify(earlier)
        self._history = {message.id for message in earlier}
        self.given = _with_messages(self.given, [*earlier, *given])

    async def without_outdated(self, state: State) -> None:
        """Make the graph's input remove the saved messages that are superseded or precede a reset."""
        turn, saved = self.part.turn, state.get("messages", ())
        if turn is None or self.ended is not None or not saved or not self._messages or _overwrites(self.given):
            return
        ids = {known for message in saved if (known := id_of(message)) is not None}
        past = Past(Limits(1), turn.question_id, turn.question_seq, turn.questions, ids)
        found = await self.part.session.recall(past)
        indexes = superseded_indexes(saved, found.superseded - {turn.question_id})
        indexes.update(range(first_since(found.forgotten, saved)))
        outdated = [RemoveMessage(str(saved[index].id)) for index in sorted(indexes) if saved[index].id is not None]
        self.given = _with_messages(self.given, [*outdated, *self._messages])

    async def find_end(self) -> None:
        """If the caller repeats the message of a finished turn, read the turn's stored end into `ended`.

        If the caller sends the turn's answer and a message after it, the turn is not repeated, but continues.
        """
        if (turn := self.part.turn) is None:
            return
        answers, sent = {answer.id for answer in turn.earlier}, [id_of(message) for message in self.part.root.sent]
        if answers.isdisjoint(sent) or sent[-1] in answers:
            self.ended = await self._stored_end(turn)

    def final_state(
        self, end: GraphEnd, saved: State | None, names: Sequence[str], classes: Mapping[str, type]
    ) -> State:
        """Return the state with which the finished turn ended.

        Args:
            end: the stored end.
            saved: the checkpointer's state, which may have later turns; None without a checkpointer.
            names: the names of the graph's outputs.
            classes: maps the names of values to their classes in earlier states of this process.
        """
        values = dict(saved or {})
        final = values.get("messages", [])
        positions = [at for at, one in enumerate(final, start=1) if id_of(one) == end.answers[-1].id]
        if saved is None and isinstance(self.given, Mapping):
            values = {name: value for name, value in self.given.items() if name in names}
        whole = list(final[: positions[-1]]) if positions else [*self._messages, *end.messages]
        return {**values, "messages": whole, **restored_values(end.values, classes)}

    async def end(self, state: object) -> AIMessage | None:
        """Store the final state, and the answer if no agent stored it. Return another answer that was stored first."""
        self._attempts = None
        if self.ended is not None or self.part.silent:
            return None
        if not isinstance(state, Mapping) or not state.get("messages"):
            is_continued = self.given is None or isinstance(self.given, Command)
            if not (state is None or is_continued or self.part.root.answers):
                warnings.warn(_NO_MESSAGES, MiddlewareWarning, stacklevel=2)
            return None
        results = [one for one in state["messages"] if isinstance(one, ToolMessage)]
        direct = {one.tool_call_id for one in results if one.name in self.turns.direct_tools}
        answer = final_answer(state, direct, self.part.root.question)
        if answer is None or (answer.tool_calls and STRUCTURED not in answer.additional_kwargs):
            return None
        if id_of(answer) in self._history or not transcript_text(answer).strip():
            return None
        messages, root = list(state["messages"]), self.part.root
        spoken = next((one for one in reversed(messages) if isinstance(one, AIMessage)), answer)
        text = text_of(answer) or transcript_text(answer)
        same = (one for one in root.answers if id_of(one) == id_of(answer) or text_of(one) == text)
        if (stored := next(same, None)) is not None and self.part.turn is not None:
            await self._keep_end(self.part.turn, str(id_of(stored)), state)
            return None
        self.part.author = spoken.name
        # If a resumed run has not stored the question yet, `begin` finds it in these messages, which precede the reply.
        end = next((index for index, one in enumerate(messages) if one is spoken), len(messages))
        turn = await self.part.begin(messages[:end])
        turn.speak_as(self.part.author, root.claim(self.part.author, self.part.key, root.sent))
        turn.ends = self._author if all(name == "messages" or name.startswith("__") for name in state) else None
        first_stored = turn.answered or await turn.close(answer)
        await self._keep_end(turn, str(id_of(first_stored or answer)), state)
        return None if first_stored is None else first_stored.model_copy(update={"name": spoken.name})

    async def _keep_end(self, turn: OpenTurn, answer_id: str, state: State) -> None:
        """Store the final answer's id and the final state. A database error is reported, not raised."""
        memory, session, seq = self.part.memory, self.part.session, turn.question_seq
        if turn.question_id is None or seq is None:
            return
        body = dump_json({"answer": answer_id, "values": kept_values(state)})
        keeping = memory.contexts.keep_steps(
            session.session_id, Steps(seq, body), question_id=turn.question_id, author=self._author, turns=_MOST_TURNS
        )
        await in_time(session, keeping, session.report_write_failed)

    async def _stored_end(self, turn: OpenTurn) -> GraphEnd | None:
        """Return the answers and the final state of a turn that the caller repeats; None if the turn has not ended."""
        memory, session, seq = self.part.memory, self.part.session, turn.question_seq
        # If the process crashed, the turn's end may not be stored. So look for an answer that is marked with `ENDS`.
        for number, one in enumerate(turn.earlier, start=1):
            if one.metadata.get(ENDS) == self._author:
                return GraphEnd(turn.earlier[:number])
        if not turn.earlier or seq is None:
            return None
        kept = await in_time(session, memory.contexts.steps(session.session_id, self._author, since=seq)) or ()
        body = next((json.loads(steps.body) for steps in kept if steps.seq == seq), None)
        ids = [answer.id for answer in turn.earlier]
        if not isinstance(body, dict) or body.get("answer") not in ids:
            return None
        values = body.get("values")
        answers = turn.earlier[: ids.index(str(body["answer"])) + 1]
        return GraphEnd(tuple(answers), values if isinstance(values, dict) else {})

    def part_without_history(self, part: Any) -> Any:
        """Return a part of the graph's stream without the inserted earlier turns."""
        if not self._history:
            return part
        if type(part) is tuple:
            return tuple(map(self.part_without_history, part))
        if type(part) is dict:
            return {name: self.part_without_history(value) for name, value in part.items()}
        if type(part) is list:
            return [self.part_without_history(one) for one in part if getattr(one, "id", None) not in self._history]
        return self.without_history(part)

    def without_history(self, result: Any, first_stored: AIMessage | None = None) -> Any:
        """Return a graph's result without inserted earlier turns; `first_stored` replaces the last reply if given."""
        if isinstance(result, GraphOutput):
            return replace(result, value=self.without_history(result.value, first_stored))
        if isinstance(result, list):
            return _with_first_stored(self.part_without_history(result), first_stored)
        sent = RootCall(result).sent if isinstance(result, Mapping | BaseModel) or is_dataclass(result) else []
        messages = [message for message in sent if getattr(message, "id", None) not in self._history]
        if not sent or (first_stored is None and len(messages) == len(sent)):
            return result
        return _with_messages(result, _with_first_stored(messages, first_stored))


def _with_first_stored(messages: list[Any], first_stored: AIMessage | None) -> list[Any]:
    """Return the messages, with `first_stored` (an answer that was stored first) in place of the last reply."""
    at = next((at for at, one in reversed([*enumerate(messages)]) if isinstance(one, AIMessage)), None)
    if first_stored is None or at is None:
        return messages
    if messages[at].tool_calls:  # keep it, because the tools' results need it
        return [*messages, first_stored]
    return [*messages[:at], first_stored, *messages[at + 1 :]]


def _as_conversation(rows: Sequence[Message]) -> list[BaseMessage]:
    """Convert rows to messages for a provider, with placeholders for missing answers and a missing first question."""
    spoken = {row.run_id for row in rows if row.role == "assistant"}
    found: list[BaseMessage] = [HumanMessage(OPENING)] if rows and rows[0].role == "assistant" else []
    for row, following in zip_longest(rows, rows[1:]):
        # Remove the ids of earlier answers. Otherwise, a new answer with the same id would replace an earlier one.
        found.append(to_langchain(row if row.role == "user" else row.with_fields(id=None)))
        next_run = None if following is None else following.run_id
        asked = row.role == "user" and row.run_id is not None and row.run_id not in spoken
        if asked and row.run_id != next_run and (following is None or following.role == "user"):
            found.append(AIMessage(NO_ANSWER))
    return found


def _with_messages(state: GraphInput, messages: Sequence[BaseMessage]) -> GraphInput:
    new: Any = Overwrite(messages) if _overwrites(state) else messages
    if isinstance(state, Mapping):
        return {**state, "messages": new}
    if isinstance(state, BaseModel):
        return state.model_copy(update={"messages": new})
    return replace(state, messages=new)


def _overwrites(state: GraphInput) -> bool:
    """Return True if the messages of a graph's input replace the messages of its checkpoint."""
    return overwriting(state.get("messages") if isinstance(state, Mapping) else state.messages) is not None


type State = Mapping[str, Any]

_NO_MESSAGES: Final = (
    "`recorded` stored no answer, because the output of the graph is not a state with `messages`; let the graph, or "
    "the function of `@entrypoint`, take and return {'messages': [...]}."
)
_MOST_TURNS: Final = 1_000
_MOST_CHARACTERS: Final = 16_000
"""The maximum number of characters of JSON that are stored for one value of a state."""


@dataclass(frozen=True)
class GraphEnd:
    """The end of a recorded graph's turn: its answers up to the final answer, and other values of the final state."""

    answers: tuple[Message, ...]
    values: Mapping[str, Json] = field(default_factory=dict)

    @property
    def messages(self) -> list[AIMessage]:
        """The answers as messages for a graph's state, with the names of their authors."""
        return [AIMessage(answer.content, id=answer.id, name=answer.author) for answer in self.answers]


def kept_values(state: State) -> dict[str, Json]:
    """Return the values of a final state that can be stored, without its messages."""
    found: dict[str, Json] = {}
    for name, value in state.items():
        if name == "messages" or name.startswith("__"):
            continue
        try:
            plain: Json = to_jsonable_python(value)
        except (PydanticSerializationError, ValueError):
            continue
        if (isinstance(value, BaseModel) or plain == value) and len(dump_json(plain)) <= _MOST_CHARACTERS:
            found[name] = plain
    return found


def restored_values(values: Mapping[str, Json], classes: Mapping[str, type]) -> dict[str, Any]:
    """Convert stored values to objects of their classes. A value that does not fit its class stays unchanged."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            found[name] = TypeAdapter(classes[name]).validate_python(value) if name in classes else value
        except ValidationError:  # stored by another version of the class
            found[name] = value
    return found
