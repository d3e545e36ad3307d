"""What is said of a launch among several tasks of a Slurm step, or beside its job."""

import pytest

from corewise.launcher.slurm_notes import slurm_notes

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURMD_NODENAME": "n1",
    "SLURM_CPUS_ON_NODE": "8",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_PROCID": "0",
}


def notes(num_cpus: int = 4, meet: bool = False, **changed: str) -> str:
    return "\n".join(slurm_notes({**STEP, **changed}, "n1", num_cpus=num_cpus, meet=meet))


def test_outside_slurm_nothing_is_said() -> None:
    assert slurm_notes({}, "n1", num_cpus=4, meet=True) == []


def test_tasks_with_cpus_of_their_own_are_as_they_should_be() -> None:
    assert notes(num_cpus=4) == ""


def test_tasks_that_would_take_the_same_cpus_are_told_once_a_node() -> None:
    assert "2 tasks on this node and binds none: each launch takes the same 8 CPUs" in notes(num_cpus=8)
    assert notes(num_cpus=8, SLURM_LOCALID="1") == ""
    assert "binds none" in notes(num_cpus=8, SLURM_NODEID="1", SLURM_PROCID="2")


def test_ranks_of_several_tasks_do_not_meet_and_that_is_told_once() -> None:
    assert "each of the 4 tasks of this Slurm step has ranks of its own" in notes(meet=True)
    assert notes(meet=True, SLURM_PROCID="3") == ""


@pytest.mark.parametrize("counts", ["", "x", "1", "2(x"])
def test_one_task_or_a_count_that_cannot_be_read_says_nothing(counts: str) -> None:
    assert notes(num_cpus=8, meet=True, SLURM_STEP_TASKS_PER_NODE=counts) == ""


def test_a_host_beside_the_job_is_told() -> None:
    beside = {name: value for name, value in STEP.items() if name.startswith("SLURM_JOB")}
    [told] = slurm_notes(beside, "login", num_cpus=8, meet=True)
    assert "this host is not among those of Slurm job 7 (n[1-2])" in told
    assert slurm_notes(beside, "n2", num_cpus=8, meet=True) == []
