"""Tests of `threadkeep keys`: add, list, rotate and revoke."""

from __future__ import annotations

from tests.cli.running import CommandLine


def test_a_key_is_added_rotated_and_revoked(any_cli: CommandLine) -> None:
    added = any_cli("keys", "add", "phone", "--scope", "read", "--user", "ann", "--days", "30", "--json").json
    assert (added["scope"], added["user_id"]) == ("read", "ann")
    assert added["key"].startswith("tk_")
    assert any_cli("keys", "add", "phone").exit_code == 2
    rotated = any_cli("keys", "rotate", "phone", "--hours", "0")
    assert rotated.out.startswith("tk_")
    listed = any_cli("keys", "list", "--json")
    assert [key["valid"] for key in listed.json["keys"]] == [False, True]
    assert added["key"] not in listed.out
    assert "expired" in any_cli("keys", "list").out
    assert any_cli("keys", "revoke", "phone", "--json").json == {"revoked": 2}
    assert any_cli("keys", "revoke", "phone").exit_code == 1
    assert any_cli("keys", "add", "x", "--scope", "all").exit_code == 2


def test_mcp_refuses_an_empty_user(cli: CommandLine) -> None:
    """The command fails at its start instead of at each call."""
    refused = cli("mcp", "--user", "")
    assert (refused.exit_code, "--user needs" in refused.err) == (2, True)


def test_expiry_times_have_limits(cli: CommandLine) -> None:
    assert cli("keys", "add", "bot", "--days", "inf").exit_code == 2
    assert cli("keys", "rotate", "bot", "--hours", "1e9").exit_code == 2
