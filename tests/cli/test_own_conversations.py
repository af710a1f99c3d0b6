"""The commands over conversations that agents keep in the graph store by themselves."""

from __future__ import annotations

from tests.cli.running import CommandLine
from tests.graphs.test_agent_history import BOT
from tests.graphs.test_own_conversations import asked
from tests.recorded_events import RecordedEvents
from tests.runs.desk import RunDesk, carried_out
from threadkeep import Memory
from threadkeep.testing import ScriptedModel

KEY = "telegram:b:7"


def talk(cli: CommandLine, *texts: str, more: str = "", chat_id: int = 7) -> list[str]:
    """Ask a bot, as the user `ann`; the answers are `one` and so on. Answers the ids of the runs."""

    async def talking(memory: Memory) -> list[str]:
        model = ScriptedModel(["one", "two", "three", "four"])
        desk = RunDesk(memory, model, RecordedEvents(), store=await memory.graph_store())
        async with desk.open(BOT % more) as service:
            requests = [asked(text, user_id="ann", chat_id=chat_id) for text in texts]
            return [(await carried_out(service, request)).run.run_id for request in requests]

    return cli.remember(talking)


def test_what_the_model_saw_is_shown_as_of_a_session(any_cli: CommandLine) -> None:
    """The last call, an earlier one, what changed; the built-in chat's next call is not there, and said so."""
    runs = talk(any_cli, "first", "second", "third")
    show = ("context", "show", "--session", KEY)
    last = any_cli(*show, "--json").json
    assert (last["run_id"], last["conversation"]["key"]) == (runs[2], KEY)
    assert any_cli(*show, "--call", "3", "--json").json["run_id"] == runs[0]
    assert "--call takes 1, the newest, to 3" in any_cli(*show, "--call", "4").err
    difference = any_cli(*show, "--diff").out
    assert "third" in difference
    assert "first" not in difference
    assert "agent keeps" in any_cli(*show, "--next").err
    assert any_cli(*show, "--user", "bob").exit_code == 1
