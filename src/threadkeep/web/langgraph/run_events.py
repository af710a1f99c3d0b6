"""The events of one run in LangGraph's streaming protocol, and their translation to v1 streams.

The events are built from the run's trace and the pieces of its answer. `astream_events` is not used: another process
may execute the run, and the built-in chat has no graph (ADR 42). The types of the events come from
`langchain_protocol`.

Older clients, such as `useStream` of `@langchain/langgraph-sdk/react`, read v1 streams, whose parts are translated from
the same events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from threadkeep.boundary import ErrorBoundary
from threadkeep.errors import ThreadkeepError
from threadkeep.records import Json
from threadkeep.records.runs import Run, RunEvent
from threadkeep.runs.service import RunService
from threadkeep.runs.streams import RunPiece
from threadkeep.web.langgraph.schemas import ThreadStateBody, status_of
from threadkeep.web.langgraph.states import questions
from threadkeep.web.problems import log_failure
from threadkeep.web.streams import json_event

INTERRUPTS = "__interrupt__"
TUPLES, MESSAGES = "messages-tuple", "messages"

_FINISH = 3
"""The number of events before the finish of a message whose text is sent in one piece: two starts and a piece."""

type Part = tuple[str, Any]
type ProtocolEvent = dict[str, Any]
type ReadState = Callable[[Run], Awaitable[ThreadStateBody | None]]

_SEQ_BITS = 30
"""The number of low bits of an event's `seq` that number the events of a run. The high bits have the run's number."""

_TRACE_BITS = 14
"""The low bits of a `seq` that count the events between two events of the trace, such as pieces of a message."""

_END_SEQ = 1 << (_SEQ_BITS - 1)
"""The low bits after which the last events of a run are numbered, so that they have the same `seq` in all processes."""


def seq_base(run: Run) -> int:
    """Return the `seq` after which a run's events are numbered: its first event has `seq_base(run) + 1`."""
    return (run.arrival or 0) << _SEQ_BITS


def last_seq(run: Run) -> int:
    """Return the highest `seq` that an event of a run can have."""
    return seq_base(run) + (1 << _SEQ_BITS) - 1


class RunEvents:
    """The events of a run. A task of this process appends them while the run is executed.

    `paused` is true while the run waits for a person, until `go_on` is called. `paused_at` is the number of events up
    to the last pause. `failed` is true if events could not be read. `commanded` is true if a command of this protocol
    started or resumed the run in this process. `modes` are a v1 request's stream modes, by default `values`. `readers`
    contains, for each reader that is reading the events or has read all of them, the channels that it chose.
    """

    def __init__(self, runs: RunService, run: Run, read_state: ReadState) -> None:
        self.run, self.stream_id = run, uuid4().hex[:12]  # clients of v1 return it in `Last-Event-ID`
        self.events: list[ProtocolEvent] = []
        self.ended = self.paused = self.failed = self.commanded = False
        self.ended_at, self.paused_at, self._after = 0.0, 0, 0
        self.readers: set[frozenset[str]] = set()
        self.modes: Sequence[str] = ("values",)
        self._runs, self._read_state = runs, read_state
        self._seq = self._least_seq = seq_base(run)
        self._open: dict[str, _OpenMessage] = {}
        self._usages: dict[object, dict[str, int]] = {}
        self._spoken: set[str] = set()
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._follow(), name=f"threadkeep-events-{run.run_id}")

    async def events_from(self, position: int) -> AsyncIterator[ProtocolEvent]:
        """Yield the events from index `position` on, until the run ends, waits, or cannot be read."""
        while True:
            change = self._changed
            while position < len(self.events):
                position += 1
                yield self.events[position - 1]
            if self.ended or self.paused or self.failed:
                return
            await change.wait()

    def was_resumed(self, run: Run) -> bool:
        """Return True if the events are still paused although a person has answered the question of the run."""
        return self.paused and (run.status != "waiting" or run.interrupt != self.run.interrupt)

    def go_on(self, run: Run) -> None:
        """Continue to collect the events of a paused run, after a person has answered its question."""
        if self.paused:
            self.run, self.paused = run, False
            self._number_traced(0)  # in processes that follow the run only now, its earlier events have lower numbers
            self.readers.clear()
            self._task = asyncio.create_task(self._follow(), name=f"threadkeep-events-{self.run.run_id}")

    def number_after(self, seq: int) -> None:
        """Give later pieces of messages numbers above `seq`, because another process has used the numbers up to `seq`.

        If `seq` belongs to one of the run's last events, the numbers stay: a reader with this event has all others.
        """
        if seq < seq_base(self.run) + _END_SEQ:
            self._least_seq = max(self._least_seq, seq)

    async def _follow(self) -> None:
        # Set `failed` after an error; otherwise readers would wait forever for the end.
        with ErrorBoundary(self._fail):
            self._add("lifecycle", {"event": "running", "graph_name": self.run.workflow})
            await self._add_values()
            # Read the stored events before the pieces, whose numbers would otherwise raise those of the stored events.
            for event in await self._runs.trace(self.run.run_id, after=self._after, limit=1 << _TRACE_BITS):
                self._add_traced(event)
            async for followed in self._runs.follow(self.run.run_id, after=self._after):
                match followed:
                    case RunPiece():
                        self._seq = max(self._seq, self._least_seq)
                        self._add_piece(followed)
                    case RunEvent():
                        self._add_traced(followed)
                    case Run():
                        await self._add_end(followed)
        self._signal()

    def _number_traced(self, index: int) -> None:
        """Number the next event by the newest event of the trace, which has the same number in all processes."""
        self._seq = max(self._seq, seq_base(self.run) + min(self._after << _TRACE_BITS, _END_SEQ // 2) + index)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, ThreadkeepError):
            log_failure("the events of a run failed", error)
        self.failed = True

    def _add_piece(self, piece: RunPiece) -> None:
        message_id = piece.message_id or piece.run_id
        if message_id in self._spoken:
            return  # the message is complete: the trace with its whole text arrived before this piece
        if piece.text:
            message = self._open.get(message_id) or self._begin_message(message_id, piece.node)
            message.text += piece.text
            delta = {"type": "text-delta", "text": piece.text}
            self._add_spoken(message, {"event": "content-block-delta", "index": 0, "delta": delta})
        if piece.last and message_id in self._open:
            self._open[message_id].is_whole = True
            self._finish_counted(message_id)

    def _begin_message(self, message_id: str, node: str | None) -> _OpenMessage:
        # Some clients find the message of a piece only by its node, so simultaneous messages need different nodes.
        is_alone = all(one.node != node or one.is_whole for one in self._open.values())
        message = self._open[message_id] = _OpenMessage(message_id, node if is_alone else f"{node or ''}:{message_id}")
        metadata: dict[str, Json] = {"run_id": self.run.run_id, **({} if node is None else {"langgraph_node": node})}
        self._add_spoken(message, {"event": "message-start", "role": "ai", "metadata": metadata})
        self._add_spoken(message, {"event": "content-block-start", "index": 0, "content": {"type": "text", "text": ""}})
        return message

    def _finish_counted(self, message_id: str) -> None:
        """End a streamed message if its whole text has arrived and its token usage is known."""
        if message_id in self._open and self._open[message_id].is_whole and message_id in self._usages:
            self._finish_message(message_id)

    def _finish_message(self, message_id: str) -> None:
        self._spoken.add(message_id)
        if (message := self._open.pop(message_id, None)) is None:
            return
        self._number_traced(_FINISH)
        content = {"type": "text", "text": message.text}
        self._add_spoken(message, {"event": "content-block-finish", "index": 0, "content": content})
        usage = self._usages.pop(message_id, None)
        self._add_spoken(message, {"event": "message-finish", **({"usage": usage} if usage else {})})

    def _add_spoken(self, message: _OpenMessage, data: Mapping[str, Any]) -> None:
        self._add("messages", {**data, "id": message.message_id}, message.node)

    def _add_traced(self, event: RunEvent) -> None:
        self._after = event.number
        self._number_traced(0)
        data, node, call = event.data, event.node, {"tool_call_id": event.data.get("call")}
        match event.kind:
            case "tool_called":
                details = {"tool_name": data.get("tool"), "input": data.get("args")}
                self._add("tools", {"event": "tool-started", **call, **details}, node)
            case "tool_finished" if "error" in data:
                self._add("tools", {"event": "tool-error", **call, "message": data.get("error")}, node)
            case "tool_finished":
                self._add("tools", {"event": "tool-finished", **call, "output": _flat([data.get("result")])[0]}, node)
            case "agent_messages":
                self._add("updates", {"node": node, "values": {"messages": _flat(data.get("messages"))}}, node)
            case "custom":
                self._add("custom", {"payload": data.get("value")}, node)
            case "model_called":
                used = {name: int(str(data.get(name) or 0)) for name in ("input_tokens", "output_tokens")}
                self._usages[data.get("answer")] = {**used, "total_tokens": sum(used.values())}
                self._finish_counted(str(data.get("answer")))
            case "message":
                message_id, text = str(data.get("message_id") or self.run.run_id), str(data.get("text") or "")
                known = self._open[message_id].text if message_id in self._open else ""
                if text.startswith(known) and text != known:  # a part of the text was not streamed in pieces
                    self._add_piece(RunPiece(self.run.run_id, node, message_id, text.removeprefix(known)))
                self._finish_message(message_id)

    async def _add_end(self, run: Run) -> None:
        for message_id in list(self._open):
            self._finish_message(message_id)
        # A run can wait and then be cancelled. It then has two sets of last events; the second set has higher numbers.
        self.run, self._seq = run, max(self._seq, seq_base(run) + (_END_SEQ * 3 // 2 if run.over else _END_SEQ))
        asked = questions(run) if run.status == "waiting" else []
        for one in asked:
            # The protocol defines `payload`, but the Python SDK reads `value`.
            self._add("input.requested", {"interrupt_id": one.id, "payload": one.value, "value": one.value})
        await self._add_values(checkpoint=True)
        name: dict[str, Json] = {"graph_name": run.workflow}
        if run.status == "waiting":
            self._add("lifecycle", {"event": "interrupted", **name})
            self.paused, self.paused_at = True, len(self.events)
            return
        if run.status == "done":
            self._add("lifecycle", {"event": "completed", **name})
        elif run.cancel_reason in (None, "requested"):
            # If a newer message cancelled this run, do not report its end: the newer message's run reports its own.
            self._add("lifecycle", {"event": "failed", "error": run.error or run.status, **name})
        self.ended, self.ended_at = True, time.monotonic()

    async def _add_values(self, *, checkpoint: bool = False) -> None:
        state = await self._read_state(self.run)
        # At the beginning, the state of the thread may not have the message yet that started the run.
        asked, text = self.run.message_id, self.run.input.get("text")
        found = [] if state is None else state.values["messages"]
        has = not text or any(one["content"] == text if asked is None else one["id"] == asked for one in found)
        if state is None or not (checkpoint or has):
            return
        if checkpoint:
            parent = state.parent_checkpoint
            details: dict[str, Json] = {"id": state.checkpoint.checkpoint_id, "step": state.metadata["step"]}
            if parent is not None:
                details["parent_id"] = parent.checkpoint_id
            self._add("checkpoints", {**details, "source": "loop"})
        self._add("values", state.values)

    def _add(self, method: str, data: Mapping[str, Any], node: str | None = None) -> None:
        self._seq += 1
        params: dict[str, Any] = {"namespace": [], "timestamp": int(time.time() * 1000), "data": dict(data)}
        if node is not None:
            params["node"] = node
        event_id = f"{self.stream_id}-{len(self.events)}"
        event = {"type": "event", "event_id": event_id, "seq": self._seq, "method": method, "params": params}
        self.events.append(event)
        self._signal()

    def _signal(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@dataclass
class _OpenMessage:
    """A message that is being streamed. Messages that are streamed at the same time differ in `node`."""

    message_id: str
    node: str | None
    text: str = ""
    is_whole: bool = False


def channel_of(event: ProtocolEvent) -> str:
    """Return the channel of an event. A client receives the events of the channels that it names."""
    method: str = event["method"]
    return "input" if method == "input.requested" else method


def _flat(messages: Json) -> list[Json]:
    """Return the messages of a trace event as flat objects, without LangChain's envelope (`type` and `data`)."""
    found: list[Json] = []
    for one in messages if isinstance(messages, list) else []:
        match one:
            case {"type": kind, "data": {"content": _} as data, **rest} if not rest:
                found.append({**data, "type": kind})
            case _:
                found.append(one)
    return found


class RunParts:
    """A translator of the events of one run into the parts of a v1 stream.

    The mode `messages-tuple` yields `[chunk, metadata]`. The mode `messages` yields the message so far. The modes
    `events`, `tasks` and `debug` yield nothing.
    """

    def __init__(self, modes: frozenset[str]) -> None:
        self._modes = modes
        self._interrupts: list[dict[str, Any]] = []
        self._messages: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._metadata: dict[str, Any] = {}
        self._updated: set[str] = set()

    def of(self, event: ProtocolEvent) -> Iterator[Part]:
        """Yield the parts of the v1 stream for an event. Most events have none."""
        params = event.get("params", {})
        data = params.get("data", {})
        match event.get("method"):
            case "values":
                yield from self._chosen("values", data)
                if self._interrupts:
                    # `useStream` ignores values in a part with interrupts, so send the interrupts in a second part.
                    yield from self._chosen("values", {**data, INTERRUPTS: self._interrupts})
            case "messages":
                yield from self._spoken_parts(data)
            case "updates":
                yield from self._updates(data)
            case "input.requested":
                self._interrupts.append({"id": data["interrupt_id"], "value": data["value"]})
                yield from self._chosen("updates", {INTERRUPTS: self._interrupts[-1:]})
            case "custom":
                yield from self._chosen("custom", data["payload"])
            case "checkpoints":
                yield from self._chosen("checkpoints", data)
            case "lifecycle" if data["event"] == "running":
                self._interrupts = []  # a person has answered them
            case "lifecycle" if data["event"] == "failed":
                yield "error", {"error": data["error"], "message": "The run failed; see its trace."}

    def _spoken_parts(self, data: Mapping[str, Any]) -> Iterator[Part]:
        message_id = data["id"]
        match data["event"]:
            case "message-start":
                self._metadata = metadata = dict(data["metadata"])
                self._messages[message_id] = {"type": "ai", "id": message_id, "content": ""}, metadata
                yield from self._chosen(MESSAGES, {message_id: {"metadata": metadata}}, "messages/metadata")
            case "content-block-delta":
                message, metadata = self._messages[message_id]
                text = data["delta"]["text"]
                message["content"] += text
                chunk = {**message, "type": "AIMessageChunk", "content": text}
                yield from self._chosen(TUPLES, [chunk, metadata], "messages")
                yield from self._chosen(MESSAGES, [dict(message)], "messages/partial")
            case "message-finish":
                message, metadata = self._messages.pop(message_id)
                yield from self._chosen(MESSAGES, [message], "messages/complete")
                if message_id not in self._updated:
                    self._updated.add(message_id)
                    node = str(metadata.get("langgraph_node") or "answer")
                    yield from self._chosen("updates", {node: {"messages": [message]}})

    def _updates(self, data: Mapping[str, Any]) -> Iterator[Part]:
        """Yield an agent's messages that were not streamed as an answer, such as tool calls."""
        given = data["values"]["messages"]
        new = [one for one in given if isinstance(one, Mapping) and one.get("id") not in self._updated]
        self._updated.update(str(one["id"]) for one in new if one.get("id"))
        node = str(data.get("node") or "agent")
        if new:
            yield from self._chosen("updates", {node: {"messages": new}})
        for one in new:
            if one.get("type") == "tool" or one.get("tool_calls"):
                yield from self._chosen(TUPLES, [one, {**self._metadata, "langgraph_node": node}], "messages")

    def _chosen(self, mode: str, data: Any, name: str | None = None) -> Iterator[Part]:
        if mode in self._modes:
            yield name or mode, data


async def encoded_parts(
    events: RunEvents, modes: Sequence[str], *, after: int = 0, position: int = 0, omit_pieces: bool = False
) -> AsyncGenerator[bytes]:
    """Yield a v1 stream of a run as server-sent events, from `metadata` to `end`.

    Args:
        events: the events of the run.
        modes: the stream modes that the client chose.
        after: the id of the newest event that the client has; events up to it are skipped.
        position: the index of the first event to send. For a resumed run, earlier calls have sent earlier events.
        omit_pieces: True to omit pieces of messages, because another process has served the client before. Pieces
            would be sent twice. The values at the end contain the messages.
    """
    parts = RunParts(frozenset(mode for mode in modes if not omit_pieces or mode not in (TUPLES, MESSAGES)))
    run = events.run
    if not after:
        yield json_event({"run_id": run.run_id, "thread_id": run.session_id, "attempt": 1}, "metadata")
    failed = False
    async for event in events.events_from(position):
        for name, data in parts.of(event):
            failed |= name == "error"
            if event["seq"] > after:
                yield json_event(data, name, number=f"{event['seq']}-{events.stream_id}")
    if events.failed and not failed:
        sentence = "Not all events of the run could be read; read the state of the thread."
        yield json_event({"error": "stream-failed", "message": sentence}, "error")
    yield json_event({"run_id": run.run_id, "status": status_of(events.run)}, "end")
