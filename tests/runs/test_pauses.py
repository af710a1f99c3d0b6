"""Tests of the pauses between the attempts of a run."""

from __future__ import annotations

import pytest

from threadkeep.runs.execution import pause_before


@pytest.mark.parametrize(("attempt", "full"), [(2, 0.5), (3, 1.0), (4, 2.0), (9, 20.0)])
def test_a_pause_is_doubled_before_each_attempt_up_to_the_longest(attempt: int, full: float) -> None:
    """The first pause precedes the second attempt. A random half spreads the retries of many runs."""
    pauses = [pause_before(attempt, first_seconds=0.5, longest_seconds=20.0) for _ in range(100)]
    assert all(full / 2 <= pause <= full for pause in pauses)
    assert len(set(pauses)) > 1
