"""Tests of folding repeated exchanges in calls; the transcript keeps all of them."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from tests.agent.context_laws import check_coverage
from threadkeep import ContextManifest, ContextPlan, Message, SessionMemory, rebuild
from threadkeep.history.memory import Memory
from threadkeep.records import Role
from threadkeep.testing import ScriptedModel

CONFIG: RunnableConfig = {"configurable": {"thread_id": "room"}}


@pytest.mark.parametrize("folded", [True, False])
async def test_repeats_are_folded_only_if_the_plan_enables_it(memory: Memory, folded: bool) -> None:
    session = memory.session("room")
    for text in ("hello", "ping", "ping", "ping"):
        await session.append([Message(role="user", content=text), Message(role="assistant", content="Done.")])
    model = ScriptedModel(replies=["Bye."])
    plan = ContextPlan(fold_repeats=folded)
    agent = create_agent(model, [], middleware=[SessionMemory(memory, plan=plan)])
    await agent.ainvoke({"messages": [HumanMessage("bye")]}, CONFIG)
    sent = [message.text for message in model.calls[-1]]
    stored = (await memory.manifests.of_session("room"))[0]
    manifest = ContextManifest.from_dict(stored.manifest)
    places = [(gap.first_seq, gap.last_seq, gap.reason) for gap in manifest.excluded]
    if folded:
        assert sent == ["hello", "Done.", "ping … [this exchange 3 times in a row]", "Done.", "bye"]
        assert places == [(3, 6, "folded")]
    else:
        assert sent == ["hello", "Done.", *["ping", "Done."] * 3, "bye"]
        assert places == []
    assert [message.text for message in await rebuild(stored)] == sent
    assert await session.count() == 10


async def test_notes_among_folded_exchanges_are_listed_as_excluded(memory: Memory) -> None:
    said = ["hello", "Done.", "a note", "ok", "Done.", "ok", "a note", "Done.", "ok", "Done.", "a note", "so", "yes"]
    roles: dict[str, Role] = {"a note": "system", "Done.": "assistant", "yes": "assistant"}
    session = memory.session("room")
    await session.append([Message(role=roles.get(text, "user"), content=text) for text in said])
    plan = ContextPlan(fold_repeats=True)
    agent = create_agent(ScriptedModel(replies=["Bye."]), [], middleware=[SessionMemory(memory, plan=plan)])
    await agent.ainvoke({"messages": [HumanMessage("bye")]}, CONFIG)
    [stored] = await memory.manifests.of_session("room")
    manifest = ContextManifest.from_dict(stored.manifest)
    check_coverage(manifest, await session.tail(100))
    places = [(gap.first_seq, gap.last_seq, gap.reason) for gap in manifest.excluded]
    assert places == [(3, 3, "role"), (4, 8, "folded"), (11, 11, "role")]
