"""A process that appends turns and delivers until it is killed: `python talk_to_graphiti.py DATABASE ENDPOINT TURNS`.

It prints a line for each stored turn.
"""

from __future__ import annotations

import asyncio
import sys

from threadkeep import MemoryOptions, Message, open_memory
from threadkeep.records.graphiti import GraphitiOptions


async def main(database: str, endpoint: str, turns: int) -> None:
    """Store turns, then wait until the process is killed."""
    graphiti = GraphitiOptions(endpoint=endpoint, workspace="shop", poll_seconds=0.1)
    async with open_memory(database, options=MemoryOptions(graphiti=graphiti)) as memory:
        session = memory.session("room:1", user_id="ann", workspace="shop")
        for number in range(1, turns + 1):
            asked = Message(role="user", content=f"Question {number} is about Garden {number}.", id=f"q{number}")
            await session.append([asked, Message(role="assistant", content=f"Answer {number}.", id=f"a{number}")])
            print(number, flush=True)  # noqa: T201 - the test reads it
            await asyncio.sleep(0.05)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
