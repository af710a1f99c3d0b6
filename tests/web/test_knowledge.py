"""Tests of /api/v1/facts, /procedures and /persons, with the ownership of users."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.web.services import check_problem, client_of, opened_app, say, settings_for, until
from threadkeep.agent.demo import DemoModel
from threadkeep.app import App
from threadkeep.testing import ScriptedModel

ANN = {"scope": "user", "owner": "ann"}
SHOP = {"scope": "workspace", "owner": "shop"}


async def remembered(client: httpx2.AsyncClient, **fact: object) -> dict[str, Any]:
    """Store a fact, and return it."""
    response = await client.put("/api/v1/facts", json=fact)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def keys(client: httpx2.AsyncClient, **parameters: object) -> list[str]:
    """Return the keys of the listed facts."""
    response = await client.get("/api/v1/facts", params={name: str(value) for name, value in parameters.items()})
    assert response.status_code == 200, response.text
    return [fact["key"] for fact in response.json()["facts"]]


async def test_evidence_must_exist_and_be_visible_to_the_user(client: httpx2.AsyncClient) -> None:
    """The response does not reveal whether a session or a run of another user exists."""
    answer = await say(client, "hi", session_id="room", user_id="bob")
    problems = []
    for origin in ({"session_id": "room"}, {"session_id": "none"}, {"run_id": answer["run_id"]}, {"run_id": "none"}):
        fact = {**ANN, "key": "diet", "value": "vegan", "evidence": origin}
        problems.append(await client.put("/api/v1/facts", params={"user_id": "ann"}, json=fact))
        assert await keys(client) == []
    assert [one.status_code for one in problems] == [404] * 4
    assert problems[0].json() == problems[1].json()
    assert problems[2].json() == problems[3].json()


async def test_a_fact_is_remembered_confirmed_and_contradicted(client: httpx2.AsyncClient) -> None:
    """The response is the valid fact, and the history has every value."""
    await say(client, "I eat no meat.", session_id="room:1", user_id="ann")
    evidence = {"session_id": "room:1", "seq": 17, "run_id": None}
    first = await remembered(
        client, **ANN, key="diet", value={"is": None, "list": [1]}, kind="preference", evidence=evidence
    )
    assert (first["value"], first["kind"], first["confirmed"]) == ({"is": None, "list": [1]}, "preference", 1)
    assert (first["scope"], first["owner"], first["valid_to"], first["evidence"]) == ("user", "ann", None, [evidence])
    again = await remembered(client, **ANN, key="diet", value={"list": [1], "is": None})
    assert (again["id"], again["confirmed"]) == (first["id"], 2)
    other = await remembered(client, **ANN, key="diet", value="vegan", confidence=0.5)
    assert (other["kind"], other["confidence"]) == ("preference", 0.5)
    listed = (await client.get("/api/v1/facts?key=diet&past=true")).json()["facts"]
    assert [(fact["value"], fact["contradicted"]) for fact in listed] == [("vegan", 0), ({"is": None, "list": [1]}, 1)]
    assert (await client.get(f"/api/v1/facts/{other['id']}")).json() == other


async def test_a_key_is_one_fact_in_every_spelling(client: httpx2.AsyncClient) -> None:
    """The response has the normalized key; lists and deletions accept any spelling."""
    first = await remembered(client, **ANN, key="Home City", value="Lisbon")
    again = await remembered(client, **ANN, key="home-city", value="Lisbon")
    assert (first["key"], again["id"], again["confirmed"]) == ("home_city", first["id"], 2)
    assert await keys(client, key="HOME CITY") == ["home_city"]
    forgotten = await client.post("/api/v1/facts/forget", json={**ANN, "keys": ["Home City"]})
    assert forgotten.json() == {"forgotten": 1, "not_found": []}


async def test_facts_are_filtered_and_paged(client: httpx2.AsyncClient) -> None:
    await say(client, "hi", session_id="room:1")
    await remembered(client, **ANN, key="a", value="red", kind="preference")
    await remembered(client, **SHOP, key="b", value="green", kind="decision")
    await remembered(client, scope="session", owner="room:1", key="c", value="blue")
    assert await keys(client) == ["c", "b", "a"]
    assert await keys(client, scope="user") == ["a"]
    assert await keys(client, scope="workspace", owner="shop") == ["b"]
    assert await keys(client, scope="workspace", owner="ann") == []
    assert await keys(client, kind="decision") == ["b"]
    assert await keys(client, q="BLU") == ["c"]
    page = (await client.get("/api/v1/facts?limit=2")).json()
    assert [fact["key"] for fact in page["facts"]] == ["c", "b"]
    assert await keys(client, limit=2, cursor=page["next_cursor"]) == ["a"]
    for cursor in ("x", page["next_cursor"][:-3], "W10"):
        check_problem(await client.get("/api/v1/facts", params={"cursor": cursor}), 422, "invalid-request")


@pytest.mark.parametrize("path", ["facts", "procedures", "facts/proposals"])
async def test_an_owner_without_its_scope_is_a_422(client: httpx2.AsyncClient, path: str) -> None:
    """An incomplete filter is refused: if it were ignored, the list would have everybody's entries."""
    await remembered(client, **ANN, key="a", value="red")
    await remembered(client, **SHOP, key="b", value="green")
    refused = await client.get(f"/api/v1/{path}", params={"owner": "ann"})
    check_problem(refused, 422, "invalid-request")
    assert "scope" in refused.json()["detail"]
    if path == "facts/proposals":
        check_problem(await client.get(f"/api/v1/{path}", params={"scope": "user"}), 422, "invalid-request")


async def test_facts_are_forgotten_with_all_their_values(client: httpx2.AsyncClient) -> None:
    old = await remembered(client, **ANN, key="a", value=1)
    await remembered(client, **ANN, key="a", value=2)
    assert (await client.delete(f"/api/v1/facts/{old['id']}")).status_code == 204
    assert await keys(client, past=True) == []
    check_problem(await client.delete(f"/api/v1/facts/{old['id']}"), 404, "knowledge-not-found")
    facts = [await remembered(client, **ANN, key=key, value=1) for key in "abcdef"]
    answer = (await client.post("/api/v1/facts/forget", json={"ids": [facts[0]["id"], "nobody"]})).json()
    assert answer == {"forgotten": 1, "not_found": ["nobody"]}
    answer = (await client.post("/api/v1/facts/forget", json={**ANN, "keys": ["b", "x"]})).json()
    assert answer == {"forgotten": 1, "not_found": ["x"]}
    refused = await client.post("/api/v1/facts/forget", json={**ANN, "keys": ["c", "\n"]})
    check_problem(refused, 422, "invalid-request")
    assert (await client.post("/api/v1/facts/forget", json=ANN)).json() == {"forgotten": 4, "not_found": []}
    assert await keys(client, past=True) == []


async def test_a_user_sees_changes_and_forgets_the_own_facts_only(client: httpx2.AsyncClient) -> None:
    """Facts of another user, of a workspace and of another user's session are not found."""
    await say(client, "hi", session_id="room:1", user_id="ann")
    await say(client, "hi", session_id="room:2", user_id="bob")
    places = [
        ("user", "ann", 200),
        ("session", "room:1", 200),
        ("user", "bob", 404),
        ("session", "room:2", 404),
        ("workspace", "shop", 404),
    ]
    for scope, owner, status in places:
        fact = await remembered(client, scope=scope, owner=owner, key=f"of {owner}", value=1)
        as_ann = {"user_id": "ann"}
        body = {"scope": scope, "owner": owner, "key": "new", "value": 1}
        assert (await client.put("/api/v1/facts", json=body, params=as_ann)).status_code == status
        assert (await client.get(f"/api/v1/facts/{fact['id']}", params=as_ann)).status_code == status
        listed = await client.get("/api/v1/facts", params={"scope": scope, "owner": owner, **as_ann})
        assert listed.status_code == status
        gone = await client.post("/api/v1/facts/forget", json={"ids": [fact["id"]]}, params=as_ann)
        assert gone.json()["forgotten"] == (1 if status == 200 else 0)
        gone = await client.post("/api/v1/facts/forget", json={"scope": scope, "owner": owner}, params=as_ann)
        assert gone.status_code == status
    assert set(await keys(client)) == {"of_bob", "of_room:2", "of_shop"}
    assert await keys(client, user_id="ann") == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {**ANN, "key": "k"},
        {**ANN, "key": "k", "value": None},
        {**ANN, "key": "", "value": 1},
        {**ANN, "key": "k" * 129, "value": 1},
        {**ANN, "key": "k\n", "value": 1},
        {**ANN, "key": "k", "value": 1, "kind": "gossip"},
        {**ANN, "key": "k", "value": 1, "confidence": 2},
        {**ANN, "key": "k", "value": 1, "evidence": {}},
        {**ANN, "key": "k", "value": 1, "evidence": {"seq": 1}},
        {**ANN, "key": "k", "value": 1, "id": "mine"},
        {"scope": "global", "owner": "all", "key": "k", "value": 1},
        {"scope": "user", "owner": " ", "key": "k", "value": 1},
        {**ANN, "key": "k", "value": "x" * 10_001},
    ],
)
async def test_an_invalid_fact_is_a_422(client: httpx2.AsyncClient, body: dict[str, object]) -> None:
    check_problem(await client.put("/api/v1/facts", json=body), 422, "invalid-request")
    assert await keys(client, past=True) == []


@pytest.mark.parametrize("body", [{}, {"ids": [], **ANN}, {"scope": "user"}, {"ids": ["a"], "keys": ["b"]}])
async def test_facts_to_forget_are_named_by_ids_or_by_an_owner(
    client: httpx2.AsyncClient, body: dict[str, object]
) -> None:
    check_problem(await client.post("/api/v1/facts/forget", json=body), 422, "invalid-request")


async def test_a_missing_session_has_no_facts(client: httpx2.AsyncClient) -> None:
    body = {"scope": "session", "owner": "room:9", "key": "k", "value": 1}
    check_problem(await client.put("/api/v1/facts", json=body), 404, "session-not-found")


async def test_a_procedure_is_taught_listed_and_forgotten(client: httpx2.AsyncClient) -> None:
    """A name has one procedure per owner, and another user's procedure is not found."""
    body = {**SHOP, "name": "refund", "content": ["find", "pay"], "goal_contains": ["money back"], "context_has": ["x"]}
    first = (await client.put("/api/v1/procedures", json=body)).json()
    assert {name: first[name] for name in body} == body
    changed = (await client.put("/api/v1/procedures", json={**body, "active": False})).json()
    assert (changed["id"], changed["active"]) == (first["id"], False)
    for query, found in (
        ("", 1),
        ("active=true", 0),
        ("q=REF", 1),
        ("scope=user", 0),
        ("scope=workspace&owner=shop", 1),
    ):
        assert len((await client.get(f"/api/v1/procedures?{query}")).json()["procedures"]) == found, query
    address = f"/api/v1/procedures/{first['id']}"
    assert (await client.get(address)).json() == changed
    check_problem(await client.get(f"{address}?user_id=ann"), 404, "knowledge-not-found")
    check_problem(await client.delete(f"{address}?user_id=ann"), 404, "knowledge-not-found")
    assert (await client.delete(address)).status_code == 204
    check_problem(await client.get(address), 404, "knowledge-not-found")
    again = (await client.put("/api/v1/procedures", json=body)).json()
    answer = await client.post("/api/v1/procedures/forget", json={"ids": [again["id"], first["id"]]})
    assert answer.json() == {"forgotten": 1, "not_found": [first["id"]]}
    for wrong in ({**body, "goal_contains": [""]}, {**body, "content": None}, {**body, "content_type": "poem"}):
        check_problem(await client.put("/api/v1/procedures", json=wrong), 422, "invalid-request")


async def test_persons_are_resolved_merged_and_unmerged(client: httpx2.AsyncClient) -> None:
    """Person ids may be any text."""
    slashed = "crm/7"
    person = (await client.put("/api/v1/persons", json={"id": slashed, "name": "Ann"})).json()
    assert (person["id"], person["names"], person["new"]) == (slashed, ["Ann"], True)
    await remembered(client, **ANN, key="diet", value="vegan", kind="preference")
    merged = (await client.post("/api/v1/persons/crm%2F7/merge", json={"into": "ann"})).json()
    assert (merged["id"], merged["aliases"], merged["preferences"]) == ("ann", ["ann", slashed], {"diet": "vegan"})
    assert (await client.get("/api/v1/persons/crm%2F7")).json() == merged
    assert (await client.get("/api/v1/persons?q=crm")).json() == {"persons": [merged], "next_cursor": None}
    assert (await client.get("/api/v1/persons?user_id=ann")).json()["persons"] == [merged]
    assert (await client.get("/api/v1/persons?user_id=bob")).json()["persons"] == []
    assert (await client.get("/api/v1/persons?user_id=ann&q=CRM")).json()["persons"] == [merged]
    assert (await client.get("/api/v1/persons?user_id=ann&q=else")).json()["persons"] == []
    check_problem(await client.get("/api/v1/persons/ann?user_id=bob"), 404, "knowledge-not-found")
    split = (await client.post("/api/v1/persons/crm%2F7/unmerge")).json()
    assert split["aliases"] == [slashed]
    check_problem(await client.post("/api/v1/persons/crm%2F7/unmerge"), 422, "invalid-request")
    check_problem(await client.post("/api/v1/persons/ann/merge", json={"into": "nobody"}), 404, "knowledge-not-found")
    check_problem(await client.delete("/api/v1/persons/ann?user_id=bob"), 404, "knowledge-not-found")
    assert (await client.delete("/api/v1/persons/ann")).status_code == 204
    assert await keys(client, past=True) == []
    check_problem(await client.get("/api/v1/persons/ann"), 404, "knowledge-not-found")


async def test_no_word_of_a_fact_is_in_an_error(client: httpx2.AsyncClient, app: App) -> None:
    response = await client.put("/api/v1/facts", json={**ANN, "key": "canary\n", "value": "canary"})
    assert "canary" not in response.text
    response = await client.put("/api/v1/facts", json={**ANN, "key": "k", "value": "canary" * 2_000})
    assert "canary" not in response.text


async def proposed(client: httpx2.AsyncClient, **parameters: str) -> list[dict[str, Any]]:
    """Wait for proposals, which are made after the answer, and return them."""
    found: list[dict[str, Any]] = []

    async def some() -> bool:
        found[:] = (await client.get("/api/v1/facts/proposals", params=parameters)).json()["proposals"]
        return bool(found)

    await until(some)
    return found


async def test_directives_are_followed_listed_and_undone(tmp_path: Path) -> None:
    """A directive becomes an accepted proposal and a fact, which the next call contains until it is undone."""
    model = ScriptedModel(["Noted.", "Small ones.", "Any."])
    settings = settings_for(tmp_path, directives=True, facts=True)
    async with opened_app(model, settings) as app, client_of(app) as client:
        await say(client, "preference (user): Keep diffs small.", session_id="room:1", user_id="ann")
        [listed] = await proposed(client, user_id="ann", status="accepted")
        assert (listed["key"][:10], listed["value"]) == ("preference", "Keep diffs small.")
        assert (listed["origin"], listed["directive"]) == ("from message 1 of room:1", "preference")
        address = f"/api/v1/facts/proposals/{listed['id']}"
        assert (await client.get(address)).json() == listed
        check_problem(await client.get(f"{address}?user_id=bob"), 404, "knowledge-not-found")
        assert (await client.get("/api/v1/facts/proposals?user_id=bob")).json()["proposals"] == []
        assert await keys(client, scope="user", owner="ann") == [listed["key"]]
        await say(client, "Which diffs?", session_id="room:2", user_id="ann")
        assert f'> {listed["key"]}: "Keep diffs small." (user' in "".join(message.text for message in model.calls[-1])
        undone = await client.post(address, json={"decision": "undo", "by": "ann"})
        assert (undone.status_code, undone.json()["status"]) == (200, "undone")
        assert await keys(client, scope="user", owner="ann") == []
        await say(client, "Which diffs now?", session_id="room:3", user_id="ann")
        assert "Keep diffs small." not in "".join(message.text for message in model.calls[-1])
        assert (await client.post(address, json={"decision": "accept", "by": "ann"})).status_code == 422


async def test_a_directive_for_the_workspace_of_the_settings_is_followed(tmp_path: Path) -> None:
    """The workspace of the settings is used without Graphiti too."""
    settings = settings_for(tmp_path, directives=True, workspace="shop")
    async with opened_app(DemoModel(), settings) as app, client_of(app) as client:
        await say(client, "decision: Use PostgreSQL.", session_id="room:1")
        [listed] = await proposed(client, status="accepted")
    assert (listed["scope"], listed["owner"], listed["value"]) == ("workspace", "shop", "Use PostgreSQL.")


async def test_a_model_proposes_facts_from_the_chat(tmp_path: Path) -> None:
    entry = {"message": 1, "about": "user", "key": "city", "value": "Lisbon", "kind": "preference", "confidence": 0.9}
    model = ScriptedModel(["Noted.", json.dumps([entry]), "In Lisbon.", "[]"])
    settings = settings_for(tmp_path, learning=True, facts=True)
    async with opened_app(model, settings) as app, client_of(app) as client:
        await say(client, "I live in Lisbon", session_id="room:1", user_id="ann")
        [listed] = await proposed(client, status="open")
        decided = await client.post(
            f"/api/v1/facts/proposals/{listed['id']}?user_id=ann", json={"decision": "accept", "by": "ann"}
        )
        assert decided.json()["decided_by"] == "ann"
        await say(client, "Where do I live?", session_id="room:2", user_id="ann")
        assert '> city: "Lisbon" (user' in "".join(str(message.text) for message in model.calls[2])


@pytest.mark.parametrize("kind", ["facts", "procedures"])
@pytest.mark.parametrize("odd", ["\\ud83d", "\\u0000"])
async def test_an_id_that_no_database_keeps_is_a_422(client: httpx2.AsyncClient, kind: str, odd: str) -> None:
    json_type = {"content-type": "application/json"}
    answer = await client.post(f"/api/v1/{kind}/forget", content=f'{{"ids": ["{odd}"]}}', headers=json_type)
    check_problem(answer, 422, "invalid-request")
