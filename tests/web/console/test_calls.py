"""Tests of the console's pages of model calls: the budget, the messages sent, and the reasons for omissions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.web.console.pages import opened
from tests.web.console.test_sessions import said
from tests.web.services import client_of, opened_app, settings_for, until
from threadkeep.agent.demo import DemoModel


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client of a service with a small budget, summaries, facts and recall."""
    settings = settings_for(
        tmp_path,
        history_max_tokens=2000,
        summary_trigger="messages:8",
        summary_keep="messages:4",
        recall="user",
        facts=True,
    )
    async with opened_app(DemoModel(), settings) as app, client_of(app) as client:
        yield client


async def test_the_page_of_a_call_shows_sent_and_omitted_messages(client: httpx2.AsyncClient) -> None:
    """An answer links to the page of its call, which shows omitted messages with their reason."""
    await said(client, "s", "My cat is called Miso.")
    assert (await client.post("/api/v1/sessions/s/reset")).status_code == 200
    await said(client, "s", "My dog is called Rex.", "What is my dog called?")
    page = await opened(client, "/console/sessions/s")
    why = [link for link in page.links if "/calls/last" in link]
    call = await opened(client, why[-1])
    assert "What the model saw" in call.words
    assert "before the reset" in call.words
    assert "the newest messages that fit" in call.words
    assert "Since the previous call" in call.words
    for text in ("My cat is called Miso.", "My dog is called Rex.", "What is my dog called?"):
        assert text in call.words
    sent, out = call.words.split("Left out")
    assert "Miso" not in sent
    assert "Miso" in out


async def test_summaries_quotes_and_facts_are_unfolded(narrow: httpx2.AsyncClient) -> None:
    """A summary shows its messages, a quote links to its message, and a fact to its evidence."""
    await said(narrow, "old", "My cat is called Miso.")
    fact = {"scope": "user", "owner": "ana", "key": "home_city", "value": "Lisbon"}
    evidence = {"session_id": "old", "seq": 1}
    assert (await narrow.put("/api/v1/facts", json={**fact, "evidence": evidence})).status_code == 200
    await said(narrow, "s", *[f"Day {number}: we walked far." for number in range(8)])

    async def summarised() -> bool:
        return "Summary of 1–" in (await opened(narrow, "/console/sessions/s")).words

    await until(summarised)
    await said(narrow, "s", "Which is my home city, and what is my cat called?")
    calls = await opened(narrow, "/console/sessions/s/calls")
    assert calls.text.count("<svg") > 5
    answered = [link for link in (await opened(narrow, "/console/sessions/s")).links if "/calls/last" in link]
    page = await opened(narrow, answered[-1])
    assert "unfolded" in page.words
    assert "old #1" in page.words
    assert "home_city" in page.words
    assert "confirmed 1 time old #1" in page.words
    assert "a summary stands for it" in page.words


async def test_a_call_that_is_not_recorded_is_a_404_page(client: httpx2.AsyncClient) -> None:
    await said(client, "s", "One.")
    run = next(link for link in (await opened(client, "/console/sessions/s")).links if "/calls/last" in link)
    for address in (run.replace("last", "2"), run.replace("last", "x"), f"{run}?user=ben", "/console/runs/no/calls/1"):
        assert "This model call is not recorded" in (await opened(client, address, status=404)).words
