"""Settings, read from `THREADKEEP_*` environment variables and from the file `.env` in the working directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from dotenv.parser import Binding, parse_stream
from platformdirs import user_data_path
from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import NoDecode, SettingsConfigDict

from threadkeep.environment import PREFIX, default_database
from threadkeep.errors import InvalidInput, InvalidSettings
from threadkeep.history.compression import Compression, read_size
from threadkeep.history.memory_options import MemoryOptions
from threadkeep.history.pending import PendingOptions
from threadkeep.history.retention import RetentionOptions
from threadkeep.knowledge.graphiti.settings import GraphitiSettings
from threadkeep.records import Retention, RetentionLimits
from threadkeep.runs.options import RunSettings
from threadkeep.store.address import DatabaseAddress, TranscriptLocation, parse_address
from threadkeep.store.driver import Backend, StoreOptions
from threadkeep.store.partitions import check_partitions

_SUMMARY_KEEP = "messages:20"
_KEY_REQUESTS, _USER_REQUESTS = 6000, 300
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", re.IGNORECASE)


def default_channels() -> Path:
    """Return the default path of the file with the bots, which `threadkeep channels add` creates."""
    return user_data_path("threadkeep") / "channels.yaml"


class Settings(RunSettings, GraphitiSettings):
    """All settings of the service and the command line. Create them with `load_settings`, which raises clear errors."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", extra="ignore", frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    database_url: SecretStr = Field(
        default_factory=lambda: SecretStr(f"sqlite:///{default_database()}"),
        description="The database of transcripts: sqlite:////absolute/path.db or postgresql://user@host/database.",
    )
    sqlite_synchronous: Literal["FULL", "NORMAL"] = Field(
        "FULL", description="SQLite's durability: FULL survives a power cut, NORMAL may lose the last turns."
    )
    lock_timeout: float = Field(10.0, gt=0, description="Seconds to wait for SQLite's lock.")
    postgres_pool_min_size: int = Field(1, ge=0, description="Connections that stay open.")
    postgres_pool_max_size: int = Field(5, ge=1, description="The maximum number of connections.")
    postgres_pool_timeout: float = Field(30.0, gt=0, description="Seconds to wait for a connection.")
    postgres_pool_max_idle: float = Field(300.0, gt=0, description="Seconds after which an idle connection is closed.")
    partitions: int | None = Field(
        None, ge=2, le=1024, description="Partitions of messages by session in a new PostgreSQL database."
    )

    database_key: SecretStr | None = Field(
        None, description="64 hexadecimal digits that encrypt SQLite files (extra sqlcipher); store them elsewhere."
    )
    graph_store_backend: Backend | None = Field(None, description="The graph store's engine; default: DATABASE_URL's.")
    graph_store_sqlite_path: Path | None = Field(None, description="Absolute path of the graph store's SQLite file.")
    postgres_dsn: SecretStr | None = Field(None, description="The PostgreSQL URL of the graph store, if it uses one.")
    transcripts: TranscriptLocation = Field("tables", description="The storage of messages: tables or graph_store.")

    host: str = Field("127.0.0.1", description="Address to listen on; any but loopback needs API_KEYS.")
    port: int = Field(8700, ge=0, le=65535, description="Port to listen on; 0 means any free port.")
    api_keys: Annotated[dict[str, SecretStr], NoDecode] = Field(
        default_factory=dict, description="Comma-separated name:key pairs; without any, only loopback is served."
    )
    require_keys: bool = Field(
        False, description="Require a key of `threadkeep keys add` for each request, even if API_KEYS is empty."
    )
    jwt_issuer: str = Field("", description="The issuer of the tokens (JWT) with which browsers act for one user.")
    jwt_audience: str = Field("", description="The audience that tokens must name: this service.")
    jwt_key: SecretStr | None = Field(
        None, description="The issuer's public key (PEM), the address of its keys (JWKS, https), or a shared secret."
    )
    jwt_user_claim: str = Field("sub", min_length=1, description="The claim of a token that names the user.")
    jwt_scope: Literal["read", "write"] = Field("write", description="The scope of a token: read or write.")
    requests_per_key: int | None = Field(
        None, ge=0, description="Requests of a key per minute; 0 means no limit; by default 6000, no limit on loopback."
    )
    requests_per_user: int | None = Field(
        None, ge=0, description="Requests of a user per minute; 0 means no limit; by default 300, no limit on loopback."
    )
    cors_origins: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Comma-separated origins of web pages that may call the service: https://chat.example.com.",
    )
    body_limit: int = Field(2_097_152, ge=1024, description="The maximum size of a request's body in bytes.")
    max_connections: int = Field(1000, ge=1, description="Open connections, streams included; others get 503.")
    header_timeout: float = Field(10.0, gt=0, description="Seconds for the headers of a request to arrive.")
    body_timeout: float = Field(30.0, gt=0, description="Seconds for the body of a request to arrive.")
    shutdown_timeout: float = Field(20.0, ge=0, description="Seconds for running turns to finish at a shutdown.")

    model: str = Field("demo", min_length=1, description="demo, or any model name for LangChain's init_chat_model.")
    model_timeout_seconds: float = Field(60.0, gt=0, description="The time limit of a model call in seconds.")
    system_prompt: str = Field("", description="The system message of every chat.")
    workflows: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Comma-separated: a YAML file, a folder of them, or name=package.module:graph.",
    )

    channels: Path | None = Field(
        default_factory=lambda: path if (path := default_channels()).exists() else None,
        description="Absolute path of the YAML file of bots; by default the one in the data folder.",
    )

    history_enabled: bool = Field(True, description="Add earlier turns to chats.")
    history_max_messages: int = Field(20, ge=0, description="The limit of earlier messages in a call; 0 means none.")
    history_max_tokens: int = Field(
        4000, ge=0, description="The maximum number of tokens in a model call; 0 means no history."
    )
    history_window: Literal["anchored", "sliding"] = Field(
        "anchored", description="How to cut earlier messages: in steps that consecutive calls share, or one by one."
    )
    context_window: int | None = Field(
        None, ge=1, description="Tokens of the context window, for input and reply; by default the model's limit."
    )
    max_output_tokens: int | None = Field(
        None, ge=1, description="Tokens of the context window that are reserved for the reply."
    )
    summary_trigger: str = Field(
        "", description="Summarise messages at this size: tokens:20000, messages:40, fraction:0.5; empty means never."
    )
    summary_keep: str = Field(
        _SUMMARY_KEEP, description="Newest messages not to summarise: tokens:2000, messages:20 or fraction:0.25."
    )
    summary_model: str = Field("", description="The model for summaries, as in MODEL; by default the chat's.")
    recall: Literal["off", "session", "user"] = Field(
        "off", description="Search for relevant older turns: in the session, or in all sessions of its user."
    )
    facts: bool = Field(False, description="Add known facts of the session, the workspace and the user to chats.")
    learning: bool = Field(False, description="Have a model propose facts from people's messages in chats.")
    learning_accept_from: float | None = Field(
        None, ge=0, le=1, description="The confidence that a fact needs to be accepted; by default a person decides."
    )
    directives: bool = Field(
        False, description="Store message lines such as `preference (user): Keep diffs small.` as facts."
    )
    workspace: str | None = Field(
        None, max_length=512, description="The workspace of runs that name none; its facts are stored under this name."
    )
    memory_max_messages: int = Field(8, description="Messages that the in-run reducer keeps; less than 1 means 1.")
    memory_max_chars: int = Field(8000, ge=0, description="Characters that the in-run reducer keeps; 0 means no limit.")

    manifest_retention_days: float = Field(
        30.0, ge=0, le=36_500, description="Days to keep records of model calls; 0 means that none are stored."
    )
    retention_archive_max_age_days: float | None = Field(
        None, gt=0, le=36_500, description="The age in days after which messages are archived."
    )
    retention_archive_max_messages: int | None = Field(
        None, ge=1, description="The number of newest messages in a session that are not archived."
    )
    retention_archive_max_idle_days: float | None = Field(
        None, gt=0, le=36_500, description="The idle days after which sessions are archived."
    )
    retention_delete_max_age_days: float | None = Field(
        None, gt=0, le=36_500, description="The age in days after which messages are deleted."
    )
    retention_delete_max_messages: int | None = Field(
        None, ge=1, description="The number of newest messages in a session that are not deleted."
    )
    retention_delete_max_idle_days: float | None = Field(
        None, gt=0, le=36_500, description="The idle days after which sessions are deleted."
    )
    retention_interval_hours: float = Field(1.0, gt=0, description="Hours between two rounds of retention.")

    pending_dir: Path | None = Field(None, description="Absolute path of the folder of pending turns.")
    write_timeout: float = Field(
        5.0, gt=0, description="Seconds after which a turn that is not written becomes pending."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="The log level.")
    log_json: bool = Field(False, description="Write log lines as JSON.")
    otel: bool = Field(False, description="Send spans to OpenTelemetry, if its SDK is set up.")

    @field_validator("*")
    @classmethod
    def _check_number(cls, value: object) -> object:
        most = 1_000_000 if isinstance(value, float) else 2**31 - 1  # databases and timers accept no longer times
        if isinstance(value, float | int) and value > most:
            raise ValueError(f"it must be at most {most:,.0f}")
        return value

    @field_validator("database_url", "postgres_dsn")
    @classmethod
    def _check_address(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        name = str(info.field_name).upper()
        address = None if value is None else parse_address(value.get_secret_value(), variable=f"{PREFIX}{name}")
        if name == "POSTGRES_DSN" and address is not None and address.backend != "postgres":
            raise _invalid(name, "is not a PostgreSQL URL: write postgresql://user@host/db.")
        return value

    @field_validator("summary_trigger", "summary_keep")
    @classmethod
    def _check_size(cls, value: str) -> str:
        if value not in ("", _SUMMARY_KEEP):
            read_size(value)
        return value

    @field_validator(
        "graph_store_backend",
        "history_window",
        "recall",
        "transcripts",
        "double_texting",
        "graphiti_transport",
        "graphiti_group_id_strategy",
        "log_level",
        "sqlite_synchronous",
        mode="before",
    )
    @classmethod
    def _any_case(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        return value.upper() if info.field_name in ("log_level", "sqlite_synchronous") else value.lower()

    @field_validator("graph_store_sqlite_path", "pending_dir", "channels", "graphiti_git_folder")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError("write an absolute path, without ~")
        return value

    @field_validator("database_key")
    @classmethod
    def _check_database_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        if not re.fullmatch("[0-9a-fA-F]{64}", value.get_secret_value()):
            raise ValueError("it must be 64 hexadecimal digits; create them with: openssl rand -hex 32")
        if find_spec("sqlcipher3") is None:
            raise ValueError("it needs the extra sqlcipher; install it with: pip install 'threadkeep[sqlcipher]'")
        return value

    @field_validator("jwt_key")
    @classmethod
    def _check_jwt_key(cls, value: SecretStr | None) -> SecretStr | None:
        text = value.get_secret_value() if value is not None else ""
        address = urlsplit(text)
        if address.scheme == "http" and not is_loopback(address.hostname or ""):
            raise ValueError("write the address of the keys with https")
        if value is not None and len(text) < 32 and not address.netloc:
            raise ValueError("a shared secret needs at least 32 characters")
        return value

    @field_validator(
        "workflows",
        "cors_origins",
        "prices",
        "graphiti_scopes",
        "graphiti_recall_scopes",
        "graphiti_recall_extra_group_ids",
        mode="before",
    )
    @classmethod
    def _parse_list(cls, value: object) -> object:
        return [part for part in map(str.strip, value.split(",")) if part] if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError("write each origin as https://host or http://host:port, without a path, or write *")
        return [origin.lower() for origin in value]

    @field_validator("api_keys", mode="before")
    @classmethod
    def _parse_api_keys(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        keys: dict[str, str] = {}
        for pair in filter(None, (part.strip() for part in value.split(","))):
            name, separator, key = pair.partition(":")
            if not separator or not name or not key or name in keys:
                raise ValueError("write it as name:key,other-name:other-key, each name once")
            keys[name] = key
        return keys

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        check_partitions(self.database.backend, self.partitions)
        if self.postgres_pool_min_size > self.postgres_pool_max_size:
            why = f"is larger than {PREFIX}POSTGRES_POOL_MAX_SIZE; change one of them."
            raise _invalid("POSTGRES_POOL_MIN_SIZE", why)
        if self.graph_store_backend == "postgres" and self.postgres_dsn is None and self.database.backend != "postgres":
            raise _invalid(
                "POSTGRES_DSN", f"is missing: {PREFIX}GRAPH_STORE_BACKEND is postgres; write postgresql://user@host/db."
            )
        if self.graphiti_enabled and self.transcripts == "graph_store":
            why = f"needs turns in tables: set {PREFIX}TRANSCRIPTS=tables, or turn it off."
            raise _invalid("GRAPHITI_ENABLED", why)
        if "*" in self.cors_origins and not self.needs_keys:
            raise _invalid(
                "CORS_ORIGINS",
                f"is *, and without {PREFIX}API_KEYS any page could read everything: name the origins, or set "
                f"{PREFIX}API_KEYS=name:key.",
            )
        tokens = [self.jwt_issuer, self.jwt_audience, self.jwt_key]
        if any(tokens) and not all(tokens):
            raise _invalid("JWT_ISSUER", f"needs {PREFIX}JWT_AUDIENCE and {PREFIX}JWT_KEY; set all of them, or none.")

        try:
            _ = self.compression
        except InvalidInput as error:
            raise _invalid("SUMMARY_KEEP", f"cannot be combined with {PREFIX}SUMMARY_TRIGGER: {error}") from None
        if not self.needs_keys and not is_loopback(self.host):
            raise _invalid(
                "HOST",
                f"is not a loopback address, and without {PREFIX}API_KEYS anybody could read everything: "
                f"set {PREFIX}API_KEYS=name:key, or {PREFIX}REQUIRE_KEYS=true with keys of `threadkeep keys add`, "
                f"or keep {PREFIX}HOST at 127.0.0.1.",
            )
        return self

    @property
    def needs_keys(self) -> bool:
        """True if the settings demand a key or a token for each request, even while the database contains no keys."""
        return bool(self.api_keys or self.jwt_issuer) or self.require_keys

    def requests_per_minute(self) -> tuple[int, int]:
        """Return the maximum requests per minute of a key and of a user; 0 means no limit."""
        usual = (0, 0) if is_loopback(self.host) else (_KEY_REQUESTS, _USER_REQUESTS)
        given = (self.requests_per_key, self.requests_per_user)
        per_key, per_user = (one if two is None else two for one, two in zip(usual, given, strict=True))
        return per_key, per_user

    @property
    def database(self) -> DatabaseAddress:
        """The database that `database_url` names."""
        return parse_address(self.database_url.get_secret_value(), variable=f"{PREFIX}DATABASE_URL")

    @property
    def graph_store(self) -> DatabaseAddress:
        """The database of LangGraph's store: by default the database of the transcripts."""
        if self.postgres_dsn is not None and self.graph_store_backend in (None, "postgres"):
            return parse_address(self.postgres_dsn.get_secret_value(), variable=f"{PREFIX}POSTGRES_DSN")
        if self.graph_store_sqlite_path is not None and self.graph_store_backend in (None, "sqlite"):
            return DatabaseAddress("sqlite", path=self.graph_store_sqlite_path)
        if self.graph_store_backend in (None, self.database.backend):
            return self.database
        return DatabaseAddress("sqlite", path=default_database().with_name("graph_store.db"))

    @property
    def compression(self) -> Compression | None:
        """The options for replacing older chat messages with a summary; None if the chat writes no summaries."""
        if not self.summary_trigger:
            return None
        return Compression(trigger=read_size(self.summary_trigger), keep=read_size(self.summary_keep or _SUMMARY_KEEP))

    @property
    def retention(self) -> RetentionOptions:
        """The limits after which messages are archived or deleted, and the interval at which retention runs."""
        archive = RetentionLimits(
            self.retention_archive_max_age_days,
            self.retention_archive_max_messages,
            self.retention_archive_max_idle_days,
        )
        delete = RetentionLimits(
            self.retention_delete_max_age_days, self.retention_delete_max_messages, self.retention_delete_max_idle_days
        )
        return RetentionOptions(Retention(archive, delete), self.retention_interval_hours * 3600)

    def store_options(self) -> StoreOptions:
        """Return the options for opening databases."""
        return StoreOptions(
            synchronous=self.sqlite_synchronous,
            lock_timeout_seconds=self.lock_timeout,
            pool_min_size=self.postgres_pool_min_size,
            pool_max_size=self.postgres_pool_max_size,
            pool_timeout_seconds=self.postgres_pool_timeout,
            pool_max_idle_seconds=self.postgres_pool_max_idle,
            partitions=self.partitions,
            key=None if self.database_key is None else self.database_key.get_secret_value(),
        )

    def memory_options(self, *, background: bool = True) -> MemoryOptions:
        """Return the options for `open_memory`."""
        return MemoryOptions(
            store=self.store_options(),
            pending=PendingOptions(folder=self.pending_dir, write_timeout_seconds=self.write_timeout),
            manifest_retention_days=self.manifest_retention_days,
            retention=self.retention,
            run_retention=self.run_retention,
            run_trace_limits=self.run_trace_limits,
            background=background,
            transcripts=self.transcripts,
            graph_store=self.graph_store,
            graphiti=self.graphiti_options(self.workspace or None, promotes=self.directives),
        )


def load_settings(**overrides: object) -> Settings:
    """Return the settings of the environment. An override takes precedence over its variable.

    Raises:
        InvalidSettings: settings are invalid; the error names each variable and the fix, and quotes no secret.
    """
    try:
        with _readable():
            return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        refused = [_refusal(each) for each in error.errors(include_input=False, include_url=False)]
        raise InvalidSettings("\n".join(map(str, refused)), variable=refused[0].variable) from None


def unknown_variables() -> list[str]:
    """Return a sentence for each `THREADKEEP_*` variable and each line of `.env` that has no effect."""
    known = [name.upper() for name in Settings.model_fields]
    lines: list[Binding] = []
    with _readable(), suppress(FileNotFoundError, IsADirectoryError), Path(".env").open(encoding="utf-8") as file:
        lines = [*parse_stream(file)]
    names = [name.upper() for name in (*os.environ, *(line.key for line in lines if line.key))]
    # Compare the names without their common prefix, which would make any two names similar.
    given = {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}
    sentences = []
    for line in lines:
        if line.error or (line.value is None and (line.key or "").upper().startswith(PREFIX)):
            empty = line.original.string[: -len(line.original.string.lstrip())].count("\n")
            sentences.append(f"Line {line.original.line + empty} of .env has no effect; write it as NAME=value.")
    for name in sorted(given.difference(known)):
        close = get_close_matches(name, known, n=1, cutoff=0.7)
        advice = f"did you mean {PREFIX}{close[0]}?" if close else "correct its name, or remove it."
        sentences.append(f"{PREFIX}{name} is not a setting and has no effect; {advice}")
    return sentences


@contextmanager
def _readable() -> Iterator[None]:
    """Raise `InvalidSettings` if a file, such as `.env`, is not UTF-8 or the process may not read it."""
    try:
        yield
    except (UnicodeDecodeError, PermissionError) as error:
        name = str(getattr(error, "filename", None) or ".env")
        cure = "save it as UTF-8, and check its permissions"
        raise InvalidSettings(f"The file {name} cannot be read; {cure}.", variable=name) from None


def _refusal(details: ErrorDetails) -> InvalidSettings:
    """Convert a validation error to an error that names the variable and the reason."""
    ours = details.get("ctx", {}).get("error")
    if isinstance(ours, InvalidSettings):
        return ours
    name = str(details["loc"][0])
    reason = str(details["msg"]).removeprefix("Value error, ")
    described = Settings.model_fields[name].description
    return _invalid(name.upper(), f"cannot be used: {reason.rstrip('.')}. {described}")


def _invalid(name: str, why: str) -> InvalidSettings:
    """Return the error for a variable; `name` is its name without the prefix, such as `HOST`."""
    return InvalidSettings(f"{PREFIX}{name} {why}", variable=f"{PREFIX}{name}")


def is_loopback(host: str) -> bool:
    """Return True if a host name or address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
