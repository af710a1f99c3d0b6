"""Property tests of turns: whatever the graph is, its user message and its last answer are stored once."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workflows.desk import Desk, spoken
from threadkeep import InvalidWorkflow
from threadkeep.testing import ScriptedModel

KINDS: list[dict[str, Any]] = [
    {"kind": "model"},
    {"kind": "agent"},
    {"kind": "agent", "input": "again: {{text}}"},
    {"kind": "agent", "answers": False},
    {"kind": "template", "text": "silent"},
    {"kind": "template", "text": "spoken", "as_message": True},
    {"kind": "agent", "use_graph_chat_history": True, "history_key_candidates": ["room-1"]},
]
_names = count(1)


@st.composite
def workflows(draw: st.DrawFn) -> dict[str, Any]:
    """Return a workflow whose nodes lead to later nodes, to several at once or to one by a rule."""
    size = draw(st.integers(1, 5))
    nodes: dict[str, dict[str, Any]] = {}
    reached = {"n0"}
    for place in range(size):
        name = f"n{place}"
        if name not in reached:
            continue
        later = [f"n{number}" for number in range(place + 1, size)] or ["end"]
        ways = draw(st.lists(st.sampled_from(later), min_size=1, max_size=2, unique=True))
        if draw(st.integers(0, 4)) == 0:
            rule = {"path": "text", "matches": "x", "next": ways[0]}
            nodes[name] = {"kind": "router", "rules": [rule], "otherwise": ways[-1]}
        else:
            nodes[name] = {**draw(st.sampled_from(KINDS)), "next": ways if len(ways) > 1 else ways[0]}
        reached |= set(ways)
    return {"schema": 1, "name": "any", "nodes": nodes}


@settings(max_examples=settings().max_examples // 2)
@given(document=workflows())
async def test_a_turn_has_one_question_and_one_answer(desk: Desk, document: dict[str, Any]) -> None:
    """A run that gives no answer stores none."""
    text = json.dumps(document)
    desk.model = ScriptedModel(f"reply {number}" for number in count(1))
    try:
        desk.use(text)
    except InvalidWorkflow as error:
        raise AssertionError(f"{error}\n{text}") from None
    session_id = f"room:{next(_names)}"
    state = await desk.run("any", "a question", session_id=session_id)
    said = [one for one in spoken(state["messages"]) if one[0] == "ai"]
    answer = [("assistant", said[-1][1])] if said else []
    assert await desk.transcript(session_id) == [("user", "a question"), *answer], text
