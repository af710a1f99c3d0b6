"""Tests of the checks of histories, which prove nothing if they find no faults."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.processes.history_check import Acknowledged, History, Part, faults

_WHOLE = ["a/1/0", "a/1/1", "b/1/0", "b/1/1", "a/2/0", "a/2/1"]
_ACKNOWLEDGED = [Acknowledged("a", 1, 1, 2), Acknowledged("b", 1, 3, 4)]


def history(ids: Sequence[str], acknowledged: Sequence[Acknowledged] = (), *, first: int = 1) -> History:
    """Return a history of two-message turns with these ids, numbered from `first`."""
    return History([(seq, Part.of(id_)) for seq, id_ in enumerate(ids, start=first)], acknowledged, 2)


def test_a_correct_history_has_no_faults() -> None:
    assert faults(history(_WHOLE, _ACKNOWLEDGED)) == []
    assert faults(history([])) == []


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (history(_WHOLE, first=2), "stands at 2, where 1 is expected"),
        (history([*_WHOLE, "b/1/0", "b/1/1"]), "b/1/0 is stored again at 7"),
        (history(_WHOLE[:-1]), "turn 2 of a is torn"),
        (history(["a/1/0", "b/1/0", "a/1/1", "b/1/1"]), "turn 1 of a is torn"),
        (history(["a/1/1", "a/1/0"]), "turn 1 of a is torn"),
        (history(_WHOLE[2:], _ACKNOWLEDGED), "turn 1 of a was acknowledged and is not stored"),
        (history([*_WHOLE[2:4], *_WHOLE[:2]], _ACKNOWLEDGED), "turn 1 of a was acknowledged at 1 and stands at 3"),
        (history([*_WHOLE[4:], *_WHOLE[:4]]), "turn 1 of a stands behind its turn 2"),
    ],
)
def test_each_fault_is_found(found: History, says: str) -> None:
    assert says in " · ".join(faults(found))
