"""Tests of the settings: defaults, the `.env` file, and errors that name the variable and no secret."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest
from pydantic import SecretStr

from threadkeep import (
    InvalidSettings,
    Retention,
    RetentionLimits,
    RetentionOptions,
    RunRetention,
    Settings,
    load_settings,
)
from threadkeep.environment import _NAMES, default_database, has_unknown_variables, plain_database
from threadkeep.runs.engine.engine import EngineOptions
from threadkeep.runs.options import RunServiceOptions
from threadkeep.settings import unknown_variables
from threadkeep.store.driver import StoreOptions
from threadkeep.store.runs.trace import TraceLimits

SECRET = "s3cret-7f3a"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Delete the variables of Threadkeep, and use a home and an empty working folder of the test."""
    for name in list(os.environ):
        if name.upper().startswith("THREADKEEP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def refused(monkeypatch: pytest.MonkeyPatch, **variables: str) -> InvalidSettings:
    """Return the error for invalid variables, after checking that it shows no secret."""
    for name, value in variables.items():
        monkeypatch.setenv(f"THREADKEEP_{name}", value)
    with pytest.raises(InvalidSettings) as caught:
        load_settings()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(caught.value) + str(caught.value.__context__)
    assert caught.value.variable in str(caught.value)
    return caught.value


def test_plain_database_agrees_with_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`plain_database` returns None if other settings affect the database."""
    assert plain_database() == load_settings().database
    assert load_settings().store_options() == StoreOptions()
    assert load_settings().transcripts == "tables"
    monkeypatch.setenv("threadkeep_database_url", f"sqlite:///{tmp_path}/other.db")
    assert plain_database() == load_settings().database
    for name in ("THREADKEEP_TRANSCRIPTS", "THREADKEEP_LOCK_TIMEOUT", "THREADKEEP_POSTGRES_POOL_MAX_SIZE"):
        with monkeypatch.context() as other:
            other.setenv(name, "7")
            assert plain_database() is None
    (tmp_path / ".env").write_text("THREADKEEP_DATABASE_URL=sqlite://\n")
    assert plain_database() is None


def test_the_defaults(tmp_path: Path) -> None:
    settings = load_settings()
    assert str(settings.database) == f"sqlite:///{tmp_path}/data/threadkeep/threadkeep.db"
    assert settings.database.path == default_database()
    assert (settings.host, settings.port, settings.api_keys) == ("127.0.0.1", 8700, {})
    assert (settings.model, settings.model_timeout_seconds, settings.system_prompt) == ("demo", 60, "")
    assert (settings.history_enabled, settings.history_max_messages, settings.history_max_tokens) == (True, 20, 4000)
    assert (settings.memory_max_messages, settings.memory_max_chars) == (8, 8000)
    store = settings.store_options()
    assert (store.pool_min_size, store.pool_max_size) == (1, 5)
    assert (store.pool_timeout_seconds, store.pool_max_idle_seconds) == (30, 300)
    assert store.synchronous == "FULL"
    assert settings.graph_store == settings.database
    runs = settings.run_options(works=True, close_seconds=10.0)
    assert runs == RunServiceOptions(prices=runs.prices)


def test_every_variable_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("threadkeep.settings.find_spec", lambda name: name)  # the extra sqlcipher may be missing
    variables: dict[str, tuple[str, object]] = {
        "DATABASE_URL": ("postgresql://u@h/other", SecretStr("postgresql://u@h/other")),
        "POSTGRES_POOL_MIN_SIZE": ("2", 2),
        "POSTGRES_POOL_MAX_SIZE": ("3", 3),
        "POSTGRES_POOL_TIMEOUT": ("4.5", 4.5),
        "POSTGRES_POOL_MAX_IDLE": ("5", 5.0),
        "PARTITIONS": ("16", 16),
        "GRAPH_STORE_BACKEND": ("PostgreS", "postgres"),
        "GRAPH_STORE_SQLITE_PATH": (f"{tmp_path}/graph.db", tmp_path / "graph.db"),
        "TRANSCRIPTS": ("Graph_Store", "graph_store"),
        "POSTGRES_DSN": ("postgresql://u@h/d", SecretStr("postgresql://u@h/d")),
        "HOST": ("::1", "::1"),
        "LEARNING": ("true", True),
        "LEARNING_ACCEPT_FROM": ("0.8", 0.8),
        "DIRECTIVES": ("true", True),
        "PORT": ("9000", 9000),
        "MODEL": ("openai:gpt-5-mini", "openai:gpt-5-mini"),
        "MODEL_TIMEOUT_SECONDS": ("7", 7.0),
        "SYSTEM_PROMPT": ("be kind", "be kind"),
        "HISTORY_ENABLED": ("false", False),
        "HISTORY_MAX_MESSAGES": ("0", 0),
        "HISTORY_MAX_TOKENS": ("0", 0),
        "HISTORY_WINDOW": ("Sliding", "sliding"),
        "CONTEXT_WINDOW": ("8192", 8192),
        "MAX_OUTPUT_TOKENS": ("1000", 1000),
        "SUMMARY_TRIGGER": ("fraction:0.5", "fraction:0.5"),
        "SUMMARY_KEEP": ("tokens:1000", "tokens:1000"),
        "SUMMARY_MODEL": ("openai:gpt-5-nano", "openai:gpt-5-nano"),
        "RECALL": ("USER", "user"),
        "MEMORY_MAX_MESSAGES": ("-1", -1),
        "MEMORY_MAX_CHARS": ("0", 0),
        "MANIFEST_RETENTION_DAYS": ("0.5", 0.5),
        "RETENTION_ARCHIVE_MAX_AGE_DAYS": ("30", 30.0),
        "RETENTION_ARCHIVE_MAX_MESSAGES": ("1000", 1000),
        "RETENTION_ARCHIVE_MAX_IDLE_DAYS": ("60.5", 60.5),
        "RETENTION_DELETE_MAX_AGE_DAYS": ("365", 365.0),
        "RETENTION_DELETE_MAX_MESSAGES": ("2000", 2000),
        "RETENTION_DELETE_MAX_IDLE_DAYS": ("400", 400.0),
        "RETENTION_INTERVAL_HOURS": ("0.5", 0.5),
        "RUN_POLL_SECONDS": ("0.5", 0.5),
        "RUN_DEAD_SECONDS": ("16", 16.0),
        "RUN_MAX_ATTEMPTS": ("5", 5),
        "RUN_PAUSE_SECONDS": ("2", 2.0),
        "RUN_LONGEST_PAUSE_SECONDS": ("60", 60.0),
        "RUN_TRACE_MAX_EVENTS": ("100", 100),
        "RUN_TRACE_MAX_CHARS": ("1000", 1000),
        "RUN_CHECKPOINT_RETENTION_HOURS": ("1", 1.0),
        "RUN_RETENTION_DAYS": ("7", 7.0),
        "RUN_RETENTION_SET_ASIDE_DAYS": ("90.5", 90.5),
        "API_KEYS": ("web:abc, bot:d:e", {"web": SecretStr("abc"), "bot": SecretStr("d:e")}),
        "REQUIRE_KEYS": ("1", True),
        "DATABASE_KEY": ("ab" * 32, SecretStr("ab" * 32)),
        "JWT_ISSUER": ("https://login.example.org", "https://login.example.org"),
        "JWT_AUDIENCE": ("threadkeep", "threadkeep"),
        "JWT_KEY": ("s" * 32, SecretStr("s" * 32)),
        "JWT_USER_CLAIM": ("email", "email"),
        "JWT_SCOPE": ("read", "read"),
        "REQUESTS_PER_KEY": ("0", 0),
        "REQUESTS_PER_USER": ("30", 30),
        "SQLITE_SYNCHRONOUS": ("normal", "NORMAL"),
        "LOCK_TIMEOUT": ("1", 1.0),
        "CORS_ORIGINS": ("https://A.example, http://localhost:3000", ["https://a.example", "http://localhost:3000"]),
        "BODY_LIMIT": ("2048", 2048),
        "MAX_CONNECTIONS": ("5", 5),
        "HEADER_TIMEOUT": ("2", 2.0),
        "BODY_TIMEOUT": ("3", 3.0),
        "SHUTDOWN_TIMEOUT": ("0", 0.0),
        "PENDING_DIR": (f"{tmp_path}/pending", tmp_path / "pending"),
        "CHANNELS": (f"{tmp_path}/channels.yaml", tmp_path / "channels.yaml"),
        "WRITE_TIMEOUT": ("2", 2.0),
        "LOG_LEVEL": ("debug", "DEBUG"),
        "LOG_JSON": ("1", True),
        "OTEL": ("1", True),
        "WORKFLOWS": ("flow.yaml, bot=shop:graph", ["flow.yaml", "bot=shop:graph"]),
        "RUN_CONCURRENCY": ("3", 3),
        "DOUBLE_TEXTING": ("Rollback", "rollback"),
        "FACTS": ("1", True),
        "WORKSPACE": ("shop", "shop"),
        "GRAPHITI_ENABLED": ("0", False),
        "GRAPHITI_ENDPOINT": (" http://graph:8000/ ", "http://graph:8000"),
        "GRAPHITI_API_KEY": (SECRET, SecretStr(SECRET)),
        "GRAPHITI_TRANSPORT": ("MCP", "mcp"),
        "GRAPHITI_TIMEOUT_MS": ("500", 500),
        "GRAPHITI_MAX_BATCH": ("5", 5),
        "GRAPHITI_MAX_QUEUE": ("50", 50),
        "GRAPHITI_MAX_MESSAGE_CHARS": ("100", 100),
        "GRAPHITI_SCOPES": ("user, session,user", ["user", "session"]),
        "GRAPHITI_GROUP_ID_STRATEGY": ("Raw", "raw"),
        "GRAPHITI_INCLUDE_SYSTEM": ("1", True),
        "GRAPHITI_INCLUDE_GIT": ("1", True),
        "GRAPHITI_GIT_FOLDER": (str(tmp_path), tmp_path),
        "GRAPHITI_CONFIRM_SECONDS": ("30", 30.0),
        "GRAPHITI_RECALL_ENABLED": ("1", True),
        "GRAPHITI_RECALL_MAX_FACTS": ("3", 3),
        "GRAPHITI_RECALL_TIMEOUT_MS": ("700", 700),
        "GRAPHITI_RECALL_SCOPES": ("auto", ["auto"]),
        "GRAPHITI_RECALL_EXTRA_GROUP_IDS": ("team, other-1", ["team", "other-1"]),
        "PRICES": ("gpt-5-mini=0.25/2, gpt-5=1.25/10", ["gpt-5-mini=0.25/2", "gpt-5=1.25/10"]),
    }
    assert {name.lower() for name in variables} == set(Settings.model_fields)
    for name, (value, _) in variables.items():
        monkeypatch.setenv(f"THREADKEEP_{name}", value)
    settings = load_settings()
    for name, (_, expected) in variables.items():
        assert getattr(settings, name.lower()) == expected, name
    options = settings.memory_options()
    assert (options.store, options.background) == (settings.store_options(), True)
    assert options.pending.folder == tmp_path / "pending"
    assert options.pending.write_timeout_seconds == 2.0
    assert options.store.lock_timeout_seconds == 1.0
    limits = Retention(RetentionLimits(30, 1000, 60.5), RetentionLimits(365, 2000, 400))
    assert options.retention == RetentionOptions(limits, interval_seconds=1800)
    assert options.run_retention == RunRetention(7, 90.5)
    assert options.run_trace_limits == TraceLimits(100, 1000)
    runs = settings.run_options(works=False, close_seconds=1.0)
    assert runs.engine == EngineOptions(
        works=False, concurrency=3, poll_seconds=0.5, dead_seconds=16.0, close_seconds=1.0
    )
    assert (runs.keep_checkpoints_seconds, runs.max_attempts) == (3600.0, 5)
    assert (runs.pause_seconds, runs.longest_pause_seconds) == (2.0, 60.0)
    assert not settings.memory_options(background=False).background


def test_a_file_in_the_working_folder_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keyword arguments override the environment, which overrides `.env`; other names are ignored."""
    (tmp_path / ".env").write_text(
        "# ours\nTHREADKEEP_PORT=9001\nTHREADKEEP_MODEL='ollama:qwen3'\nthreadkeep_host=localhost\nOTHER=1\n"
        "THREADKEEP_NOT_KNOWN=1\n"
    )
    assert (load_settings().port, load_settings().model, load_settings().host) == (9001, "ollama:qwen3", "localhost")
    monkeypatch.setenv("THREADKEEP_PORT", "9002")
    assert load_settings().port == 9002
    assert load_settings(port=9003).port == 9003


@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("PORT", "many", "valid integer"),
        ("PORT", "70000", "65535"),
        ("PORT", "", "integer"),
        ("POSTGRES_POOL_MIN_SIZE", "-1", "greater than or equal to 0"),
        ("POSTGRES_POOL_MAX_SIZE", "0", "greater than or equal to 1"),
        ("POSTGRES_POOL_TIMEOUT", "0", "greater than 0"),
        ("POSTGRES_POOL_TIMEOUT", "nan", "THREADKEEP_POSTGRES_POOL_TIMEOUT"),
        ("LOCK_TIMEOUT", "inf", "THREADKEEP_LOCK_TIMEOUT"),
        ("MODEL_TIMEOUT_SECONDS", "-5", "greater than 0"),
        ("MODEL", "", "init_chat_model"),
        ("HISTORY_ENABLED", "perhaps", "boolean"),
        ("HISTORY_MAX_MESSAGES", "-1", "0 means none"),
        ("HISTORY_MAX_TOKENS", "4k", "0 means no history"),
        ("HISTORY_WINDOW", "moving", "'anchored' or 'sliding'"),
        ("CONTEXT_WINDOW", "0", "greater than or equal to 1"),
        ("MAX_OUTPUT_TOKENS", "many", "valid integer"),
        ("SUMMARY_TRIGGER", "20000", "tokens:20000"),
        ("SUMMARY_TRIGGER", "tokens:0", "with a number above 0"),
        ("SUMMARY_TRIGGER", "tokens:1.5", "messages:40"),
        ("SUMMARY_TRIGGER", "fraction:2", "fraction:0.5"),
        ("SUMMARY_KEEP", "words:20", "tokens:20000"),
        ("RECALL", "everything", "'off', 'session' or 'user'"),
        ("MEMORY_MAX_CHARS", "-1", "0 means no limit"),
        ("RETENTION_DELETE_MAX_AGE_DAYS", "0", "greater than 0"),
        ("RETENTION_DELETE_MAX_MESSAGES", "0", "greater than or equal to 1"),
        ("RETENTION_INTERVAL_HOURS", "0", "greater than 0"),
        ("GRAPH_STORE_BACKEND", "redis", "sqlite"),
        ("GRAPH_STORE_SQLITE_PATH", "graph.db", "absolute path"),
        ("GRAPH_STORE_SQLITE_PATH", "~/graph.db", "absolute path"),
        ("PENDING_DIR", "pending", "absolute path"),
        ("SQLITE_SYNCHRONOUS", "OFF", "NORMAL"),
        ("LOG_LEVEL", "LOUD", "INFO"),
        ("BODY_LIMIT", "10", "1024"),
        ("API_KEYS", "web", "name:key"),
        ("API_KEYS", "web:", "name:key"),
        ("API_KEYS", f"web:{SECRET},web:other", "each name once"),
        ("CORS_ORIGINS", "https://a.example/chat", "without a path"),
        ("CORS_ORIGINS", "a.example", "https://host"),
        ("CORS_ORIGINS", "*", "THREADKEEP_API_KEYS"),
        ("DATABASE_URL", "", "sqlite:////absolute/path.db"),
        ("DATABASE_URL", "threadkeep.db", "sqlite:////absolute/path.db"),
        ("DATABASE_URL", "sqlite:///threadkeep.db", "four slashes"),
        ("DATABASE_URL", "sqlite:///~/threadkeep.db", "four slashes"),
        ("DATABASE_URL", "sqlite:////~/threadkeep.db", "four slashes"),
        ("DATABASE_URL", f"mysql://u:{SECRET}@h/d", "postgresql://user@host/database"),
        ("DATABASE_URL", f"postgresql://u:{SECRET}/x@h/d", "%2F"),
        ("POSTGRES_DSN", f"mysql://u:{SECRET}@h/d", "postgresql://"),
        ("POSTGRES_DSN", "sqlite:////var/lib/graph.db", "postgresql://"),
        ("POSTGRES_DSN", "", "postgresql://"),
        ("HOST", "0.0.0.0", "THREADKEEP_API_KEYS"),  # noqa: S104  what is tested
        ("HOST", "example.org", "THREADKEEP_API_KEYS"),
    ],
)
def test_errors_name_the_variable_and_the_cure(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, cure: str
) -> None:
    error = refused(monkeypatch, **{name: value})
    assert error.variable == f"THREADKEEP_{name}"
    assert cure in str(error)


def test_a_minimum_above_the_maximum_names_both_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, POSTGRES_POOL_MIN_SIZE="5", POSTGRES_POOL_MAX_SIZE="4")
    assert error.variable == "THREADKEEP_POSTGRES_POOL_MIN_SIZE"
    assert "THREADKEEP_POSTGRES_POOL_MAX_SIZE" in str(error)


def test_all_invalid_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a line, in the order of the settings; `variable` is that of the first line."""
    error = refused(monkeypatch, PORT="99999", DATABASE_URL="sqlite:///threadkeep.db", LOG_LEVEL="LOUD")
    assert error.variable == "THREADKEEP_DATABASE_URL"
    named = [line.partition(" ")[0] for line in str(error).splitlines()]
    assert named == ["THREADKEEP_DATABASE_URL", "THREADKEEP_PORT", "THREADKEEP_LOG_LEVEL"]


def test_a_summary_that_keeps_all_messages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary must cover some messages when its trigger is reached."""
    error = refused(monkeypatch, SUMMARY_TRIGGER="messages:20", SUMMARY_KEEP="messages:20")
    assert error.variable == "THREADKEEP_SUMMARY_KEEP"
    assert "THREADKEEP_SUMMARY_TRIGGER" in str(error)


def test_triggers_of_summaries_are_read() -> None:
    """All units are read. Without a trigger there is no compression, and an empty `keep` is the default."""
    assert load_settings().compression is None
    made = load_settings(summary_trigger=" Tokens: 20000 ", summary_keep="fraction:0.25").compression
    assert made is not None
    assert (made.trigger, made.keep) == (("tokens", 20_000), ("fraction", 0.25))
    made = load_settings(summary_trigger="messages:40", summary_keep="").compression
    assert made is not None
    assert (made.trigger, made.keep) == (("messages", 40), ("messages", 20))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert load_settings(host=host).host == host


def test_other_addresses_need_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service may listen on all addresses if it has a key."""
    monkeypatch.setenv("THREADKEEP_HOST", "0.0.0.0")  # noqa: S104  what is tested
    monkeypatch.setenv("THREADKEEP_API_KEYS", f"web:{SECRET}")
    assert load_settings().api_keys["web"].get_secret_value() == SECRET


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADKEEP_DATABASE_URL", f"postgresql://u:{SECRET}@h/d?sslpassword={SECRET}")
    monkeypatch.setenv("THREADKEEP_POSTGRES_DSN", f"postgresql://u:{SECRET}@h/graph")
    monkeypatch.setenv("THREADKEEP_API_KEYS", f"web:{SECRET}")
    settings = load_settings()
    shown = f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"
    shown += f"{settings.database} {settings.database!r} {settings.graph_store} {settings.graph_store!r}"
    assert SECRET not in shown
    assert settings.database.dsn is not None
    assert SECRET in settings.database.dsn


SQLITE, POSTGRES, OTHER = "sqlite:////t/t.db", "postgresql://u@h/transcripts", "postgresql://u@h/graph"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"database_url": SQLITE}, SQLITE),
        ({"database_url": POSTGRES}, POSTGRES),
        ({"database_url": SQLITE, "graph_store_backend": "SQLite"}, SQLITE),
        ({"database_url": SQLITE, "graph_store_sqlite_path": "/g/g.db"}, "sqlite:////g/g.db"),
        ({"database_url": POSTGRES, "graph_store_sqlite_path": "/g/g.db"}, "sqlite:////g/g.db"),
        ({"database_url": POSTGRES, "graph_store_backend": "postgres"}, POSTGRES),
        ({"database_url": SQLITE, "graph_store_backend": "POSTGRES", "postgres_dsn": OTHER}, OTHER),
        ({"database_url": POSTGRES, "postgres_dsn": OTHER}, OTHER),
        ({"database_url": SQLITE, "postgres_dsn": OTHER}, OTHER),
        (
            {"database_url": SQLITE, "postgres_dsn": OTHER, "graph_store_backend": "sqlite"},
            SQLITE,
        ),
        (
            {
                "database_url": POSTGRES,
                "postgres_dsn": OTHER,
                "graph_store_backend": "sqlite",
                "graph_store_sqlite_path": "/g/g.db",
            },
            "sqlite:////g/g.db",
        ),
    ],
)
def test_the_graph_store_is_in_the_database_unless_set(given: dict[str, object], expected: str) -> None:
    assert str(load_settings(**given).graph_store) == expected


def test_a_graph_store_on_sqlite_has_a_default_file(tmp_path: Path) -> None:
    """A graph store without a path is in the user's data directory if the transcripts are on PostgreSQL."""
    settings = load_settings(database_url=POSTGRES, graph_store_backend="sqlite")
    assert settings.graph_store.path == tmp_path / "data" / "threadkeep" / "graph_store.db"


def test_a_graph_store_on_postgres_needs_a_dsn() -> None:
    """The DSN may be omitted if the transcripts are on PostgreSQL."""
    with pytest.raises(InvalidSettings, match="THREADKEEP_POSTGRES_DSN is missing") as caught:
        load_settings(database_url=SQLITE, graph_store_backend="postgres")
    assert caught.value.variable == "THREADKEEP_POSTGRES_DSN"


def test_settings_are_immutable(tmp_path: Path) -> None:
    settings = load_settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


def test_workflows_are_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has files, folders and graphs in Python, separated by commas.

    Reading the settings does not check them.
    """
    assert load_settings().workflows == []
    monkeypatch.setenv("THREADKEEP_WORKFLOWS", "flows/support.yaml, /etc/flows,bot=shop.flows:graph,")
    assert load_settings().workflows == ["flows/support.yaml", "/etc/flows", "bot=shop.flows:graph"]


def test_an_env_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"THREADKEEP_PORT=\xff\n")
    for read in (load_settings, unknown_variables):
        with pytest.raises(InvalidSettings, match=r"The file \.env cannot be read; save it as UTF-8"):
            read()


def test_another_file_that_may_not_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, the folder with the file of bots may belong to another user."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(InvalidSettings, match=r"The file \S+channels\.yaml cannot be read"):
        load_settings()


@pytest.mark.parametrize(
    "name",
    ["LOCK_TIMEOUT", "WRITE_TIMEOUT", "MODEL_TIMEOUT_SECONDS", "RETENTION_INTERVAL_HOURS", "POSTGRES_POOL_MAX_SIZE"],
)
def test_absurd_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Databases and timers would fail with such a number, or wait for ever."""
    assert "cannot be used: it must be at most " in str(refused(monkeypatch, **{name: str(10**18)}))


def test_unknown_variables_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unknown variables of the environment and of `.env` are named with a suggestion, and without their values."""
    assert {name.upper() for name in Settings.model_fields} == set(_NAMES.split())
    assert unknown_variables() == []
    for name in Settings.model_fields:
        monkeypatch.setenv(f"THREADKEEP_{name.upper()}", "demo")
    assert (unknown_variables(), has_unknown_variables()) == ([], False)
    monkeypatch.setenv("THREADKEEP_SYSTEM_PROMT", SECRET)
    monkeypatch.setenv("threadkeep_foo", SECRET)
    (tmp_path / ".env").write_text(
        f"THREADKEEP_API_KEY={SECRET}\nTHREADKEEP_PORT=8701\nOTHER=1\n\nOTHER 2\nTHREADKEEP_HOST\n"
    )
    assert unknown_variables() == [
        "Line 5 of .env has no effect; write it as NAME=value.",
        "Line 6 of .env has no effect; write it as NAME=value.",
        "THREADKEEP_API_KEY is not a setting and has no effect; did you mean THREADKEEP_API_KEYS?",
        "THREADKEEP_FOO is not a setting and has no effect; correct its name, or remove it.",
        "THREADKEEP_SYSTEM_PROMT is not a setting and has no effect; did you mean THREADKEEP_SYSTEM_PROMPT?",
    ]


def test_a_folder_named_env_is_no_file_of_settings(tmp_path: Path) -> None:
    """Some people create a virtual environment there."""
    (tmp_path / ".env").mkdir()
    load_settings()
    assert unknown_variables() == []


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"GRAPHITI_ENABLED": "1"}, "GRAPHITI_ENDPOINT"),
        ({"GRAPHITI_ENDPOINT": "graph:8000"}, "GRAPHITI_ENDPOINT"),
        ({"GRAPHITI_ENDPOINT": f"http://u:{SECRET}@graph"}, "GRAPHITI_ENDPOINT"),
        ({"GRAPHITI_SCOPES": "everybody"}, "GRAPHITI_SCOPES"),
        ({"GRAPHITI_SCOPES": " , "}, "GRAPHITI_SCOPES"),
        ({"GRAPHITI_INCLUDE_GIT": "1"}, "GRAPHITI_GIT_FOLDER"),
        ({"GRAPHITI_GIT_FOLDER": "here"}, "GRAPHITI_GIT_FOLDER"),
        ({"GRAPHITI_RECALL_EXTRA_GROUP_IDS": "a.b"}, "GRAPHITI_RECALL_EXTRA_GROUP_IDS"),
        (
            {"GRAPHITI_ENABLED": "1", "GRAPHITI_ENDPOINT": "http://graph", "TRANSCRIPTS": "graph_store"},
            "GRAPHITI_ENABLED",
        ),
    ],
)
def test_invalid_graphiti_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    assert refused(monkeypatch, **variables).variable == f"THREADKEEP_{named}"


def test_graphiti_is_off_unless_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint alone enables nothing, and `repr` hides the key."""
    monkeypatch.setenv("THREADKEEP_GRAPHITI_ENDPOINT", "http://graph:8000/")
    assert load_settings().memory_options().graphiti is None
    monkeypatch.setenv("THREADKEEP_GRAPHITI_ENABLED", "true")
    monkeypatch.setenv("THREADKEEP_GRAPHITI_API_KEY", SECRET)
    monkeypatch.setenv("THREADKEEP_WORKSPACE", "shop")
    options = load_settings().memory_options().graphiti
    assert options is not None
    assert (options.endpoint, options.workspace, options.scopes) == (
        "http://graph:8000",
        "shop",
        ("session", "workspace"),
    )
    assert SECRET not in repr(options)
