"""`rebuild`: the messages of a recorded model call, from its manifest and the stored data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage

from threadkeep.agent.conversion import digest_of_all, load_message, to_langchain
from threadkeep.agent.extras import section_message, turns_message
from threadkeep.context.manifest import ContextManifest, Entry, TurnReference
from threadkeep.context.quotation import QuotedTurn, summary_message_text
from threadkeep.errors import ContextGone, InvalidInput, RecordUnreadable
from threadkeep.history.memory import Memory
from threadkeep.records import Json, Message, Summary
from threadkeep.store.manifests import StoredManifest

_UNREADABLE = "record_unreadable"


async def rebuild(
    manifest: StoredManifest | ContextManifest | Mapping[str, Json], memory: Memory | None = None
) -> list[BaseMessage]:
    """Return the messages of a model call exactly as they were sent, the system message first.

    Args:
        manifest: the record of the call, from `memory.manifests` or the HTTP API.
        memory: the memory that stored the record; not needed if `memory.manifests` returned the record.

    Raises:
        ContextGone: some of the call's data was deleted or has changed.
        InvalidInput: the record is not a manifest, or its memory is unknown.
        RecordUnreadable: the stored record is damaged.
    """
    if isinstance(manifest, StoredManifest):
        memory = memory or (manifest.origin if isinstance(manifest.origin, Memory) else None)
        manifest = recorded(manifest)
    if memory is None:
        raise InvalidInput("Pass the memory that stored the manifest: rebuild(manifest, memory).")
    context = manifest if isinstance(manifest, ContextManifest) else _read(manifest)
    if _UNREADABLE in context.notes:
        raise RecordUnreadable("The record of this model call is damaged; restore a backup of the database.")
    parts = await ContextParts.read(context, memory)
    messages = [parts.message(entry) for entry in context.entries]
    if digest_of_all(messages) != context.digest:
        raise ContextGone(
            "The messages of this model call have changed: its session was deleted and begun again, or this version of "
            "Threadkeep writes a section differently."
        )
    return messages


def recorded(stored: StoredManifest) -> ContextManifest:
    """Return the manifest of a recorded call; if it is damaged, a manifest with just the note `record_unreadable`."""
    values = {"created_at": stored.created_at.isoformat(), **stored.manifest, "call": stored.call}
    try:
        return ContextManifest.from_dict(values)
    except ValueError:
        known = {name: getattr(stored, name) for name in ("session_id", "run_id", "call", "created_at")}
        return ContextManifest(**known, counter="", notes=(_UNREADABLE,))


def _read(manifest: Mapping[str, Json]) -> ContextManifest:
    try:
        return ContextManifest.from_dict(manifest)
    except ValueError:
        raise InvalidInput("This is not the manifest of a model call; pass one that the API returned.") from None


@dataclass
class ContextParts:
    """The messages, summaries and texts to which the entries of a manifest refer, read from the database once."""

    session_id: str
    texts: Mapping[str, str]
    summaries: Mapping[str, Summary]
    by_reference: dict[TurnReference, Message] = field(default_factory=dict)
    by_id: dict[str, Message] = field(default_factory=dict)

    @classmethod
    async def read(cls, context: ContextManifest, memory: Memory) -> ContextParts:
        """Read the stored messages, summaries and texts to which the record `context` refers, unless deleted."""
        conversation = context.conversation
        owner = memory if conversation is None else await memory.memory_of(conversation)
        home = (context.session_id or "") if conversation is None else conversation.key
        digests = [entry.digest for entry in context.entries if entry.digest is not None]
        texts = await memory.manifests.texts(context.session_id, digests, run_id=context.run_id) if digests else {}
        summarised = any(entry.summaries for entry in context.entries)
        summaries = await memory.summaries.all_of(home) if summarised else []
        parts = cls(home, texts, {summary.id: summary for summary in summaries})
        entries = [entry for entry in context.entries if entry.source == "transcript"] if home else []
        for message_id in {entry.id for entry in entries if entry.seq is None and entry.id is not None}:
            found = await owner.session(home).find(message_id)
            parts.by_id |= {message_id: found} if found is not None else {}
        await parts._take(owner, home, {entry.seq for entry in entries if entry.seq is not None})
        quoted = [turn for entry in context.entries for turn in entry.turns]
        for session_id in sorted({turn.session_id for turn in quoted}):
            await parts._take(memory, session_id, {turn.seq for turn in quoted if turn.session_id == session_id})
        return parts

    async def _take(self, memory: Memory, session_id: str, seqs: Collection[int]) -> None:
        for message in await memory.session(session_id).at(seqs) if seqs else ():
            self.by_reference[TurnReference(session_id, message.seq or 0)] = message

    def message(self, entry: Entry) -> BaseMessage:
        """Return the message to which a manifest entry refers. Raise `ContextGone` if it was deleted."""
        match entry.source:
            case "transcript":
                reference = TurnReference(self.session_id, entry.seq or 0)
                stored = self.by_reference.get(reference) or self.by_id.get(entry.id or "")
                return to_langchain(_required(stored, f"message {entry.seq or ''}".strip()))
            case "summaries":
                found = [_required(self.summaries.get(name), "a summary") for name in entry.summaries]
                return section_message("summary", summary_message_text(found))
            case "turns":
                references = [TurnReference(turn.session_id, turn.seq) for turn in entry.turns]
                messages = [_required(self.by_reference.get(one), f"message {one.seq}") for one in references]
                pairs = zip(entry.turns, messages, strict=True)
                quoted = [QuotedTurn(turn.session_id, message, turn.part) for turn, message in pairs]
                return turns_message(quoted, home=self.session_id)
            case "text":
                return load_message(_required(self.texts.get(entry.digest or ""), "a text"))


def _required[T](found: T | None, what: str) -> T:
    if found is None:
        raise ContextGone(f"This model call cannot be rebuilt, because {what} was deleted.")
    return found
