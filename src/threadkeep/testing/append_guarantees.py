"""Guarantees of storing turns: each is stored whole and once, and no `seq` is left out."""
# ruff: noqa: S101 - a contract asserts

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from threadkeep.errors import InvalidMessage, QuestionGone, WrongUser
from threadkeep.records import Json, Message, Turn
from threadkeep.testing.transcript_source import TranscriptSource, assistant, contents, seqs, turn, user


class AppendGuarantees(TranscriptSource):
    """Contract tests of storing a turn."""

    async def test_a_turn_is_stored_in_order_from_1_on(self) -> None:
        """The first turn begins at `seq` 1, and the next one follows without a gap."""
        async with self.open_transcripts() as transcripts:
            first = await transcripts.append(turn(user("one"), assistant("two")))
            second = await transcripts.append(turn(user("three")))
            assert (first.first_seq, first.last_seq) == (1, 2)
            assert (second.first_seq, second.last_seq) == (3, 3)
            page = await transcripts.newest("room:1", limit=10)
            assert contents(page.messages) == ["one", "two", "three"]
            assert seqs(page.messages) == [1, 2, 3]

    async def test_each_session_has_numbers_of_its_own(self) -> None:
        """Each session numbers its messages from 1."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("one"), session="room:1"))
            assert (await transcripts.append(turn(user("other"), session="room:2"))).first_seq == 1

    async def test_a_turn_that_is_refused_leaves_nothing(self) -> None:
        """If one message of a turn cannot be stored, none is, and no `seq` is used up."""
        async with self.open_transcripts() as transcripts:
            bad = Message(role="assistant", content="two", metadata={"score": 1.0})
            object.__setattr__(bad, "metadata", {"score": float("nan")})  # as if other code had set it after validation
            with pytest.raises(InvalidMessage):
                await transcripts.append(turn(user("one"), bad))
            with pytest.raises(InvalidMessage):
                await transcripts.append(turn())
            assert await transcripts.session("room:1") is None
            assert (await transcripts.append(turn(user("three")))).first_seq == 1

    async def test_a_refused_turn_does_not_hurt_those_beside_it(self) -> None:
        """A rejected turn does not affect turns that arrive at the same time."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("mine"), user_id="u1"))
            turns = [turn(user(f"good {n}"), session=f"room:{n}") for n in range(2, 6)]
            turns.insert(2, turn(user("not mine"), user_id="u2"))
            outcomes = await asyncio.gather(*map(transcripts.append, turns), return_exceptions=True)
            assert [type(outcome).__name__ for outcome in outcomes] == ["Receipt"] * 2 + ["WrongUser"] + ["Receipt"] * 2

    async def test_the_same_turn_again_is_not_stored_again(self) -> None:
        """A turn that is appended again stores nothing; its receipt has the ids and `seq` of the stored messages."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("before")))
            await transcripts.append(turn(user("hi", "p:1"), assistant("hello", "p:2")))
            receipt = await transcripts.append(turn(user("changed", "p:1"), assistant("hello", "p:2")))
            assert receipt.duplicates == ("p:1", "p:2")
            assert (receipt.first_seq, receipt.last_seq) == (2, 3)
            assert contents((await transcripts.newest("room:1", limit=10)).messages) == ["before", "hi", "hello"]

    async def test_the_new_part_of_a_repeated_turn_is_stored(self) -> None:
        """If a turn is appended again with more messages, only the new ones are stored, without a gap."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi", "p:1")))
            receipt = await transcripts.append(turn(user("hi", "p:1"), assistant("hello", "p:2")))
            assert (receipt.first_seq, receipt.last_seq) == (2, 2)
            assert receipt.duplicates == ("p:1",)
            page = await transcripts.newest("room:1", limit=10)
            assert contents(page.messages) == ["hi", "hello"]
            assert seqs(page.messages) == [1, 2]

    async def test_an_id_twice_in_one_turn_is_one_message(self) -> None:
        """If two messages of a turn have the same id, only the first is stored."""
        async with self.open_transcripts() as transcripts:
            receipt = await transcripts.append(turn(user("hi", "p:1"), user("hi again", "p:1"), assistant("hello")))
            assert receipt.duplicates == ("p:1",)
            assert contents((await transcripts.newest("room:1", limit=10)).messages) == ["hi", "hello"]

    async def test_a_turn_twice_at_once_is_one_turn(self) -> None:
        """A turn that is appended again while it is still being stored is recognised as the same turn."""
        async with self.open_transcripts() as transcripts:
            same = turn(user("hi", "p:1"), assistant("hello", "p:2"))
            receipts = await asyncio.gather(*(transcripts.append(same) for _ in range(10)))
            assert {(receipt.first_seq, receipt.last_seq) for receipt in receipts} == {(1, 2)}
            assert sum(not receipt.duplicates for receipt in receipts) == 1
            assert len((await transcripts.newest("room:1", limit=10)).messages) == 2

    async def test_an_id_is_known_in_its_own_session_only(self) -> None:
        """Two sessions may use the same message ids."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi", "1"), session="room:1"))
            assert (await transcripts.append(turn(user("hi", "1"), session="room:2"))).duplicates == ()

    async def test_the_same_words_twice_are_two_turns(self) -> None:
        """Messages without ids are not duplicates, even if their texts are equal."""
        async with self.open_transcripts() as transcripts:
            for _ in range(3):
                await transcripts.append(turn(user("ok"), assistant("Done.")))
            page = await transcripts.newest("room:1", limit=10)
            assert contents(page.messages) == ["ok", "Done."] * 3
            assert len({message.id for message in page.messages}) == 6

    async def test_turns_appended_at_once_by_one_process_keep_their_order(self) -> None:
        """Forty concurrent appends are stored in the order of their calls."""
        async with self.open_transcripts() as transcripts:
            turns = [turn(user(f"q{n}"), assistant(f"a{n}")) for n in range(40)]
            receipts = await asyncio.gather(*map(transcripts.append, turns))
            assert [receipt.first_seq for receipt in receipts] == list(range(1, 81, 2))
            page = await transcripts.newest("room:1", limit=80)
            assert contents(page.messages) == [text for n in range(40) for text in (f"q{n}", f"a{n}")]

    async def test_twenty_writers_of_two_messages_give_forty_places_and_no_torn_turn(self) -> None:
        """Each message has its own position, and the two messages of a turn are adjacent."""
        async with self.open_transcripts() as transcripts:

            async def write(n: int) -> None:
                await transcripts.append(turn(user(f"{n}", f"q{n}"), assistant(f"{n}", f"a{n}")))

            async with asyncio.TaskGroup() as writers:
                for n in range(20):
                    writers.create_task(write(n))
            page = await transcripts.newest("room:1", limit=50)
            assert seqs(page.messages) == list(range(1, 41))
            assert all(contents(page.messages[n : n + 2])[0] == page.messages[n + 1].content for n in range(0, 40, 2))

    async def test_the_turn_of_a_cancelled_caller_is_whole_or_absent(self) -> None:
        """If a caller is cancelled, its turn is stored whole or not at all."""
        async with self.open_transcripts() as transcripts:
            for steps in range(8):
                messages = [user(f"{steps} {part}") for part in range(3)]
                task = asyncio.ensure_future(transcripts.append(Turn("room:1", tuple(messages))))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await transcripts.append(turn(user("last")))
            page = await transcripts.newest("room:1", limit=100)
            assert seqs(page.messages) == list(range(1, len(page.messages) + 1))
            found = contents(page.messages)
            for steps in range(8):
                whole = [f"{steps} {part}" for part in range(3)]
                assert [text for text in found if text in whole] in ([], whole)
            assert found[-1] == "last"

    async def test_another_users_session_is_not_written(self) -> None:
        """The user of the first turn owns the session; another user's turn raises an error."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("mine"), user_id="u1"))
            with pytest.raises(WrongUser):
                await transcripts.append(turn(user("not mine"), user_id="u2"))
            await transcripts.append(turn(assistant("from the system itself")))
            page = await transcripts.newest("room:1", limit=10)
            assert contents(page.messages) == ["mine", "from the system itself"]

    async def test_of_two_users_at_once_one_owns_the_session(self) -> None:
        """If two users begin a session at once, only one user's turn is stored."""
        async with self.open_transcripts() as transcripts:
            outcomes = await asyncio.gather(
                transcripts.append(turn(user("of one"), user_id="u1")),
                transcripts.append(turn(user("of another"), user_id="u2")),
                return_exceptions=True,
            )
            assert [isinstance(outcome, WrongUser) for outcome in outcomes].count(True) == 1
            assert len((await transcripts.newest("room:1", limit=10)).messages) == 1

    async def test_a_turn_that_answers_a_message_is_stored_while_that_is_there(self) -> None:
        """If the answered message is gone, the turn is rejected, and no session is created."""
        async with self.open_transcripts() as transcripts:
            late = Turn("room:1", (assistant("late"),), answers="q")
            with pytest.raises(QuestionGone):
                await transcripts.append(late)
            with pytest.raises(QuestionGone):  # a question is stored before the turn that answers it
                await transcripts.append(Turn("room:1", (user("hi", "q"), assistant("late")), answers="q"))
            assert await transcripts.session("room:1") is None
            await transcripts.append(turn(user("hi", "q"), session="room:2"))
            answer = Turn("room:2", (assistant("hello", "a"),), answers="q")
            outcomes = await asyncio.gather(*map(transcripts.append, (answer, late, answer)), return_exceptions=True)
            assert [type(outcome).__name__ for outcome in outcomes] == ["Receipt", "QuestionGone", "Receipt"]
            assert contents((await transcripts.newest("room:2", limit=10)).messages) == ["hi", "hello"]
            await transcripts.delete("room:2")
            await transcripts.append(turn(user("anew"), session="room:2"))
            with pytest.raises(QuestionGone):
                await transcripts.append(answer)
            assert contents((await transcripts.newest("room:2", limit=10)).messages) == ["anew"]

    async def test_an_author_has_one_complete_answer_to_a_question(self) -> None:
        """A second one is not stored, and the receipt names the first. Two of them in one turn are an error."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi", "q")))
            first = Message("assistant", "one", id="a1", author="writer", answers="q")
            with pytest.raises(InvalidMessage, match="two complete answers of one author"):
                await transcripts.append(turn(first, replace(first, id="a2")))
            outcomes = await asyncio.gather(
                *[
                    transcripts.append(turn(replace(first, id=f"a{number}", content=f"answer {number}")))
                    for number in range(1, 6)
                ]
            )
            page = await transcripts.newest("room:1", limit=10)
            [_, winner] = page.messages
            assert [o.adopted for o in outcomes if o.ids != (winner.id,)] == [winner.id] * 4
            assert [o.adopted for o in outcomes if o.ids == (winner.id,)] == [None]
            await transcripts.append(turn(replace(first, id="b1", author="critic")))
            await transcripts.append(turn(replace(first, id="a9", ordinal=2)))
            await transcripts.append(turn(replace(first, id="c1", author=None)))
            await transcripts.append(turn(replace(first, id="cut", status="interrupted")))
            late = await transcripts.append(turn(replace(first, id="late")))
            assert late.adopted == winner.id
            stored = (await transcripts.newest("room:1", limit=10)).messages
            assert [(m.author, m.answers, m.ordinal, m.id) for m in stored[1:]] == [
                ("writer", "q", None, winner.id),
                ("critic", "q", None, "b1"),
                ("writer", "q", 2, "a9"),
                (None, "q", None, "c1"),
                ("writer", "q", None, "cut"),
            ]

    async def test_an_answer_that_was_told_in_an_outage_is_never_lost(self) -> None:
        """An answer that a caller has received stays active; a later answer to its question does not become active."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi", "q")))
            first = Message("assistant", "one", id="a1", author="writer", answers="q")
            told = Turn("room:1", (first,), answers="q", told=True)
            await transcripts.append(told)
            moment = datetime.now(UTC)
            late = replace(told, messages=(replace(first, id="a2", content="late"),), told=False, told_at=moment)
            assert (await transcripts.append(late)).adopted == "a1"
            question = await transcripts.find("room:1", "q")
            assert question is not None
            assert [answer.id for answer in await transcripts.answers_to("room:1", question)] == ["a1"]
            assert contents((await transcripts.newest("room:1", limit=10)).messages) == ["hi", "one"]

    async def test_a_deleted_session_leaves_no_answered_question_behind(self) -> None:
        """After a session is deleted, a question with the same id can be answered again."""
        async with self.open_transcripts() as transcripts:
            answer = Message("assistant", "one", id="a1", author="writer", answers="q")
            await transcripts.append(turn(user("hi", "q"), answer))
            await transcripts.delete("room:1")
            await transcripts.append(turn(user("hi", "q")))
            assert (await transcripts.append(turn(replace(answer, id="a2")))).adopted is None

    async def test_characters_that_no_database_keeps_are_replaced_and_told(self) -> None:
        """NUL and lone surrogates become U+FFFD; the receipt names such messages."""
        async with self.open_transcripts() as transcripts:
            dirty = Message(
                role="user",
                content="a\x00b\ud800c",
                id="dirty",
                metadata={"k\x00": ["\udfff", {"deep": "\x00"}]},
                original={"text": "\ud83d"},
            )
            clean = Message(role="assistant", content="😀 é 中", id="clean", metadata={"path": r"C:\u0000"})
            assert (await transcripts.append(turn(dirty, clean))).cleaned == ("dirty",)
            first, second = (await transcripts.newest("room:1", limit=2)).messages
            assert first.content == "a�b�c"
            assert first.metadata == {"k�": ["�", {"deep": "�"}]}
            assert first.original == {"text": "�"}
            assert (second.content, second.metadata) == (clean.content, clean.metadata)

    async def test_a_message_comes_back_as_it_was(self) -> None:
        """All fields are preserved, including nested JSON, floats, Unicode and times of any zone."""
        extras: Json = {"name": "李明 \u2028 é", "list": [1, 2.5, -0.125, True, None, {"": "empty key"}], "big": 2**53}
        given = Message(
            role="assistant",
            content="two\nlines\tand \\ a \u2028 separator",
            id="platform:1",
            sent_at=datetime(2026, 3, 1, 8, 30, 0, 123456, tzinfo=timezone(timedelta(hours=8))),
            tokens=17,
            status="interrupted",
            confidence=0.875,
            escalated=True,
            run_id="run-1",
            metadata={"extras": extras},
            original={"type": "ai", "content": [{"type": "text", "text": "…"}], "extras": extras},
        )
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(given))
            [found] = (await transcripts.newest("room:1", limit=1)).messages
            assert found.seq == 1
            assert found.created_at is not None
            assert found.created_at.tzinfo is not None
            assert found.with_fields(seq=None, created_at=None) == given

    async def test_large_numbers_come_back_too(self) -> None:
        """The greatest allowed numbers in a message's fields are preserved."""
        given = Message(role="user", content="hi", tokens=2**53 - 1, confidence=2**70, metadata={"chat": 2**53 + 1})
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(given))
            [found] = (await transcripts.newest("room:1", limit=1)).messages
            assert (found.tokens, found.confidence) == (given.tokens, given.confidence)
            assert found.metadata == given.metadata

    async def test_the_store_gives_what_the_caller_left_open(self) -> None:
        """The store sets a missing id, the `seq` and the time of storing."""
        async with self.open_transcripts() as transcripts:
            receipt = await transcripts.append(turn(Message(role="user", content="hi", seq=99)))
            [found] = (await transcripts.newest("room:1", limit=1)).messages
            assert found.seq == 1
            assert (found.id,) == receipt.ids
            assert found.created_at is not None
            assert abs(found.created_at - datetime.now(UTC)) < timedelta(days=36500)
