"""A service with sample conversations, for browser tests and for the screenshots of the docs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from tests.channels.desk import telegram_settings, update
from tests.channels.fake_telegram import FakeTelegram, faking_telegram
from tests.channels.platforms import TELEGRAM_SECRET
from tests.web.services import opened_app, served, settings_for, until
from threadkeep.agent.demo import DemoModel, answer, summary_of
from threadkeep.app import App
from threadkeep.channels.configuration import ChannelsFile
from threadkeep.channels.opening import open_channels
from threadkeep.context.tokens import estimate
from threadkeep.workflows.resources import RunContext
from threadkeep.workflows.state import WorkflowState

EXAMPLES = Path(__file__).parents[3] / "examples"
TRIP = "web:lisbon"
SHOP = "web:order-4711"
GROUP = "telegram:4242:-7001"

_OF_THE_TRIP = 14
_ANSWERS = {
    "I am planning a week in Lisbon in May.": "Lovely. Do you have a budget in mind, and who is coming along?",
    "Two of us, and 1,400 euros without the flight.": "That is enough for a good room in Alfama and for eating out.",
    "I am vegetarian, and Jonas cannot eat nuts.": "Noted: vegetarian for you, no nuts for Jonas.",
    "Our flight lands at 10:40 on the 11th.": "You can be in the city by noon. The red line goes there in 25 minutes.",
    "Which sights should we not miss?": "The castle, the tile museum, Belém, and tram 28 early in the morning.",
    "Can we take the train to Sintra?": "Yes, from Rossio, every half hour. Start before nine: the palaces fill up.",
    "Is there a market nearby?": "Campo de Ourique, on foot in fifteen minutes, with a few counters to eat at.",
    "We would like to hear fado once.": "Small houses in Mouraria are better than the big dinners. Book a day ahead.",
    "How is the weather in May?": "About 22 degrees, little rain, cool evenings by the river.",
    "Do we need a car?": "No. Trains and trams go everywhere that you have named.",
    "What about a day at the sea?": "Cascais, forty minutes by train along the river.",
    "Which wine goes with a vegetarian dinner there?": "A white from Alentejo, or a vinho verde on a warm evening.",
    "Where should we eat on the first evening, with our diet in mind?": (
        "Ao 26 in Chiado is vegetarian throughout. Tell them about the nuts: there are almonds in two desserts. Your "
        "hotel is four stops away with tram 28."
    ),
    "Please book the hotel near the tram 28 stop, like last time in Porto.": "Booked: Casa do Largo, 11 to 18 May.",
    "Where is my order 4711?": "Order 4711 left our house yesterday. It should be with you tomorrow.",
    "Can I still return the kettle?": "Yes, within thirty days. The label is in the parcel.",
    "Is the green one in stock?": "It is. Shall I put one aside for you?",
    "Is the green one in stock, in the large size?": "The large green one comes back on Monday.",
    "How long does shipping take?": "Parcels take three days, and a week abroad.",
    "Is there a tram to your shop?": "Line 5 stops at the door.",
    "I have a ladder, and the shed key is under the pot.": "Good to know.",
    "I turn the compost in odd weeks, Ben in even ones.": "I will remember it.",
    "who brings the ladder on Saturday?": "Ben said that he has one. Shall I ask him to bring it?",
    "what did we agree about the compost?": "Carla turns it in odd weeks, Ben in even ones.",
    "Hi, are you open on Sunday?": "We are closed on Sunday, and open from 9 to 18 on every other day.",
}


_SUMMARIES = (
    "Ana plans a week in Lisbon in May, for two, with 1,400 euros. She is vegetarian; Jonas cannot eat nuts.",
    "They want to see the castle, the tile museum and Belém, take an early train to Sintra, and hear fado in Mouraria.",
)


class PlayedModel(DemoModel):
    """The demo model with answers to the lines of the sample conversations. With tools, it looks orders up."""

    model: str = "played"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_reply(messages, kwargs.get("tools") or ()))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        reply = _reply(messages, kwargs.get("tools") or ())
        for word in re.findall(r"\s*\S+", reply.text):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        last = AIMessageChunk(
            content="", tool_calls=reply.tool_calls, usage_metadata=reply.usage_metadata, chunk_position="last"
        )
        yield ChatGenerationChunk(message=last)


def _reply(messages: Sequence[BaseMessage], tools: Sequence[object]) -> AIMessage:
    asked = next((str(one.text) for one in reversed(messages) if isinstance(one, HumanMessage)), "")
    number = re.search(r"order (\d{4})", asked)
    looks_up = bool(tools) and number is not None and not isinstance(messages[-1], ToolMessage)
    if summary_of(messages) is not None:
        return AIMessage(_SUMMARIES["Sintra" in asked])
    text = "" if looks_up else next((_ANSWERS[one] for one in _ANSWERS if asked.endswith(one)), answer(messages))
    calls = [tool_call(name="find_order", args={"number": number[1]}, id="call-1")] if looks_up and number else []
    sent = sum(estimate(str(one.text)) for one in messages)
    spoken = estimate(text) + 12 * len(calls)
    usage: Any = {"input_tokens": sent, "output_tokens": spoken, "total_tokens": sent + spoken}
    usage["input_token_details"] = {"cache_read": sent * 3 // 5}
    return AIMessage(text, tool_calls=calls, usage_metadata=usage)


async def _ask_for_refund(state: WorkflowState) -> dict[str, Any]:
    allowed = interrupt({"question": "May I refund order 4711?", "amount": "39.90 EUR"})
    return {"messages": [AIMessage(f"A colleague decided about your refund: {allowed}.")]}


refund = StateGraph(WorkflowState, context_schema=RunContext)
refund.add_node("ask", _ask_for_refund)
refund.add_edge(START, "ask")
refund.add_edge("ask", END)


@asynccontextmanager
async def opened_service(folder: Path, **more: object) -> AsyncIterator[tuple[App, httpx2.AsyncClient]]:
    """Open a service with the sample conversations. Its address is the client's `base_url`."""
    names = ["agent_with_tools", "parent", "facts", "feelings"]
    files = ",".join(str(EXAMPLES / f"{name}.yaml") for name in names)
    settings = settings_for(
        folder,
        database_url=f"sqlite:///{folder / 'memory.db'}",
        workflows=f"{files},refund={__name__}:refund",
        system_prompt="You help people to plan trips, and you work for a shop. Be brief.",
        history_max_tokens=900,
        history_max_messages=12,
        summary_trigger="messages:12",
        summary_keep="messages:6",
        recall="user",
        facts=True,
        prices="played=0.25/2/0.025",
        **more,
    )
    with faking_telegram(folder) as telegram:
        async with opened_app(PlayedModel(), settings) as app:
            file = ChannelsFile(channels=[telegram_settings(telegram, name="garden")])
            async with open_channels(app.memory, app.runs, file) as service:
                whole = replace(app, channels=service)
                async with served(whole) as (client, _):
                    await _fill(whole, client, telegram)
                    yield whole, client


async def _fill(app: App, client: httpx2.AsyncClient, telegram: FakeTelegram) -> None:
    """Create the sample conversations; the trip is the newest one."""
    await _say(client, "web:porto", "ana", "Our hotel in Porto was right at a tram 28 stop, which was perfect.")
    await _say(client, "web:porto", "ana", "The room to the yard was quiet.")
    await _say(client, SHOP, "ben", "Can I still return the kettle?")
    await _say(client, SHOP, "ben", "Is there a tram to your shop?")
    await _say(client, SHOP, "ben", "Where is my order 4711?", workflow="agent_with_tools")
    await _say(client, SHOP, "ben", "Is the green one in stock?")
    await _edit(client, SHOP, "Is the green one in stock?", "Is the green one in stock, in the large size?")
    await client.patch(f"/api/v1/sessions/{SHOP}", json={"title": "Order 4711", "tags": ["order", "vip"]})
    await _run(client, "parent", {"message": "How long does shipping take?", "user_id": "ben"})
    await _run(client, "refund", {"message": "I want my money back.", "session_id": "web:refund", "user_id": "carla"})
    await _talk_in_group(app, client, telegram)
    lines = list(_ANSWERS)[:_OF_THE_TRIP]
    for line in lines[:-2]:
        await _say(client, TRIP, "ana", line)
        if line.startswith("I am vegetarian"):
            await _know(client, "diet", "vegetarian", TRIP, 5)
            await _know(client, "companion", "Jonas, no nuts", TRIP, 5)
        if line.startswith("How is"):
            await until(lambda: _is_summarised(client))
    for line in lines[-2:]:
        await _say(client, TRIP, "ana", line)
    await client.patch(f"/api/v1/sessions/{TRIP}", json={"title": "A week in Lisbon", "tags": ["trip"]})


async def _say(client: httpx2.AsyncClient, session_id: str, user_id: str, message: str, **more: object) -> None:
    body = {"message": message, "session_id": session_id, "user_id": user_id, **more}
    response = await client.post("/api/v1/chat", json=body)
    response.raise_for_status()


async def _run(client: httpx2.AsyncClient, workflow: str, body: dict[str, object]) -> None:
    (await client.post(f"/api/v1/workflows/{workflow}/runs", json=body)).raise_for_status()


async def _edit(client: httpx2.AsyncClient, session_id: str, message: str, text: str) -> None:
    known = (await client.get(f"/api/v1/chat/history/{session_id}")).json()["messages"]
    (found,) = (one["id"] for one in known if one["content"] == message)
    edited = {"message_id": found, "message": text}
    (await client.post(f"/api/v1/sessions/{session_id}/edit", json=edited)).raise_for_status()
    again = await client.post(f"/api/v1/sessions/{session_id}/regenerate", json={})
    again.raise_for_status()


async def _know(client: httpx2.AsyncClient, key: str, value: str, session_id: str, seq: int) -> None:
    fact = {"scope": "user", "owner": "ana", "key": key, "value": value, "kind": "preference"}
    evidence = {"session_id": session_id, "seq": seq}
    (await client.put("/api/v1/facts", json={**fact, "evidence": evidence})).raise_for_status()


async def _is_summarised(client: httpx2.AsyncClient) -> bool:
    return "Summary of" in (await client.get(f"/console/sessions/{TRIP}")).text


def _has_told(telegram: FakeTelegram, count: int) -> bool:
    return len(telegram.texts()) >= count


async def _talk_in_group(app: App, client: httpx2.AsyncClient, telegram: FakeTelegram) -> None:
    people = {"Ben": 11, "Carla": 12, "Dmitri": 13}
    lines = [
        ("Ben", "@KeepBot I have a ladder, and the shed key is under the pot."),
        ("Carla", "@KeepBot I turn the compost in odd weeks, Ben in even ones."),
        ("Dmitri", "@KeepBot who brings the ladder on Saturday?"),
        ("Ben", "@KeepBot what did we agree about the compost?"),
    ]
    headers = {"X-Telegram-Bot-Api-Secret-Token": TELEGRAM_SECRET}
    for number, (name, text) in enumerate(lines, start=1):
        sender = {"id": people[name], "is_bot": False, "first_name": name}
        entity = {"type": "mention", "offset": 0, "length": len("@KeepBot")}
        group = {"id": -7001, "type": "group", "title": "Allotment"}
        told = update(text, number, **{"from": sender, "chat": group, "entities": [entity]})
        await client.post("/channels/garden", json=told, headers=headers)
        await until(partial(_has_told, telegram, number))
    telegram.refuse(403, "Forbidden: bot was blocked by the user", times=1)
    await client.post("/channels/garden", json=update("Hi, are you open on Sunday?", 90), headers=headers)

    async def refused() -> bool:
        return any(status == "failed" for _, status in await app.memory.channels.outbox.counts())

    await until(refused)
