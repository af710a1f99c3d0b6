"""Tests of `open_app`: the chat and its models follow the settings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path

import pytest
from langchain_core.language_models import BaseChatModel

from tests.web.services import settings_for
from threadkeep import Scope
from threadkeep.app import App, open_app
from threadkeep.context.manifest import ContextManifest
from threadkeep.errors import InvalidSettings, InvalidWorkflow
from threadkeep.runs.requests import RunRequest
from threadkeep.testing import ScriptedModel

type NamedModels = Callable[..., None]


@pytest.fixture
def named_models(monkeypatch: pytest.MonkeyPatch) -> NamedModels:
    """Return a function that replaces the models of the settings by scripted ones."""

    def name(**models: BaseChatModel) -> None:
        monkeypatch.setattr("threadkeep.app.make_model", lambda name, variable="": models[name])

    return name


async def ask(app: App, texts: Iterable[str]) -> ContextManifest:
    """Send messages one after the other; return the manifest of the last call."""
    for text in texts:
        await app.chat.ask(RunRequest(workflow="chat", text=text, session_id="room:1"))
        await app.memory.compressor.idle()
    [newest] = await app.memory.manifests.of_session("room:1", limit=1)
    return ContextManifest.from_dict(newest.manifest)


async def test_the_budget_follows_the_settings(tmp_path: Path, named_models: NamedModels) -> None:
    """The budget is the smaller of the limit and the context window less the reply and 512."""
    for settings, budget in (
        (settings_for(tmp_path), 4000),
        (settings_for(tmp_path, context_window=1500, max_output_tokens=500), 488),
        (settings_for(tmp_path, context_window=8192, history_max_tokens=0), 5632),
    ):
        named_models(demo=ScriptedModel(repeat("ok")))
        async with open_app(settings) as app:
            seen = await ask(app, ["hi"])
        assert (seen.budget, seen.window) == (budget, "anchored")
    named_models(demo=ScriptedModel(repeat("ok")))
    async with open_app(settings_for(tmp_path, history_window="sliding", history_max_messages=3)) as app:
        seen = await ask(app, [f"question {number}" for number in range(5)])
    assert seen.window == "sliding"
    assert [entry.seq for entry in seen.entries if entry.seq is not None] == [6, 7, 8, 9]


@pytest.mark.parametrize("name", ["", "small"])
async def test_older_messages_become_a_summary(tmp_path: Path, named_models: NamedModels, name: str) -> None:
    small = ScriptedModel(repeat("They counted.")) if name else None
    chatting = ScriptedModel(
        lambda messages: "They counted." if "<record>" in str(messages) else "ok" for _ in repeat(0)
    )
    named_models(demo=chatting, **({"small": small} if small is not None else {}))
    settings = settings_for(tmp_path, summary_trigger="messages:6", summary_keep="messages:2", summary_model=name)
    async with open_app(settings) as app:
        seen = await ask(app, [f"number {number}" for number in range(4)])
        [summary] = await app.memory.summaries.active("room:1")
    assert (summary.first_seq, summary.last_seq, summary.text) == (1, 4, "They counted.")
    assert "summary" in seen.sections
    assert small is None or len(small.calls) == 1


async def test_older_turns_are_recalled_if_enabled(tmp_path: Path, named_models: NamedModels) -> None:
    texts = ["The lighthouse keeper is called Ignatius Vollmer.", *[f"Filler {number}." for number in range(5)]]
    for recall, sections in (("off", {"window", "input"}), ("session", {"window", "input", "selected"})):
        named_models(demo=ScriptedModel(repeat("ok")))
        async with open_app(settings_for(tmp_path, recall=recall, history_max_messages=4)) as app:
            seen = await ask(app, [*texts, "What is the name of the lighthouse keeper?"])
        assert set(seen.sections) == sections


async def test_facts_are_in_the_context_if_enabled(tmp_path: Path, named_models: NamedModels) -> None:
    for facts, sections in ((False, {"input"}), (True, {"facts", "input"})):
        named_models(demo=ScriptedModel(repeat("ok")))
        async with open_app(settings_for(tmp_path, facts=facts, workspace="shop")) as app:
            await app.memory.knowledge.remember(Scope("workspace", "shop"), "refund_days", 30)
            seen = await ask(app, ["How many days?"])
        assert set(seen.sections) == sections


@pytest.mark.parametrize(
    ("overrides", "variable"),
    [
        ({"context_window": 4000, "max_output_tokens": 4000}, "THREADKEEP_MAX_OUTPUT_TOKENS"),
        ({"context_window": 500}, "THREADKEEP_CONTEXT_WINDOW"),
        ({"context_window": 1000, "system_prompt": "Be kind. " * 200}, "THREADKEEP_SYSTEM_PROMPT"),
        ({"summary_trigger": "messages:40", "summary_model": "nobody:x"}, "THREADKEEP_SUMMARY_MODEL"),
        ({"model": "nobody:x"}, "THREADKEEP_MODEL"),
    ],
)
async def test_unusable_settings_stop_the_start(tmp_path: Path, overrides: dict[str, object], variable: str) -> None:
    """The start fails before the database is opened, and the error names the variable."""
    database = tmp_path / "threadkeep.db"
    settings = settings_for(tmp_path, database_url=f"sqlite:///{database}", **overrides)
    with pytest.raises(InvalidSettings, match=variable) as refused:
        async with open_app(settings):
            pass
    assert refused.value.variable == variable
    assert not database.exists()


async def test_a_node_without_space_for_a_prompt_stops_the_start(tmp_path: Path) -> None:
    """The check needs the context window of the service's model. The error has the line of the node."""
    path = tmp_path / "bot.yaml"
    path.write_text(
        "schema: 1\nname: bot\nnodes:\n  say:\n    kind: model\n    max_output_tokens: 900000\n    next: end\n"
    )
    with pytest.raises(InvalidWorkflow, match="900000 for the reply") as refused:
        async with open_app(settings_for(tmp_path, workflows=[str(path)])):
            pass
    assert [problem.line for problem in refused.value.problems] == [6]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [("    tokn: x", "channel 1, tokn"), ("    workflow: desk", "There is no workflow 'desk' here")],
)
async def test_an_unusable_bot_stops_the_start(tmp_path: Path, more: str, sentence: str) -> None:
    """The error names the variable and the field. A command without bots does not read the file."""
    path = tmp_path / "channels.yaml"
    path.write_text(f"channels:\n  - kind: telegram\n    name: one\n    token: '1:a'\n{more}\n")
    settings = settings_for(tmp_path, channels=path)
    with pytest.raises(InvalidSettings, match="THREADKEEP_CHANNELS cannot be used") as refused:
        async with open_app(settings, bots=True):
            pass
    assert sentence in str(refused.value)
    async with open_app(settings) as app:
        assert app.channels is None


@pytest.mark.slow
def test_inline_turns_do_not_import_the_queue(tmp_path: Path) -> None:
    """Importing dbos takes seconds of CPU and tens of megabytes; only queued runs need it."""
    script = f"""
import asyncio, sys
from pathlib import Path
from tests.web.services import settings_for
from threadkeep.app import open_app
from threadkeep.runs.requests import RunRequest

async def ask():
    settings = settings_for(Path({str(tmp_path)!r}), database_url={f"sqlite:///{tmp_path}/chat.db"!r})
    async with open_app(settings) as app:
        await app.runs.service()
        await app.chat.ask(RunRequest(workflow="chat", text="hi", session_id="room:1"))

asyncio.run(ask())
print("dbos" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "False"
