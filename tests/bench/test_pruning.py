"""Tests that the bench of retention runs and prints its measurements."""

from __future__ import annotations

import pytest

from bench.pruning import main


def test_appends_are_timed_during_pruning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--messages", "400", "--rest", "0.05"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:20].strip() for line in lines] == ["meanwhile", "nothing", "archive 200", "delete 400"]
    assert all(len(line.split()) >= 6 for line in lines[1:])
