"""Guarantees of sessions: their metadata, and how they are listed, changed and deleted."""
# ruff: noqa: S101 - a contract asserts

from __future__ import annotations

from dataclasses import replace

import pytest

from threadkeep.errors import InvalidMessage
from threadkeep.records import SessionInfo
from threadkeep.store.transcripts import Branching, SessionChanges, SessionQuery, Superseding, Transcripts
from threadkeep.testing.transcript_source import TranscriptSource, assistant, note, turn, user


class SessionGuarantees(TranscriptSource):
    """Contract tests of whole sessions."""

    async def test_a_session_tells_what_it_has(self) -> None:
        """The session's info has its counts, owner and times, and defaults for the other fields."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi"), assistant("hello"), note("note"), user_id="u1"))
            info = await info_of(transcripts)
            assert (info.session_id, info.user_id, info.message_count, info.last_seq) == ("room:1", "u1", 3, 3)
            assert (info.active, info.tags, dict(info.metadata), info.reset_seq) == (True, (), {}, 0)
            assert info.created_at.tzinfo is not None
            await transcripts.append(turn(user("more")))
            later = await info_of(transcripts)
            assert (later.message_count, later.created_at) == (4, info.created_at)
            assert later.updated_at > info.updated_at

    async def test_any_text_is_a_session_id(self) -> None:
        """Any text can be a session id. Ids are the same only if their texts are equal."""
        ids = ["a.b", "a%2Eb", "a%2eb", "a=2Eb", "a/b", "a b", "A.B", "me@example.com", "+351912345678", "a_2eb"]
        ids += ["🙂", "é", "e\u0301", "%", "_", "\\", "'", '"', "langgraph", "a:chunk:000000", "a__meta__", "🙂" * 256]
        async with self.open_transcripts() as transcripts:
            for number, session_id in enumerate(ids):
                receipt = await transcripts.append(turn(user(f"message {number}", "m:1"), session=session_id))
                assert (receipt.first_seq, receipt.duplicates) == (1, ())
            for number, session_id in enumerate(ids):
                found = await transcripts.find(session_id, "m:1")
                assert found is not None
                assert found.content == f"message {number}"
                assert (await info_of(transcripts, session_id)).session_id == session_id
            assert sorted(await _ids(transcripts, SessionQuery(limit=100))) == sorted(ids)
            for session_id in ids:
                assert await transcripts.delete(session_id) is True
            assert await _ids(transcripts, SessionQuery()) == []

    async def test_the_title_is_the_first_user_message_up_to_50_characters(self) -> None:
        """A longer message is cut and ends with an ellipsis. An agent's greeting is no title."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(assistant("welcome")))
            assert (await info_of(transcripts)).title is None
            await transcripts.append(turn(user("é" * 50)))
            await transcripts.append(turn(user("later")))
            assert (await info_of(transcripts)).title == "é" * 50
            await transcripts.append(turn(user("é" * 51), session="room:2"))
            assert (await info_of(transcripts, "room:2")).title == "é" * 50 + "…"

    async def test_the_last_message_is_the_newest_text_up_to_100_characters(self) -> None:
        """A longer text is cut. A message may be empty, for example the answer of a model that failed."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi"), assistant("中" * 100)))
            assert (await info_of(transcripts)).last_message == "中" * 100
            await transcripts.append(turn(user("b" * 101), assistant("")))
            await transcripts.branch(Branching("room:1", "room:2"))
            for session_id in ("room:1", "room:2"):
                assert (await info_of(transcripts, session_id)).last_message == "b" * 100 + "…"
            await transcripts.supersede(Superseding("room:1", newest=2))
            await transcripts.append(turn(user(""), user("")))
            await transcripts.supersede(Superseding("room:1", newest=1))
            assert (await info_of(transcripts)).last_message == "中" * 100

    async def test_a_turn_that_was_there_changes_nothing_of_its_session(self) -> None:
        """Storing a turn again changes neither the counts nor the time of the last activity."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi", "p:1")))
            await transcripts.append(turn(assistant("hello")))
            before = await info_of(transcripts)
            await transcripts.append(turn(user("hi", "p:1")))
            assert await info_of(transcripts) == before

    async def test_sessions_are_listed_by_newest_activity(self) -> None:
        """A new message moves its session to the front."""
        async with self.open_transcripts() as transcripts:
            await _open_sessions(transcripts, "a", "b", "c", "a")
            assert await _ids(transcripts, SessionQuery()) == ["a", "c", "b"]

    async def test_the_cursor_leads_through_all_sessions_once(self) -> None:
        """With a limit of two, the pages list each of five sessions once."""
        async with self.open_transcripts() as transcripts:
            await _open_sessions(transcripts, "a", "b", "c", "d", "e")
            query, found = SessionQuery(limit=2), []
            while page := await transcripts.sessions(query):
                found += [info.session_id for info in page]
                query = replace(query, cursor=(page[-1].updated_at, page[-1].session_id))
            assert found == ["e", "d", "c", "b", "a"]

    async def test_a_conversation_of_an_agent_is_deleted_with_its_session(self) -> None:
        """An agent's separate conversation is deleted even if only its first turn names the session."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi"), session="a"))
            own = replace(turn(user("find it"), session="own:1"), parent=("a", "searcher"))
            await transcripts.append(own)
            await transcripts.append(turn(user("and this"), session="own:1"))
            await transcripts.append(turn(user("hello"), session="b"))
            info = await info_of(transcripts, "own:1")
            assert (info.parent_session_id, info.parent_seq, info.agent) == ("a", None, "searcher")
            assert await transcripts.delete("a")
            assert await _ids(transcripts, SessionQuery()) == ["b"]

    async def test_a_user_lists_own_sessions_only(self) -> None:
        """Sessions of other users are not listed, with or without a search text."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hello"), session="a", user_id="u1"))
            await transcripts.append(turn(user("hello"), session="b", user_id="u2"))
            await transcripts.append(turn(user("hello"), session="c"))
            assert await _ids(transcripts, SessionQuery(user_id="u1")) == ["a"]
            assert await _ids(transcripts, SessionQuery(user_id="u2", query="hello")) == ["b"]
            assert await _ids(transcripts, SessionQuery()) == ["c", "b", "a"]

    async def test_a_query_looks_into_title_last_message_and_id(self) -> None:
        """The search in titles, last messages and session ids ignores case."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("About Refunds"), session="a"))
            await transcripts.append(turn(user("hi"), assistant("your REFUND is on its way"), session="b"))
            await transcripts.append(turn(user("hi"), session="refund-desk"))
            await transcripts.append(turn(user("退款什么时候到"), session="d"))
            assert await _ids(transcripts, SessionQuery(query="refund")) == ["refund-desk", "b", "a"]
            assert await _ids(transcripts, SessionQuery(query="退款")) == ["d"]

    async def test_a_query_finds_the_very_text_of_a_title(self) -> None:
        """A word copied from a title finds the session even if the word has non-ASCII capitals."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("Ärger mit Ölheizung"), session="a"))
            assert await _ids(transcripts, SessionQuery(query="Ärger")) == ["a"]
            assert await _ids(transcripts, SessionQuery(query="Ölheizung")) == ["a"]

    async def test_a_query_is_literal(self) -> None:
        r"""Percent, underscore and backslash have no special meaning, and invalid text finds nothing."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user(r"100%_sure\now"), session="a"))
            await transcripts.append(turn(user("100 times unsure, now"), session="b"))
            for query in ("%", "_", "\\", r"0%_s", r"e\n"):
                assert await _ids(transcripts, SessionQuery(query=query)) == ["a"]
            assert await _ids(transcripts, SessionQuery(query="\x00\ud800")) == []

    async def test_sessions_with_a_tag_can_be_listed(self) -> None:
        """Only sessions with exactly this tag are listed, whatever characters the tag has."""
        async with self.open_transcripts() as transcripts:
            await _open_sessions(transcripts, "a", "b", "c")
            await transcripts.change("a", SessionChanges(tags=("vip", 'says "hi"', "é%_")))
            await transcripts.change("b", SessionChanges(tags=("vip too",)))
            for tag in ("vip", 'says "hi"', "é%_"):
                assert await _ids(transcripts, SessionQuery(tag=tag)) == ["a"]
            assert await _ids(transcripts, SessionQuery(tag="vip", query="b")) == []
            for tag in ("v", "hi", "\x00", "\ud800"):
                assert await _ids(transcripts, SessionQuery(tag=tag)) == []

    async def test_sessions_of_a_channel_can_be_listed(self) -> None:
        """The channel is the part of the id before a colon, compared literally."""
        async with self.open_transcripts() as transcripts:
            await _open_sessions(transcripts, "telegram:1:2", "telegram:1:3", "Telegram:1", "telegram", "web:telegram")
            found = await _ids(transcripts, SessionQuery(channel="telegram"))
            assert sorted(found) == ["telegram:1:2", "telegram:1:3"]
            assert await _ids(transcripts, SessionQuery(channel="telegram:1", query="3")) == ["telegram:1:3"]
            for channel in ("tele", "tele%", "\x00", "\ud800"):
                assert await _ids(transcripts, SessionQuery(channel=channel)) == []

    async def test_closed_sessions_can_be_listed_apart(self) -> None:
        """With `active` True or False, only active or only closed sessions are listed."""
        async with self.open_transcripts() as transcripts:
            await _open_sessions(transcripts, "a", "b")
            await transcripts.change("a", SessionChanges(active=False))
            assert await _ids(transcripts, SessionQuery(active=True)) == ["b"]
            assert await _ids(transcripts, SessionQuery(active=False)) == ["a"]
            assert await _ids(transcripts, SessionQuery()) == ["b", "a"]

    async def test_a_change_leaves_what_it_does_not_name(self) -> None:
        """Title, tags, metadata and `active` change independently; NUL in their texts becomes U+FFFD."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi")))
            await transcripts.change("room:1", SessionChanges(tags=["vip", "中文"], metadata={"a": {"b": [1, 2.5]}}))
            await transcripts.change("room:1", SessionChanges(title="Renamed\x00"))
            info = await info_of(transcripts)
            assert (info.title, info.tags, info.active) == ("Renamed\ufffd", ("vip", "中文"), True)
            assert info.metadata == {"a": {"b": [1, 2.5]}}
            await transcripts.change("room:1", SessionChanges(tags=[], active=False))
            info = await info_of(transcripts)
            assert (info.title, info.tags, info.active) == ("Renamed\ufffd", (), False)
            await transcripts.append(turn(user("more")))
            assert (await info_of(transcripts)).title == "Renamed\ufffd"

    async def test_a_change_that_is_no_json_is_refused_whole(self) -> None:
        """If a part of a change is not valid JSON, nothing of the change is stored."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi")))
            with pytest.raises(InvalidMessage):
                await transcripts.change("room:1", SessionChanges(title="new", metadata={"x": float("inf")}))
            assert (await info_of(transcripts)).title == "hi"

    async def test_a_deleted_session_is_gone_and_begins_again_at_1(self) -> None:
        """A deletion removes all data of a session; the session's next message has `seq` 1."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("old", "p:1"), assistant("reply"), user_id="u1"))
            await transcripts.append(turn(user("other"), session="room:2"))
            await transcripts.reset("room:1")
            assert await transcripts.delete("room:1") is True
            assert await transcripts.delete("room:1") is False
            assert (await transcripts.newest("room:1", limit=5)).messages == ()
            assert await _ids(transcripts, SessionQuery()) == ["room:2"]
            receipt = await transcripts.append(turn(user("new", "p:1"), user_id="u2"))
            assert (receipt.first_seq, receipt.duplicates) == (1, ())
            info = await info_of(transcripts)
            assert (info.title, info.user_id, info.reset_seq, info.message_count) == ("new", "u2", 0, 1)


async def info_of(transcripts: Transcripts, session_id: str = "room:1") -> SessionInfo:
    """Return the metadata of a session that exists."""
    info = await transcripts.session(session_id)
    assert info is not None
    return info


async def _ids(transcripts: Transcripts, query: SessionQuery) -> list[str]:
    return [info.session_id for info in await transcripts.sessions(query)]


async def _open_sessions(transcripts: Transcripts, *session_ids: str) -> None:
    for session_id in session_ids:
        await transcripts.append(turn(user("hi"), session=session_id))
