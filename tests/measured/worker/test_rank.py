"""CPU time of other processes counts only if it can be distinguished from that of other ranks."""

import pytest

from corewise.measured.parameters import Binding, TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, Trial
from corewise.measured.worker.rank import _drop_shared_cpu_time


@pytest.mark.parametrize(
    ("bind", "cpus", "is_counted"),
    [
        ("rank", ((0, 1),), True),
        ("none", ((0, 1),), True),
        ("rank", ((0,), (1,)), True),
        ("none", ((0,), (1,)), False),
        ("rank", ((0, 1), (0, 1)), False),
    ],
)
def test_other_processes_count_unless_ranks_share_their_cpus(
    bind: str, cpus: tuple[tuple[int, ...], ...], is_counted: bool
) -> None:
    ranks = tuple(RankPlacement(each) for each in cpus)
    trial = Trial("0" * 16, TrialParameters(bind=Binding(bind)), Protocol(), ranks, {}, ("python",))
    metrics = _drop_shared_cpu_time(trial, {"other_cpu_s": 0.5, "steal_s": 0.1})
    assert metrics == {"other_cpu_s": 0.5 if is_counted else 0.0, "steal_s": 0.1}
