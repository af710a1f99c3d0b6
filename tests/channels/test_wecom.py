"""Tests of WeCom's encryption, with published vectors and wechatpy, and of reading XML."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wechatpy.enterprise.crypto import PrpCrypto, WeChatCrypto

from tests.channels.platforms import AES_KEY, CORP, NOW, WECOM_TOKEN, WeComAIBot, WeComDirect
from threadkeep.channels.contract import Callback, CallbackResponse
from threadkeep.channels.wecom import WeComCrypto, read_xml, xml_envelope
from threadkeep.errors import CallbackRefused, InvalidInput

WECHATPY_KEY = "kWxPEV2UEDyxWpmPdKC3F4dgPDmOvfKX1HGnEUDS1aR"
WECHATPY_ID = "wx49f0ab532d5d035a"
ECHOES = {
    "V1": (
        ("QDG6eK", "jWmYm7qr5nMoAUwZRjGtBxmz3KA1tkAj3ykkR6q2B2C", "wx5823bf96d3bd56c7"),
        ("1409659589", "263014780", "5c45ff5e21c57e6ad56bac8758b79b1d9ac89fd3"),
        "P9nAzCzyDtyTWESHep1vC5X9xho/qYX3Zpb4yKa9SKld1DsH3Iyt3tP3zNdtp+4RPcs8TgAE7OaBO+FZXvnaqQ==",
        "1616140317555161061",
    ),
    "V2": (
        ("hJqcu3uJ9Tn2gXPmxx2w9kkCkCE2EPYo", "6qkdMrq68nTKduznJYO1A37W2oEgpkMUvkttRToqhUt", "ww1436e0e65a779aee"),
        ("1476416373", "47744683", "012bc692d0a58dd4b10f8dfe5c4ac00ae211ebeb"),
        "fsi1xnbH4yQh0+PJxcOdhhK6TDXkjMyhEPA7xB2TGz6b+g7xyAbEkRxN/3cNXW9qdqjnoVzEtpbhnFyq6SVHyA==",
        "1288432023552776189",
    ),
    "V3": (
        ("123456", WECHATPY_KEY, WECHATPY_ID),
        ("1411443780", "437374425", "dd6b9c95b495b3f7e2901bfbc76c664930ffdb96"),
        "4ByGGj+sVCYcvGeQYhaKIk1o0pQRNbRjxybjTGblXrBaXlTXeOo1+bXFXDQQb1o6co6Yh9Bv41n7hOchLF6p+Q==",
        "5927782489442352469",
    ),
}
V4_MESSAGE = (
    "RgqEoJj5A4EMYlLvWO1F86ioRjZfaex/gePD0gOXTxpsq5Yj4GNglrBb8I2BAJVODGajiFnXBu7mCPatfjsu6IHCrsTyeDXzF6Bv283dGymzxh6y"
    "dJRvZsryDyZbLTE7rhnus50qGPMfp2wASFlzEgMW9z1ef/RD8XzaFYgm7iTdaXpXaG4+BiYyolBug/gYNx410cvkKR2/nPwBiT+P4hIiOAQqGp/T"
    "ywZBtDh1yCF2KOd0gpiMZ5jSw3e29mTvmUHzkVQiMS6td7vXUaWOMZnYZlF3So2SjHnwh4jYFxdgpkHHqIrH/54SNdshoQgWYEvccTKe7FS709/5"
    "t6NMxuGhcUGAPOQipvWTT4dShyqio7mlsl5noTrb++x6En749zCpQVhDpbV6GDnTbcX2e8K9QaNWHp91eBdCRxthuL0="
)
V5_REPLY = """<xml>
<MsgType><![CDATA[text]]></MsgType>
<Content><![CDATA[test]]></Content>
<FromUserName><![CDATA[wx49f0ab532d5d035a]]></FromUserName>
<ToUserName><![CDATA[messense]]></ToUserName>
<AgentID>1</AgentID>
<CreateTime>1411525903</CreateTime>
</xml>"""
V7_MESSAGE = (
    '{"msgid":"m1","aibotid":"b1","chatid":"g1","chattype":"group","from":{"userid":"u1"},"msgtype":"text",'
    '"text":{"content":"@Bot hi"}}'
)
V7_ENCRYPTED = (
    "Q3stYC6hdFzMh9T8HCvyDP6+xaArM7kyQRIUN/QGfcz2UPvXDizNwaU15nZZDJn+qhIEfUC5kcUXicRHP92BDb4VAOEFb4qbOz2s27bxOlMt/8cf"
    "92M5HQSr+/mkysLzAgWXuLQsJqjRdTWnux2SG0a87qb+VIQrzxjgbwzbfwZqNnzimsN6Wo6qwO0XJEO6xRwOu4GSOXztcNvyhp2JeQ=="
)
DIRECT = WeComDirect()


def crypto_of(vector: str) -> WeComCrypto:
    """Return the crypto with the keys of a vector."""
    return WeComCrypto(*ECHOES[vector][0])


def signed(timestamp: str, nonce: str, signature: str, rest: str = "", *, method: str = "GET") -> Callback:
    """Return a request that is received at the time of its timestamp."""
    query = f"msg_signature={signature}&timestamp={timestamp}&nonce={nonce}{rest}"
    at = datetime.fromtimestamp(int(timestamp), UTC)
    return Callback(method=method, received_at=at, query=query)  # type: ignore[arg-type]


@pytest.mark.parametrize("vector", ECHOES)
@pytest.mark.parametrize("encoded", [True, False], ids=["percent", "raw"])
def test_an_echo_request_is_answered_with_the_plain_text(vector: str, encoded: bool) -> None:
    """The response has no quotes and no newline. A `+` of base64 may be percent-encoded or raw."""
    _, (timestamp, nonce, signature), echo, plain = ECHOES[vector]
    callback = signed(timestamp, nonce, signature, f"&echostr={quote(echo, safe='') if encoded else echo}")
    received = crypto_of(vector).receive(callback, xml_envelope)
    assert not isinstance(received, str)
    assert received.response == CallbackResponse(plain.encode(), "text/plain")
    assert received.updates == ()


@pytest.mark.parametrize("vector", ECHOES)
def test_a_vector_with_anything_else_changed_is_refused(vector: str) -> None:
    (token, key, receiver), (timestamp, nonce, signature), echo, _ = ECHOES[vector]
    wrong = [
        signed(timestamp, f"{nonce[:-1]}x", signature, f"&echostr={echo}"),
        signed(str(int(timestamp) + 1), nonce, signature, f"&echostr={echo}"),
        signed(timestamp, nonce, signature[:-1], f"&echostr={echo}"),
        signed(timestamp, nonce, "é" + signature[1:], f"&echostr={echo}"),
        signed(timestamp, nonce, signature, f"&echostr={echo[:-4]}AA=="),
        signed(timestamp, nonce, signature),
    ]
    for callback in wrong:
        with pytest.raises(CallbackRefused, match="signature"):
            crypto_of(vector).receive(callback, xml_envelope)
    right = signed(timestamp, nonce, signature, f"&echostr={echo}")
    with pytest.raises(CallbackRefused, match="signature_wrong"):
        WeComCrypto(f"{token}x", key, receiver).receive(right, xml_envelope)
    with pytest.raises(CallbackRefused, match="receiver_wrong"):
        WeComCrypto(token, key, "another").receive(right, xml_envelope)
    assert WeComCrypto(token, key, None).receive(right, xml_envelope)


def test_the_signature_of_the_published_sample_is_reproduced() -> None:
    (_, key, receiver), (timestamp, nonce, _), echo, _ = ECHOES["V2"]
    crypto = WeComCrypto("xxxxxxx", key, receiver)
    assert crypto.sign(timestamp, nonce, echo) == "59dce1a653fc31a6f0472567199561e9336a8d0b"


def test_a_body_is_not_parsed_before_its_signature_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser needs a second for two megabytes of elements, which anybody can send."""
    parsed: list[object] = []
    monkeypatch.setattr("threadkeep.channels.wecom.XMLParser", parsed.append)
    callback = signed("1411525903", "461056294", "74d92dfeb87ba7c714f89d98870ae5eb62dff26d", method="POST")
    body = f"<xml>{'<a/>' * 9}<Encrypt>\n<![CDATA[{V4_MESSAGE[:-1]}]]></Encrypt></xml>".encode()
    with pytest.raises(CallbackRefused, match="signature_wrong"):
        crypto_of("V3").receive(replace(callback, body=body), xml_envelope)
    for missing in (b"", b"<xml/>", b"<Encrypt></Encrypt>", b"<Encrypt>" + b" " * 99):
        assert xml_envelope(missing) == ""
    assert parsed == []


def test_a_message_is_decrypted() -> None:
    callback = signed("1411525903", "461056294", "74d92dfeb87ba7c714f89d98870ae5eb62dff26d", method="POST")
    body = f"<xml><ToUserName>x</ToUserName><Encrypt><![CDATA[{V4_MESSAGE}]]></Encrypt></xml>".encode()
    plain = crypto_of("V3").receive(replace(callback, body=body), xml_envelope)
    assert isinstance(plain, str)
    fields = read_xml(plain)
    assert fields is not None
    assert (fields["FromUserName"], fields["Content"], fields["MsgId"], fields["AgentID"]) == (
        "messense",
        "test",
        "4363689963896700987",
        "1",
    )


def test_replies_are_encrypted_as_in_the_vectors() -> None:
    crypto = crypto_of("V3")
    v5 = crypto.encrypt(V5_REPLY, salt=b"1234567890123456")
    assert v5.startswith("9s4gMv99m88kKTh/H8IdkOiM")
    assert v5.endswith("F9XiKzHo3")
    assert crypto.sign("1411525903", "461056294", v5) == "407518b7649e86ef23978113f92d27afa9296533"
    crypto = WeComCrypto(WECOM_TOKEN, AES_KEY, CORP)
    v6 = crypto.encrypt("我是中文abcd123", salt=b"aaaabbbbccccdddd")
    assert v6 == "jn1L23DB+6ELqJ+6bruv21Y6MD7KeIfP82D6gU39rmkgczbWwt5+3bnyg5K55bgVtVzd832WzZGMhkP72vVOfg=="
    assert crypto.sign("1409304348", "xxxxxx", v6) == "82c962d39941aa48552f90ef55aa323dc620cc10"
    crypto = WeComCrypto(WECOM_TOKEN, AES_KEY, "")
    assert crypto.encrypt(V7_MESSAGE, salt=b"0123456789abcdef") == V7_ENCRYPTED
    assert crypto.sign("1700000000", "nonce1", V7_ENCRYPTED) == "aee1008863314916535fbbac91808c5dae70f4c3"


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=500), receiver=st.sampled_from([CORP, ""]))
def test_wechatpy_and_threadkeep_decrypt_each_others_texts(text: str, receiver: str) -> None:
    """wechatpy is an independent implementation. The test covers any text and each length of the padding."""
    ours, theirs = WeComCrypto(WECOM_TOKEN, AES_KEY, receiver), WeChatCrypto(WECOM_TOKEN, AES_KEY, receiver)
    encrypted = ours.encrypt(text)
    assert theirs.check_signature(ours.sign("1", "n", encrypted), "1", "n", encrypted) == text
    assert ours.decrypt(PrpCrypto(theirs.key).encrypt(text, receiver).decode()) == (text, receiver)


@given(st.binary(max_size=200) | st.text(max_size=100))
def test_a_text_that_cannot_be_decrypted_is_refused(text: bytes | str) -> None:
    encrypted = text if isinstance(text, str) else base64.b64encode(text).decode()
    with pytest.raises(CallbackRefused, match="unreadable"):
        WeComCrypto(WECOM_TOKEN, AES_KEY, "").decrypt(encrypted)


@pytest.mark.parametrize(("seconds", "refused"), [(-301, True), (-300, False), (300, False), (301, True)])
def test_an_old_or_early_callback_is_refused(seconds: int, refused: bool) -> None:
    callback = DIRECT.callback(DIRECT.body("hi"), at=int((NOW + timedelta(seconds=seconds)).timestamp()))
    if not refused:
        assert DIRECT.channel().receive(callback).updates
        return
    with pytest.raises(CallbackRefused, match="stale"):
        DIRECT.channel().receive(callback)


def test_the_signature_is_checked_before_the_clock_and_the_clock_before_the_decryption() -> None:
    """A request with all three errors is refused for its signature.

    A request with the last two is refused for its age.
    """
    old = int((NOW - timedelta(days=1)).timestamp())
    with pytest.raises(CallbackRefused, match="signature_wrong"):
        DIRECT.channel().receive(DIRECT.callback("x", at=old, token="another"))
    crypto = WeComCrypto(WECOM_TOKEN, AES_KEY, CORP)
    query = f"msg_signature={crypto.sign(str(old), 'n', 'bad')}&timestamp={old}&nonce=n"
    callback = Callback(method="POST", received_at=NOW, query=query, body=b"<xml><Encrypt>bad</Encrypt></xml>")
    with pytest.raises(CallbackRefused, match="stale"):
        DIRECT.channel().receive(callback)


@pytest.mark.parametrize("timestamp", ["", "-1", "1e9", "9" * 5000, "٣", " 1"])
def test_a_timestamp_that_is_no_number_is_refused(timestamp: str) -> None:
    crypto = WeComCrypto(WECOM_TOKEN, AES_KEY, CORP)
    query = f"msg_signature={crypto.sign(timestamp, 'n', 'x')}&timestamp={quote(timestamp)}&nonce=n&echostr=x"
    with pytest.raises(CallbackRefused):
        crypto.receive(Callback(method="GET", received_at=NOW, query=query), xml_envelope)


def test_a_message_for_another_receiver_is_refused() -> None:
    """The receiver id is empty for AI bots, and the id of the corporation for applications."""
    with pytest.raises(CallbackRefused, match="receiver_wrong"):
        WeComCrypto(WECOM_TOKEN, AES_KEY, CORP).receive(
            WeComAIBot().callback("{}"), lambda body: json.loads(body)["encrypt"]
        )


@pytest.mark.parametrize("key", ["", "short", "a" * 42, "a" * 44, "?" * 43, "é" * 43])
def test_an_invalid_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="EncodingAESKey") as refused:
        WeComCrypto("token", key, "")
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("<xml><A>1</A><B><![CDATA[<x> & y]]></B><C/></xml>", {"A": "1", "B": "<x> & y", "C": ""}),
        ("<xml>\n<A>1</A>\n<List><A>2</A>in</List></xml>", {"A": "1", "List": "in"}),
        ("<xml><A>&lt;&#20013;</A></xml>", {"A": "<中"}),
        ("<xml><A>1<B>x</B>2<B/>3</A><A>4</A></xml>", {"A": "4"}),
        ("<xml><A>1<B>x</B>2<B/>3</A></xml>", {"A": "123"}),
        ('<?xml version="1.0" encoding="no-such"?><xml><A>中</A></xml>', {"A": "中"}),
        ("<xml/>", {}),
        ("", None),
        ("<xml>", None),
        ("{}", None),
        ("<xml><A>\ud800</A></xml>", None),
        ('<!DOCTYPE x [<!ENTITY a "b">]><xml><A>&a;</A></xml>', None),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><xml/>', None),
        ("<xml><A>&undefined;</A></xml>", None),
    ],
)
def test_flat_xml_is_read_and_definitions_are_refused(text: str, fields: dict[str, str] | None) -> None:
    assert read_xml(text) == fields
