"""Calls to WeCom's API. All processes share an application's access token through the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Literal

import httpx2

from threadkeep.channels.contract import (
    Account,
    Address,
    ChannelClient,
    Later,
    Outcome,
    Part,
    Refused,
    Response,
    Sent,
    number_in,
    request,
    text_in,
)
from threadkeep.channels.formatting import split_markdown, utf8_length
from threadkeep.channels.wecom_aibot import MAX_MESSAGE_BYTES, is_response_url
from threadkeep.history.memory import Memory
from threadkeep.records import Json

API = "https://qyapi.weixin.qq.com"

_CALL_SECONDS = 20.0
_TOKEN_MARGIN_SECONDS = 300
_TOKEN_CODES = (40001, 40014, 42001)
_NOTICE_TOKEN_REFUSED = 95007  # "invalid msg token"
CUT = "\n\n[…]"
"""The end of an answer that is too long for the messages that WeCom accepts."""
_MOST_PARTS = 5
"""The number of messages that WeCom accepts after each message of a customer."""
_REFUSED: Mapping[int, str] = {
    40003: "InvalidUser",
    44004: "Empty",
    45002: "TooLong",
    60111: "InvalidUser",
    81013: "InvalidUser",
    95001: "ReplyLimit",  # five messages since the customer last wrote
    95002: "ReplyTimeOver",  # 48 hours since the customer last wrote
    95018: "SessionState",  # a human servicer has taken over the conversation
}
_RECIPIENTS: Mapping[str, str] = {"invaliduser": "InvalidUser", "unlicenseduser": "UnlicensedUser"}
"""Fields that list members who got no message, and the error for each field."""


class WeComApi:
    """The API calls of one application. URLs contain secrets, so they are never logged or shown."""

    def __init__(
        self, memory: Memory, http: httpx2.AsyncClient, *, scope: str, corp_id: str, secret: str, api: str = API
    ) -> None:
        self._clock = memory.clock
        self._state = memory.channels.state
        self._http = http
        self._scope = scope
        self._corp_id = corp_id
        self._secret = secret
        # The name depends on the secret, because another application, or a corrected secret, has another token.
        self._token_name = f"access_token:{sha256(secret.encode()).hexdigest()[:8]}"
        self._root = f"{api.rstrip('/')}/cgi-bin"
        self._asking = asyncio.Lock()
        self._failed: tuple[float, Response] | None = None

    async def call(self, method: str, values: Mapping[str, Json]) -> Response:
        """Call a method with the access token. Repeat the call if WeCom rejects the token."""
        answer = Response(error="NoToken")
        for _ in range(2):
            token = await self.token()
            if isinstance(token, Response):
                return replace(token, uncertain=False)  # the method was not called
            answer = await ask(
                self._http, "POST", f"{self._root}/{method}", query={"access_token": token}, values=values
            )
            if answer.code not in _TOKEN_CODES:
                break
            # Delete only the rejected token: another process may already have stored a new one.
            await self._state.forget(self._scope, self._token_name, token)
        return answer

    async def token(self) -> str | Response:
        """Return the stored access token or a new token. If WeCom issues no token, return its error.

        All calls that wait for a failed request get its error, and do not repeat the request.
        """
        began = time.monotonic()
        async with self._asking:
            if known := await self._state.value(self._scope, self._token_name):
                return known
            if self._failed is not None and self._failed[0] > began:
                return self._failed[1]
            query = {"corpid": self._corp_id, "corpsecret": self._secret}
            answer = await ask(self._http, "GET", f"{self._root}/gettoken", query=query)
            token = text_in(answer.fields, "access_token")
            if answer.error or not token:
                answer = answer if answer.error else Response(error="UnreadableAnswer")
                self._failed = time.monotonic(), answer
                return answer
            seconds = max((number_in(answer.fields, "expires_in") or 0) - _TOKEN_MARGIN_SECONDS, 60)
            expires_at = self._clock() + timedelta(seconds=seconds)
            await self._state.keep(self._scope, self._token_name, token, expires_at=expires_at)
            return token


async def ask(
    http: httpx2.AsyncClient,
    verb: Literal["GET", "POST"],
    url: str,
    *,
    query: Mapping[str, str] | None = None,
    values: Mapping[str, Json] | None = None,
) -> Response:
    """Send a request to WeCom; return network failures instead of raising them."""
    answer = await request(http, verb, url, seconds=_CALL_SECONDS, query=query, values=values)
    if answer.code != 200:
        return replace(answer, code=None, error=answer.error or f"Status{answer.code}")
    return answer_in(answer.fields, if_unreadable="UnreadableAnswer")


def answer_in(fields: Mapping[str, Json], *, if_unreadable: str) -> Response:
    """Return the response with these fields of WeCom's JSON. If `errcode` is missing, its error is `if_unreadable`."""
    code = number_in(fields, "errcode")
    if code is None:
        return Response(error=if_unreadable, uncertain=True)
    return Response(code, fields, error=f"Code{code}" if code else "")


def outcome_of(answer: Response) -> Outcome:
    """Return a sent message's outcome, from WeCom's response. Failures that an operator can correct are retried."""
    if not answer.error:
        refused = next((error for name, error in _RECIPIENTS.items() if text_in(answer.fields, name)), None)
        return Sent() if refused is None else Refused(refused)
    if answer.code is not None and (refusal := _REFUSED.get(answer.code)):
        return Refused(refusal)
    # -1: "busy", an error of the server
    return Later(answer.error, answer.retry_after, uncertain=answer.uncertain or answer.code == -1)


class WeComClient(ChannelClient):
    """The base class of clients that call WeCom's API for one application."""

    def __init__(self, api: WeComApi) -> None:
        self.api = api

    async def account(self) -> Account | str:
        """Return the state of the access token, or the name of an error."""
        token = await self.api.token()
        return token.error if isinstance(token, Response) else {"access_token": "valid"}


class WeComDirectClient(WeComClient):
    """A client that sends a WeCom application's answers to members of its corporation."""

    def __init__(self, api: WeComApi, agent_id: str) -> None:
        super().__init__(api)
        self._agent_id = int(agent_id)

    async def send(self, address: Address, part: Part) -> Outcome:
        """Send a part. Ask WeCom to drop duplicates only if the part may have been sent before.

        WeCom compares only the texts, so it would also drop an answer that has the same text as an earlier one.
        """
        message: dict[str, Json] = {
            "touser": text_in(address, "touser"),
            "msgtype": "text",
            "agentid": self._agent_id,
            "text": {"content": part.text},
            "safe": 0,
            "enable_duplicate_check": int(part.again),
        }
        return outcome_of(await self.api.call("message/send", message))


class WeComServiceClient(WeComClient):
    """A client of customer service desks, which sends answers and fetches messages."""

    async def send(self, address: Address, part: Part) -> Outcome:
        """Send a part with its id, which WeCom accepts only once. Add `CUT` if WeCom accepts no further part."""
        # WeCom counts from the customer's newest message. When a person retries, the bot has answered that message.
        most = _MOST_PARTS - 1 if part.first else _MOST_PARTS
        is_cut = (part.number - part.first) % most == most - 1 and not part.last
        message: dict[str, Json] = {
            "touser": text_in(address, "touser"),
            "open_kfid": text_in(address, "open_kfid"),
            "msgid": part.sent_id,
            "msgtype": "text",
            "text": {"content": part.text + CUT if is_cut else part.text},
        }
        answer = await self.api.call("kf/send_msg", message)
        # WeCom documents that a repeated id is an error, but not its code. The error means that the part has arrived.
        is_repeated = part.again and answer.error and "msgid" in text_in(answer.fields, "errmsg").lower()
        return Sent() if is_repeated else outcome_of(answer)

    async def page(self, desk: str, *, cursor: str | None, token: str | None) -> Response:
        """Fetch up to 1,000 messages of a desk after a cursor or, without a cursor, beginning with the oldest.

        `token` comes from the callback that announced the messages. If WeCom refuses it, fetch without a token.
        """
        values: dict[str, Json] = {"open_kfid": desk, "limit": 1000, **({"cursor": cursor} if cursor else {})}
        answer = await self.api.call("kf/sync_msg", values | ({"token": token} if token else {}))
        if token and answer.code == _NOTICE_TOKEN_REFUSED:
            answer = await self.api.call("kf/sync_msg", values)
        return answer


class WeComAIBotClient(ChannelClient):
    """A client that sends an AI bot's answers if WeCom has not fetched them. A message can be answered only once."""

    def __init__(self, http: httpx2.AsyncClient, *, api: str = API) -> None:
        self._http = http
        self._api = api

    async def send(self, address: Address, part: Part) -> Outcome:
        """Send a part to the response URL, which accepts one message. If more parts follow, mark it as cut."""
        url = text_in(address, "response_url")
        if not is_response_url(url, self._api):
            return Refused("NoResponseAddress")
        text = part.text
        if not part.last:
            text = split_markdown(text, MAX_MESSAGE_BYTES - utf8_length(CUT), size=utf8_length)[0] + CUT
        answer = await ask(self._http, "POST", url, values={"msgtype": "markdown", "markdown": {"content": text}})
        if answer.code in (None, -1, 45009):
            return Later(answer.error, answer.retry_after, uncertain=answer.uncertain)
        return Refused(answer.error) if answer.error else Sent(is_all=True)
