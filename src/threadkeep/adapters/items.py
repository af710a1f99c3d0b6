"""Storage of other frameworks' items as messages, including items that no person or model said (tool results)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from langchain_core.utils.uuid import uuid7

from threadkeep.agent.counting import media_name
from threadkeep.errors import SessionNotFound, StoreUnavailable
from threadkeep.history.session import LONGEST_PAGE, Session
from threadkeep.records import Json, Message, Role, View
from threadkeep.store.driver import Joined

_OPENAI_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant"}
_OPENAI_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_ATTEMPTS = 20  # on PostgreSQL, each waits half a second for a locked session
_PAGE = 50


def item_message(framework: str, item: Json, *, role: Role | None, text: str, message_id: str | None = None) -> Message:
    """Return the message that stores an item. Its field `original` maps the framework's name to the item.

    An item without role or text (a tool result, for example) becomes a note with `text` as its label. Context windows
    leave notes out.
    """
    return Message(
        role=role if role and text else "system",
        content=text,
        id=message_id or str(uuid7()),
        original={framework: item},
    )


def stored_item(framework: str, message: Message) -> Json:
    """Return the item that a framework stored with a message, or None if it stored none."""
    if not isinstance(message.original, Mapping):
        return None
    return message.original.get(framework)


def openai_role(item: Mapping[str, object]) -> Role | None:
    """Return the role of an OpenAI item; None if the item is not a message of a user or an assistant."""
    return _OPENAI_ROLES.get(str(item.get("role"))) if item.get("type", "message") == "message" else None


def openai_text(content: object) -> str:
    """Return the text of an OpenAI item's content, with placeholders for images and files."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (_openai_part(part) for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if text)


def _openai_part(part: Mapping[str, object]) -> str:
    text = part.get(_OPENAI_TEXTS.get(str(part.get("type")), ""))
    if isinstance(text, str):
        return text
    name = media_name(part)
    return "" if name == "part" else f"[{name}]"


async def read_messages(
    session: Session, limit: int | None = None, *, keep: Callable[[Message], bool] | None = None
) -> list[Message]:
    """Return the newest `limit` active messages since the last reset that `keep` accepts, oldest first."""
    try:
        after = (await session.info()).reset_seq
    except SessionNotFound:
        return []
    return await messages_after(session, after, limit, keep=keep)


async def messages_after(
    session: Session,
    after: int,
    limit: int | None = None,
    *,
    view: View = "active",
    keep: Callable[[Message], bool] | None = None,
) -> list[Message]:
    """Return the newest `limit` messages that have a `seq` above `after` and are accepted by `keep`, oldest first."""
    found: list[Message] = []
    before: int | None = None
    while (missing := LONGEST_PAGE if limit is None else limit - len(found)) > 0:
        size = missing if keep is None else max(missing, _PAGE)
        page = await session.page(before, min(size, LONGEST_PAGE), view=view)
        wanted = [message for message in page.messages if (message.seq or 0) > after]
        found = [*(wanted if keep is None else filter(keep, wanted)), *found]
        before = page.next_before
        if before is None or len(wanted) < len(page.messages):
            break
    return found if limit is None else found[-limit:]


async def take_back_newest(session: Session, keep: Callable[[Message], bool]) -> Message | None:
    """Take back the newest message after the last reset that `keep` accepts, and all later ones; return it, or None."""
    while await read_messages(session, 1, keep=keep):
        taken = await session.take_back()
        if taken and keep(taken[0]):
            return taken[0]
    return None


async def base_revision(session: Session) -> int:
    """Return the number at which a session's revisions start: the `seq` up to which messages were deleted, or 0.

    Revisions with lower numbers may have been deleted. Their ids must not be used again.
    """
    try:
        return (await session.info()).deleted_seq
    except SessionNotFound:
        return 0


async def append_once(session: Session, messages: Sequence[Message], joined: Joined) -> bool:
    """Store messages in one transaction, in which the SQL statements of `joined` are also executed.

    The first message marks a revision of the session by its id. Return False if another writer stored this id first.
    If a call is repeated after it succeeded, return True.

    Raises:
        WrongUser: the session belongs to another user.
        StoreUnavailable: the database does not answer, or the id of a later message already exists.
    """
    revision = messages[0]
    await session.deliver()  # with nothing to deliver, the next write is tried although an earlier one failed
    for _ in range(_ATTEMPTS):
        if await session.record_joined(messages, joined) is not None:
            return True
        found = await session.find(str(revision.id))
        if found is not None:
            return found.original == revision.original
        await session.check_owner()
    raise StoreUnavailable("The messages were not stored: the database is busy, or one of their ids exists. Try again.")
