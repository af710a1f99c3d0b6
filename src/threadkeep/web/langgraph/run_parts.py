"""The events of a run as parts of a v1 stream: `values`, `updates`, `messages` and others, as the client chose.

They are translated from the events of the streaming protocol, which this process collects for each run that it
streams (`run_events`). Older clients, such as `useStream` of `@langchain/langgraph-sdk/react`, read v1 streams.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

from threadkeep.records.runs import Run
from threadkeep.web.langgraph.run_events import ProtocolEvent, RunEvents
from threadkeep.web.langgraph.schemas import ThreadRunStatus
from threadkeep.web.streams import json_event

INTERRUPTS = "__interrupt__"
TUPLES, MESSAGES = "messages-tuple", "messages"

type Part = tuple[str, Any]


class RunParts:
    """A translator of the events of one run into the parts of a v1 stream.

    `messages-tuple` gives `[chunk, metadata]`, `messages` gives the message so far. Other modes (`events`, `tasks`,
    `debug`) are accepted and give nothing.
    """

    def __init__(self, modes: frozenset[str]) -> None:
        self._modes = modes
        self._interrupts: list[dict[str, Any]] = []
        self._message: dict[str, Any] | None = None
        self._metadata: dict[str, Any] = {}
        self._spoken: set[str] = set()

    def of(self, event: ProtocolEvent) -> Iterator[Part]:
        """Yield the parts for an event; none for most events."""
        params = event.get("params", {})
        data = params.get("data", {})
        match event.get("method"):
            case "values":
                found = {**data, INTERRUPTS: self._interrupts} if self._interrupts else data
                yield from self._chosen("values", found)
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
            case "lifecycle" if data["event"] == "failed":
                yield "error", {"error": data["error"], "message": "The run failed; its trace says where."}

    def _spoken_parts(self, data: Mapping[str, Any]) -> Iterator[Part]:
        match data["event"]:
            case "message-start":
                self._metadata = dict(data["metadata"])
                self._message = {"type": "ai", "id": data["id"], "content": ""}
                yield from self._chosen(MESSAGES, {data["id"]: {"metadata": self._metadata}}, "messages/metadata")
            case "content-block-delta" if self._message is not None:
                text = data["delta"]["text"]
                self._message = {**self._message, "content": self._message["content"] + text}
                chunk = {**self._message, "type": "AIMessageChunk", "content": text}
                yield from self._chosen(TUPLES, [chunk, self._metadata], "messages")
                yield from self._chosen(MESSAGES, [self._message], "messages/partial")
            case "message-finish" if self._message is not None:
                yield from self._chosen(MESSAGES, [self._message], "messages/complete")
                self._spoken.add(self._message["id"])
                node = str(self._metadata.get("langgraph_node") or "answer")
                yield from self._chosen("updates", {node: {"messages": [self._message]}})
                self._message = None

    def _updates(self, data: Mapping[str, Any]) -> Iterator[Part]:
        """Yield messages of an agent that are in no piece of an answer: tool calls and their results."""
        given = data["values"]["messages"]
        new = [one for one in given if isinstance(one, Mapping) and one.get("id") not in self._spoken]
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
    events: RunEvents, modes: Sequence[str], *, after: int = 0, position: int = 0, whole: bool = False
) -> AsyncGenerator[bytes]:
    """Yield a v1 stream of a run as server-sent events, from `metadata` to `end`.

    Args:
        events: the events of the run.
        modes: the stream modes that the client chose.
        after: the id of the newest event that the client has; events up to it are left out.
        position: the position in `events` to begin at: after those of earlier calls of a run that was resumed.
        whole: True if the client was served by another process before: pieces of messages, which would come twice,
            are left out, and the values come at the end.
    """
    parts = RunParts(frozenset(mode for mode in modes if not whole or mode not in (TUPLES, MESSAGES)))
    run = events.run
    if not after:
        yield json_event({"run_id": run.run_id, "thread_id": run.session_id, "attempt": 1}, "metadata")
    failed = False
    async for event in events.events_from(position):
        for name, data in parts.of(event):
            failed |= name == "error"
            if event["seq"] > after:
                yield json_event(data, name, number=str(event["seq"]))
    if events.failed and not failed:
        sentence = "The events of the run could not be read to their end; read the state of the thread."
        yield json_event({"error": "stream-failed", "message": sentence}, "error")
    yield json_event({"run_id": run.run_id, "status": status_of(events.run)}, "end")


def status_of(run: Run) -> ThreadRunStatus:
    """Return the status of a run in the words of LangGraph's server."""
    match run.status:
        case "queued":
            return "pending"
        case "running":
            return "running"
        case "done":
            return "success"
        case "failed":
            return "error"
    return "interrupted"
