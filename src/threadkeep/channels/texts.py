"""Texts sent by the channels themselves: answers to commands, and replacements for missing answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from threadkeep.errors import InvalidInput

type Language = Literal["en", "zh"]


@dataclass(frozen=True)
class Texts:
    """The texts of a channel; an empty text is not sent.

    `welcome` answers /start, `new` answers /new and /reset, `media` answers a picture or another message without
    text, `failed` a message whose run gave no answer, `busy` a message that arrived during another run, and
    `too_many` the first message beyond the limit of a minute; `later` ends a
    stream whose answer takes longer. In `whoami`,
    `{id}` is the id of the sender and `{session}` that of the conversation. `forget_question` asks for confirmation
    before `forgotten`, and `forget_group` rejects the command.
    """

    welcome: str
    help: str
    new: str
    whoami: str
    forget_question: str
    forgotten: str
    forget_group: str
    media: str
    failed: str
    busy: str
    too_long: str
    too_many: str
    later: str

    def changed(self, texts: Mapping[str, str]) -> Texts:
        """Return the texts with some of them replaced.

        Raises:
            InvalidInput: there is no text of that name.
        """
        names = [field.name for field in fields(self)]
        if unknown := sorted(set(texts) - set(names)):
            raise InvalidInput(f"There is no text {unknown[0]!r}; there are {', '.join(names)}.")
        return replace(self, **texts)


TEXTS: Mapping[Language, Texts] = {
    "en": Texts(
        welcome="Hello! Write me a message. /help shows what else I understand.",
        help="/new begins a new conversation\n/whoami shows your id\n/forget deletes what we talked about",
        new="This is a new conversation.",
        whoami="Your id: {id}\nThis conversation: {session}",
        forget_question="This deletes everything that we talked about, for good. Send /forget yes to go on.",
        forgotten="Everything that we talked about is deleted.",
        forget_group="In a group nobody can delete for the others; write to me alone.",
        media="I can only read text.",
        failed="I could not answer that. Please try again later.",
        busy="I am still busy with your last message. Please try again later.",
        too_long="That message is too long for me. Please send a shorter one.",
        too_many="You write faster than I can answer. Please wait a minute.",
        later="This takes longer. The answer follows.",
    ),
    "zh": Texts(
        welcome="你好！请直接给我发消息。发送 /help 查看可用的命令。",
        help="/new 开始新的对话\n/whoami 查看你的 ID\n/forget 删除我们的聊天记录",
        new="已开始新的对话。",
        whoami="你的 ID：{id}\n当前对话：{session}",
        forget_question="这会永久删除我们所有的聊天记录。确认请发送 /forget yes。",
        forgotten="所有聊天记录已删除。",
        forget_group="群聊中不能替其他人删除记录，请私聊我。",
        media="我目前只能阅读文字消息。",
        failed="抱歉，我暂时无法回答，请稍后再试。",
        busy="我还在处理你的上一条消息，请稍后再试。",
        too_long="这条消息太长了，请发送短一些的内容。",
        too_many="消息发送得太快了，请一分钟后再试。",
        later="处理时间较长，稍后回复。",
    ),
}
"""The texts by language."""
