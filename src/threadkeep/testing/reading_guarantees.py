"""Guarantees of reading a transcript: the order of messages, windows of recent messages, and separation of users."""
# ruff: noqa: S101 - a contract asserts

from __future__ import annotations

from dataclasses import replace

from threadkeep.records import Message, Turn
from threadkeep.store.transcripts import Transcripts
from threadkeep.testing.transcript_source import TranscriptSource, assistant, contents, note, seqs, turn, user


class ReadingGuarantees(TranscriptSource):
    """Contract tests of reading a transcript."""

    async def test_the_newest_come_oldest_first(self) -> None:
        """With a limit of 3, messages 8, 9 and 10 of ten are returned, in this order."""
        async with self.open_transcripts() as transcripts:
            await _say_numbers(transcripts, 10)
            page = await transcripts.newest("room:1", limit=3)
            assert seqs(page.messages) == [8, 9, 10]
            assert page.next_before == 8

    async def test_pages_walk_back_to_the_beginning(self) -> None:
        """Pages linked by `next_before` have each message once."""
        async with self.open_transcripts() as transcripts:
            await _say_numbers(transcripts, 10)
            before, found = 2**62, list[int | None]()
            while True:
                page = await transcripts.newest("room:1", limit=5, before=before)
                found[:0] = seqs(page.messages)
                if page.next_before is None:
                    break
                before = page.next_before
            assert found == list(range(1, 11))
            assert seqs((await transcripts.newest("room:1", limit=5, before=6)).messages) == [1, 2, 3, 4, 5]

    async def test_a_place_beyond_every_message_is_the_end(self) -> None:
        """A `before` above the last `seq` returns all messages; a `before` of 1 returns none."""
        async with self.open_transcripts() as transcripts:
            await _say_numbers(transcripts, 3)
            assert seqs((await transcripts.newest("room:1", limit=5, before=10**30)).messages) == [1, 2, 3]
            assert seqs((await transcripts.recent("room:1", limit=5, before=10**30)).messages) == [3, 2, 1]
            assert (await transcripts.newest("room:1", limit=5, before=1)).messages == ()
            assert (await transcripts.newest("room:1", limit=5, before=-7)).messages == ()

    async def test_a_limit_of_0_is_none(self) -> None:
        """With a limit of 0, no messages are returned."""
        async with self.open_transcripts() as transcripts:
            await _say_numbers(transcripts, 3)
            page = await transcripts.newest("room:1", limit=0)
            assert (page.messages, page.next_before) == ((), None)

    async def test_a_session_that_is_not_there_is_empty(self) -> None:
        """Reading, resetting or deleting a missing session creates no session and raises no error."""
        async with self.open_transcripts() as transcripts:
            assert (await transcripts.newest("room:1", limit=5)).messages == ()
            assert (await transcripts.recent("room:1", limit=5)).messages == ()
            assert await transcripts.find("room:1", "p:1") is None
            assert await transcripts.answers_to("room:1", Message("user", "hi", id="q", seq=1)) == []
            assert await transcripts.tell("room:1", "q") is None
            assert await transcripts.session("room:1") is None
            assert await transcripts.reset("room:1") is None
            assert await transcripts.delete("room:1") is False

    async def test_what_was_stored_is_read_at_once(self) -> None:
        """A read that starts after an append has ended includes the appended turn."""
        async with self.open_transcripts() as transcripts:
            for number in range(1, 21):
                await transcripts.append(turn(user(f"{number}")))
                assert seqs((await transcripts.newest("room:1", limit=1)).messages) == [number]

    async def test_a_message_is_found_by_its_id(self) -> None:
        """A message is found only in its own session. Its id may be any text."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi", "it's 100%_\\"), assistant("hello", "p:2")))
            found = await transcripts.find("room:1", "it's 100%_\\")
            assert (found and (found.seq, found.content)) == (1, "hi")
            assert await transcripts.find("room:1", "it's 100%x\\") is None
            assert await transcripts.find("room:1", "no\x00such\ud800id") is None
            assert await transcripts.find("room:2", "p:2") is None

    async def test_the_answers_to_a_question_are_the_complete_ones(self) -> None:
        """The complete answer of each author is returned; partial answers are not."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("question", "q"), assistant("earlier")))
            question = await transcripts.find("room:1", "q")
            assert question is not None
            assert await transcripts.answers_to("room:1", question) == []
            one = Message("assistant", "one", author="writer", answers="q")
            await transcripts.append(turn(one, replace(one, content="cut", ordinal=2, status="interrupted")))
            await transcripts.append(turn(replace(one, content="other", answers="q2"), replace(one, author="critic")))
            found = await transcripts.answers_to("room:1", question)
            assert [(answer.author, answer.content) for answer in found] == [("writer", "one"), ("critic", "one")]
            told = await transcripts.tell("room:1", str(found[0].id))
            assert (told and told.content) == "one"

    async def test_answers_without_a_question_of_their_own_are_known_by_their_run(self) -> None:
        """If no answer names the question, the newest complete answer of the question's run is returned."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(
                turn(assistant("earlier", run_id="r1"), Message("user", "question", id="q", run_id="r1"))
            )
            question = await transcripts.find("room:1", "q")
            assert question is not None
            assert await transcripts.answers_to("room:1", question) == []
            await transcripts.append(turn(assistant("first", run_id="r1"), assistant("other", run_id="r2")))
            await transcripts.append(turn(assistant("second", run_id="r1"), user("next")))
            assert contents(await transcripts.answers_to("room:1", question)) == ["second"]

    async def test_recent_has_no_system_rows_and_counts_none(self) -> None:
        """`recent` returns only user and assistant messages, newest first; system messages do not count for `limit`."""
        async with self.open_transcripts() as transcripts:
            for number in range(1, 6):
                await transcripts.append(turn(note("note"), user(f"q{number}"), note("note"), assistant(f"a{number}")))
            recent = await transcripts.recent("room:1", limit=4)
            assert contents(recent.messages) == ["a5", "q5", "a4", "q4"]
            assert (recent.reset_seq, recent.newest_user) == (0, None)
            older = await transcripts.recent("room:1", limit=2, before=recent.messages[-1].seq or 0)
            assert contents(older.messages) == ["a3", "q3"]

    async def test_recent_starts_after_the_last_reset(self) -> None:
        """`recent` returns only messages after the last reset; the transcript keeps the earlier ones."""
        async with self.open_transcripts() as transcripts:
            await _say_numbers(transcripts, 4)
            assert await transcripts.reset("room:1") == 4
            nothing = await transcripts.recent("room:1", limit=10)
            assert (nothing.messages, nothing.reset_seq) == ((), 4)
            await transcripts.append(turn(user("after")))
            recent = await transcripts.recent("room:1", limit=10)
            assert contents(recent.messages) == ["after"]
            assert (recent.reset_seq, recent.newest_user) == (4, None)
            assert len((await transcripts.newest("room:1", limit=10)).messages) == 5
            assert await transcripts.reset("room:1") == 5

    async def test_answers_to_questions_before_a_reset_are_before_it(self) -> None:
        """Late answers to questions before a reset are in the transcript, but `recent` leaves them out."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("q1", "q1")))
            assert await transcripts.reset("room:1") == 1
            for text in ("a1", "b1"):
                await transcripts.append(Turn("room:1", (assistant(text),), answers="q1"))
            assert (await transcripts.recent("room:1", limit=10)).messages == ()
            assert contents((await transcripts.newest("room:1", limit=10)).messages) == ["q1", "a1", "b1"]
            await transcripts.append(turn(user("q2", "q2")))
            await transcripts.append(Turn("room:1", (assistant("a2"),), answers="q2"))
            recent = await transcripts.recent("room:1", limit=10)
            assert (contents(recent.messages), recent.reset_seq) == (["a2", "q2"], 3)

    async def test_recent_names_the_newest_user_message_when_it_is_older(self) -> None:
        """The newest user message is found even if thirty assistant messages follow it, but not after a reset."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("old"), user("the question")))
            await transcripts.append(turn(*[assistant(f"step {n}") for n in range(30)]))
            recent = await transcripts.recent("room:1", limit=20)
            assert (recent.newest_user and recent.newest_user.content) == "the question"
            assert (await transcripts.recent("room:1", limit=31)).newest_user is None
            await transcripts.reset("room:1")
            await transcripts.append(turn(assistant("hello again")))
            assert (await transcripts.recent("room:1", limit=1)).newest_user is None

    async def test_recent_before_a_place_is_as_if_nothing_had_followed(self) -> None:
        """`newest_user` is the newest user message with a `seq` below `before`, not a later message."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("first"), *[assistant(f"step {n}") for n in range(5)]))
            await transcripts.append(turn(user("second"), *[assistant(f"step {n}") for n in range(5, 10)]))
            recent = await transcripts.recent("room:1", limit=3, before=7)
            assert seqs(recent.messages) == [6, 5, 4]
            assert (recent.newest_user and recent.newest_user.content) == "first"

    async def test_recent_after_a_place_knows_nothing_of_what_came_before(self) -> None:
        """No message whose `seq` is `after` or lower is returned, not even as `newest_user`."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("first"), *[assistant(f"step {n}") for n in range(5)]))
            recent = await transcripts.recent("room:1", limit=2, after=1)
            assert (seqs(recent.messages), recent.newest_user) == ([6, 5], None)
            assert seqs((await transcripts.recent("room:1", limit=9, after=4)).messages) == [6, 5]
            assert (await transcripts.recent("room:1", limit=9, after=6)).messages == ()

    async def test_messages_are_found_by_their_places(self) -> None:
        """The messages with the given `seq` numbers are returned once and in order; missing ones are left out."""
        async with self.open_transcripts() as transcripts:
            await _say_numbers(transcripts, 9)
            found = await transcripts.at("room:1", [7, 2, 2, 40, 3])
            assert [(message.seq, message.content) for message in found] == [(2, "2"), (3, "3"), (7, "7")]
            assert await transcripts.at("room:1", []) == []
            assert await transcripts.at("room:2", [1]) == []

    async def test_another_user_finds_nothing(self) -> None:
        """A read that names a user finds only this user's sessions."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("mine"), user_id="u1"))
            await transcripts.append(turn(user("nobody's"), session="room:2"))
            for session in ("room:1", "room:2"):
                assert (await transcripts.newest(session, limit=5, user_id="u2")).messages == ()
                assert (await transcripts.recent(session, limit=5, user_id="u2")).messages == ()
                assert await transcripts.session(session, user_id="u2") is None
                assert await transcripts.reset(session, user_id="u2") is None
                assert len((await transcripts.newest(session, limit=5)).messages) == 1
            assert contents((await transcripts.newest("room:1", limit=5, user_id="u1")).messages) == ["mine"]
            assert contents((await transcripts.recent("room:1", limit=5, user_id="u1")).messages) == ["mine"]


async def _say_numbers(transcripts: Transcripts, count: int) -> None:
    await transcripts.append(turn(*[user(f"{number}") for number in range(1, count + 1)]))
