"""Tests of procedures on each database: one per name and scope, recalled if their conditions hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from threadkeep import InvalidInput, KnowledgeNotFound, Memory, Message, Procedure, Scope
from threadkeep.records.knowledge import ProcedureQuery
from threadkeep.testing import SettableClock

ADA = Scope("user", "ada")
SHOP = Scope("workspace", "shop")
ROOM = Scope("session", "room:1")

REFUND = Procedure(
    scope=SHOP,
    name="refund",
    description="How an order is paid back",
    goal_contains=("Refund", "money back"),
    context_has=("order_id",),
    content_type="tool_sequence",
    content=[{"tool": "find_order"}, {"tool": "pay_back"}],
)


async def names(memory: Memory, goal: str, scopes: list[Scope], *context: str) -> list[str]:
    """Return the names of the procedures recalled for a goal."""
    return [one.name for one in await memory.procedures.recall(goal, scopes, context=context)]


async def test_a_procedure_is_stored_unchanged(memory: Memory, clock: SettableClock) -> None:
    taught = await memory.procedures.teach(REFUND)
    assert taught == replace(REFUND, id=taught.id, created_at=clock(), updated_at=clock())
    assert await memory.procedures.procedure(taught.id) == taught
    assert await memory.procedures.all(SHOP) == [taught]
    assert await memory.procedures.all(text="PAID back") == [taught]
    assert await memory.procedures.all(ADA) == []
    assert await memory.procedures.all(active=False) == []


async def test_one_name_is_one_procedure(memory: Memory, clock: SettableClock) -> None:
    """Teaching a name again changes the procedure, and resets its counts only if the content differs."""
    first = await memory.procedures.teach(REFUND)
    await memory.procedures.used(first.id, succeeded=True)
    await memory.procedures.used(first.id, succeeded=False)
    await memory.procedures.used(first.id)
    clock.advance(60)
    again = await memory.procedures.teach(replace(REFUND, description="Another"))
    assert (again.id, again.description, again.used, again.succeeded, again.failed) == (first.id, "Another", 3, 1, 1)
    assert (again.created_at, again.updated_at) == (first.created_at, clock())
    other = await memory.procedures.teach(replace(REFUND, content=[{"tool": "ask"}]))
    assert (other.id, other.used, other.succeeded, other.failed) == (first.id, 0, 0, 0)
    assert await memory.procedures.all() == [other]


async def test_a_procedure_applies_where_its_conditions_hold(memory: Memory) -> None:
    """One phrase must occur in any case, and all context keys must exist; an inactive procedure never applies."""
    await memory.procedures.teach(REFUND)
    assert await names(memory, "I want my MONEY BACK now", [SHOP], "order_id", "user") == ["refund"]
    assert await names(memory, "I want my money back now", [SHOP]) == []
    assert await names(memory, "Paid back an order", [SHOP], "order_id") == []
    assert await names(memory, "refund", [ADA], "order_id") == []
    await memory.procedures.teach(replace(REFUND, active=False))
    assert await names(memory, "refund", [SHOP], "order_id") == []
    await memory.procedures.teach(replace(REFUND, name="ferry", goal_contains=("İstanbul",), context_has=()))
    assert await names(memory, "a ferry to istanbul", [SHOP]) == ["ferry"]


async def test_a_procedure_without_phrases_is_found_by_its_words(memory: Memory) -> None:
    """Name and description are searched; matches by phrase come first."""
    for name, description in (("make_invoice", "Write an invoice for a customer"), ("greet", "Say hello")):
        await memory.procedures.teach(Procedure(scope=SHOP, name=name, description=description, content="..."))
    assert await names(memory, "Please write me an invoice", [SHOP]) == ["make_invoice"]
    await memory.procedures.teach(replace(REFUND, context_has=(), goal_contains=("invoice",)))
    assert await names(memory, "Please write me an invoice", [SHOP]) == ["refund", "make_invoice"]
    assert await names(memory, "quantum chromodynamics", [SHOP]) == []


async def test_successful_procedures_come_first_and_the_nearest_scope_wins(memory: Memory) -> None:
    """Of one name, the session's procedure precedes the workspace's, and that the user's."""
    await memory.session("room:1").append([Message(role="user", content="hi")])
    for scope in (ADA, SHOP, ROOM):
        await memory.procedures.teach(Procedure(scope=scope, name="Pay", goal_contains=("pay",), content=scope.kind))
    better = await memory.procedures.teach(
        Procedure(scope=ADA, name="pay by card", goal_contains=("pay",), content="card")
    )
    await memory.procedures.used(better.id, succeeded=True)
    found = await memory.procedures.recall("How do I pay?", [ADA, SHOP, ROOM])
    assert [one.content for one in found] == ["card", "session"]
    assert len(await memory.procedures.recall("How do I pay?", [ADA, SHOP, ROOM], limit=1)) == 1


async def test_a_user_sees_and_changes_only_own_procedures(memory: Memory) -> None:
    own = await memory.procedures.teach(replace(REFUND, scope=ADA), user_id="ada")
    other = await memory.procedures.teach(REFUND)
    assert await memory.procedures.page(ProcedureQuery(user_id="ada")) == ([own], None)
    assert await memory.procedures.page(ProcedureQuery(ADA, user_id="ada")) == ([own], None)
    with pytest.raises(KnowledgeNotFound):
        await memory.procedures.page(ProcedureQuery(SHOP, user_id="ada"))
    with pytest.raises(KnowledgeNotFound):
        await memory.procedures.teach(REFUND, user_id="ada")
    with pytest.raises(KnowledgeNotFound):
        await memory.procedures.procedure(other.id, user_id="ada")
    assert await memory.procedures.forget([other.id, own.id], user_id="ada") == (1, [other.id])
    with pytest.raises(KnowledgeNotFound):
        await memory.procedures.used(own.id)
    assert await memory.procedures.all() == [other]


async def test_procedures_are_deleted_with_their_session(memory: Memory) -> None:
    await memory.session("room:1").append([Message(role="user", content="hi")])
    await memory.procedures.teach(replace(REFUND, scope=ROOM))
    await memory.session("room:1").delete()
    assert await memory.procedures.all() == []


async def test_procedures_are_listed_page_by_page(memory: Memory, clock: SettableClock) -> None:
    for number in range(5):
        await memory.procedures.teach(replace(REFUND, name=f"refund {number}"))
        clock.advance(number % 2)
    for scope in (SHOP, None):
        seen: list[str] = []
        cursor = None
        while True:
            page, cursor = await memory.procedures.page(ProcedureQuery(scope, limit=2, cursor=cursor))
            seen += [one.name for one in page]
            if cursor is None:
                break
        assert seen == [f"refund {number}" for number in reversed(range(5))]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "x" * 129},
        {"content": None},
        {"content": "x" * 50_001},
        {"content_type": "poem"},
        {"source": "dreamt"},
        {"active": 1},
        {"goal_contains": "refund"},
        {"goal_contains": ("",)},
        {"goal_contains": tuple(map(str, range(51)))},
        {"context_has": ("a\n",)},
        {"description": "x" * 10_001},
    ],
)
def test_an_invalid_procedure_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="procedure"):
        replace(REFUND, **fields)
