"""Tests of session keys: the examples of the specification, and properties for any text and any scope."""

from __future__ import annotations

import contextlib
import copy
import re
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.errors import InvalidKey
from threadkeep.history.keys import (
    KeyResolution,
    Refusal,
    channel_of,
    check_key,
    escape_key,
    refusal,
    resolve_key,
    unescape_key,
)

TELEGRAM = "telegram:{{results.telegram_events_parser.chat_id}}"
WECOM = "wecom_cs:{{results.wecom_cs_sync.open_kf_id}}:{{results.wecom_cs_sync.external_userid}}"

texts = st.text(st.characters(exclude_categories=["Cs"]))
any_texts = st.text(st.characters())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab") | any_texts, inner, max_size=3),
    max_leaves=8,
)
templates = st.lists(
    st.sampled_from(["{{a}}", "{{a.b}}", "{{a.0}}", "{{b[0].a}}", "{{", "}}", ":", "telegram:", "{{thread_id}}", "\n"])
    | any_texts
).map("".join)


def telegram(chat_id: object) -> dict[str, object]:
    """Return a scope with a Telegram chat."""
    return {"results": {"telegram_events_parser": {"chat_id": chat_id}}}


def wecom(open_kf_id: object, external_userid: object) -> dict[str, object]:
    """Return a scope with a WeCom account and its customer."""
    return {"results": {"wecom_cs_sync": {"open_kf_id": open_kf_id, "external_userid": external_userid}}}


def refused(resolution: KeyResolution) -> list[str]:
    """Return the reasons why there is no key."""
    assert resolution.key is None
    return [one.reason for one in resolution.refused]


@pytest.mark.parametrize(
    "key", ["a", "telegram:123", "telegram:-100123", "wecom_cs:kf-001:ext-abc", "session-123", "a" * 256]
)
def test_valid_keys_pass(key: str) -> None:
    check_key(key)
    assert refusal(key) is None


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "empty"),
        (" \n", "empty"),
        (":", "empty_part"),
        ("telegram:", "empty_part"),
        (":123", "empty_part"),
        ("a::b", "empty_part"),
        ("telegram:{{chat_id}}", "unresolved_template"),
        ("a}}", "unresolved_template"),
        ("a" * 257, "too_long"),
        ("a" * 256 + "\n", "too_long"),
        ("room-1\n", "invalid_chars"),
        ("li@corp", "invalid_chars"),
        ("a b", "invalid_chars"),
        ("a/b", "invalid_chars"),
        ("小明", "invalid_chars"),
        ("\uff11\uff12", "invalid_chars"),
        ("\ud800", "invalid_chars"),
        (None, "invalid_chars"),
        (123, "invalid_chars"),
    ],
)
def test_invalid_keys_are_refused_with_their_reason(key: str, reason: str) -> None:
    assert refusal(key) == reason
    with pytest.raises(InvalidKey) as caught:
        check_key(key)
    assert caught.value.reason == reason
    assert str(caught.value).endswith(".")


def test_the_error_does_not_repeat_the_key() -> None:
    """A caller may pass a message as a key by mistake, and errors are logged."""
    with pytest.raises(InvalidKey) as caught:
        check_key("my secret words")
    assert "secret" not in str(caught.value)


@given(any_texts)
def test_exactly_the_alphabet_is_valid(key: str) -> None:
    """A key is valid if all of it matches the alphabet and no part between colons is empty."""
    matches = re.fullmatch(r"[A-Za-z0-9:_-]{1,256}", key) is not None and all(key.split(":"))
    assert (refusal(key) is None) == matches


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("li@corp", "li_40corp"),
        ("-100123", "-100123"),
        ("kf-001", "kf-001"),
        ("a_b", "a_5fb"),
        ("a:b", "a_3ab"),
        ("o9cq@im.wechat", "o9cq_40im_2ewechat"),
        ("é", "_c3_a9"),
        ("小", "_e5_b0_8f"),
        ("", ""),
    ],
)
def test_escape_examples(text: str, part: str) -> None:
    """Each character outside A-Z, a-z, 0-9 and minus becomes its UTF-8 bytes in hex."""
    assert escape_key(text) == part
    assert unescape_key(part) == text


@given(texts)
def test_escape_is_reversible(text: str) -> None:
    part = escape_key(text)
    assert unescape_key(part) == text
    assert re.fullmatch(r"[A-Za-z0-9_-]*", part)


@given(texts, texts)
def test_escape_keeps_different_texts_apart(one: str, other: str) -> None:
    assert (escape_key(one) == escape_key(other)) == (one == other)


@given(st.text(st.sampled_from("_0145afAF:-é\n")))
def test_unescape_accepts_only_escaped_forms(part: str) -> None:
    with contextlib.suppress(InvalidKey):
        assert escape_key(unescape_key(part)) == part


@pytest.mark.parametrize("part", ["_41", "_4", "_4G", "_4A", "_ff", "_c3", "telegram:123", "a b", "_40\n"])
def test_unescape_refuses_other_spellings(part: str) -> None:
    with pytest.raises(InvalidKey):
        unescape_key(part)


def test_escape_refuses_a_lone_surrogate() -> None:
    with pytest.raises(InvalidKey) as caught:
        escape_key("secret\ud800")
    assert caught.value.reason == "invalid_chars"
    assert caught.value.__cause__ is None
    assert "secret" not in str(caught.value)


def test_telegram_chat_ids_render_as_their_digits() -> None:
    assert resolve_key([TELEGRAM], telegram(12345)).key == "telegram:12345"
    assert resolve_key([TELEGRAM], telegram(-100123)).key == "telegram:-100123"
    assert resolve_key([TELEGRAM], telegram("12345")).key == "telegram:12345"


def test_wecom_customer_service_has_two_ids() -> None:
    assert resolve_key([WECOM], wecom("kf-001", "ext-abc")).key == "wecom_cs:kf-001:ext-abc"


def test_an_empty_id_is_an_empty_part() -> None:
    """An empty customer id gives no key; otherwise customers would share a session."""
    assert resolve_key([WECOM], wecom("kf-001", "")).refused == (Refusal(WECOM, "empty_part"),)
    assert refused(resolve_key([WECOM], wecom("kf-001", " \t"))) == ["empty_part"]
    assert refused(resolve_key(["room-{{user}}"], {"user": ""})) == ["empty_part"]
    assert refused(resolve_key(["{{user}}"], {"user": ""})) == ["empty"]


def test_values_are_escaped() -> None:
    assert resolve_key(["wecom_dm:{{user}}"], {"user": "li@corp"}).key == "wecom_dm:li_40corp"
    assert resolve_key(["{{user}}"], {"user": "a:b"}).key == "a_3ab"


def test_literals_are_refused_and_not_escaped() -> None:
    assert refused(resolve_key(["wecom_dm:li@corp", " room-1"], {})) == ["invalid_chars", "invalid_chars"]
    assert refused(resolve_key(["", "telegram:", "a" * 257], {})) == ["empty", "empty_part", "too_long"]


def test_the_first_valid_candidate_wins() -> None:
    resolution = resolve_key([123, "{{results.none.x}}", "room-1", "room-2"], {})
    assert resolution.key == "room-1"
    assert resolution.reason is None
    assert resolution.refused == (Refusal("{{results.none.x}}", "unresolved_template"),)


def test_one_string_is_one_candidate() -> None:
    assert resolve_key(TELEGRAM, telegram(1)).key == "telegram:1"


def test_no_candidate_gives_no_key() -> None:
    assert resolve_key([], {}) == KeyResolution(None)
    assert resolve_key([None, 1], {}).reason == "empty"


def test_the_key_template_is_rendered_and_checked() -> None:
    """The template can use the resolved key unescaped, and the result is checked again."""
    scope = telegram(7) | {"bot": "b@1", "conversation_key": "from another run"}
    assert resolve_key([TELEGRAM], scope, template="{{bot}}:{{conversation_key}}").key == "b_401:telegram:7"
    resolution = resolve_key([TELEGRAM], scope, template="{{conversation_key}}/{{conversation_key}}")
    assert resolution.key is None
    assert resolution.conversation_key == "telegram:7"
    assert resolution.refused == (Refusal("{{conversation_key}}/{{conversation_key}}", "invalid_chars"),)
    assert resolution.reason == "invalid_chars"
    assert refused(resolve_key(["a" * 200], {}, template="{{conversation_key}}:{{conversation_key}}")) == ["too_long"]


@pytest.mark.parametrize("path", ["thread_id", "configurable.thread_id", " thread_id "])
def test_the_thread_id_counts_in_manual_runs_only(path: str) -> None:
    """The thread id of a webhook is new in each run, so it is unresolved unless the run is manual."""
    scope = {"thread_id": "t-1", "configurable": {"thread_id": "t-1"}}
    assert refused(resolve_key([f"{{{{{path}}}}}"], scope)) == ["unresolved_template"]
    assert refused(resolve_key(["a"], scope, template=f"{{{{{path}}}}}")) == ["unresolved_template"]
    assert resolve_key([f"{{{{{path}}}}}"], scope, manual=True).key == "t-1"


@pytest.mark.parametrize(
    "value", [None, True, False, [], ["a"], {}, {"a": 1}, b"a", object(), float("nan"), float("inf")]
)
def test_a_value_that_is_no_text_or_number_is_unresolved(value: object) -> None:
    """A value such as null would give a key that many people share."""
    assert refused(resolve_key(["telegram:{{x}}"], {"x": value})) == ["unresolved_template"]


@pytest.mark.parametrize(
    ("value", "key"),
    [(0, "k:0"), (-0.0, "k:0"), (12345.0, "k:12345"), (1.5, "k:1_2e5"), (1e22, "k:10000000000000000000000")],
)
def test_numbers(value: float, key: str) -> None:
    """A whole number becomes its digits, also if it is a float."""
    assert resolve_key(["k:{{x}}"], {"x": value}).key == key


@pytest.mark.parametrize("value", [10**256, 1 << 20000, 1e300, "a" * 257, "小" * 10**6], ids=range(5))
def test_long_values_are_too_long(value: object) -> None:
    assert refused(resolve_key(["{{x}}"], {"x": value})) == ["too_long"]


def test_a_value_with_a_lone_surrogate_is_refused() -> None:
    resolution = resolve_key(["{{x}}", "room-1"], {"x": "\ud800"})
    assert resolution.key == "room-1"
    assert resolution.refused == (Refusal("{{x}}", "invalid_chars"),)


@pytest.mark.parametrize("path", ["items.0.id", "items[0].id", "deep.a-b.0[1]", "größe"])
def test_paths_go_through_mappings_and_lists(path: str) -> None:
    scope = {"items": ({"id": "v"},), "deep": {"a-b": [["u", "v"]]}, "größe": "v"}
    assert resolve_key([f"{{{{{path}}}}}"], scope).key == "v"


@pytest.mark.parametrize(
    "path",
    [
        "a.__class__",
        "a.real",
        "text.0",
        "list.1",
        "list.-1",
        "list[-1]",
        "list.²",
        "list." + "9" * 5000,
        "a|upper",
        "a ~ a",
        "'a'",
        "",
        "a..b",
        ".",
    ],
)
def test_there_are_no_expressions_and_no_attributes(path: str) -> None:
    scope = {"a": 1, "text": "abc", "list": ["x"], "a|upper": "x"}
    assert resolve_key([f"{{{{{path}}}}}"], scope).key is None


def test_a_long_template_is_refused() -> None:
    assert refused(resolve_key(["{{a}}" * 1000], {"a": "b"})) == ["too_long"]


def test_the_scope_is_only_read() -> None:
    candidates = [TELEGRAM]
    scope = telegram(1)
    before = copy.deepcopy(scope)
    resolve_key(candidates, scope)
    assert (candidates, scope) == ([TELEGRAM], before)
    assert resolve_key(candidates, telegram(2)).key == "telegram:2"
    grows: defaultdict[str, object] = defaultdict(dict)
    resolve_key(["{{a.b}}"], grows)
    assert not grows


@given(
    st.lists(templates | json_values),
    st.dictionaries(st.sampled_from(["a", "b", "thread_id"]), json_values),
    templates,
    st.booleans(),
)
def test_resolving_never_raises_and_gives_valid_keys_only(
    candidates: list[object], scope: dict[str, object], template: str, manual: bool
) -> None:
    before = copy.deepcopy((candidates, scope))
    resolution = resolve_key(candidates, scope, template=template, manual=manual)
    if resolution.key is None:
        assert resolution.reason is not None
    else:
        check_key(resolution.key)
    assert repr((candidates, scope)) == repr(before)


@given(texts, texts, texts, texts)
def test_different_people_have_different_keys(a: str, b: str, c: str, d: str) -> None:
    one, other = resolve_key([WECOM], wecom(a, b)).key, resolve_key([WECOM], wecom(c, d)).key
    assert one is None or (one == other) == ((a, b) == (c, d))


@pytest.mark.parametrize("channel", ["telegram", "wecom_cs", "wecom_aibot", "wecom_dm", "http"])
def test_a_session_id_names_its_channel(channel: str) -> None:
    assert channel_of(f"{channel}:1:2") == channel


@pytest.mark.parametrize("session_id", ["session-123", "telegram", "other:1", "telegrams:1", "TELEGRAM:1", ""])
def test_other_session_ids_have_the_default_channel(session_id: str) -> None:
    """An unknown prefix gives the default, so that metric labels stay a closed set."""
    assert channel_of(session_id) == "other"


WHOLE_KEY = "{{key:inputs.history_key}}"


@pytest.mark.parametrize(
    "key", ["telegram:123", "me@example.com", "a_40b", "acme:li@corp:1", "C024.17", "x" * 256, 12345]
)
def test_a_whole_key_from_outside_is_taken_whole(key: object) -> None:
    """A `key:` placeholder is not escaped again, and a key template can extend it."""
    scope = {"inputs": {"history_key": key}}
    assert resolve_key([WHOLE_KEY], scope).key == str(key)
    widened = resolve_key(["{{ key: inputs.history_key }}"], scope, template="b:{{conversation_key}}")
    assert widened.key == (f"b:{key}" if len(str(key)) < 255 else None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("telegram:", "empty_part"),
        ("a::b", "empty_part"),
        ("{{thread_id}}", "unresolved_template"),
        ("x" * 257, "too_long"),
        ("two\nlines", "invalid_chars"),
        (None, "unresolved_template"),
        (["a"], "unresolved_template"),
        (True, "unresolved_template"),
    ],
)
def test_an_invalid_whole_key_is_refused(value: object, reason: str) -> None:
    resolution = resolve_key([WHOLE_KEY, "room"], {"inputs": {"history_key": value}})
    assert (resolution.key, [one.reason for one in resolution.refused]) == ("room", [reason])


def test_a_whole_key_is_a_whole_candidate() -> None:
    """A `key:` placeholder must be the whole candidate, and resolves the thread id in manual runs only."""
    scope = {"inputs": {"history_key": "a"}, "thread_id": "me@x"}
    assert refused(resolve_key(["b:{{key:inputs.history_key}}"], scope)) == ["unresolved_template"]
    assert refused(resolve_key(["{{key:thread_id}}"], scope)) == ["unresolved_template"]
    assert resolve_key(["{{key:thread_id}}"], scope, manual=True).key == "me@x"
