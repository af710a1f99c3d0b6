"""Facts that survive compression: the share of planted code words in a call of 4,000 tokens after 1,000 turns.

`python -m bench.lasting_facts` stores the harder made-up chats as one session of 1,000 turns and compresses it while it
grows. Each fact has a code word; a question is answerable if the code words of all its evidence are in the call. This
is measured with summaries alone, then with recall, and at last after all but the newest 40 messages were archived.

The summarizer is a script with a model's limits: each time it treats nine of ten facts as important, and one of forty
other sentences of the user; it writes these first, then other sentences, up to the requested length. With `--prose` it
writes no lines of facts. With `--meaning`, the word vectors of the extra `meaning` are used too, once all turns have
one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta
from itertools import islice
from random import Random
from zlib import crc32

from langchain_core.messages import HumanMessage

from bench import recall_hard
from bench.recall import indexed, use_meaning
from bench.recall_chats import Asked, ChatTurn
from bench.recall_hard_facts import FITTED, HELD_OUT
from threadkeep import Compression, Memory, Message, RecalledTurns, Retention, RetentionLimits, Session, open_memory
from threadkeep.agent.turn_context import TurnContext
from threadkeep.agent.turn_options import TurnOptions
from threadkeep.context.compression import WindowRoom
from threadkeep.context.tokens import estimate
from threadkeep.history.compression import SummaryTask

TURNS = 1_000
BUDGET = 4_000
_WINDOW = WindowRoom(tokens=BUDGET // 4, messages=20)
_RECOGNISED, _MISTAKEN = 0.9, 0.025
_CODE = re.compile(r"\(code ([A-Z]\w+)\)")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass
class Planted:
    """A session of turns with planted code words, and the questions about them with the code words of each."""

    turns: list[ChatTurn] = field(default_factory=list)
    asked: list[tuple[Asked, frozenset[str]]] = field(default_factory=list)


def planted() -> Planted:
    """Return the chats of both parts as one session, with a code word in each fact."""
    made = Planted()
    words = _code_words()
    for part, (_, facts) in (("fitted", FITTED), ("held out", HELD_OUT)):
        told = [text for fact in facts for text in (fact.told, fact.changed) if text]
        chat = next(recall_hard.chats(part, (1,), 165))  # type: ignore[arg-type]
        codes: dict[str, str] = {}
        later = made.turns[-1].time + timedelta(days=1) - chat.turns[0].time if made.turns else timedelta()
        evidence = {turn for asked in chat.asked for turn in asked.evidence}
        turns = chat.turns[:TURNS]
        for turn in turns:
            text = turn.text
            if turn.id in evidence:
                said = next(text for text in told if text in turn.text)
                codes[turn.id] = next(words)
                text = turn.text.replace(said, f"{said[:-1]} (code {codes[turn.id]}).")
            made.turns.append(replace(turn, text=text, time=turn.time + later))
        made.asked += [
            (asked, frozenset(codes[turn] for turn in asked.evidence))
            for asked in chat.asked
            if asked.text and all(turn in codes for turn in asked.evidence)
        ]
    return made


def _code_words() -> Iterator[str]:
    chance = Random("code words")
    while True:
        yield "".join(chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(4)).capitalize()


class LimitedModel:
    """A summarizer that keeps few sentences, important ones first; see the module docstring."""

    name = "limited-model"
    prompt_version = "1"
    input_tokens = 8_000

    def __init__(self, *, facts: bool) -> None:
        self._facts = facts
        self.calls = 0

    async def summarize(self, record: str, *, earlier: str | None, task: SummaryTask, max_tokens: int) -> str:
        """Return important sentences, and after them others, as many as fit into `max_tokens`."""
        self.calls += 1
        lines = [json.loads(line) for line in record.splitlines()]
        said = [
            (sentence, line.get("from", "user") == "user")
            for line in lines
            for sentence in _SENTENCE.split(line["text"])
            if sentence.strip()
        ]
        important = [text for text, by_user in said if self._is_important(text, by_user=by_user)]
        others = sorted((text for text, _ in said if text not in important), key=lambda text: crc32(text.encode()))
        chosen: list[str] = []
        for text in (*important, *others):
            if estimate(" ".join([*chosen, text])) > max_tokens:
                break
            chosen.append(text)
        facts = [text for text in chosen if text in important] if self._facts and task != "summaries" else []
        prose = " ".join(text for text, _ in said if text in chosen and text not in facts) or "They talked."
        return "\n".join([prose, *(["", "Facts:"] if facts else []), *(f"- {fact}" for fact in facts)])

    def _is_important(self, text: str, *, by_user: bool) -> bool:
        chance = Random(f"{self.calls} {text}").random()
        return chance < _RECOGNISED if _CODE.search(text) else by_user and chance < _MISTAKEN


async def converse(memory: Memory, session: Session, turns: Sequence[ChatTurn], model: LimitedModel) -> None:
    """Store the turns, one exchange after the other, and compress after each as a turn does."""
    compression = Compression(summarizer=model)
    rest = iter(turns)
    while exchange := list(islice(rest, 2)):
        await session.append(
            [
                Message(
                    role="assistant" if turn.speaker == "assistant" else "user",
                    content=turn.text,
                    sent_at=turn.time.replace(tzinfo=UTC),
                )
                for turn in exchange
            ]
        )
        await memory.compressor.compress_now(session.session_id, compression, model, budget=BUDGET, window=_WINDOW)


async def ask(memory: Memory, session: Session, made: Planted, *, recall: bool) -> dict[str, list[bool]]:
    """Return by kind, for each question, whether the model call contains all its code words."""
    found: dict[str, list[bool]] = {}
    options = TurnOptions(max_tokens=BUDGET, sources=(RecalledTurns(memory),) if recall else ())
    if recall:
        await indexed(memory, session.session_id, lambda: _call(memory, session, options, made.asked[0][0].text))
    for asked, words in made.asked:
        text = await _call(memory, session, options, asked.text)
        found.setdefault(asked.category, []).append(all(word in text for word in words))
    return found


async def _call(memory: Memory, session: Session, options: TurnOptions, text: str) -> str:
    """Return the text of the model call for a question."""
    question = [HumanMessage(text, id="question")]
    sent = await TurnContext(memory, session, options, question).context(question)
    return "\n".join(str(message.content) for message in sent.messages)


async def report(*, facts: bool) -> None:
    """Measure and print."""
    made = planted()
    model = LimitedModel(facts=facts)
    async with open_memory("sqlite://") as memory:
        session = memory.session("room")
        await converse(memory, session, made.turns, model)
        summaries = await memory.summaries.active("room")
        every = {word for _, words in made.asked for word in words}
        held = {word for word in every if any(word in summary.text for summary in summaries)}
        print(
            f"{len(made.turns)} messages, {len(every)} code words, {len(made.asked)} questions; "
            f"{model.calls} calls of the summarizer; {len(held)} code words in {len(summaries)} summaries, "
            f"levels {[s.level for s in summaries]}, "
            f"{sum(s.tokens for s in summaries)} tokens"
        )
        for title, recall in (("summaries alone", False), ("summaries and recall", True), ("archived", True)):
            if title == "archived":
                await memory.retention.prune(Retention(archive=RetentionLimits(max_messages=40)))
            found = await ask(memory, session, made, recall=recall)
            everything = [one for kind in found.values() for one in kind]
            parts = ", ".join(f"{kind} {100 * sum(of) / len(of):.0f}" for kind, of in sorted(found.items()))
            print(f"{title}: {100 * sum(everything) / len(everything):.1f} % answerable ({parts})")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.lasting_facts", description=__doc__)
    parser.add_argument("--prose", action="store_true", help="a summarizer that writes no lines of facts")
    parser.add_argument("--meaning", action="store_true", help="use the word vectors of the extra `meaning`")
    given = parser.parse_args(arguments)
    use_meaning(wanted=given.meaning)
    asyncio.run(report(facts=not given.prose))
    return 0


if __name__ == "__main__":
    sys.exit(main())
