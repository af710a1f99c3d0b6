"""Tests of the full-text search: matches, ranking, and access by users."""

from __future__ import annotations

from itertools import count
from typing import Literal
from unicodedata import normalize

import pytest

from threadkeep import Memory, MemoryOptions, Message, open_memory
from threadkeep.store import search
from threadkeep.store.search_terms import fingerprints, search_terms

_TEXTS = {
    "english": "I would like a Refund for my order, please.",
    "shipping": "Shipping takes three to five days.",
    "chinese": "你好，我想申请退款，什么时候可以到账？",
    "japanese": "返品の手続きを教えてください",
    "thai": "ฉันได้รับเงินคืนเมื่อวานนี้",
    "khmer": "ខ្ញុំបានទទួលប្រាក់វិញហើយ",
    "korean": "환불이 어제 도착했습니다",
    "mixed": "我的iPhone 15坏了，order号是AB-1234",
    "german": "Über die Rückgabe: Größe L fehlt leider.",
    "marks": 'He said "50% off_now" \\ (really?)',
    "greek": "Η ΟΔΟΣ ΤΩΝ ΦΙΛΩΝ",
    "abbreviation": "ΤΕΛΟΣ.ΑΒΓ",
    "short": "Ёж и Он",
    "russian": "ЗДРАВСТВУЙТЕ, где Мой заказ?",
    "turkish": "İstanbul'da İyi bir gün",
    "pieces": "abc bcd cde",
    "emoji": "ship it 🚀 today 👩‍👩‍👧 Ⓐ",
}
_FOUND = {
    "refund": "english",
    "REFUND order": "english",
    "refund shipping": "",
    "order": "english mixed",
    "five days": "shipping",
    "退款": "chinese",
    "申请退款": "chinese",
    "什么时候可以到账": "chinese",
    "退款 到账": "chinese",
    "退货": "",
    "手続き": "japanese",
    "申": "chinese",
    "款 到账": "chinese",
    "我 order": "mixed",
    "返": "japanese",
    "เงินคืน": "thai",
    "ได้รับเงิน": "thai",
    "เมื่อวาน": "thai",
    "ប្រាក់": "khmer",
    "ទទួល": "khmer",
    "어": "korean",
    "환불 도착": "korean",
    "iphone": "mixed",
    "坏了": "mixed",
    "iPhone 坏了 1234": "mixed",
    "Rückgabe": "german",
    "Größe fehlt": "german",
    "RÜCKGABE größe": "german",
    "οδος φιλων": "greek",
    "οδοσ": "greek",
    "τελος": "abbreviation",
    "τελοσ": "abbreviation",
    "ёж": "short",
    "Ёж ОН": "short",
    "здравствуйте мой ЗАКАЗ": "russian",
    "istanbul": "turkish",
    "ISTANBUL iyi": "turkish",
    "İSTANBUL": "turkish",
    "abcde": "",
    "bcd abc": "pieces",
    "ship 🚀": "emoji",
    "today": "emoji",
    "🚀": "emoji",
    "👩‍👩‍👧 🚀": "emoji",
    "ⓐ 🚀": "emoji",
    "(really?)": "marks",
    '" \\ (': "marks",
}
_SIGNS = "\"'()*^:&|!%_\\-+~"


@pytest.fixture
async def texts_memory(memory: Memory) -> Memory:
    """Return a memory with a session per text, which has the name of the text."""
    for name, text in _TEXTS.items():
        await memory.session(name).append([Message(role="user", content=text)])
    return memory


async def found(memory: Memory, query: str, *, user_id: str | None = None, limit: int = 20) -> set[str]:
    """Return the sessions in which a query is found."""
    return {hit.session_id for hit in await memory.search(query, user_id=user_id, limit=limit)}


async def test_messages_with_all_words_are_found(texts_memory: Memory) -> None:
    """Case is ignored, and languages without spaces between words are searched too."""
    for query, sessions in _FOUND.items():
        assert await found(texts_memory, query) == set(sessions.split()), query


async def test_accents_are_found_in_both_unicode_forms(memory: Memory) -> None:
    """Some systems write an accent as a separate character. The stored text stays as it was."""
    texts = {"french": "Un café serré à Orléans", "vietnamese": "Cảm ơn bạn rất nhiều, Huế", "korean": "환불이 어제"}
    forms: tuple[Literal["NFC"], Literal["NFD"]] = ("NFC", "NFD")
    for form in forms:
        for name, text in texts.items():
            sent = normalize(form, text)
            await memory.session(f"{name} {form}").append([Message(role="user", content=sent)])
            assert [message.content for message in await memory.session(f"{name} {form}").tail(1)] == [sent]
    assert await found(memory, "é" * 250) == set()
    for query, name in {"CAFÉ": "french", "café serré": "french", "à": "french", "bạn rất": "vietnamese",
                        "Huế": "vietnamese", "환불": "korean", "어": "korean"}.items():  # fmt: skip
        for form in forms:
            assert await found(memory, normalize(form, query)) == {f"{name} NFC", f"{name} NFD"}, (query, form)


async def test_a_text_is_found_by_the_characters_it_has(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFC separates letters such as Bengali YYA, and Vietnamese keyboards of Windows write half of the accents so.

    On PostgreSQL, earlier builds have indexed words only as they are written.
    """
    texts = {
        "bengali": "\u09b8\u09ae\u09df",
        "hindi": "\u0932\u095c\u0915\u093e",
        "hebrew": "\ufb2a\u05dc\u05d5\u05dd",
        "windows": "Hu\u00ea\u0301",
        "short": "\u00ea\u0323",
        "decomposed": "cafe\u0301 Hue\u0302\u0301",
    }
    for build in ("earlier", "new"):
        with monkeypatch.context() as earlier:
            if build == "earlier":
                earlier.setattr(search, "indexed_terms", search_terms)
            for name, text in texts.items():
                await memory.session(f"{name} {build}").append([Message(role="user", content=f"one {text} two")])
            assert len(await found(memory, "one")) == len(texts) * (1 if build == "earlier" else 2)
    for name, text in texts.items():
        assert {f"{name} earlier", f"{name} new"} <= await found(memory, text), name
    hits = await memory.search(texts["bengali"], limit=1)
    assert len(hits) == 1


async def test_operators_of_query_languages_are_words(texts_memory: Memory) -> None:
    """A query is plain text and never an expression: no text has all of these words."""
    for query in ("refund OR nothing", "refund AND", "NOT refund", "-refund shipping", "fund*", "content:refund"):
        assert await found(texts_memory, query) == set(), query


async def test_no_query_breaks_the_search(texts_memory: Memory) -> None:
    """A query of signs only does not raise and does not return everything."""
    for query in [*_SIGNS, "NEAR(a b)", "a:*", "{x}", "';--", "<->", "!" * 50_000, "\x00", "\ud800", " ", ""]:
        assert len(await found(texts_memory, query)) < len(_TEXTS), query


async def test_quotes_around_words_do_not_hide_them(texts_memory: Memory) -> None:
    assert await found(texts_memory, "off_now") == {"marks"}
    assert await found(texts_memory, "really") == {"marks"}


async def test_a_user_finds_own_messages_only(memory: Memory) -> None:
    for user_id in ("u1", "u2"):
        await memory.session(f"of:{user_id}", user_id=user_id).append([Message(role="user", content="my secret 退款")])
    await memory.session("of:nobody").append([Message(role="user", content="my secret 退款")])
    for query in ("secret", "退款", "my"):
        assert await found(memory, query, user_id="u1") == {"of:u1"}
        assert await found(memory, query, user_id="u3") == set()
        assert await found(memory, query) == {"of:u1", "of:u2", "of:nobody"}


async def test_one_session_can_be_searched_alone(memory: Memory) -> None:
    """The search can begin after a seq, is limited to the owner, and finds short words."""
    for session_id in ("one", "two"):
        session = memory.session(session_id, user_id="u1")
        await session.append([Message(role="user", content="a red kite at 九 o'clock")])
        await session.append([Message(role="user", content="the red kite again, 九")])
    for words in ("red kite", "九"):
        found = [(hit.session_id, hit.message.seq) for hit in await memory.search(words, session_id="two")]
        assert sorted(found) == [("two", 1), ("two", 2)]
        [later] = await memory.search(words, session_id="two", after=1)
        assert later.message.seq == 2
        assert len(await memory.search(words, session_id="two", user_id="u1")) == 2
        assert await memory.search(words, session_id="two", user_id="u2") == []


async def test_a_hit_has_the_stored_message(memory: Memory) -> None:
    for number in range(5):
        await memory.session("room").append([Message(role="user", content="refund " * (number + 1), id=f"m{number}")])
    hits = await memory.search("refund", limit=3)
    assert len(hits) == 3
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for hit in hits:
        assert hit.message == await memory.session("room").find(str(hit.message.id))
    assert await memory.search("refund", limit=0) == []


async def test_better_matches_come_first(memory: Memory) -> None:
    """A text ranks higher if it has the word more often or is shorter."""
    texts = ("refund " + "and so on " * 100, "a refund", "refund, refund", "a refund of something")
    for number, text in enumerate(texts):
        await memory.session(f"room:{number}").append([Message(role="user", content=text)])
    hits = await memory.search("refund", limit=10)
    assert [hit.session_id for hit in hits] == ["room:2", "room:1", "room:3", "room:0"]


async def test_only_the_newest_candidates_are_ranked(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest candidates are ranked, but at least as many as requested; false candidates do not count."""
    monkeypatch.setattr("threadkeep.store.search._CANDIDATES", 3)
    texts = ["abcde, abcde, abcde!", "abcde and so on", "abcde, abcde!", "the abcde of something", *["bcde abcd"] * 5]
    await memory.session("room").append([Message(role="user", content=text) for text in texts])
    assert [hit.message.seq for hit in await memory.search("abcde", limit=2)] == [3, 2]
    assert [hit.message.seq for hit in await memory.search("abcde", limit=2, session_id="room")] == [3, 2]
    assert [hit.message.seq for hit in await memory.search("abcde", limit=10)] == [1, 3, 2, 4]


async def test_texts_with_the_trigrams_of_a_word_displace_no_match(memory: Memory) -> None:
    for number in range(30):
        texts = ["bcde abcd", "abcde" + " and so on" * 100] if number % 10 == 0 else ["bcde abcd"] * 2
        await memory.session(f"room:{number}").append([Message(role="user", content=text) for text in texts])
    assert [hit.message.content[:5] for hit in await memory.search("abcde", limit=3)] == ["abcde"] * 3
    assert len(await memory.search("abcde", limit=100)) == 3


async def test_texts_with_the_fingerprint_of_a_word_displace_no_match(
    postgres_url: str, memory_options: MemoryOptions
) -> None:
    """On PostgreSQL, texts with an equal fingerprint and with the word inside another one do not displace matches."""
    other = next(word for word in map("w{}".format, count()) if fingerprints([word]) == fingerprints(["fund"]))
    async with open_memory(postgres_url, options=memory_options) as memory:
        for number in range(30):
            texts = [f"refund refund {other}", "a fund" + " and so on" * 100 if number % 10 == 0 else "nothing"]
            await memory.session(f"room:{number}").append([Message(role="user", content=text) for text in texts])
        assert [hit.message.content[:6] for hit in await memory.search("fund", limit=2)] == ["a fund"] * 2
        assert len(await memory.search("fund", limit=100)) == 3


async def test_a_stored_message_is_found_at_once(memory: Memory) -> None:
    for number in range(15):
        await memory.session(f"room:{number % 3}").append(
            [Message(role="user", content=f"unique{number}word 第{number}次")]
        )
        assert len(await memory.search(f"unique{number}word")) == 1


async def test_a_deleted_session_leaves_the_index(texts_memory: Memory) -> None:
    assert await found(texts_memory, "refund") == {"english"}
    await texts_memory.session("english").delete()
    assert await found(texts_memory, "refund") == set()
    await texts_memory.session("english").append([Message(role="user", content="something else")])
    assert await found(texts_memory, "refund") == set()
    assert await found(texts_memory, "something else") == {"english"}
