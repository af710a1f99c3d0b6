"""Commands that people send to a bot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from threadkeep.channels.bot import Bot
from threadkeep.channels.contract import IncomingMessage
from threadkeep.channels.texts import Texts

type Action = Literal["say", "reset", "forget"]


@dataclass(frozen=True)
class Command:
    """The action of a command, and the text of its answer."""

    action: Action
    text: str


def command_in(message: IncomingMessage, bot: Bot) -> Command | None:
    """Return the command in a message; None for other messages."""
    words = message.text.lower().split()
    texts = bot.texts
    if words == ["/forget", "yes"] and message.private:
        return Command("forget", texts.forgotten)
    if words in (["/new"], ["/reset"]):
        return Command("reset", texts.new)
    if words[0] == "/start":
        return Command("say", texts.welcome)
    says = {
        "/help": texts.help,
        "/whoami": _whoami(message, texts),
        "/forget": texts.forget_question if message.private else texts.forget_group,
        "/forget yes": texts.forget_group,
    }
    said = says.get(" ".join(words))
    return None if said is None else Command("say", said)


def _whoami(message: IncomingMessage, texts: Texts) -> str:
    sender = message.sender.id if message.sender is not None else "-"
    return texts.whoami.replace("{id}", sender).replace("{session}", message.session_id or "-")
