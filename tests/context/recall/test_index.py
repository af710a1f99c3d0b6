"""Tests of `RecallIndex`: ranking by words, speakers, dates and embeddings, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.context.recall import IndexedTurn, Ranked, RecallIndex, select
from threadkeep.context.recall import weights as fitted
from threadkeep.context.recall.packing import COPIED_AT_ONCE, pack, unpack

BEGIN = datetime(2024, 3, 4, 9, tzinfo=UTC)
SMALL_TALK = ("Good morning!", "How are things?", "All fine over here.", "Nice to hear.", "The sky is grey again.")


def index_of(*sessions: Sequence[tuple[str, str]], days: int = 7) -> RecallIndex:
    """Return an index of sessions of (speaker, text), some days apart; `1.2` is turn 2 of session 1."""
    index = RecallIndex()
    for number, session in enumerate(sessions):
        for place, (speaker, text) in enumerate(session):
            time = BEGIN + timedelta(days=days * number, minutes=place)
            index.add(IndexedTurn(f"{number}.{place}", text, speaker, time, f"s{number}"))
    return index


def chatter(*said: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the given turns with small talk before and after them."""
    talk = [("Ann" if place % 2 else "Ben", text) for place, text in enumerate(SMALL_TALK)]
    return [*talk, *said, *talk]


def best(ranked: Sequence[Ranked]) -> str:
    """Return the id of the highest ranked turn."""
    return ranked[0].id


def test_a_turn_is_found_by_other_forms_of_its_words() -> None:
    index = index_of(chatter(("Ann", "We adopted a greyhound.")), chatter(("Ben", "I ran ten kilometres.")))
    assert best(index.rank("When was the adoption of the greyhound?")) == "0.5"
    assert best(index.rank("How was the running?")) == "1.5"


@pytest.mark.parametrize(
    ("asked", "said"), [("greyhuond", "greyhound"), ("harpsihcord", "harpsichord"), ("бибилотека", "библиотека")]
)
def test_a_turn_is_found_by_a_misspelt_word(asked: str, said: str) -> None:
    index = index_of(chatter(("Ann", f"There is a {said}.")), chatter(("Ben", "There is a granary.")))
    assert best(index.rank(f"And the {asked}?")) == "0.5"
    assert best(index.rank("And the granary?")) == "1.5"


def test_an_unknown_word_is_compared_with_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown word is compared only with words of similar letters and length, because comparing is slow."""
    compared: list[int] = []

    def close(word: str, others: Sequence[str], most: int, least: float) -> list[str]:
        compared.append(len(others))
        return get_close_matches(word, others, most, least)

    monkeypatch.setattr("threadkeep.context.recall.postings.get_close_matches", close)
    words = ["harp" + "".join(letters) for letters in permutations("aeioulnrst", 4)]
    index = index_of([("Ann", " ".join(words[place : place + 20])) for place in range(0, len(words), 20)])
    assert index.rank("hqzpaxwv") == []
    assert compared == [0]


def test_the_names_of_a_large_group_are_looked_up() -> None:
    """A speaker of a large group is found by the full name and by its beginning."""
    index = index_of([(f"Person{number}", "I have a harp.") for number in range(300)], [("Annabel", "I have a harp.")])
    assert best(index.rank("Does Anna have a harp?")) == "1.0"
    assert best(index.rank("Does Person7 have a harp?")) == "0.7"


def test_a_turn_is_found_by_the_topic_that_it_belongs_to() -> None:
    index = index_of(chatter(("Ann", "My brother lent me his ladder.")), chatter(("Ann", "Our kitten sleeps all day.")))
    assert best(index.rank("Which pets does she keep?")) == "1.5"


def test_of_similar_turns_the_one_of_the_same_topic_ranks_first() -> None:
    index = index_of(chatter(("Ann", "I bought a printer.")), chatter(("Ann", "I bought a paddle.")))
    assert best(index.rank("What did she buy for the kayak?")) == "1.5"


@pytest.mark.parametrize(
    ("asked", "said"), [("我的宠物多大了？", "仓鼠三岁。"), ("他喜欢什么运动？", "周末打羽毛球。")]
)
def test_topics_are_known_in_chinese(asked: str, said: str) -> None:
    index = index_of([("user", "今晚吃面。")], [("user", said)])
    assert best(index.rank(asked)) == "1.0"


def test_turns_of_a_named_speaker_rank_first() -> None:
    index = index_of(chatter(("Ann", "I play the cello."), ("Ben", "I play the cello.")))
    assert best(index.rank("Does Ann play the cello?")) == "0.5"
    assert best(index.rank("Does Ben play the cello?")) == "0.6"


def test_i_and_you_mean_the_user_and_the_assistant() -> None:
    turns = [("user", "The Miramar hotel in Porto."), ("assistant", "The Miramar hotel in Porto.")]
    index = index_of(turns)
    assert best(index.rank("Which hotel in Porto did I choose, my Miramar?")) == "0.0"
    assert best(index.rank("Which hotel did you recommend in Porto?")) == "0.1"


def test_group_cost_prefers_turns_of_selected_groups() -> None:
    index = index_of(chatter(("Ann", "A harp."), ("Ben", "A harp.")), chatter(("Ann", "A harp."), ("Ben", "A harp.")))
    ranked = index.rank("harp", limit=4)
    chosen = select(ranked, lambda _: 10, 40, group_of=lambda turn: turn[0], group_cost=10)
    assert [entry.id[0] for entry in chosen] in (["0", "0"], ["1", "1"], ["0", "0", "0"], ["1", "1", "1"])
    assert len(select(ranked, lambda _: 10, 40)) == 4


def test_a_name_that_is_a_common_word_needs_a_capital_letter() -> None:
    """The word "Will" names a person and "will" does not; the name of an agent is an ordinary word."""
    index = RecallIndex()
    for number, (speaker, role) in enumerate((("Ann", "user"), ("researcher", "assistant"), ("Will", "user"))):
        index.add(IndexedTurn(str(number), "The researcher has a harp.", speaker, BEGIN, "s", role))
    assert best(index.rank("Does Will have a harp?")) == "2"
    assert best(index.rank("Will I have a harp?", asker="Ann")) == "0"
    assert best(index.rank("Did you say that there is a harp?", asker="Ann")) == "1"
    assert index.rank("researcher")[0].why


def test_the_answer_to_a_matching_question_ranks_high() -> None:
    index = index_of(chatter(("Ben", "What is your violin teacher called?"), ("Ann", "Ms Okafor.")))
    assert "0.6" in [entry.id for entry in index.rank("Who teaches Ann the violin?")[:3]]


@pytest.mark.parametrize(
    "asked", ["What did we talk about on 18 March 2024?", "What happened last week?", "上周怎么样？"]
)
def test_dates_find_turns_without_a_common_word(asked: str) -> None:
    index = index_of(*[chatter(("Ann", f"Lunch number {number}.")) for number in range(5)])
    ranked = index.rank(asked, now=BEGIN + timedelta(days=21))
    assert best(ranked).startswith("2.")


def test_chinese_is_found_by_its_characters() -> None:
    index = index_of([("user", "我养了一只橘猫，叫团子。"), ("assistant", "真可爱！"), ("user", "今天写了报告。")])
    assert best(index.rank("我的猫叫什么名字？")) == "0.0"


def test_a_query_need_not_be_a_question() -> None:
    index = index_of(chatter(("Ann", "I am allergic to walnuts.")), chatter(("Ben", "The bus was late.")))
    assert best(index.rank("Tonight there is walnut cake.")) == "0.5"


def test_a_pronoun_is_resolved_with_the_last_turns() -> None:
    index = index_of(chatter(("Ann", "The ferry to Skye takes an hour.")), chatter(("Ann", "The roast takes an hour.")))
    assert best(index.rank("How long does it take?", recent=["I will take the ferry to Skye."])) == "0.5"
    assert best(index.rank("How long does it take?", recent=["I will make a roast."])) == "1.5"


def test_an_unrelated_query_ranks_nothing() -> None:
    index = index_of(chatter(("Ann", "We adopted a greyhound.")))
    assert index.rank("quantum chromodynamics") == []
    assert index.rank("") == []
    assert RecallIndex().rank("Anything there yesterday?") == []


def test_excluded_turns_are_not_ranked() -> None:
    index = index_of(chatter(("Ann", "We adopted a greyhound.")))
    assert "0.5" not in [entry.id for entry in index.rank("the greyhound", exclude={"0.5"})]


def test_embeddings_find_turns_without_a_common_word() -> None:
    index = index_of(chatter(("Ann", "We adopted a greyhound."), ("Ben", "Feeling blue today.")))
    ranked = index.rank("melancholy", semantic={"0.6": 0.8, "unknown": 1.0})
    assert best(ranked) == "0.6"
    assert {"0.5", "0.7"} <= {entry.id for entry in ranked}


def test_similarity_decides_between_turns_with_equal_words() -> None:
    index = index_of(chatter(("Ann", "The greyhound ran.")), chatter(("Ann", "The greyhound ran.")))
    for scale in (0.01, 1.0, 100.0):
        assert best(index.rank("greyhound", semantic={"0.5": 0.2 * scale, "1.5": 0.6 * scale})) == "1.5"
        assert best(index.rank("greyhound", semantic={"0.5": 0.6 * scale, "1.5": 0.2 * scale})) == "0.5"


def test_a_turn_that_is_not_embedded_yet_is_ranked_by_its_words() -> None:
    index = index_of(chatter(("Ann", "The greyhound ran.")), chatter(("Ann", "The greyhound ran.")))
    words = {entry.id: entry.score for entry in index.rank("greyhound")}
    embedded = {f"1.{place}": 0.3 for place in range(11)}
    ranked = index.rank("greyhound", semantic={**embedded, "1.5": 0.1})
    assert best(ranked) == "0.5"
    assert ranked[0].score == pytest.approx(words["0.5"])
    assert best(index.rank("greyhound", semantic={**embedded, "1.5": 0.6})) == "1.5"


def test_the_same_id_twice_is_one_turn() -> None:
    index = index_of([("Ann", "A greyhound.")])
    index.add(IndexedTurn("0.0", "Something else."))
    assert len(index) == 1
    assert best(index.rank("greyhound")) == "0.0"


def test_why_names_signals_that_have_weights() -> None:
    index = index_of(chatter(("Ann", "We adopted a greyhound.")))
    why = index.rank("Ann's greyhound")[0].why
    assert why
    assert set(why) <= set(fitted.MATCH)


def test_time_speaker_and_session_are_optional() -> None:
    index = RecallIndex()
    for number in range(200):
        index.add(IndexedTurn(str(number), "The red tractor." if number == 77 else f"Row {number} of beans."))
    assert best(index.rank("Where is the tractor? Was it there last May?")) == "77"


def test_the_score_is_the_sum_of_its_signals() -> None:
    """The fast score is equal to the sum of the weighted signals."""
    index = index_of(*[chatter(("Ann", f"My cat saw {number} geese in May.")) for number in range(4)])
    for entry in index.rank("When did Ann's pet see geese, on 11 March 2024?"):
        signals = entry.matching.signals(entry.position)
        matched = sum(fitted.MATCH[name] * signal for name, signal in signals.items())
        assert entry.score == pytest.approx(matched + entry.matching.prior(entry.position))


TEXTS = st.lists(
    st.text(max_size=80) | st.sampled_from([*SMALL_TALK, "", "🎉🎉", "猫" * 500, "x" * 5_000]), max_size=40
)


@given(TEXTS, st.text(max_size=60), st.integers(0, 300))
def test_any_text_is_ranked_deterministically_within_the_budget(texts: list[str], asked: str, budget: int) -> None:
    index = RecallIndex()
    for number, text in enumerate(texts):
        index.add(IndexedTurn(str(number), text, ("Ann", "Ben", "")[number % 3]))
    ranked = index.rank(asked)
    assert [(entry.id, entry.score) for entry in ranked] == [(entry.id, entry.score) for entry in index.rank(asked)]
    taken = [entry.id for entry in select(ranked, lambda turn: len(texts[int(turn)]) + 4, budget)]
    assert len(set(taken)) == len(taken)
    assert sum(len(texts[int(turn)]) + 4 for turn in taken) <= budget


def test_the_number_of_ranked_turns_is_limited() -> None:
    index = RecallIndex()
    for number in range(6_000):
        text = (
            "Tell me of the garden gnome and the fountain."
            if number == 1_234
            else f"The garden needs water {number % 7}."
        )
        index.add(IndexedTurn(str(number), text, "Ann", BEGIN + timedelta(hours=number)))
    ranked = index.rank("Did the garden gnome need water?", limit=10_000)
    assert best(ranked) == "1234"
    assert len(ranked) < 600


def test_an_index_is_copied_in_parts_of_bounded_length() -> None:
    """The parts of a dump have a limited size, so that other tasks can run between them, and restore the index."""
    made = RecallIndex()
    for number in range(5_000):
        made.add(IndexedTurn(str(number), f"The code of room{number} is {number}.", "Ann"))
    parts = list(made.dump())
    assert max(len(part.arrays.get("term_lengths", ())) for part in parts) <= COPIED_AT_ONCE
    width = next(part.values["topic_bytes"] for part in parts if "topic_bytes" in part.values)
    assert max(len(part.arrays.get("topic_bits", ())) for part in parts) <= width * COPIED_AT_ONCE
    read = RecallIndex.load(unpack(pack(parts)))
    assert [entry[:3] for entry in read.rank("room4321")] == [entry[:3] for entry in made.rank("room4321")]


def test_a_joined_index_ranks_like_one_that_was_built_at_once() -> None:
    sessions = [
        [IndexedTurn(f"{session}#{number}", text, speaker, BEGIN + timedelta(days=10 * session), str(session), "user")
         for number, (speaker, text) in enumerate(talk)]
        for session, talk in enumerate((
            [("Ann", "I adopted a cat yesterday."), ("Ben", "Is the cat black?"), ("Ann", ""), ("Ann", "It is.")],
            [("Ben", "我养了一只橘猫。"), ("Cleo", "My cat plays the oboe in the garden.")],
            [("Ann", f"The garden has {number} oboes.") for number in range(70)],
        ))
    ]  # fmt: skip
    made, joined = RecallIndex(), RecallIndex()
    for turns in sessions:
        alone = RecallIndex()
        for turn in turns:
            made.add(turn)
            alone.add(turn)
        joined.extend(RecallIndex.load(unpack(pack(alone.dump()))))
    new = IndexedTurn("new", "The cat sleeps on my oboe.", "Ann", BEGIN + timedelta(days=30), "2", "user")
    for _ in range(2):
        assert (len(joined), joined.size) == (len(made), made.size)
        for query in ("Which pet does Ann have?", "橘猫", "What did Cleo say last week?", "oboes in the garden", "kat"):
            expected, ranked = made.rank(query, asker="Ben"), joined.rank(query, asker="Ben")
            assert [entry.id for entry in ranked] == [entry.id for entry in expected]
            assert [entry.score for entry in ranked] == pytest.approx([entry.score for entry in expected], abs=1e-5)
        made.add(new)
        joined.add(new)


def test_a_packed_index_ranks_as_before() -> None:
    talk = [
        chatter(("Ann", "I adopted a cat yesterday.")),
        chatter(("Ben", "我养了一只橘猫。")),
        chatter(("Ann", "My oboe!")),
    ]
    made = index_of(*talk)
    read = RecallIndex.load(unpack(pack(made.dump())))
    assert (len(read), read.size) == (len(made), made.size)
    new = IndexedTurn("new", "The cat sleeps on my oboe.", "Ann", BEGIN + timedelta(days=30), "s9")
    for _ in range(2):
        for query in (
            "Which pet does Ann have?",
            "橘猫",
            "What did Ben say last week?",
            "musical instruments",
            "oboes",
        ):
            assert [entry[:3] for entry in read.rank(query)] == [entry[:3] for entry in made.rank(query)]
        for index in (made, read):
            index.add(new)
