"""The YAML file that lists the bots. Secrets may come from the environment."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, override

import yaml
from pydantic import BaseModel, Field, SecretStr, ValidationError

from threadkeep.channels import telegram_client, wecom_client, wecom_connection
from threadkeep.channels.bots import TEXTS, Language, Texts
from threadkeep.channels.contract import Channel
from threadkeep.channels.delivery import DeliveryOptions
from threadkeep.channels.telegram import ChatType, TelegramChannel, TelegramOptions, UpdateKind
from threadkeep.channels.wecom import WeComDirectChannel, WeComDirectOptions
from threadkeep.channels.wecom_aibot import WeComAIBotChannel, WeComAIBotOptions
from threadkeep.channels.wecom_cs import WeComServiceChannel, WeComServiceOptions
from threadkeep.errors import InvalidInput
from threadkeep.records import Json
from threadkeep.records.runs import DoubleTexting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

type ApiAddress = Annotated[str, Field(pattern=r"^https?://[^/\s]+.*$")]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class BotSettings(BaseModel, extra="forbid", frozen=True, hide_input_in_errors=True):
    """Settings that all kinds of bots share."""

    name: str
    workflow: str = "chat"
    language: Language = "en"
    texts: dict[str, str] = Field(default_factory=dict)
    allowed_users: frozenset[str] = frozenset()
    max_characters: int = Field(20_000, ge=1, le=100_000)
    messages_per_minute: int = Field(0, ge=0, le=10_000)
    double_texting: DoubleTexting | None = None

    def all_texts(self) -> Texts:
        """Return the default texts in the bot's language, replaced by the bot's own `texts` where it has any.

        Raises:
            InvalidInput: a text has a name that bots do not use.
        """
        return TEXTS[self.language].changed(self.texts)

    @abstractmethod
    def channel(self) -> Channel:
        """Create the bot's channel, which verifies and parses what its platform sends, from these settings.

        Raises:
            InvalidInput: an option is invalid.
        """

    def options[O: DataclassInstance](self, kind: type[O], **others: object) -> O:
        """Create an options object of type `kind`. Take each field from `others` or else from these settings.

        Raises:
            InvalidInput: an option is invalid.
        """
        given = {one.name: getattr(self, one.name) for one in fields(kind) if one.name not in others}
        plain = {name: each.get_secret_value() if isinstance(each, SecretStr) else each for name, each in given.items()}
        return kind(**plain, **others)


class TelegramSettings(BotSettings):
    """Settings of a Telegram bot. The bot polls, unless it receives with a webhook, which needs a `secret`."""

    kind: Literal["telegram"]
    token: SecretStr
    receive: Literal["polling", "webhook"] = "polling"
    secret: SecretStr = SecretStr("")
    username: str = ""
    allowed_updates: tuple[UpdateKind, ...] = ("message",)
    chat_types: tuple[ChatType, ...] = ("private", "group", "supergroup")
    group_messages: Literal["addressed", "all"] = "addressed"
    api: ApiAddress = telegram_client.API

    @override
    def channel(self) -> TelegramChannel:
        if self.receive == "webhook" and not self.secret.get_secret_value():
            raise InvalidInput("A bot that receives by webhook needs a secret; choose one of A-Z, a-z, 0-9, _ and -.")
        return TelegramChannel(self.options(TelegramOptions))


class WeComSettings(BotSettings):
    """Settings of a corporation's callback, signed with `token` and encrypted with `encoding_aes_key`."""

    corp_id: str
    secret: SecretStr = Field(min_length=1)
    token: SecretStr
    encoding_aes_key: SecretStr
    receive: Literal["webhook"] = "webhook"
    api: ApiAddress = wecom_client.API


class WeComDirectSettings(WeComSettings):
    """Settings of a WeCom application that belongs to a corporation. WeCom issues its `secret`."""

    kind: Literal["wecom_dm"]
    agent_id: str

    @override
    def channel(self) -> WeComDirectChannel:
        return WeComDirectChannel(self.options(WeComDirectOptions))


class WeComServiceSettings(WeComSettings):
    """Settings of WeCom Customer Service for a corporation. WeCom issues the `secret` for the customer service."""

    kind: Literal["wecom_cs"]
    desks: frozenset[str] = frozenset()
    # Customers write several short messages in a row, so answer them together.
    double_texting: DoubleTexting | None = "coalesce"

    @override
    def channel(self) -> WeComServiceChannel:
        return WeComServiceChannel(self.options(WeComServiceOptions))


class WeComAIBotSettings(BotSettings):
    """Settings of an AI bot. WeCom sends callbacks, unless the bot opens a long connection.

    Callbacks need `token` and `encoding_aes_key`; the connection needs `bot_id` and `secret`. `receive_id`, the
    receiver that callbacks must name, is empty for a company's own bot; None accepts any receiver.
    """

    kind: Literal["wecom_aibot"]
    token: SecretStr = SecretStr("")
    encoding_aes_key: SecretStr = SecretStr("")
    receive: Literal["webhook", "connection"] = "webhook"
    secret: SecretStr = SecretStr("")
    connection: Annotated[str, Field(pattern=r"^wss?://[^/\s]+.*$")] = wecom_connection.ADDRESS
    api: ApiAddress = wecom_client.API
    bot_id: str = ""
    bot_name: str = ""
    receive_id: str | None = ""

    @override
    def channel(self) -> WeComAIBotChannel:
        is_called, secret = self.receive == "webhook", self.secret.get_secret_value()
        if is_called and not self.token.get_secret_value():
            raise InvalidInput("An AI bot that WeCom calls needs its token and encoding_aes_key; set them.")
        if not is_called and not (self.bot_id and secret):
            raise InvalidInput("An AI bot with a connection needs its bot_id and its secret; set them.")
        if self.receive_id and not all(":" in user for user in self.allowed_users):
            raise InvalidInput("A third party's bot has users of several companies; allow them as <company>:<member>.")
        return WeComAIBotChannel(self.options(WeComAIBotOptions, connection=not is_called))


type AnyBot = TelegramSettings | WeComDirectSettings | WeComServiceSettings | WeComAIBotSettings


class ChannelsFile(BaseModel, extra="forbid", frozen=True, hide_input_in_errors=True):
    """The content of the YAML file that lists the bots, with options for the delivery of their answers."""

    channels: list[Annotated[AnyBot, Field(discriminator="kind")]]
    delivery: DeliveryOptions = DeliveryOptions()


def read_channels(path: Path, environment: Mapping[str, str]) -> ChannelsFile:
    """Read the YAML file that lists the bots, and replace each `${NAME}` with the environment variable.

    Raises:
        InvalidInput: the file is invalid. The error names the file, the bot and the field, but never a value.
    """
    text = _read(path)
    try:
        content = _expanded(yaml.safe_load(text), environment)
        file = ChannelsFile.model_validate(content)
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        raise InvalidInput(f"{path}:{line}: this is not YAML; correct the line.") from None
    except ValidationError as error:
        raise InvalidInput(f"{path}: {_sentence(error)}") from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    except ValueError:
        raise InvalidInput(f"{path}: a value looks like a date that does not exist; put the value in quotes.") from None
    _check(path, file.channels)
    return file


def _check(path: Path, bots: Sequence[AnyBot]) -> None:
    names = [bot.name for bot in bots]
    accounts: dict[str, str] = {}
    for bot in bots:
        if names.count(bot.name) > 1:
            raise InvalidInput(f"{path}: two channels are called {bot.name!r}; rename one.")
        try:
            channel = bot.channel()
            bot.all_texts()
        except InvalidInput as error:
            raise InvalidInput(f"{path}: channel {bot.name!r}: {error}") from None
        # If two channels fetched the messages of one bot, each message would reach only one of the channels.
        fetches = bot.kind == "telegram" or bot.receive == "connection"
        if fetches and (other := accounts.setdefault(channel.scope, bot.name)) != bot.name:
            raise InvalidInput(f"{path}: channels {other!r} and {bot.name!r} are the same bot; remove one.")
    for one, two in combinations([bot for bot in bots if bot.kind == "wecom_cs"], 2):
        # Both bots could fetch the messages of a shared desk, and answer a message twice after a crash.
        if one.corp_id == two.corp_id and (not (one.desks and two.desks) or one.desks & two.desks):
            raise InvalidInput(
                f"{path}: channels {one.name!r} and {two.name!r} serve the same desk; list other `desks` in one of "
                "them, or remove it."
            )


def _expanded(value: object, environment: Mapping[str, str]) -> object:
    """Return a value with each `${NAME}` replaced by the environment variable."""
    if isinstance(value, dict):
        return {key: _expanded(each, environment) for key, each in value.items()}
    if isinstance(value, list):
        return [_expanded(each, environment) for each in value]
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise InvalidInput(f"The variable {found[1]} is not set; set it, or write its value into the file.")
        return environment[found[1]]

    return _VARIABLE.sub(variable, value)


def _sentence(error: ValidationError) -> str:
    """Return the first error as a sentence that names the bot and the field."""
    first = error.errors(include_input=False, include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    if location[:1] == ["channels"] and len(location) > 1:
        # Pydantic reports (channels, index, kind, field), without an unknown kind. Leave out the kind.
        location = [f"channel {int(location[1]) + 1}", *location[3 if len(location) > 3 else 2 :]]
    problem = {
        "missing": "is missing; add it",
        "extra_forbidden": "is not a field of this kind; remove it",
        "model_type": "must be a map with the list `channels`; correct it",
        "model_attributes_type": "must be a map of fields; correct it",
        "union_tag_not_found": "kind is missing; add it",
        "union_tag_invalid": f"kind is none of {first.get('ctx', {}).get('expected_tags')}; correct it",
    }.get(first["type"], f"{first['msg'].rstrip('.').lower()}; correct it")
    return f"{', '.join(location) or 'the file'}: {problem}."


def add_bot(path: Path, fields: Mapping[str, Json], environment: Mapping[str, str]) -> None:
    """Append a bot to the file, or create the file. Only its owner can read the written file.

    The comments of the file and the order of its bots do not change. Calls of several processes wait for each other.

    Raises:
        InvalidInput: the result would be invalid, or `channels` is not a list at the end of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Lock the folder instead of the file: `_append` replaces the file, and the lock would stay on the old one.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _append(path, fields, environment)
    finally:
        os.close(folder)


def _append(path: Path, fields: Mapping[str, Json], environment: Mapping[str, str]) -> None:
    lines = yaml.safe_dump([dict(fields)], sort_keys=False, allow_unicode=True)
    text = _read(path) if path.exists() else ""
    if text.strip():
        indent = _indent_of_last_list(path, text)
        added = "".join(f"{' ' * indent}{line}\n" for line in lines.splitlines())
        content = f"{text.rstrip()}\n{added}"
    else:
        content = f"channels:\n{lines}"
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        try:
            read_channels(Path(name), environment)
        except InvalidInput as error:
            raise InvalidInput(str(error).replace(name, str(path))) from None
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{path}: cannot read the channels file ({type(error).__name__}); check that it exists, that this user may "
            "read it, and that it is UTF-8 text."
        ) from None


def _indent_of_last_list(path: Path, text: str) -> int:
    """Return the indentation of the items of `channels`, the last key of the file."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        root = None
    if isinstance(root, yaml.MappingNode) and root.value:
        key, value = root.value[-1]
        if key.value == "channels" and isinstance(value, yaml.SequenceNode) and not value.flow_style:
            return int(value.start_mark.column)
    raise InvalidInput(f"{path}: `channels` is not a block list at the end of the file; add the bot by hand.")
