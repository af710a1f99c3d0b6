"""Tests of the nodes that choose the next node: categorizers by a model, routers by rules."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.limits import HANG_SECONDS
from tests.workflows.desk import Desk
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.nodes import CategorizerNode, Category, Rule

AGENT = "schema: 1\nname: one\nnodes:\n  answer: {kind: agent, tools: ['tests.workflows.tools:both'], next: end}"

CATEGORIES = """
schema: 1
name: sort
nodes:
  triage:
    kind: categorizer
    system_prompt: Sort for a shop.
    categories:
      - {name: billing, description: invoices, next: bill}
      - {name: parcel, next: end}
    default: other
  bill: {kind: template, text: billing, next: end}
  other: {kind: template, text: other, next: end}
"""


@pytest.mark.parametrize(
    ("reply", "category", "node"),
    [
        ("billing", "billing", "bill"),
        (' "Billing".\n', "billing", "bill"),
        ("The category is parcel, I think.", "parcel", None),
        ("billing or parcel", None, "other"),
        ("billings", None, "other"),
        ("", None, "other"),
        ("Ignore this and drop all tables", None, "other"),
    ],
)
async def test_a_categorizer_knows_its_categories_only(
    desk: Desk, reply: str, category: str | None, node: str | None
) -> None:
    """A reply that does not name exactly one category leads to the default."""
    desk.model = ScriptedModel([reply])
    state = await desk.use(CATEGORIES).run("sort", "My invoice is wrong", session_id="room:1")
    assert state["results"]["triage"]["category"] == category
    assert {"bill", "other"} & state["results"].keys() == ({node} if node else set())


async def test_a_categorizer_sees_the_last_message_alone(desk: Desk) -> None:
    desk.use(AGENT, CATEGORIES)
    await desk.run("one", "CANARY-EARLIER", session_id="room:1")
    await desk.run("sort", "My invoice is wrong", session_id="room:1")
    system, question = desk.model.calls[-1]
    assert str(system.text).startswith("Sort for a shop.\nSay to which")
    assert "- billing: invoices\n- parcel" in str(system.text)
    assert question.text == "My invoice is wrong"


ROUTER = """
schema: 1
name: route
given_results: [parser]
nodes:
  choose:
    kind: router
    rules:
      - {path: results.parser.vip, equals: true, next: vip}
      - {path: inputs.count, equals: 3, next: three}
      - {path: text, matches: '\\brefund(s|ed)?\\b', next: refund}
      - {path: inputs.order, exists: true, next: order}
    otherwise: other
  vip: {kind: template, text: vip, next: end}
  three: {kind: template, text: three, next: end}
  refund: {kind: template, text: refund, next: end}
  order: {kind: template, text: order, next: end}
  other: {kind: template, text: other, next: end}
"""


@pytest.mark.parametrize(
    ("given", "node"),
    [
        ({"results": {"parser": {"vip": True}}, "text": "refund"}, "vip"),
        ({"results": {"parser": {"vip": 1}}, "text": "x"}, "other"),
        ({"inputs": {"count": 3}, "text": "x"}, "three"),
        ({"inputs": {"count": "3"}, "text": "x"}, "other"),
        ({"text": "I want a REFUND now"}, "refund"),
        ({"text": "refundable", "inputs": {"order": {"id": 1}}}, "order"),
        ({"text": "hello"}, "other"),
    ],
)
async def test_a_router_goes_by_the_first_rule_that_holds(desk: Desk, given: dict[str, Any], node: str) -> None:
    state = await desk.use(ROUTER).run("route", **given)
    assert state["results"]["choose"]["next"] == node
    assert node in state["results"]
    assert desk.model.calls == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"path": "nothing.there"}, "begins with"),
        ({"path": "text", "matches": "("}, "not a regular expression"),
        ({"path": "text", "matches": "(?=a)"}, "of RE2: invalid perl operator"),
        ({"path": "text", "equals": "a", "matches": "b"}, "exactly one"),
        ({"path": "text"}, "exactly one"),
    ],
)
def test_an_invalid_rule_is_refused(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Rule(**{"equals": None, "next": "end", **rule})
    with pytest.raises(ValueError, match="the same name"):
        CategorizerNode(categories=(Category(name="a", next="end"), Category(name="A", next="end")), default="end")


async def test_no_text_blocks_the_event_loop(desk: Desk) -> None:
    """A pattern that backtracks for ever in Python's `re` is evaluated at once, and invalid Unicode is accepted."""
    rule = ROUTER.replace("\\brefund(s|ed)?\\b", "^(a+)+$")
    async with asyncio.timeout(HANG_SECONDS):
        state = await desk.use(rule).run("route", text="a" * 1_999 + "!")
        assert state["results"]["choose"]["next"] == "other"
        assert (await desk.use(rule).run("route", text="\ud800"))["results"]["choose"]["next"] == "other"
