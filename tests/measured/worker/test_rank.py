"""A rank counts CPU time of other processes only where it can, and keeps code where nobody else can change it."""

from pathlib import Path

import pytest

from corewise.measured.parameters import Binding, TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, Trial
from corewise.measured.worker.rank import RankPlan, _choose_cache, _drop_shared_cpu_time


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
    plan = RankPlan(trial, 0, "", Path("rank-0.json"), 0)
    metrics = _drop_shared_cpu_time(plan, {"other_cpu_s": 0.5, "steal_s": 0.1})
    assert metrics == {"other_cpu_s": 0.5 if is_counted else 0.0, "steal_s": 0.1}


def build_plan(folder: Path, execution: str) -> RankPlan:
    trial = Trial("0" * 16, TrialParameters(execution=execution), Protocol(), (RankPlacement((0,)),), {}, ("python",))
    (folder / "work" / "run").mkdir(parents=True)
    return RankPlan(trial, 0, str(folder / "rendezvous"), folder / "work" / "run" / "rank-0.json", 0)


@pytest.mark.parametrize("execution", ["compile", "malleable"])
def test_compiled_code_is_kept_in_the_store_unless_others_can_change_it(tmp_path: Path, execution: str) -> None:
    plan = build_plan(tmp_path, execution)
    assert _choose_cache(plan) == (str(tmp_path / "work" / "cache"), "")
    assert (tmp_path / "work" / "cache").stat().st_mode & 0o777 == 0o700
    (tmp_path / "work").chmod(0o777)
    cache, note = _choose_cache(plan)
    assert cache == str(tmp_path / "rendezvous" / "cache")
    assert f"everyone can write to {tmp_path}/work" in note


def test_without_compiled_code_there_is_no_folder_for_it(tmp_path: Path) -> None:
    plan = build_plan(tmp_path, "eager")
    (tmp_path / "work").chmod(0o777)
    assert _choose_cache(plan) == ("", "")
    assert not (tmp_path / "work" / "cache").exists()
