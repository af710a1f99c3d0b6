"""Evidence in model calls: the share of turns with an answer that a user's agent receives.

`python -m bench.recall_calls --data FILE` stores each conversation in a session, as an application does, and asks its
questions through `RecalledTurns` and the context of a model call: blocks of quotes and whole calls, each by its
tokens. The first speaker of a conversation is its user, the second its assistant; both have their names as authors.
With `--meaning` the word vectors of the extra `meaning` are used too, once all turns have one; without it words alone,
even if the extra is installed. `--each N` asks every Nth question, `--left-out` ranks each conversation with weights
that are fitted to the others, `--model NAME` counts as in calls of this model, which is exact for OpenAI's models with
the extra `tokens`. `--start N` measures the first question after a start in a session of N turns, or in M sessions of a
user with `--sessions M`; with `--graph-store` the transcripts are in a LangGraph store.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from tempfile import TemporaryDirectory

from langchain_core.messages import HumanMessage

from bench import fit_recall
from bench.recall import conversations, indexed, later, use_meaning
from bench.recall_chats import Asked, Chat, ChatTurn
from threadkeep import Memory, MemoryOptions, Message, RecalledTurns, Session, open_memory
from threadkeep.agent.extras import ExtraRequest
from threadkeep.agent.turn_context import TurnContext
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.context.tokens import TokenCounter, counter_for
from threadkeep.history.older_turns import RecallScope, Search

QUOTES = (1_000, 2_000, 4_000)
CALLS = (2_000, 4_000)
_PAGE = 200


@dataclass
class Found:
    """The recall and the tokens a turn of each question, by kind of measure, and the seconds of CPU of each query."""

    recalls: dict[str, list[float]] = field(default_factory=dict)
    tokens: dict[str, list[float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def add(self, name: str, evidence: Collection[str], found: Collection[str], tokens_a_turn: float) -> None:
        """Add the result of one question."""
        self.recalls.setdefault(name, []).append(len(set(evidence).intersection(found)) / len(evidence))
        self.tokens.setdefault(name, []).append(tokens_a_turn)


async def store(memory: Memory, chat: Chat, user_id: str | None = None) -> dict[int, str]:
    """Store a conversation in a session; return the id of each turn by its `seq`."""
    user = next((turn.speaker for turn in chat.turns if turn.speaker == "user"), chat.turns[0].speaker)
    session = memory.session(chat.id, user_id=user_id)
    for start in range(0, len(chat.turns), _PAGE):
        await session.append(
            [
                Message(
                    role="user" if turn.speaker == user else "assistant",
                    content=turn.text,
                    author=None if turn.speaker in ("user", "assistant") else turn.speaker,
                    sent_at=turn.time.replace(tzinfo=turn.time.tzinfo or UTC),
                )
                for turn in chat.turns[start : start + _PAGE]
            ]
        )
    return {place: turn.id for place, turn in enumerate(chat.turns, 1)}


async def measure(
    memory: Memory, chat: Chat, found: Found, *, each: int = 1, counter: TokenCounter | None = None
) -> None:
    """Store a conversation and ask its questions. Without a counter, the memory's counter counts the tokens."""
    ids = await store(memory, chat)
    session = memory.session(chat.id)
    source = RecalledTurns(memory)
    await indexed(memory, chat.id, lambda: _quoted(memory, session, source, "the index is built", 1_000, counter))
    for asked in chat.asked[::each]:
        started = time.process_time()
        for room in QUOTES:
            seqs, tokens = await _quoted(memory, session, source, asked.text, room, counter)
            _add(found, f"quotes of {room:,}", asked, ids, seqs, tokens)
        found.seconds.append((time.process_time() - started) / len(QUOTES))
        for budget in CALLS:
            options = TurnOptions(max_tokens=budget, sources=(source,), counter=counter)
            context = TurnContext(memory, session, options, [HumanMessage(asked.text, id="question")])
            sent = await context.context([HumanMessage(asked.text, id="question")])
            quoted = {turn.seq for entry in sent.entries for turn in entry.turns}
            whole = {entry.seq for entry in sent.entries if entry.section == "window" and entry.seq}
            tokens = sum(entry.tokens for entry in sent.entries if entry.section == "selected")
            _add(found, f"call of {budget:,}", asked, ids, quoted | whole, sent.tokens)
            _add(found, f"– quotes of a call of {budget:,}", asked, ids, quoted, tokens)


async def _quoted(
    memory: Memory, session: Session, source: RecalledTurns, text: str, room: int, counter: TokenCounter | None
) -> tuple[Collection[int], int]:
    request = ExtraRequest(
        session=session, question=[HumanMessage(text)], earlier=(), known_ids=(), question_seq=None,
        counter=counter or memory.counter, now=memory.clock(),
    )  # fmt: skip
    extra = await source.find(request, room)
    return ({turn.seq for turn in extra.entry.turns}, extra.entry.tokens) if extra else ((), 0)


def _add(found: Found, name: str, asked: Asked, ids: dict[int, str], seqs: Collection[int], tokens: int) -> None:
    found.add(name, asked.evidence, [ids[seq] for seq in seqs if seq in ids], tokens / max(1, len(seqs)))


async def report(
    title: str, given: Sequence[Chat], each: int, *, left_out: bool = False, counter: TokenCounter | None = None
) -> None:
    """Measure these conversations and print a line for each kind of measure."""
    found = Found()
    weights = fit_recall.fitted_without(given) if left_out else []
    async with open_memory("sqlite://") as memory:
        for number, chat in enumerate(given):
            if left_out:
                fit_recall.use(weights[number])
            await measure(memory, chat, found, each=each, counter=counter)
    print(f"{title}: evidence in %, n={max(map(len, found.recalls.values()))}")
    for name, recalls in sorted(found.recalls.items()):
        tokens = statistics.fmean(found.tokens[name])
        print(f"  {name:<26} {100 * statistics.fmean(recalls):6.2f}   {tokens:.0f} tokens a turn")
    print(f"  {1_000 * statistics.median(found.seconds):.1f} ms of CPU a search for quotes at the median")


async def report_start(given: Sequence[Chat], length: int, sessions: int, options: MemoryOptions) -> None:
    """Print the cost of the first question in sessions of some length, without and with a stored index."""
    turns: list[ChatTurn] = []
    while len(turns) < length:
        years = len(turns) // max(1, sum(len(chat.turns) for chat in given))
        turns += [later(turn, f"{chat.id}-{years}", years) for chat in given for turn in chat.turns]
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/recall.db"
        each = -(-length // sessions)
        async with open_memory(url, options=options) as memory:
            for start in range(0, length, each):
                chat = Chat(f"long {start}", turns[start : min(start + each, length)], [])
                await store(memory, chat, user_id="user")
        search = Search("long 0", "user", given[0].asked[0].text, scope="user" if sessions > 1 else "session")
        key: tuple[RecallScope, str] = ("user", "user") if sessions > 1 else ("session", "long 0")
        for state in ("without a stored index", "with a stored index"):
            async with open_memory(url, options=options) as memory:
                began = time.process_time()
                found = len(await memory.older_turns.find(search, QUOTES[1]))
                while (index := memory.older_turns.index(*key)) is None or len(index.tokens) < length:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                print(f"{length:,} turns, {state}: {found} turns found, {time.process_time() - began:.2f} s of CPU")
                if index.storing is not None:
                    await index.storing


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.recall_calls", description=main.__doc__)
    parser.add_argument("--data", type=conversations, required=True, help="conversations.json of the shared data set")
    parser.add_argument("--each", type=int, default=1, help="ask every Nth question only")
    parser.add_argument(
        "--left-out", action="store_true", help="rank each conversation with weights that are fitted to the others"
    )
    parser.add_argument("--model", help="count as in calls of this model; by default estimate, as for unknown models")
    parser.add_argument("--start", type=int, help="measure only the first question in a session of so many turns")
    parser.add_argument("--sessions", type=int, default=1, help="divide these turns into sessions of one user")
    parser.add_argument(
        "--graph-store", action="store_true", help="keep the transcripts of --start in a LangGraph store"
    )
    parser.add_argument("--meaning", action="store_true", help="use the word vectors of the extra `meaning`")
    given = parser.parse_args(arguments)
    use_meaning(wanted=given.meaning)
    chats: list[Chat] = given.data
    if given.start:
        options = MemoryOptions(transcripts="graph_store" if given.graph_store else "tables")
        asyncio.run(report_start(chats, given.start, given.sessions, options))
        return 0
    counter = counter_for(given.model) if given.model else None
    asyncio.run(report("Conversations between people", chats, given.each, left_out=given.left_out, counter=counter))
    return 0


if __name__ == "__main__":
    sys.exit(main())
