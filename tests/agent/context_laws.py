"""Checks of the guarantees that hold for each model call and its manifest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from threadkeep import ContextManifest, Memory, Message, count_tokens
from threadkeep.agent.conversion import id_of, text_of
from threadkeep.agent.counting import is_text
from threadkeep.context.cut import CUT_MARK
from threadkeep.context.tokens import TokenCounter

_WHOLE_SESSION = 10_000
_ROLES = {"human": "user", "ai": "assistant"}


@dataclass(frozen=True)
class Sent:
    """The messages of a model call, and its manifest."""

    messages: Sequence[BaseMessage]
    manifest: ContextManifest


async def sent_calls(
    memory: Memory, calls: Sequence[Sequence[BaseMessage]], session_id: str, *, newest: int | None = None
) -> list[Sent]:
    """Return each call of a session with its manifest, in order, or only the `newest` ones."""
    stored = await memory.manifests.of_session(session_id, limit=1_000)
    manifests = [ContextManifest.from_dict(one.manifest) for one in reversed(stored)]
    if newest is not None:
        calls, manifests = calls[-newest:], manifests[-newest:]
    assert len(manifests) == len(calls)
    return [Sent(messages, manifest) for messages, manifest in zip(calls, manifests, strict=True)]


def check_budget(sent: Sent, budget: int, counter: TokenCounter) -> None:
    """Check that the call is within its budget and that its manifest has the token count of each message."""
    counted = [count_tokens(message, counter=counter) for message in sent.messages]
    assert counted == [entry.tokens for entry in sent.manifest.entries]
    assert sum(counted) == sent.manifest.tokens <= budget
    assert sum(sent.manifest.sections.values()) == sent.manifest.tokens


def check_shape(messages: Sequence[BaseMessage]) -> None:
    """Check the order: at most one system message, then a user message; each tool call is followed by its result."""
    assert not any(isinstance(message, SystemMessage) for message in messages[1:])
    assert next(message.type for message in messages if not isinstance(message, SystemMessage)) == "human"
    blocks = [block for message in messages if isinstance(message.content, list) for block in message.content]
    assert all(text_of(HumanMessage([block])).strip() for block in blocks if is_text(block))
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.tool_call_id in open_calls
            open_calls.remove(message.tool_call_id)
            continue
        assert not open_calls
        if isinstance(message, AIMessage):
            assert not message.invalid_tool_calls
            open_calls = [str(call["id"]) for call in message.tool_calls]
    assert not open_calls


def check_order(sent: Sent) -> None:
    """Check that sections are in their order, and transcript messages in the order of the transcript."""
    seqs = [entry.seq for entry in sent.manifest.entries if entry.seq is not None]
    assert seqs == sorted(set(seqs))
    ranks = {section: rank for rank, section in enumerate(("system", "summary", "window", "extra", "input", "steps"))}
    ranks["earlier_steps"] = ranks["window"]
    order = [ranks.get(entry.section, ranks["extra"]) for entry in sent.manifest.entries]
    assert order == sorted(order)


def check_input(sent: Sent, question: BaseMessage) -> None:
    """Check that the newest user message is sent whole, or cut with a mark as the manifest states."""
    [place] = [place for place, entry in enumerate(sent.manifest.entries) if entry.id == id_of(question)]
    entry, there = sent.manifest.entries[place], sent.messages[place]
    assert entry.section == "input"
    if entry.tokens_before is None:
        assert there.content == question.content
        return
    assert entry.tokens < entry.tokens_before
    text = re.sub(r"\n?\[[0-9a-z ]+ left out\]", "", text_of(there))
    assert text == text_of(question) or text.endswith(CUT_MARK)
    assert text_of(question).startswith(text.removesuffix(CUT_MARK))


def check_newest_step(sent: Sent, asked: AIMessage) -> None:
    """Check that the call ends with the tool calls that the model just made, with all keys, and their results."""
    newest = sent.messages[-1 - len(asked.tool_calls) :]
    said, *results = newest
    assert isinstance(said, AIMessage)
    assert [(call["id"], set(call["args"])) for call in said.tool_calls] == [
        (call["id"], set(call["args"])) for call in asked.tool_calls
    ]
    assert {one.tool_call_id for one in results if isinstance(one, ToolMessage)} == {c["id"] for c in said.tool_calls}
    assert [entry.section for entry in sent.manifest.entries[-len(newest) :]] == ["steps"] * len(newest)


def check_coverage(manifest: ContextManifest, rows: Sequence[Message], summaries: Iterable[range] = ()) -> None:
    """Check that each message up to the input is sent, in one summary's range, or excluded for exactly one reason."""
    last = max((entry.seq for entry in manifest.entries if entry.section == "input" and entry.seq), default=0)
    told = Counter(entry.seq for entry in manifest.entries if entry.seq is not None)
    shown = any(entry.section == "summary" for entry in manifest.entries)
    for gap in manifest.excluded:
        assert gap.first_seq <= gap.last_seq
        if gap.reason == "summarised" and shown:
            assert range(gap.first_seq, gap.last_seq + 1) in summaries
        told.update(range(gap.first_seq, gap.last_seq + 1))
    untold = {row.seq: told[row.seq] for row in rows if row.seq is not None and row.seq <= last and told[row.seq] != 1}
    assert not untold


def check_state(sent: Sent, state: Sequence[BaseMessage], question: BaseMessage, rows: Sequence[Message]) -> None:
    """Check that each message of the state up to the question is sent, excluded for a reason, or has a stored seq.

    A message with the same text as a stored message may have the id of the stored message.
    """
    manifest = sent.manifest
    seqs = {row.id: row.seq for row in rows}
    out = {seq for gap in manifest.excluded for seq in range(gap.first_seq, gap.last_seq + 1)}
    ids = [_ids_of(message, rows) for message in state if not isinstance(message, SystemMessage)]
    told = {entry.id for entry in manifest.entries}
    without_id = sum(one.count for one in manifest.left_out if one.id is None)
    for one in manifest.left_out:
        stretch = _between(ids, one.id, one.last_id) if one.last_id is not None else [{one.id}]
        # Messages that got their ids in this call are counted separately. Of messages with equal text, any may match.
        exact = all(len(known) == 1 for known in stretch)
        # Allow messages that were stored as new, because each is at its position in the transcript.
        placed = sum(bool(known & set(seqs)) for known in stretch)
        assert one.id is None or not exact or 0 <= len(stretch) - one.count <= without_id + placed
        told.update(*stretch)
    for message in state[: state.index(question) + 1]:
        # Allow None, because the agent's own answer to an invalid tool call gets its id after the model call.
        known = _ids_of(message, rows) | ({None} if isinstance(message, ToolMessage) else set())
        in_transcript = any(seqs.get(known_id) in out for known_id in known)
        assert isinstance(message, SystemMessage) or known & told or in_transcript


def _ids_of(message: BaseMessage, rows: Sequence[Message]) -> set[str | None]:
    """Return the ids that a message may have in a manifest."""
    alike = (row for row in rows if row.role == _ROLES.get(message.type))
    return {id_of(message), *(row.id for row in alike if row.role == "assistant" or row.content == text_of(message))}


def _between(ids: Sequence[set[str | None]], first: str | None, last: str | None) -> Sequence[set[str | None]]:
    begin = next(place for place, known in enumerate(ids) if first in known)
    end = max(place for place, known in enumerate(ids) if last in known)
    return ids[begin : end + 1]


async def check_call(
    memory: Memory,
    sent: Sent,
    question: BaseMessage,
    *,
    budget: int,
    counter: TokenCounter,
    summaries: Iterable[range] = (),
) -> None:
    """Check all guarantees that need only the call, its manifest and the transcript."""
    check_budget(sent, budget, counter)
    check_shape(sent.messages)
    check_order(sent)
    check_input(sent, question)
    rows = await memory.session(sent.manifest.session_id or "").tail(_WHOLE_SESSION)
    check_coverage(sent.manifest, rows, list(summaries))
    await check_summaries(memory, sent)


async def check_summaries(memory: Memory, sent: Sent) -> None:
    """Check that each summarized range of the manifest is in a summary that was sent, whole unless cut."""
    gaps = {(gap.first_seq, gap.last_seq) for gap in sent.manifest.excluded if gap.reason == "summarised"}
    known = {one.id: one for one in await memory.summaries.all_of(sent.manifest.session_id or "")} if gaps else {}
    shown: set[tuple[int, int]] = set()
    for entry, message in zip(sent.manifest.entries, sent.messages, strict=True):
        for one in (known[name] for name in entry.summaries):
            shown.add((one.first_seq, one.last_seq))
            assert entry.tokens_before is not None or one.text in text_of(message)
    assert gaps <= shown


async def rows_of(memory: Memory, session_id: str) -> list[Message]:
    """Return all messages of a session."""
    return await memory.session(session_id).tail(_WHOLE_SESSION)
