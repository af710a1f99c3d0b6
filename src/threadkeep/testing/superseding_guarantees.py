"""Guarantees of superseding: messages taken back or replaced stay stored, but are not active."""
# ruff: noqa: S101 - a contract asserts

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from threadkeep.errors import (
    InvalidInput,
    InvalidMessage,
    MessageNotFound,
    MessageSuperseded,
    SessionNotFound,
    WrongUser,
)
from threadkeep.records import Message, Turn
from threadkeep.store.driver import TurnRefused
from threadkeep.store.transcripts import Branching, SessionChanges, Superseding, Transcripts
from threadkeep.testing.session_guarantees import info_of
from threadkeep.testing.transcript_source import TranscriptSource, assistant, contents, note, seqs, turn, user

_TOLD = Message("assistant", "told", "told", answers="q")
_LATE = Turn("room:1", (_TOLD,), answers="q", told_at=datetime(2026, 3, 1, tzinfo=UTC))


class SupersedingGuarantees(TranscriptSource):
    """Contract tests of superseding messages and of branching a session."""

    async def test_the_newest_messages_are_taken_back_and_returned(self) -> None:
        """Messages that are taken back are returned, oldest first; their `seq` is not used again."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2", "a2")
            taken = await transcripts.supersede(Superseding("room:1", newest=3))
            assert (taken.count, taken.first_seq, taken.last_seq) == (3, 2, 4)
            assert contents(taken.messages) == ["a1", "q2", "a2"]
            assert await _active(transcripts) == ["q1"]
            assert (await transcripts.append(turn(user("q3")))).first_seq == 5
            assert await _active(transcripts) == ["q1", "q3"]
            assert (await transcripts.supersede(Superseding("room:1", newest=9))).count == 2
            assert await transcripts.supersede(Superseding("room:1", newest=1)) == await transcripts.supersede(
                Superseding("no:room", newest=1)
            )

    async def test_the_history_shows_what_was_superseded_and_by_what(self) -> None:
        """In the history, a superseded message has `superseded_at`; if it was replaced, it also has `superseded_by`."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1")
            edited = await transcripts.supersede(
                Superseding("room:1", message_id="q1", by=Message("user", "better", "q1b", metadata={"a": 1}))
            )
            assert edited.by is not None
            assert (edited.by.seq, edited.by.id, edited.by.metadata) == (3, "q1b", {"a": 1})
            page = await transcripts.newest("room:1", limit=9, view="history")
            assert seqs(page.messages) == [1, 2, 3]
            assert [message.superseded_by for message in page.messages] == ["q1b", None, None]
            assert [message.superseded_at is None for message in page.messages] == [False, False, True]
            assert edited.by == page.messages[-1]
            found = await transcripts.find("room:1", "q1")
            assert found == page.messages[0]
            assert await transcripts.at("room:1", [1, 2]) == list(page.messages[:2])
            assert await transcripts.with_ids("room:1", ["a1", "nothing", "q1"]) == list(page.messages[:2])

    async def test_a_turn_is_stored_instead_of_the_messages_after_a_seq(self) -> None:
        """The messages after the given `seq` are superseded; the messages of the turn follow them."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2", "a2")
            seen = await info_of(transcripts)
            await transcripts.append_instead(
                turn(user("q3", "q3"), assistant("a3", "a3")), 2, (seen.last_seq, seen.revision)
            )
            assert await _active(transcripts) == ["q1", "a1", "q3", "a3"]
            page = await transcripts.newest("room:1", limit=9, view="history")
            assert [one.id for one in page.messages if one.superseded_at is not None] == ["q2", "a2"]
            assert seqs(page.messages) == [1, 2, 3, 4, 5, 6]
            info = await info_of(transcripts)
            assert (info.last_seq, info.message_count, info.last_message) == (6, 4, "a3")
            assert info.revision > seen.revision

    async def test_a_turn_is_not_stored_instead_of_messages_that_were_not_seen(self) -> None:
        """A turn is rejected if the session has changed since the caller read it, is missing, or is another user's."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("q1", "q1"), assistant("a1", "a1"), user_id="u1"))
            seen = await info_of(transcripts)
            marks = (seen.last_seq, seen.revision)
            new, known = turn(user("q2", "q2")), turn(user("again", "q1"))
            for given, expected in ((new, (1, seen.revision)), (new, (2, seen.revision + 1)), (known, marks)):
                with pytest.raises(TurnRefused):
                    await transcripts.append_instead(given, 1, expected)
            with pytest.raises(TurnRefused):
                await transcripts.append_instead(replace(new, session_id="no:room"), 0, (0, 0))
            with pytest.raises(WrongUser):
                await transcripts.append_instead(replace(new, user_id="u2"), 1, marks)
            assert await info_of(transcripts) == seen
            assert await _active(transcripts) == ["q1", "a1"]
            assert await transcripts.session("no:room") is None

    async def test_pages_of_the_active_view_pass_superseded_messages_over(self) -> None:
        """A page has the requested number of active messages; the next page continues with older messages."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, *(f"{number}" for number in range(1, 9)))
            await transcripts.supersede(Superseding("room:1", message_id="3"))
            await _say(transcripts, "9", "10")
            page = await transcripts.newest("room:1", limit=3)
            assert (seqs(page.messages), page.next_before) == ([2, 9, 10], 2)
            rest = await transcripts.newest("room:1", limit=3, before=2)
            assert (seqs(rest.messages), rest.next_before) == ([1], None)
            page = await transcripts.newest("room:1", limit=3, view="history")
            assert (seqs(page.messages), page.next_before) == ([8, 9, 10], 8)

    async def test_one_message_alone_or_all_after_one_can_be_superseded(self) -> None:
        """The scope `message` supersedes the named message; `after` supersedes all messages after it."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2", "a2", "q3")
            one = await transcripts.supersede(Superseding("room:1", message_id="a1", scope="message"))
            assert (one.count, one.first_seq, one.last_seq) == (1, 2, 2)
            assert await _active(transcripts) == ["q1", "q2", "a2", "q3"]
            after = await transcripts.supersede(Superseding("room:1", message_id="q2", scope="after"))
            assert after.count == 2
            assert await _active(transcripts) == ["q1", "q2"]
            assert (await transcripts.supersede(Superseding("room:1", message_id="q2", scope="after"))).count == 0

    async def test_a_told_answer_takes_the_place_of_one_that_nobody_was_told(self) -> None:
        """An answer that a caller has received supersedes a stored answer that no caller has received."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("hi", "q")))
            await transcripts.append(Turn("room:1", (replace(_TOLD, id="takeover", content="of it"),), answers="q"))
            for _ in range(2):
                assert (await transcripts.append(_LATE)).adopted is None
            assert await _active(transcripts) == ["hi", "told"]
            old = await transcripts.find("room:1", "takeover")
            assert (old and old.superseded_by, await transcripts.superseded("room:1")) == ("told", [(2, 2)])
            told = await transcripts.tell("room:1", "takeover")
            assert told is not None
            assert (told.id, told.seq, told.answers) == ("told", 3, "q")
            question = await transcripts.find("room:1", "q")
            assert question is not None
            assert [one.id for one in await transcripts.answers_to("room:1", question)] == ["told"]
            info = await info_of(transcripts)
            assert (info.message_count, info.last_seq, info.last_message) == (2, 3, "told")

    async def test_an_answer_that_a_repeat_was_told_stays(self) -> None:
        """If a caller has received the stored answer, a later answer is stored as superseded."""
        async with self.open_transcripts() as transcripts:
            takeover = replace(_TOLD, id="takeover", content="of it")
            await transcripts.append(Turn("room:1", (Message("user", "hi", "q"), takeover)))
            assert await transcripts.tell("room:1", "takeover") is not None
            for _ in range(2):
                await transcripts.append(_LATE)
            assert await _active(transcripts) == ["hi", "of it"]
            late = await transcripts.find("room:1", "told")
            assert (late and (late.seq, late.superseded_by)) == (3, "takeover")
            told = await transcripts.tell("room:1", "told")
            assert (told and told.id) == "takeover"
            info = await info_of(transcripts)
            assert (info.message_count, info.last_seq) == (2, 3)

    async def test_the_turn_of_a_run_can_be_superseded_between_other_turns(self) -> None:
        """The scope `run` supersedes the messages of the question's run, and answers to the question by later runs."""
        async with self.open_transcripts() as transcripts:
            of_run = [Message("user", "q1", "q1", run_id="r1"), Message("assistant", "a1", "a1", run_id="r1")]
            await transcripts.append(turn(user("q0", "q0"), of_run[0], assistant("other", run_id="r2"), of_run[1]))
            await transcripts.append(turn(*[Message("assistant", "new", run_id="r3", answers=q) for q in ("q1", "q0")]))
            taken = await transcripts.supersede(Superseding("room:1", message_id="q1", scope="run"))
            assert (taken.count, taken.first_seq, taken.last_seq) == (3, 2, 5)
            assert await _active(transcripts) == ["q0", "other", "new"]
            assert await transcripts.superseded("room:1") == [(2, 2), (4, 5)]
            assert (await transcripts.supersede(Superseding("room:1", message_id="q0", scope="run"))).count == 2
            assert await _active(transcripts) == ["other"]

    async def test_what_came_after_a_place_can_be_left_as_it_is(self) -> None:
        """Messages whose `seq` is above `upto`, which the caller has not seen, stay active."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2", "a2")
            superseding = Superseding("room:1", message_id="q1", scope="after", upto=3)
            assert (await transcripts.supersede(superseding)).count == 2
            assert await _active(transcripts) == ["q1", "a2"]
            assert (await transcripts.supersede(superseding)).count == 0
            assert (await transcripts.supersede(replace(superseding, upto=1))).count == 0

    async def test_those_who_take_back_at_once_get_different_messages(self) -> None:
        """Each message is returned to exactly one caller."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, *(f"{number}" for number in range(1, 7)))
            takings = (transcripts.supersede(Superseding("room:1", newest=1)) for _ in range(8))
            taken = await asyncio.gather(*takings)
            assert sorted(message.content for one in taken for message in one.messages) == list("123456")
            assert sorted(one.count for one in taken) == [0, 0, 1, 1, 1, 1, 1, 1]
            assert await _active(transcripts) == []

    async def test_a_session_tells_of_its_active_messages(self) -> None:
        """Count, title and last message refer to active messages; superseding increases the revision."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2", "a2")
            assert (await info_of(transcripts)).revision == 0
            await transcripts.supersede(Superseding("room:1", newest=1))
            info = await info_of(transcripts)
            assert (info.message_count, info.last_message, info.title, info.revision) == (3, "q2", "q1", 1)
            await transcripts.supersede(Superseding("room:1", message_id="q1", by=user("other", "q1b")))
            info = await info_of(transcripts)
            assert (info.message_count, info.last_message, info.title, info.revision) == (1, "other", "other", 2)
            assert info.last_seq == 5
            await transcripts.supersede(Superseding("room:1", newest=1))
            info = await info_of(transcripts)
            assert (info.message_count, info.last_message, info.title, info.revision) == (0, None, None, 3)
            await transcripts.supersede(Superseding("room:1", newest=1))
            assert (await info_of(transcripts)).revision == 3

    async def test_a_title_that_somebody_gave_stays(self) -> None:
        """Only a title derived from a superseded message is derived again."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1")
            await transcripts.change("room:1", SessionChanges(title="Mine"))
            await transcripts.supersede(Superseding("room:1", newest=2))
            assert (await info_of(transcripts)).title == "Mine"

    async def test_windows_are_made_of_active_messages(self) -> None:
        """All messages of `recent` are active, including `newest_user`."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2", "a2")
            await transcripts.supersede(Superseding("room:1", message_id="q2"))
            await transcripts.append(turn(*[assistant(f"step {number}") for number in range(5)]))
            recent = await transcripts.recent("room:1", limit=3)
            assert contents(recent.messages) == ["step 4", "step 3", "step 2"]
            assert recent.newest_user is not None
            assert (recent.newest_user.content, recent.revision) == ("q1", 1)
            assert contents((await transcripts.recent("room:1", limit=9)).messages)[-2:] == ["a1", "q1"]
            assert await transcripts.superseded("room:1") == [(3, 4)]

    async def test_the_places_of_superseded_messages_are_told_as_ranges(self) -> None:
        """The `seq` ranges of superseded messages are returned for the whole session, or between two `seq` numbers."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, *(f"{number}" for number in range(1, 10)))
            assert await transcripts.superseded("room:1") == []
            for message_id in ("2", "3", "5"):
                await transcripts.supersede(Superseding("room:1", message_id=message_id, scope="message"))
            await transcripts.supersede(Superseding("room:1", newest=2))
            assert await transcripts.superseded("room:1") == [(2, 3), (5, 5), (8, 9)]
            assert await transcripts.superseded("room:1", after=2, before=9) == [(3, 3), (5, 5), (8, 8)]
            assert await transcripts.superseded("no:room") == []

    async def test_an_id_stays_known_when_its_message_is_superseded(self) -> None:
        """A superseded message that is appended again is a duplicate and stays superseded."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1")
            await transcripts.supersede(Superseding("room:1", newest=2))
            receipt = await transcripts.append(turn(user("q1", "q1")))
            assert (receipt.duplicates, receipt.first_seq) == (("q1",), 1)
            assert await _active(transcripts) == []
            assert (await transcripts.tell("room:1", "a1") or user("none")).superseded_at is not None

    async def test_the_answers_to_a_question_are_active_ones(self) -> None:
        """For an active question, only active answers are returned; for a superseded question, all answers are."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("q", "q"), Message("assistant", "a", "a", answers="q")))
            await transcripts.supersede(Superseding("room:1", message_id="q", scope="after"))
            question = await transcripts.find("room:1", "q")
            assert question is not None
            assert await transcripts.answers_to("room:1", question) == []
            await transcripts.append(turn(Message("assistant", "again", "b", answers="q")))
            assert [found.id for found in await transcripts.answers_to("room:1", question)] == ["b"]
            await transcripts.supersede(Superseding("room:1", newest=2))
            question = await transcripts.find("room:1", "q")
            assert question is not None
            assert [found.id for found in await transcripts.answers_to("room:1", question)] == ["a", "b"]

    async def test_a_superseded_answer_leaves_its_place_to_another(self) -> None:
        """After an answer is superseded, its author can answer the question once more."""
        async with self.open_transcripts() as transcripts:
            answer = Message("assistant", "one", "a1", author="writer", answers="q")
            await transcripts.append(turn(user("q", "q"), answer))
            await transcripts.supersede(Superseding("room:1", message_id="q", scope="after"))
            assert (await transcripts.append(turn(replace(answer, id="a2")))).adopted is None
            assert (await transcripts.append(turn(replace(answer, id="a3")))).adopted == "a2"
            assert seqs((await transcripts.newest("room:1", limit=9)).messages) == [1, 3]

    async def test_an_answer_to_a_superseded_question_is_superseded_too(self) -> None:
        """An answer to a superseded question is stored, because a person may have read it, but it is not active."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2")
            await transcripts.supersede(Superseding("room:1", newest=1))
            before = await info_of(transcripts)
            late = Turn("room:1", (assistant("late", "a2"),), answers="q2")
            receipt = await transcripts.append(late)
            assert (receipt.first_seq, receipt.last_seq) == (4, 4)
            assert await _active(transcripts) == ["q1", "a1"]
            [stored] = (await transcripts.newest("room:1", limit=1, view="history")).messages
            assert (stored.id, stored.superseded_at is None) == ("a2", False)
            info = await info_of(transcripts)
            assert (info.message_count, info.last_message) == (before.message_count, before.last_message) == (2, "a1")
            assert info.last_seq == 4
            assert (await transcripts.append(late)).duplicates == ("a2",)
            assert (await transcripts.append(turn(user("q3")))).first_seq == 5

    async def test_what_is_not_there_or_was_superseded_is_refused(self) -> None:
        """Superseding a missing or superseded message changes nothing, nor does a replacement with a taken id."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2")
            for session_id, message_id in (("room:1", "q9"), ("no:room", "q1")):
                with pytest.raises(MessageNotFound) as missing:
                    await transcripts.supersede(Superseding(session_id, message_id=message_id))
                assert (missing.value.session_id, missing.value.message_id) == (session_id, message_id)
            await transcripts.supersede(Superseding("room:1", newest=1))
            with pytest.raises(MessageSuperseded) as before:
                await transcripts.supersede(Superseding("room:1", message_id="q2", by=user("new", "q2b")))
            assert before.value.superseded_by is None
            with pytest.raises(InvalidMessage):
                await transcripts.supersede(Superseding("room:1", message_id="q1", by=user("new", "a1")))
            assert await _active(transcripts) == ["q1", "a1"]
            assert (await info_of(transcripts)).revision == 1

    async def test_the_same_new_version_again_changes_nothing(self) -> None:
        """Repeating the replacement of a message returns the same new version; a different new version is rejected."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1")
            edit = Superseding("room:1", message_id="q1", by=user("new", "q1b"))
            first = await transcripts.supersede(edit)
            again = await transcripts.supersede(edit)
            assert (again.count, again.by) == (0, first.by)
            with pytest.raises(MessageSuperseded) as before:
                await transcripts.supersede(replace(edit, by=user("newer", "q1c")))
            assert before.value.superseded_by == "q1b"
            assert await _active(transcripts) == ["new"]
            assert (await info_of(transcripts)).revision == 1

    async def test_another_users_messages_are_not_superseded(self) -> None:
        """Another user can neither supersede messages of a session nor branch the session, or branch into it."""
        async with self.open_transcripts() as transcripts:
            await transcripts.append(turn(user("mine", "m"), user_id="u1"))
            await transcripts.append(turn(user("theirs", "t"), session="room:3", user_id="u2"))
            for superseding in (Superseding("room:1", newest=1), Superseding("room:1", message_id="m")):
                with pytest.raises(WrongUser):
                    await transcripts.supersede(replace(superseding, user_id="u2"))
            for parent_id, branch_id in (("room:1", "room:2"), ("room:3", "room:1")):
                with pytest.raises(WrongUser):
                    await transcripts.branch(Branching(parent_id, branch_id, 1, "u2"))
            assert await transcripts.session("room:2") is None
            assert (await transcripts.supersede(Superseding("room:1", newest=1, user_id="u1"))).count == 1

    async def test_new_messages_and_take_backs_at_once_leave_no_gaps(self) -> None:
        """Each message is either active or was returned to one caller that took it back."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "0")
            saying = (transcripts.append(turn(user(f"{number}", f"{number}"))) for number in range(1, 13))
            taking = (transcripts.supersede(Superseding("room:1", newest=1)) for _ in range(6))
            outcomes, _ = await asyncio.gather(asyncio.gather(*taking), asyncio.gather(*saying))
            taken = [message.content for one in outcomes for message in one.messages]
            active = await _active(transcripts)
            assert sorted([*taken, *active], key=int) == [f"{number}" for number in range(13)]
            history = (await transcripts.newest("room:1", limit=99, view="history")).messages
            assert seqs(history) == list(range(1, 14))
            assert (await info_of(transcripts)).message_count == len(active)

    async def test_a_branch_begins_with_the_messages_up_to_a_place(self) -> None:
        """The branch keeps the messages' ids and times, and continues independently."""
        async with self.open_transcripts() as transcripts:
            messages = (user("q1", "q1"), assistant("a1", "a1", run_id="r"), note("n"), user("q2", "q2"))
            await transcripts.append(turn(*messages, user_id="u1"))
            await transcripts.change("room:1", SessionChanges(tags=["t"], metadata={"k": [1]}))
            await transcripts.branch(Branching("room:1", "room:2", 3))
            parent, branch = await info_of(transcripts), await info_of(transcripts, "room:2")
            assert (branch.parent_session_id, branch.parent_seq, branch.user_id) == ("room:1", 3, "u1")
            assert (branch.message_count, branch.last_seq, branch.title, branch.last_message) == (3, 3, "q1", "n")
            assert (branch.tags, branch.metadata, branch.revision) == (("t",), {"k": [1]}, 0)
            assert parent.parent_session_id is None
            own = (await transcripts.newest("room:1", limit=3, before=4)).messages
            assert (await transcripts.newest("room:2", limit=9)).messages == own
            await transcripts.append(turn(user("other", "q2"), session="room:2"))
            assert await _active(transcripts) == ["q1", "a1", "n", "q2"]
            assert await _active(transcripts, "room:2") == ["q1", "a1", "n", "other"]
            await transcripts.delete("room:1")
            assert await _active(transcripts, "room:2") == ["q1", "a1", "n", "other"]

    async def test_a_branch_has_active_messages_numbered_from_1(self) -> None:
        """A reset of the session applies to the branch, too."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2", "a2")
            await transcripts.supersede(Superseding("room:1", message_id="a1"))
            await _say(transcripts, "q3", "a3")
            await transcripts.reset("room:1")
            await _say(transcripts, "q4")
            await transcripts.branch(Branching("room:1", "room:2", 7))
            page = await transcripts.newest("room:2", limit=9)
            assert (contents(page.messages), seqs(page.messages)) == (["q1", "q3", "a3", "q4"], [1, 2, 3, 4])
            assert (await info_of(transcripts, "room:2")).reset_seq == 3
            assert contents((await transcripts.recent("room:2", limit=9)).messages) == ["q4"]

    async def test_a_branch_at_a_superseded_message_is_the_session_as_it_was(self) -> None:
        """The branch has the messages that were active before its last message was superseded."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2", "a2")
            await transcripts.supersede(Superseding("room:1", message_id="a1", by=assistant("a1b", "a1b")))
            await _say(transcripts, "q3")
            await transcripts.supersede(Superseding("room:1", message_id="a1b", by=assistant("a1c", "a1c")))
            for seq, expected in ((4, ["q1", "a1", "q2", "a2"]), (6, ["q1", "a1b", "q3"]), (7, ["q1", "a1c"])):
                await transcripts.branch(Branching("room:1", f"room:1{seq}", seq))
                assert await _active(transcripts, f"room:1{seq}") == expected
                assert (await info_of(transcripts, f"room:1{seq}")).revision == 0

    async def test_a_branch_of_all_has_nothing_that_was_taken_back(self) -> None:
        """A branch has only the active messages of the session, which may be none."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1", "q2", "a2")
            await transcripts.supersede(Superseding("room:1", newest=2))
            for _ in range(2):
                await transcripts.branch(Branching("room:1", "room:2"))
            assert await _active(transcripts, "room:2") == ["q1", "a1"]
            branch = await info_of(transcripts, "room:2")
            assert (branch.parent_seq, branch.last_seq, branch.last_message, branch.title) == (4, 2, "a1", "q1")
            await transcripts.supersede(Superseding("room:1", newest=9))
            await transcripts.branch(Branching("room:1", "room:3"))
            assert await _active(transcripts, "room:3") == []
            assert (await info_of(transcripts, "room:3")).message_count == 0

    async def test_a_branch_is_made_once(self) -> None:
        """Repeating a request for a branch changes nothing; a different request for the same session id is rejected."""
        async with self.open_transcripts() as transcripts:
            await _say(transcripts, "q1", "a1")
            await transcripts.branch(Branching("room:1", "room:2", 2))
            await transcripts.append(turn(user("more"), session="room:2"))
            await transcripts.branch(Branching("room:1", "room:2", 2))
            assert await _active(transcripts, "room:2") == ["q1", "a1", "more"]
            for wrong in (Branching("room:1", "room:2", 1), Branching("room:1", "room:1", 1)):
                with pytest.raises(InvalidInput):
                    await transcripts.branch(wrong)
            with pytest.raises(SessionNotFound):
                await transcripts.branch(Branching("no:room", "room:3", 1))
            for seq in (0, 3):
                with pytest.raises(InvalidInput):
                    await transcripts.branch(Branching("room:1", "room:3", seq))
            assert await transcripts.session("room:3") is None


async def _say(transcripts: Transcripts, *words: str) -> None:
    """Append a message for each word. Words that begin with `a` are the assistant's."""
    messages = [assistant(word, word) if word.startswith("a") else user(word, word) for word in words]
    await transcripts.append(turn(*messages))


async def _active(transcripts: Transcripts, session_id: str = "room:1") -> list[str]:
    return contents((await transcripts.newest(session_id, limit=99)).messages)
