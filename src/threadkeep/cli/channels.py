"""`threadkeep channels`: bots, webhooks, and the delivery of answers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.cli.shared import Confirmed, command_settings, one_of, opened_memory
from threadkeep.cli.terminal import NotDone, WrongUse, counted, terminal
from threadkeep.records import Json
from threadkeep.records.messages import OPEN_STATUSES, OUTBOX_STATUSES, OutboxStatus

if TYPE_CHECKING:
    from threadkeep.channels.configuration import AnyBot
    from threadkeep.channels.contract import ChannelClient
    from threadkeep.history.memory import Memory
    from threadkeep.store.outbox import ChannelState, Outgoing

_PAGE = 1000
_NO_BOTS = "There are no bots; add one with: threadkeep channels add, or set THREADKEEP_CHANNELS to a file."
_NOT_SHOWN = ("content", "address", "run_id", "partial")
_NUMBERS = ("max_characters", "messages_per_minute")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the bot.")]

_NUMBER = typer.Argument(metavar="NUMBER", min=1, max=2**63 - 1, help="The number of the answer in the outbox.")
Number = Annotated[int, _NUMBER]


async def list_channels() -> None:
    """List the bots, each with the numbers of its undelivered answers: waiting for a run, ready to send, or failed."""
    rows: list[dict[str, object]] = []
    states = await _states(bots := _bots())
    for bot in bots:
        counts = states[bot.name].counts
        rows.append({"name": bot.name, "kind": bot.kind, "receive": bot.receive, "workflow": bot.workflow, **counts})
    _list_bots(rows)


async def show_status() -> None:
    """Show when each bot last received a message, and the age of its oldest undelivered answer.

    Bots that were removed from the channels file are shown while they have undelivered answers.
    """
    states = await _states(bots := _bots())
    kinds: dict[str, str | None] = {bot.name: bot.kind for bot in bots}
    removed = [name for name, state in states.items() if name not in kinds and any(state.counts.values())]
    rows: list[dict[str, object]] = []
    for name, kind in (kinds | dict.fromkeys(removed)).items():
        state = states[name]
        times = {"oldest_open": state.oldest_open, "last_heard": state.last_heard}
        rows.append({"name": name, "kind": kind, **state.counts, **times})
    _list_bots(rows)
    for name in removed:
        terminal.note(
            f"The channels file has no bot {name!r}, so its answers are not sent; add the bot again, or drop the "
            f"answers with: threadkeep channels outbox drop --bot {name}"
        )


def add_channel(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="telegram, wecom_dm, wecom_cs or wecom_aibot.")],
    name: Annotated[str, typer.Option("--name", help="The name of the bot, part of its callback's address.")],
    token: Annotated[str, typer.Option("--token", help="The bot's token, or ${NAME} for a variable.")] = "",
    fields: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Another field of the bot; repeatable.")
    ] = None,
) -> None:
    """Add a bot to the channels file. Restart the service to run it."""
    from threadkeep.channels.configuration import add_bot
    from threadkeep.settings import default_channels

    path = command_settings().channels or default_channels()
    given: dict[str, Json] = {"kind": kind, "name": name, **({"token": token} if token else {}), **_fields(fields)}
    add_bot(path, given, os.environ)
    terminal.result(
        {"channel": name, "file": str(path)}, f"{name} is in {path}; start the service with: threadkeep serve"
    )


async def check_channel(name: Name) -> None:
    """Show the account and the webhook of a bot, as reported by the platform."""
    bot = _bot(name)
    async with _client(bot) as client:
        account = await client.account()
    if isinstance(account, str):
        raise NotDone(_refusal(account))
    answer: dict[str, object] = {"channel": bot.name, "kind": bot.kind, **account}
    terminal.result(answer, "\n".join(f"{key}: {value}" for key, value in answer.items() if value not in (None, "")))
    if hint := _hint(bot, answer):
        terminal.note(hint)


async def set_webhook(
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="The public address of /channels/NAME.")] = "",
    delete: Annotated[bool, typer.Option("--delete", help="Remove the webhook; Telegram keeps its updates.")] = False,
) -> None:
    """Set the webhook URL of a Telegram bot, or remove it so that the bot can be polled."""
    if bool(url) == delete or (url and not url.startswith("https://")):
        raise WrongUse("Give the public https address of the bot, or --delete.")
    bot = _bot(name)
    await _set_webhook(bot, url)
    terminal.result(
        {"channel": name, "url": url},
        f"The webhook of {name} is removed." if delete else f"{name} receives its messages at {url}.",
    )


async def send_text(
    name: Name,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The conversation of the person.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to send.")],
    message_id: Annotated[str, typer.Option("--id", help="The message's id. A repeated id is sent only once.")] = "",
) -> None:
    """Send a person a message that is not a reply, and store it in the transcript."""
    from langchain_core.utils.uuid import uuid7

    from threadkeep.records import Message

    if not text.strip():
        raise WrongUse("The message is empty; write a text.")
    async with opened_memory() as memory:
        outbox = memory.channels.outbox
        recipient = await outbox.recipient(session)
        if recipient is None:
            _bot(name)
            raise NotDone("No bot has received a message of this conversation; the person must write to the bot first.")
        if recipient.channel != name:
            raise NotDone(f"The person of this conversation writes to {recipient.channel!r}; send it through that bot.")
        sent_id = message_id or str(uuid7())
        # Store the message before it is sent, so that the agent knows it.
        message = Message(role="assistant", content=text, id=sent_id)
        await memory.session(session, user_id=recipient.user_id).append([message])
        await outbox.send(session, sent_id, text)
    terminal.result(
        {"session_id": session, "message_id": sent_id},
        "The message is in the outbox; a running service sends it.",
    )


async def list_outbox(
    context: typer.Context,
    status: Annotated[str, typer.Option("--status", help=f"Only {', '.join(OUTBOX_STATUSES)}.")] = "",
) -> None:
    """List undelivered answers, or the answers with a given status."""
    if context.invoked_subcommand is not None:
        return
    wanted = one_of("--status", status or None, OUTBOX_STATUSES)
    async with opened_memory() as memory:
        entries = await _entries(memory, OPEN_STATUSES if wanted is None else [wanted])
    values = [{name: value for name, value in vars(entry).items() if name not in _NOT_SHOWN} for entry in entries]
    terminal.listing(
        {"entries": values},
        ("number", "channel", "session", "status", "since", "tries", "error"),
        [
            (one.number, one.channel, one.session_id, one.status, one.created_at, one.tries, one.error)
            for one in entries
        ],
        right=["tries"],
        nothing="There are no undelivered answers.",
    )


async def retry_answer(number: Number) -> None:
    """Retry the delivery of an answer that could not be delivered."""
    async with opened_memory() as memory:
        found = await memory.channels.outbox.retry(number)
    if not found:
        raise NotDone("No failed answer has this number; list them with: threadkeep channels outbox --status failed")
    terminal.result({"retried": number}, f"Answer {number} will be sent again.")


async def drop_answer(
    number: Annotated[int | None, _NUMBER] = None,
    bot: Annotated[str, typer.Option("--bot", metavar="NAME", help="All undelivered answers of this bot.")] = "",
    confirmed: Confirmed = False,
) -> None:
    """Drop an undelivered answer, or all undelivered answers of a bot. Dropped answers stay in the transcripts."""
    if (number is None) == (not bot):
        raise WrongUse("Give the number of an answer, or --bot for all answers of a bot.")
    refusal = "The person will not receive a dropped answer; add --yes to drop it without confirmation."
    async with opened_memory() as memory:
        entries = [] if number is not None else await _entries(memory, OPEN_STATUSES)
        numbers = [number] if number is not None else [entry.number for entry in entries if entry.channel == bot]
        what = f"answer {number}" if number is not None else f"{counted(len(numbers), 'undelivered answer')} of {bot}"
        if numbers:
            terminal.confirm(f"Drop {what}?", refusal, confirmed=confirmed)
        dropped = [each for each in numbers if await memory.channels.outbox.drop(each)]
    if not dropped:
        which = "has this number" if number is not None else "is of this bot"
        raise NotDone(f"No undelivered answer {which}; list them with: threadkeep channels outbox")
    terminal.result({"dropped": number or dropped}, f"Dropped {counted(len(dropped), 'answer')}.")


def _list_bots(rows: Sequence[Mapping[str, object]]) -> None:
    """Print a table of bots. All rows have the same fields, which become the columns."""
    columns = [name.replace("_", " ") for name in (rows[0] if rows else ())]
    cells = [["-" if value is None else value for value in row.values()] for row in rows]
    terminal.listing({"channels": rows}, columns, cells, nothing=_NO_BOTS, right=OPEN_STATUSES)


async def _states(bots: Sequence[AnyBot]) -> dict[str, ChannelState]:
    async with opened_memory() as memory:
        return await memory.channels.outbox.states(bot.name for bot in bots)


def _bots() -> Sequence[AnyBot]:
    """Return the bots of the channels file. If no file is configured, there are no bots."""
    from threadkeep.channels.configuration import read_channels

    path = command_settings().channels
    return () if path is None else read_channels(path, os.environ).channels


def _bot(name: str) -> AnyBot:
    bots = {bot.name: bot for bot in _bots()}
    if not bots:
        raise NotDone(_NO_BOTS)
    if name not in bots:
        raise NotDone(f"There is no channel {name!r}; existing channels: {', '.join(bots)}.")
    return bots[name]


@asynccontextmanager
async def _client(bot: AnyBot) -> AsyncIterator[ChannelClient]:
    import httpx2

    from threadkeep.channels.opening import client_of

    async with opened_memory(creates=True) as memory, httpx2.AsyncClient() as http:
        yield client_of(bot, bot.channel(), memory, http)


def _hint(bot: AnyBot, account: Mapping[str, object]) -> str | None:
    """Return advice if a Telegram bot polls but has a webhook, or needs a webhook but has none."""
    if bot.kind != "telegram" or (bot.receive == "polling") != bool(account.get("url")):
        return None
    command = f"threadkeep channels webhook {bot.name}"
    if bot.receive == "polling":
        return f"The bot polls, but has a webhook; remove the webhook with: {command} --delete"
    return f"The bot lacks a webhook, so it gets no messages; set one with: {command} https://HOST/channels/{bot.name}"


async def _set_webhook(bot: AnyBot, url: str) -> None:
    from threadkeep.channels.configuration import TelegramSettings
    from threadkeep.channels.telegram_client import TelegramClient

    if not isinstance(bot, TelegramSettings):
        raise NotDone("This command is for Telegram only; set the address of a WeCom bot on WeCom's page.")
    if url and not bot.secret.get_secret_value():
        raise NotDone("The bot has no secret; add the field `secret` to it in the channels file first.")
    async with _client(bot) as client:
        assert isinstance(client, TelegramClient)  # noqa: S101 - the client of a Telegram bot
        if url:
            secret = bot.secret.get_secret_value()
            answer = await client.call(
                "setWebhook", {"url": url, "secret_token": secret, "allowed_updates": list(bot.allowed_updates)}
            )
        else:
            answer = await client.call("deleteWebhook")
    if answer.error:
        raise NotDone(_refusal(answer.error))


def _refusal(error: str) -> str:
    if error == "Unauthorized":
        return "Telegram does not know the token; copy it from @BotFather into the channels file."
    if error == "BadRequest":
        return "Telegram cannot call the address; use https, port 443, 80, 88 or 8443, and a name in the public DNS."
    if error in ("Code40001", "Code40013"):
        return "WeCom does not know the corporation or its secret; copy both into the channels file."
    return f"The platform rejected the call or did not answer ({error}); check the network and the bot's field `api`."


def _fields(options: Sequence[str] | None) -> dict[str, Json]:
    """Parse the options `--set FIELD=VALUE`. Lists, mappings, booleans and the numeric fields are parsed as YAML."""
    import yaml

    found: dict[str, Json] = {}
    for each in options or ():
        field, equals, value = each.partition("=")
        if not field or not equals:
            raise WrongUse("Write --set FIELD=VALUE.")
        try:
            parsed = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):  # for example, 2026-02-30 is no date
            parsed = value
        # Keep other values as strings: ids and secrets may consist of digits, and YAML would parse them as numbers.
        known = isinstance(parsed, list | dict | bool) or (isinstance(parsed, int) and field in _NUMBERS)
        found[field] = parsed if known else value
    return found


async def _entries(memory: Memory, statuses: Sequence[OutboxStatus]) -> list[Outgoing]:
    found: list[Outgoing] = []
    for status in statuses:
        after = 0
        while page := await memory.channels.outbox.entries(status=status, after=after, limit=_PAGE):
            found += page
            after = page[-1].number
    return sorted(found, key=lambda entry: entry.number)
