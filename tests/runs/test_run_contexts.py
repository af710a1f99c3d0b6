"""Tests of the manifests of model calls in workflow runs: each call can be rebuilt from its manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from langchain_core.messages import BaseMessage

from tests.databases import query
from tests.recorded_events import RecordedEvents
from tests.runs.desk import RunDesk, carried_out
from threadkeep import ContextGone, MemoryOptions, open_memory, rebuild
from threadkeep.observe import ManifestsDropped
from threadkeep.records import Json
from threadkeep.records.runs import Run
from threadkeep.runs.requests import RunRequest
from threadkeep.runs.service import RunService
from threadkeep.store.manifests import StoredManifest
from threadkeep.testing import ScriptedModel, SettableClock

FLOWS = {
    "agent": "answer: {kind: agent, system_prompt: Be kind., next: end}",
    "model": "answer: {kind: model, system_prompt: Be kind., next: end}",
    "steps": "draft: {kind: model, input: 'Draft for {{text}}', next: answer}\n  answer: {kind: agent, next: end}",
    "sorted": "sort: {kind: categorizer, categories: [{name: a, next: answer}], default: answer}\n"
    "  answer: {kind: agent, next: end}",
    "bot": "answer: {kind: agent, use_graph_chat_history: true, next: end}",
    "parent": "help: {kind: subworkflow, workflow: agent, next: end}",
}
ALL = [f"schema: 1\nname: {name}\nnodes:\n  {nodes}" for name, nodes in FLOWS.items()]
CHAT: Mapping[str, Json] = {"telegram_events_parser": {"bot_id": "b", "chat_id": 7}}


async def whole_tree(service: RunService, request: RunRequest) -> Sequence[Run]:
    """Return the runs of a tree after its execution."""
    return await service.tree((await carried_out(service, request)).run.run_id)


def told(messages: Sequence[BaseMessage]) -> list[tuple[str, object]]:
    """Return the types and contents of messages, as a provider gets them."""
    return [(message.type, message.content) for message in messages]


@pytest.mark.parametrize("sessionless", [True, False], ids=["sessionless", "session"])
@pytest.mark.slow
async def test_every_call_of_every_node_is_rebuilt(every_desk: RunDesk, sessionless: bool) -> None:
    """Each call is numbered under its run and names its node.

    The second round has earlier turns where there are any.
    """
    memory, model = every_desk.memory, every_desk.model
    async with every_desk.open(*ALL) as service:
        for name in [*FLOWS, "agent", "bot"]:
            before = len(model.calls)
            place = {"sessionless": True} if sessionless else {"session_id": f"room:{name}"}
            request = RunRequest(workflow=name, text="Hi", results=CHAT, trigger="webhook", **place)
            stored: list[StoredManifest] = []
            for run in await whole_tree(service, request):
                calls = await memory.manifests.of_run(run.run_id)
                assert [call.call for call in calls] == list(range(1, len(calls) + 1))
                assert {call.session_id for call in calls} <= {run.session_id}
                stored += calls
            assert [told(await rebuild(call)) for call in stored] == [told(sent) for sent in model.calls[before:]]
            nodes = ["answer"] if name == "parent" else [line.split(":")[0].strip() for line in FLOWS[name].split("\n")]
            assert [call.manifest["node"] for call in stored] == nodes
            assert "Hi" not in str([call.manifest for call in stored])
    assert every_desk.events.of(ManifestsDropped) == []


async def test_an_agents_own_conversation_is_referred_to_and_not_copied(desk: RunDesk) -> None:
    """The manifest names the key of the conversation. Rebuilding raises `ContextGone` if its items are deleted."""
    request = RunRequest(workflow="bot", text="My cat is Miso", results=CHAT, trigger="webhook", sessionless=True)
    async with desk.open(*ALL) as service:
        await whole_tree(service, request)
        [run] = await whole_tree(service, replace(request, text="And?"))
    [call] = await desk.memory.manifests.of_run(run.run_id)
    assert call.manifest["conversation"] == {"key": "telegram:b:7", "namespace": ["agent_chat_history"]}
    assert await desk.memory.manifests.texts(None, ["any"], run_id=run.run_id) == {}
    assert told(await rebuild(call)) == told(desk.model.calls[-1])
    for item in await desk.store.asearch(("agent_chat_history",)):
        await desk.store.adelete(item.namespace, item.key)
    with pytest.raises(ContextGone, match="was deleted"):
        await rebuild(call)


async def test_another_process_finds_the_conversation(sqlite_url: str, events: RecordedEvents) -> None:
    """Another process rebuilds the call from the graph store of the database, without an agent."""
    request = RunRequest(workflow="bot", text="Hi", results=CHAT, trigger="webhook", sessionless=True)
    async with open_memory(sqlite_url) as memory:
        desk = RunDesk(memory, ScriptedModel(["one", "two"]), events, store=await memory.graph_store())
        async with desk.open(*ALL) as service:
            await whole_tree(service, request)
            [run] = await whole_tree(service, request)
    async with open_memory(sqlite_url) as memory:
        [call] = await memory.manifests.of_run(run.run_id)
        assert told(await rebuild(call)) == told(desk.model.calls[-1])


async def test_calls_have_manifests_with_transcripts_in_the_graph_store(
    memory_options: MemoryOptions, events: RecordedEvents
) -> None:
    options = replace(memory_options, transcripts="graph_store")
    async with open_memory("sqlite://", options=options) as memory:
        desk = RunDesk(memory, ScriptedModel(["one", "two"]), events)
        async with desk.open(*ALL) as service:
            await whole_tree(service, RunRequest(workflow="agent", text="Hi", session_id="room"))
            [run] = await whole_tree(service, RunRequest(workflow="agent", text="And?", session_id="room"))
        [call] = await memory.manifests.of_run(run.run_id)
        assert (call.session_id, len(desk.model.calls[-1])) == ("room", 4)
        assert told(await rebuild(call)) == told(desk.model.calls[-1])


async def test_manifests_of_a_run_are_private_and_deleted_with_it(
    shared_url: str, memory_options: MemoryOptions
) -> None:
    async with open_memory(shared_url, options=memory_options) as memory:
        desk = RunDesk(memory, ScriptedModel(["one", "two"]), RecordedEvents())
        async with desk.open(*ALL) as service:
            alone = RunRequest(workflow="agent", text="CANARY one", user_id="ann", sessionless=True)
            [run] = await whole_tree(service, alone)
            below = RunRequest(workflow="parent", text="CANARY two", user_id="ann", session_id="room")
            _, child = await whole_tree(service, below)
        manifests = memory.manifests
        assert [len(await manifests.of_run(each.run_id, user_id="ann")) for each in (run, child)] == [1, 1]
        assert await manifests.of_run(run.run_id, user_id="bob") == []
        assert await memory.session("room").delete()
        assert (await memory.erase(user_id="ann")).complete
    for table in ("chat_run_manifests", "chat_run_texts", "chat_manifests", "chat_context_texts"):
        assert query(shared_url, f"SELECT * FROM {table}") == []


async def test_manifests_of_runs_are_purged(desk: RunDesk, clock: SettableClock) -> None:
    """Manifests of runs are purged after 30 days, and their texts an hour later."""
    async with desk.open(*ALL) as service:
        [run] = await whole_tree(service, RunRequest(workflow="agent", text="Hi", sessionless=True))
    manifests = desk.memory.manifests
    [call] = await manifests.of_run(run.run_id)
    clock.advance(30 * 24 * 3600 + 1)
    assert await manifests.purge() == 1
    clock.advance(3600)
    assert await manifests.purge() == 2
    assert await manifests.of_run(run.run_id) == []
    with pytest.raises(ContextGone, match="a text was deleted"):
        await rebuild(call)
