"""The ends of a recorded graph's turns, kept beside the transcript: a repeat of a message runs nothing again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.types import GraphOutput
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from threadkeep.agent.conversion import id_of
from threadkeep.agent.turns import OpenTurn
from threadkeep.errors import StoreClosed, StoreError
from threadkeep.history.memory import Memory
from threadkeep.history.session import Session
from threadkeep.records import Json, Message, dump_json
from threadkeep.store.contexts import Steps

type State = Mapping[str, Any]

_MOST_TURNS: Final = 1_000
_MOST_CHARACTERS: Final = 16_000
"""The most that is kept of one value of a state, as JSON."""


@dataclass(frozen=True)
class GraphEnd:
    """The answers of a turn up to the final one, and what else the final state had."""

    answers: tuple[Message, ...]
    values: Mapping[str, Json] = field(default_factory=dict)

    @property
    def messages(self) -> list[AIMessage]:
        """The answers as messages of a state, under the names of their authors."""
        return [AIMessage(answer.content, id=answer.id, name=answer.author) for answer in self.answers]


class GraphEnds:
    """The ends of one graph's turns in one session."""

    def __init__(self, memory: Memory, session: Session, graph_name: str) -> None:
        self._memory = memory
        self._session = session
        self._author = f"threadkeep:graph:{graph_name}"

    async def keep(self, turn: OpenTurn, answer_id: str, values: Mapping[str, Json]) -> None:
        """Keep the end of a turn; a database that does not answer changes nothing."""
        seq = turn.contexts.question_seq
        if turn.question_id is None or seq is None:
            return
        body = dump_json({"answer": answer_id, "values": dict(values)})
        try:
            async with self._session.patience():
                await self._memory.contexts.keep_steps(
                    self._session.session_id,
                    Steps(seq, body),
                    question_id=turn.question_id,
                    author=self._author,
                    turns=_MOST_TURNS,
                )
        except StoreClosed:
            raise
        except (StoreError, TimeoutError) as error:
            self._session.tell_write_failed(error)

    async def of(self, turn: OpenTurn) -> GraphEnd | None:
        """Return the end of a turn whose question is a repeat; None if it had none."""
        seq = turn.contexts.question_seq
        if not turn.earlier or seq is None:
            return None
        try:
            async with self._session.patience():
                kept = await self._memory.contexts.steps(self._session.session_id, self._author, since=seq)
        except StoreClosed:
            raise
        except (StoreError, TimeoutError):
            return None
        body = next((json.loads(steps.body) for steps in kept if steps.seq == seq), None)
        ids = [answer.id for answer in turn.earlier]
        if not isinstance(body, dict) or body.get("answer") not in ids:
            return None
        values = body.get("values")
        answers = turn.earlier[: ids.index(str(body["answer"])) + 1]
        return GraphEnd(tuple(answers), values if isinstance(values, dict) else {})


def kept_values(state: State) -> dict[str, Json]:
    """Return the values of a final state, but its messages, that can be kept as JSON."""
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
    """Return kept values as objects of the classes that the values of a state have had; others as JSON."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            found[name] = TypeAdapter(classes[name]).validate_python(value) if name in classes else value
        except ValidationError:  # kept by another version of the class
            found[name] = value
    return found


def upto(messages: Sequence[BaseMessage], answer_id: str | None) -> list[BaseMessage] | None:
    """Return the messages up to an answer; None if it is not among them."""
    places = [place for place, message in enumerate(messages, start=1) if id_of(message) == answer_id]
    return list(messages[: places[-1]]) if places else None


def parts_of(state: State, answers: Sequence[AIMessage], options: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the stream of a turn that has ended, in the modes and the shape that the caller asks for."""
    asked = options.get("stream_mode")
    for mode in [asked] if isinstance(asked, str) else list(asked or ()):
        for data in _data_of(mode, state, answers):
            if options.get("version") == "v2":
                yield {"type": mode, "ns": (), "data": data, **({"interrupts": ()} if mode == "values" else {})}
                continue
            part = (*([()] if options.get("subgraphs") else []), *([] if isinstance(asked, str) else [mode]), data)
            yield part if len(part) > 1 else data


def output_of(state: State, answers: Sequence[AIMessage], options: Mapping[str, Any]) -> Any:
    """Return what a call gives back for a turn that has ended."""
    if options.get("stream_mode", "values") != "values":
        return list(parts_of(state, answers, options))
    return GraphOutput(dict(state)) if options.get("version") == "v2" else dict(state)


def _data_of(mode: str, state: State, answers: Sequence[AIMessage]) -> Iterator[Any]:
    rest = {name: value for name, value in state.items() if name != "messages"}
    if mode == "values":
        yield dict(state)
    elif mode == "updates":
        for answer in answers:
            yield {answer.name or "model": {"messages": [answer], **(rest if answer is answers[-1] else {})}}
    elif mode == "messages":
        for answer in answers:
            yield answer, {"langgraph_node": answer.name or "model"}
