"""Train a zstd dictionary for the records of a database: `python -m bench.train_dictionary 40002`.

It writes the file for `threadkeep.store.compressed_json`. The records are those of chats, workflows and agents with
tools, on an SQLite file. Ids, hashes and times are replaced by random ones, so that the dictionary has only what all
records have in common. It has no conversation text: the only text in the records is that of the tool below.
"""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID, uuid4

import zstandard
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.tools import tool

from bench.chat_texts import chats
from bench.run_desk import OWN_STEPS, STEPS, open_desk
from threadkeep import RecalledTurns, SessionMemory, open_memory
from threadkeep.store import compressed_json
from threadkeep.store.compressed_json import decompress
from threadkeep.testing import ScriptedModel
from threadkeep.workflows.built_in import CHAT

_BYTES = 8192
_CHATS, _AGENTS, _TURNS = 60, 15, 12
_COLUMNS = (
    "SELECT manifest FROM chat_manifests UNION ALL SELECT manifest FROM chat_run_manifests",
    "SELECT events FROM chat_run_traces WHERE events IS NOT NULL",
    "SELECT result FROM chat_runs WHERE result IS NOT NULL",
    "SELECT input FROM chat_runs WHERE input IS NOT NULL",
    "SELECT body FROM chat_steps",
)
_HASH, _ID = re.compile(r"\b[0-9a-f]{64}\b"), re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TIME, _MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?"), re.compile(r"\b\d{16}\b")
_FIRST_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
_random = random.Random(40)


@tool
def add(left: int, right: int) -> str:
    """Add two numbers."""
    return str(left + right)


async def _chat(url: str) -> None:
    """Execute turns of the built-in chat and of workflows."""
    async with open_desk(url) as desk:
        texts = (turn.user for turn in chats(seed=40))
        for number in range(_CHATS):
            session_id, workflow = f"web:{uuid4()}", (CHAT, CHAT, STEPS, OWN_STEPS)[number % 4]
            for text in islice(texts, _TURNS):
                await desk.wait_for(session_id, text, str(uuid4()), workflow)


async def _call_agents(url: str) -> None:
    """Execute turns of an agent with a tool, with windows that leave messages out."""
    async with open_memory(url) as memory:
        for number in range(_AGENTS):
            sources = [RecalledTurns(memory)] if number % 2 else []
            middleware = SessionMemory(memory, max_messages=8 + number % 16, sources=sources)
            config = {"configurable": {"thread_id": f"telegram:{_random.randrange(10**9)}"}}
            for turn in islice(chats(seed=number), _TURNS):
                call = ToolCall(name="add", args={"left": 2, "right": number}, id=f"call_{uuid4().hex[:24]}")
                replies = [AIMessage("", tool_calls=[call]), turn.assistant]
                agent = create_agent(ScriptedModel(replies), [add], middleware=[middleware])
                await agent.ainvoke({"messages": [("user", turn.user)]}, config)


def _records(path: Path) -> Iterator[bytes]:
    """Yield the compressed records of a database as text, with other ids, hashes and times."""
    with closing(sqlite3.connect(path)) as database:
        for sql in _COLUMNS:
            for (stored,) in database.execute(sql):
                text = _HASH.sub(lambda _: _random.randbytes(32).hex(), decompress(stored))
                text = _ID.sub(lambda _: str(UUID(bytes=_random.randbytes(16))), text)
                text = _TIME.sub(lambda _: _any_time().strftime("%Y-%m-%dT%H:%M:%S.%f"), text)
                yield _MOMENT.sub(lambda _: str(int(_any_time().timestamp() * 1_000_000)), text).encode()


def _any_time() -> datetime:
    return _FIRST_YEAR + timedelta(seconds=_random.random() * 3.15e8)


def main(number: int) -> None:
    """Write the dictionary with this number, and print the mean size of records without and with it."""
    path = Path(compressed_json.__file__).with_name("dictionaries") / f"{number}.zdict"
    if path.exists():
        sys.exit(f"{path.name} exists, and stored records need it: choose a higher number.")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "records.db"
        asyncio.run(_chat(f"sqlite:///{file}"))
        asyncio.run(_call_agents(f"sqlite:///{file}"))
        records = list(_records(file))
    _random.shuffle(records)
    half = len(records) // 2
    dictionary = zstandard.train_dictionary(_BYTES, records[:half], level=compressed_json.LEVEL, dict_id=number)
    compressor = zstandard.ZstdCompressor(level=compressed_json.LEVEL, dict_data=dictionary)
    path.write_bytes(dictionary.as_bytes())
    sizes = [(len(text), len(compressor.compress(text))) for text in records[half:]]
    plain, compressed = (sum(column) / len(sizes) for column in zip(*sizes, strict=True))
    print(f"{path.name}: {len(records)} records, {plain:.0f} bytes on average, compressed {compressed:.0f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
