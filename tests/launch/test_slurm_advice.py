"""Notes on a launch inside a Slurm step with several tasks, or outside the job's nodes."""

import pytest

from corewise.launch.slurm_advice import list_slurm_notes

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


def notes(num_cpus: int = 4, has_rendezvous: bool = False, **changed: str) -> str:
    return "\n".join(list_slurm_notes({**STEP, **changed}, "n1", num_cpus=num_cpus, has_rendezvous=has_rendezvous))


def test_outside_slurm_there_are_no_notes() -> None:
    assert list_slurm_notes({}, "n1", num_cpus=4, has_rendezvous=True) == []


def test_tasks_with_separate_cpus_need_no_note() -> None:
    assert notes(num_cpus=4) == ""


def test_tasks_that_share_cpus_are_reported_once_per_node() -> None:
    assert "2 tasks on this node and binds none of them: all launches use the same 8 CPUs" in notes(num_cpus=8)
    assert notes(num_cpus=8, SLURM_LOCALID="1") == ""
    assert "binds none" in notes(num_cpus=8, SLURM_NODEID="1", SLURM_PROCID="2")


def test_separate_ranks_of_several_tasks_are_reported_once() -> None:
    assert "each of the 4 tasks of this Slurm step launches separate ranks" in notes(has_rendezvous=True)
    assert notes(has_rendezvous=True, SLURM_PROCID="3") == ""


@pytest.mark.parametrize("counts", ["", "x", "1", "2(x"])
def test_one_task_or_an_unreadable_count_gives_no_note(counts: str) -> None:
    assert notes(num_cpus=8, has_rendezvous=True, SLURM_STEP_TASKS_PER_NODE=counts) == ""


def test_a_host_outside_the_job_is_reported() -> None:
    job_only = {name: value for name, value in STEP.items() if name.startswith("SLURM_JOB")}
    [note] = list_slurm_notes(job_only, "login", num_cpus=8, has_rendezvous=True)
    assert "this host is not a node of Slurm job 7 (n[1-2])" in note
    assert list_slurm_notes(job_only, "n2", num_cpus=8, has_rendezvous=True) == []
