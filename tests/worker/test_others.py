"""CPU time of other processes, where it can be told from that of other ranks."""

import pytest

from corewise.spec.trial import Protocol, RankPlacement, Trial
from corewise.worker.rank import _of_others


@pytest.mark.parametrize(
    ("bind", "cpus", "is_told"),
    [
        ("rank", ((0, 1),), True),
        ("none", ((0, 1),), True),  # the stock default: there is no other rank
        ("rank", ((0,), (1,)), True),
        ("none", ((0,), (1,)), False),
        ("rank", ((0, 1), (0, 1)), False),
    ],
)
def test_others_are_told_unless_ranks_share_their_cpus(
    bind: str, cpus: tuple[tuple[int, ...], ...], is_told: bool
) -> None:
    ranks = tuple(RankPlacement(each) for each in cpus)
    trial = Trial("0" * 16, {"bind": bind}, Protocol(), ranks, {}, ("python",))
    found = _of_others(trial, {"other_cpu_s": 0.5, "steal_s": 0.1})
    assert found == {"other_cpu_s": 0.5 if is_told else 0.0, "steal_s": 0.1}
