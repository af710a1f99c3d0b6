"""`threadkeep doctor`: checks an installation and says how to fix each problem."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from threadkeep.boundary import ErrorBoundary
from threadkeep.cli.shared import read_settings
from threadkeep.cli.terminal import Finding, Level, Styled, counted, duration, file_size, terminal
from threadkeep.errors import (
    DatabaseFileReplaced,
    GraphitiError,
    InvalidInput,
    InvalidSettings,
    InvalidWorkflow,
    PendingFolderUnusable,
)
from threadkeep.store.private_files import nearest_existing

if TYPE_CHECKING:
    from threadkeep.history.pending_files import WaitingFile
    from threadkeep.settings import Settings

_FULL_BYTES = 100 * 1024**2
_NEARLY_FULL_BYTES = 1024**3
_OLD_SECONDS = 60.0
_CALL_SECONDS = 30.0
_GRAPHITI_SECONDS = 3.0
_MODEL_CURE = "Correct {}, install the provider's package, and put its key into the environment."

_MARKS: dict[Level, tuple[str, str]] = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}


def check_settings(settings: Settings) -> list[Finding]:
    """Return findings about the limits of the history, the API keys and the service's address."""
    keys = len(settings.api_keys)
    access = counted(keys, "API key") if keys else "no API key, this machine only"
    history = f"{settings.history_max_messages} messages and {settings.history_max_tokens:,} tokens of history"
    if not settings.history_enabled or 0 in (settings.history_max_messages, settings.history_max_tokens):
        cure = "Unless this is intended, set THREADKEEP_HISTORY_ENABLED=true and both THREADKEEP_HISTORY_MAX_… above 0."
        return [Finding("settings", "warn", "Chats see nothing of earlier turns.", cure), *_no_room(settings)]
    if trouble := _no_room(settings):
        return trouble
    return [Finding("settings", "ok", f"{history}; service on {settings.host}:{settings.port}, {access}.")]


def check_variables() -> list[Finding]:
    """Return a finding for each environment variable that begins with `THREADKEEP_` but is not a setting."""
    from threadkeep.settings import unknown_variables

    cure = "Correct its name, or remove it from the environment and .env."
    return [Finding("settings", "warn", sentence, cure) for sentence in unknown_variables()]


def _no_room(settings: Settings) -> list[Finding]:
    """Return a finding if the token limits leave no room for a question. In this case, no service can start."""
    from threadkeep.app import chat_options
    from threadkeep.cli.context import model_of

    try:
        chat_options(settings).check_room(model_of(settings))
    except InvalidSettings as error:
        cure = f"Change {error.variable}, or another setting that is named."
        return [Finding("settings", "fail", str(error), cure)]
    return []


def check_disk(settings: Settings) -> list[Finding]:
    """Check the free space of each local disk with the database or with turns that wait to be written."""
    from threadkeep.history.pending import default_folder

    folders = {"pending writes": settings.pending_dir or default_folder()}
    if (path := settings.database.path) is not None:
        folders = {"database": path.parent, **folders}
    found: dict[int, Finding] = {}
    for name, folder in folders.items():
        existing = nearest_existing(folder)
        existing = existing if existing.is_dir() else existing.parent
        device = existing.stat().st_dev
        if device not in found:
            free = shutil.disk_usage(existing).free
            level: Level = "ok" if free >= _NEARLY_FULL_BYTES else "warn" if free >= _FULL_BYTES else "fail"
            cure = "" if level == "ok" else "Free some space: without space, turns are kept in memory only."
            found[device] = Finding("disk", level, f"{file_size(free)} free for the {name} ({existing}).", cure)
    return list(found.values())


def check_files(settings: Settings) -> list[Finding]:
    """Check that the service can load the files of workflows and bots that the settings name."""
    from threadkeep.app import bots_of, load_workflows

    try:
        workflows = load_workflows(settings)
        bots_of(settings, workflows)
    except (InvalidWorkflow, InvalidSettings) as error:
        return [Finding("files", "fail", str(error), "Correct the file; the service does not start with it.")]
    bots = "no file of bots" if settings.channels is None else f"bots of {settings.channels}"
    return [Finding("files", "ok", f"The service can load {counted(len(workflows.all()), 'workflow')}, {bots}.")]


async def check_model(settings: Settings, *, call: bool) -> list[Finding]:
    """Check that the model can be created and, if `call` is true, that it answers."""
    from threadkeep.agent.models import make_model

    try:
        model = make_model(settings.model)
    except InvalidSettings as error:
        return [Finding("model", "fail", str(error), _MODEL_CURE.format(error.variable))]
    if not call:
        hint = "; name a real one in THREADKEEP_MODEL" if settings.model == "demo" else "; --call-model tests it"
        return [Finding("model", "ok", f"{settings.model} can be created{hint}.")]
    started = asyncio.get_running_loop().time()
    # Catch every error, because each provider has its own error types. Hide the messages: some quote the key.
    with ErrorBoundary() as call_of_model:
        async with asyncio.timeout(min(settings.model_timeout_seconds, _CALL_SECONDS)):
            await model.ainvoke("Answer with one word: are you there?")
    if call_of_model.error is not None:
        detail = f"{settings.model} does not answer ({type(call_of_model.error).__name__})."
        return [Finding("model", "fail", detail, "Check the key, the name of the model, the network and the provider.")]
    seconds = asyncio.get_running_loop().time() - started
    return [Finding("model", "ok", f"{settings.model} answers in {seconds:.1f} s.")]


def check_summary_model(settings: Settings) -> list[Finding]:
    """Check that the summary model, if one is configured, can be created, and that summaries are turned on."""
    from threadkeep.agent.models import make_model

    if not settings.summary_model:
        return []
    if not settings.summary_trigger:
        cure = "To get summaries, set THREADKEEP_SUMMARY_TRIGGER, for example to tokens:20000."
        return [Finding("summary model", "warn", f"{settings.summary_model} is configured, but never used.", cure)]
    try:
        make_model(settings.summary_model, variable="THREADKEEP_SUMMARY_MODEL")
    except InvalidSettings as error:
        return [Finding("summary model", "fail", str(error), _MODEL_CURE.format(error.variable))]
    return [Finding("summary model", "ok", f"{settings.summary_model} can be created.")]


async def check_graphiti(settings: Settings) -> list[Finding]:
    """Check that the Graphiti server, if one is configured, answers. No text that people wrote is sent."""
    from threadkeep.knowledge.graphiti.service import open_client

    if (options := settings.graphiti_options(settings.workspace or None)) is None:
        return []
    seconds = min(options.timeout_seconds, _GRAPHITI_SECONDS)
    try:
        client = open_client(replace(options, timeout_seconds=seconds))
        try:
            for _, check in client.checks():
                if (problem := await check()) is not None:
                    return [_graphiti_fails(problem)]
        finally:
            await client.close()
    except (InvalidInput, GraphitiError) as error:
        return [_graphiti_fails(str(error))]
    return [Finding("graphiti", "ok", f"The server at {options.endpoint} answers ({options.transport}).")]


def _graphiti_fails(problem: str) -> Finding:
    detail, _, cure = problem.partition(". ")
    return Finding("graphiti", "fail", f"{detail.rstrip('.')}.", cure or "Run: threadkeep knowledge test")


def check_pending(settings: Settings) -> list[Finding]:
    """Return findings about the folder of pending turns, which wait on disk until the database is available."""
    from threadkeep.history.pending import folder_of
    from threadkeep.history.pending_files import waiting_files

    own = folder_of(settings.database, settings.pending_dir)
    try:
        folders = sorted(own.parent.iterdir()) if own.parent.is_dir() else []
        others = [folder for folder in folders if folder.is_dir() and folder != own]
        elsewhere = sum(len(file.entries) for folder in others for file in waiting_files(folder))
        found = [_waiting(waiting_files(own)), *_unusable(own), *_unreadable(own)]
    except OSError as error:
        detail = f"The pending turns in {own} cannot be read ({error.strerror})."
        return [Finding("pending writes", "fail", detail, "Correct the owner and the permissions of its files.")]
    if elsewhere:
        detail = f"{counted(elsewhere, 'turn')} to be written to other databases, below {own.parent}."
        cure = "Open those databases again as this user, or drop the turns there."
        found.append(Finding("other databases", "warn", detail, cure))
    return found


def _waiting(files: list[WaitingFile]) -> Finding:
    entries = [entry for file in files for entry in file.entries]
    if not entries:
        return Finding("pending writes", "ok", "There are no pending turns.")
    left = sum(len(file.entries) for file in files if not file.live)
    age = (datetime.now(UTC) - min(entry.kept_at for entry in entries)).total_seconds()
    errors = sorted({entry.error for entry in entries if entry.error})
    detail = f"{counted(len(entries), 'turn')} to be written, the oldest for {duration(age)}"
    detail += f", {left} of them by processes that have ended" if left else ""
    detail += f"; last error: {', '.join(errors)}" if errors else ""
    refused = [error for error in errors if error not in ("StoreUnavailable", DatabaseFileReplaced.__name__)]
    cure = "They are written when the database is available again" + ("; start the service or a chat." if left else ".")
    if DatabaseFileReplaced.__name__ in errors:
        cure = DatabaseFileReplaced.CURE.replace("this process", "a process")
    if refused:
        cure += " Turns that the database rejects stay until a person drops them: threadkeep pending list"
    return Finding("pending writes", "fail" if age > _OLD_SECONDS else "warn", f"{detail}.", cure)


def _unusable(folder: Path) -> list[Finding]:
    """Return a finding if the folder of pending turns cannot store the next turn."""
    from threadkeep.history.pending_files import check_folder

    try:
        check_folder(nearest_existing(folder))
    except PendingFolderUnusable as error:
        detail, _, cure = str(error).partition("). ")
        return [Finding("pending writes", "fail", f"{detail}).", cure)]
    return []


def _unreadable(own: Path) -> list[Finding]:
    from threadkeep.history.pending_files import unreadable_turns

    turns = unreadable_turns(own)
    if not turns:
        return []
    detail = f"{counted(len(turns), 'line')} of pending files cannot be read; these turns are stored nowhere else."
    cure = "List them with `threadkeep pending list`; repair the files and restart, or drop them."
    return [Finding("pending writes", "fail", detail, cure)]


async def doctor(
    call_model: Annotated[bool, typer.Option("--call-model", help="Send the model a question (may cost).")] = False,
) -> None:
    """Check the installation, and say how to fix each problem.

    Checks the settings, the database, its schema and locks, damage in every database, the conversations in the graph
    store, the learned corrections of token estimates, the disk, the files of workflows and bots, the models, turns
    that wait to be written, and the Graphiti server. Exits with 1 if a check fails.
    """
    try:
        settings = read_settings()
    except InvalidSettings as error:
        cure = f"Correct {error.variable} in the environment or in .env; other checks need valid settings."
        findings = [Finding("settings", "fail", str(error), cure), *check_variables()]
    else:
        with terminal.waiting("Checking"):
            findings = await _findings(settings, call_model=call_model)
    failed = any(finding.level == "fail" for finding in findings)
    terminal.result({"ok": not failed, "findings": findings}, lambda: _show(findings), failed=failed)


async def _findings(settings: Settings, *, call_model: bool) -> list[Finding]:
    from threadkeep.cli import database_checks

    database = await database_checks.check_database(settings)
    reachable = not any(finding.check == "database" and finding.level == "fail" for finding in database)
    integrity = await database_checks.check_all_integrity(settings, reachable=reachable)
    return [
        *check_settings(settings),
        *check_variables(),
        *database,
        *integrity,
        *(await database_checks.check_graph_store(settings, integrity) if reachable else ()),
        *check_disk(settings),
        *check_pending(settings),
        *check_files(settings),
        *await check_model(settings, call=call_model),
        *check_summary_model(settings),
        *await check_graphiti(settings),
    ]


def _show(findings: Sequence[Finding]) -> None:
    """Show each finding, with the advice below it, in one write: `head -1` closes the pipe after the first write."""
    width = max(len(finding.check) for finding in findings) + 2
    parts: list[Styled] = []
    for finding in findings:
        mark, color = _MARKS[finding.level]
        parts += [(f"{mark} ", color), f"{finding.check:<{width}}", f"{finding.detail}\n"]
        if finding.cure:
            parts += [" " * (width + 2), (f"→ {finding.cure}\n", color)]
    failed, warned = (sum(finding.level == level for finding in findings) for level in ("fail", "warn"))
    counts = f"{failed} failed, {warned} with a warning, {len(findings) - failed - warned} ok."
    terminal.say(*parts, f"\n{counts if failed or warned else 'All is well.'}")
