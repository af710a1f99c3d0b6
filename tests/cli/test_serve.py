"""Tests of `threadkeep serve` as a process, from its start to its end."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request

import pytest

from tests.cli.running import CommandLine
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_service_starts_responds_and_stops(cli: CommandLine, number: signal.Signals) -> None:
    with cli.start("serve", "--port", "0") as process:
        assert process.stdout is not None
        address = _address(process.stdout.readline())
        with urllib.request.urlopen(f"{address}/healthz", timeout=HANG_SECONDS) as response:  # noqa: S310
            assert response.status == 200
        process.send_signal(number)
        _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0
    assert "Traceback" not in err


@pytest.mark.slow
def test_with_json_every_line_is_an_object(cli: CommandLine) -> None:
    """The announcement is on stdout, and the log on stderr. The log names a misspelled setting."""
    cli.set(THREADKEEP_MODLE="demo")
    with cli.start("serve", "--port", "0", "--json") as process:
        assert process.stdout is not None
        announcement = json.loads(process.stdout.readline())["announcement"]
        _address(announcement[0])
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0
    lines = [json.loads(line) for line in err.splitlines()]
    assert lines[0]["event"] == "THREADKEEP_MODLE is not a setting and has no effect; did you mean THREADKEEP_MODEL?"
    assert all(isinstance(line, dict) for line in lines)


def test_a_port_in_use_is_one_sentence(cli: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = cli("serve", "--port", str(taken.getsockname()[1]))
    assert outcome.exit_code == 1
    assert "THREADKEEP_PORT" in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_host_of_mcp_that_does_not_exist_is_one_sentence(cli: CommandLine) -> None:
    cli.set(THREADKEEP_API_KEYS="one:key")
    outcome = cli("mcp", "--http", "--host", "999.1.1.1")
    assert (outcome.exit_code, len(outcome.err.splitlines()), "--host" in outcome.err) == (1, 1, True)


def test_mcp_can_listen_on_an_ipv6_address(cli: CommandLine) -> None:
    cli.set(THREADKEEP_API_KEYS="one:key")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        outcome = cli("mcp", "--http", "--host", "::1", "--port", str(taken.getsockname()[1]))
    assert outcome.exit_code == 1
    assert outcome.err.startswith("Cannot listen on ::1 port")
    assert outcome.err.endswith("choose another port with --port.\n")


def test_mcp_names_its_own_option_for_a_wrong_host(cli: CommandLine) -> None:
    """The command does not read THREADKEEP_HOST."""
    cli.set(THREADKEEP_API_KEYS="one:key")
    outcome = cli("mcp", "--http", "--host", "no.such.host.invalid")
    assert outcome.exit_code == 1
    assert outcome.err.startswith("--host is not an address of this machine")


def test_other_addresses_need_api_keys(cli: CommandLine) -> None:
    outcome = cli("serve", "--host", "0.0.0.0")  # noqa: S104
    assert outcome.exit_code == 1
    assert "THREADKEEP_API_KEYS" in outcome.err


def _address(line: str) -> str:
    found = re.search(r"http://\S+", line)
    assert found, line
    return found[0]
