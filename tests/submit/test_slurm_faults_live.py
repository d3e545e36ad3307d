"""Faults of jobs on a real Slurm: folders that are not shared, lost nodes, preemption, jobs that cannot run."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.slurm_cluster import SlurmCluster, need_slurm, run_slurm

from corewise.store.store import Store
from corewise.submit.job_log import Job, JobLog

pytestmark = pytest.mark.slow

STUDY = """
workload: stream
runtime: numpy
fixed: {{threads: {threads}, args.operation: triad}}
axes: {{args.size_bytes: [65536, 69632, 73728, 77824]}}
protocol: {{min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: {sample_s}, max_warmup_s: 0.05,
  max_repeats_disturbed: 0}}
"""
PREEMPTION = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"
PARTITIONS = (
    "PartitionName=low Nodes=ALL Default=YES State=UP MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE\n"
    "PartitionName=high Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF"
)
QUERY_EVERY_S = 3


@pytest.fixture
def slurm(need: Callable[[bool, str], None], tmp_path: Path) -> Iterator[SlurmCluster]:
    need_slurm(need)
    sites = tmp_path / "config" / "corewise" / "sites.yaml"
    sites.parent.mkdir(parents=True)
    sites.write_text(f"default:\n  allow_local_store: true\n  query_every_s: {QUERY_EVERY_S}\n")
    with run_slurm(extra=f"SlurmdTimeout=10\n{PREEMPTION}", partitions=PARTITIONS) as cluster:
        cluster.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
        cluster.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        yield cluster


def build_command(
    folder: Path, *options: str, verb: str = "run", sample_s: float = 0.02, threads: int = 1
) -> list[str]:
    study = folder / "tiny.yaml"
    study.write_text(STUDY.format(sample_s=sample_s, threads=threads))
    store = ["--store", str(folder / "shared" / "store")]
    return [sys.executable, "-P", "-m", "corewise", verb, str(study), *store, "--on", "slurm", *options]


@contextmanager
def start_command(cluster: SlurmCluster, command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=cluster.env, stdout=pipe, stderr=pipe, text=True) as process:
        yield process


def read_jobs(folder: Path) -> list[Job]:
    return JobLog(folder / "shared" / "store").read_jobs()


def wait_for_runs(folder: Path) -> None:
    """Wait until a job has written its plan, so that trials run."""
    reports = folder / "shared" / "store" / "jobs"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any('"phase":"running"' in path.read_text() for path in reports.glob("*.report.json")):
            return
        time.sleep(0.1)
    raise AssertionError("no job ran")


def check_records(folder: Path) -> None:
    result = Store.open(folder / "shared" / "store", create=False).read_records()
    assert Counter(record.status for record in result.records) == {"ok": 4}
    assert not result.duplicates
    assert not result.damage


def test_a_folder_that_is_not_shared_is_named_and_no_trial_runs(slurm: SlurmCluster, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    for node in slurm.nodes:
        slurm.stop(node)
        slurm.start_node(node, hidden=shared)
    slurm.wait_until_idle()
    done = slurm.run(build_command(tmp_path))
    assert done.returncode == 1
    assert f"the node does not see the store {shared / 'store'}" in done.stderr
    assert "choose a folder with --store that all nodes share" in done.stderr
    assert not Store.open(shared / "store", create=False).read_records().records


def test_a_lost_node_costs_its_runs_and_another_node_resumes(slurm: SlurmCluster, tmp_path: Path) -> None:
    with start_command(slurm, build_command(tmp_path, "--time", "20", sample_s=1.0)) as process:
        wait_for_runs(tmp_path)
        slurm.kill("cw1")
        slurm.kill_jobs()
        _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    assert "returned to the queue" in errors
    check_records(tmp_path)


def test_a_preempted_job_returns_to_the_queue_and_resumes(slurm: SlurmCluster, tmp_path: Path) -> None:
    with start_command(slurm, build_command(tmp_path, "--time", "20", sample_s=1.0)) as process:
        wait_for_runs(tmp_path)
        slurm.run(["sbatch", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 5"])
        output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    assert "returned to the queue" in errors
    assert "requeued" in output
    check_records(tmp_path)
    assert [job.state for job in read_jobs(tmp_path)] == ["COMPLETED"]


def test_a_job_that_was_cancelled_just_now_is_not_taken_for_a_running_one(slurm: SlurmCluster, tmp_path: Path) -> None:
    sites = tmp_path / "config" / "corewise" / "sites.yaml"
    sites.write_text("default:\n  allow_local_store: true\n  query_every_s: 20\n")
    command = build_command(tmp_path, sample_s=0.5)
    assert slurm.run([*command, "--detach"]).returncode == 0
    wait_for_runs(tmp_path)
    # This answer of the scheduler, `running`, is what the next command finds.
    again = slurm.run([*command, "--detach"])
    assert "not submitted twice" in again.stderr
    slurm.run(["scancel", read_jobs(tmp_path)[0].job_id])
    slurm.wait_until_idle()
    done = slurm.run(command)
    assert done.returncode == 0, done.stderr
    assert "resumes" in done.stderr
    assert [job.state for job in read_jobs(tmp_path)] == ["CANCELLED", "COMPLETED"]
    check_records(tmp_path)


def test_a_job_whose_study_cannot_run_there_says_why(slurm: SlurmCluster, tmp_path: Path) -> None:
    done = slurm.run(build_command(tmp_path, threads=4096))
    assert done.returncode == 1
    assert "none of its 4 points can run here" in done.stderr
    (job,) = read_jobs(tmp_path)
    assert job.state == "FAILED"


def test_the_plan_says_what_is_too_large_and_submits_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    planned = slurm.run(build_command(tmp_path, "--nodes", "1,3", "--time", "90", verb="plan"))
    assert planned.returncode == 0
    assert "#SBATCH --nodes=3" in planned.stdout
    assert "would refuse this: 3 nodes: partition low has 2" in planned.stderr
    assert "would refuse this: --time 1 h 30 min: partition low allows 1 h 0 min" in planned.stderr
    assert not (tmp_path / "shared").exists()


def test_without_slurm_the_message_says_where_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = subprocess.run(build_command(tmp_path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "there is no `sbatch` on this host: run on a login node" in done.stderr
    assert not (tmp_path / "shared").exists()
