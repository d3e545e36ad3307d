"""Studies through a real Slurm, started for these tests: progress, cancelled jobs, lost daemons, time limits."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.slurm_cluster import CONTROLLER, SlurmCluster, need_slurm, run_slurm

from corewise.store.store import Store
from corewise.submit.job_log import JobLog

pytestmark = pytest.mark.slow

STUDY = """
workload: stream
runtime: numpy
fixed: {{threads: 1, args.operation: triad}}
axes: {{args.size_bytes: [{sizes}]}}
protocol: {{min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: {sample_s}, max_warmup_s: 0.05,
  max_repeats_disturbed: 0}}
"""


@pytest.fixture
def slurm(need: Callable[[bool, str], None], tmp_path: Path) -> Iterator[SlurmCluster]:
    need_slurm(need)
    sites = tmp_path / "config" / "corewise" / "sites.yaml"
    sites.parent.mkdir(parents=True)
    sites.write_text("default:\n  allow_local_store: true\n  query_every_s: 1\n")
    with run_slurm() as cluster:
        cluster.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
        cluster.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        yield cluster


def write_study(folder: Path, num_trials: int, sample_s: float = 0.02) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(STUDY.format(sizes=", ".join(str(65536 + 4096 * i) for i in range(num_trials)), sample_s=sample_s))
    return path


def build_command(study: Path, store: Path, *options: str) -> list[str]:
    return [sys.executable, "-P", "-m", "corewise", "run", str(study), "--store", str(store), "--on", "slurm", *options]


def wait_for_records(store: Path, least: int) -> None:
    for _ in range(1200):
        if store.exists() and len(Store.open(store, create=True).read_done_ids()) >= least:
            return
        time.sleep(0.1)
    raise AssertionError("no records appeared")


def check_records(store: Path, num_trials: int) -> None:
    """Every trial has exactly one record."""
    result = Store.open(store, create=False).read_records()
    assert Counter(record.status for record in result.records) == {"ok": num_trials}
    assert not result.duplicates
    assert not result.damage


def test_a_submitted_study_leaves_its_records(slurm: SlurmCluster, tmp_path: Path) -> None:
    study, store = write_study(tmp_path, 6), tmp_path / "store"
    done = slurm.run(build_command(study, store, "--time", "10"))
    assert done.returncode == 0, done.stderr
    assert "6/6 trials" in done.stdout
    check_records(store, 6)
    (job,) = JobLog(store).read_jobs()
    assert (job.state, job.is_open) == ("COMPLETED", False)
    shown = slurm.run([sys.executable, "-P", "-m", "corewise", "status", "--follow", "--store", str(store), "--json"])
    assert json.loads(shown.stdout)["jobs"][0]["state"] == "COMPLETED"


def test_json_lists_the_jobs(slurm: SlurmCluster, tmp_path: Path) -> None:
    study, store = write_study(tmp_path, 2), tmp_path / "store"
    done = slurm.run(build_command(study, store, "--json"))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [job["state"] for job in shown["jobs"]] == ["COMPLETED"]
    queued = json.loads(slurm.run(build_command(study, store, "--json", "--detach", "--quiet")).stdout)
    (job,) = queued["jobs"]
    assert int(job["job_id"]) > int(shown["jobs"][0]["job_id"])
    slurm.run(["scancel", job["job_id"]])


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--report",), "type `corewise report`"), (("--hostfile", "hosts"), "Slurm chooses the hosts")],
)
def test_options_without_a_meaning_for_jobs_are_refused(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    command = build_command(write_study(tmp_path, 1), tmp_path / "store", *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert message in done.stderr


def test_what_a_cancelled_job_left_is_done_by_the_next_run(slurm: SlurmCluster, tmp_path: Path) -> None:
    study, store = write_study(tmp_path, 12, 0.3), tmp_path / "store"
    assert slurm.run(build_command(study, store, "--detach")).returncode == 0
    wait_for_records(store, 2)
    (job,) = JobLog(store).read_jobs()
    again = slurm.run(build_command(study, store, "--detach"))
    assert "not submitted twice" in again.stderr
    slurm.run(["scancel", job.job_id])
    slurm.wait_until_idle()
    done = slurm.run(build_command(study, store))
    assert done.returncode == 0, done.stderr
    assert [each.state for each in JobLog(store).read_jobs()] == ["CANCELLED", "COMPLETED"]
    check_records(store, 12)


def test_killed_daemons_lose_and_double_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    study, store = write_study(tmp_path, 12, 0.3), tmp_path / "store"
    command = build_command(study, store, "--time", "10")
    with subprocess.Popen(command, env=slurm.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_records(store, 1)
        for daemon in slurm.nodes:
            slurm.kill(daemon)
        slurm.kill(CONTROLLER)
        slurm.start_controller()
        for daemon in slurm.nodes:
            slurm.start_node(daemon)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    check_records(store, 12)


def test_a_job_that_reaches_its_limit_is_resumed(slurm: SlurmCluster, tmp_path: Path) -> None:
    study, store = write_study(tmp_path, 4, 8.0), tmp_path / "store"
    done = slurm.run(build_command(study, store, "--time", "1"), timeout_s=500)
    assert done.returncode == 0, done.stderr
    assert "resumes" in done.stderr
    assert len(JobLog(store).read_jobs()) > 1
    check_records(store, 4)


def test_an_unknown_partition_and_a_job_too_large_are_refused(slurm: SlurmCluster, tmp_path: Path) -> None:
    study, store = write_study(tmp_path, 1), tmp_path / "store"
    unknown = slurm.run(build_command(study, store, "--partition", "nowhere"))
    assert unknown.returncode == 2
    assert "Partitions of this cluster: all." in unknown.stderr
    large = slurm.run(build_command(study, store, "--nodes", "3"))
    assert large.returncode == 2
    assert "3 nodes: partition all has 2" in large.stderr


def test_a_job_without_python_shows_the_end_of_its_log(slurm: SlurmCluster, tmp_path: Path) -> None:
    study, store = write_study(tmp_path, 1), tmp_path / "store"
    with open(tmp_path / "config/corewise/sites.yaml", "a") as file:
        file.write("  python: /nowhere/python\n")
    done = slurm.run(build_command(study, store))
    assert done.returncode == 1
    assert "/nowhere/python" in done.stderr
