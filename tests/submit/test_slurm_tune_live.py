"""`corewise tune --on slurm` on a real Slurm: the answer, its file, and what is refused before the queue."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.slurm_cluster import SlurmCluster, need_slurm, run_slurm

from corewise.submit.job_log import JobLog

pytestmark = pytest.mark.slow

SCRIPT = """
import time
for step in range(20):
    time.sleep(0.05)
    print(f"{1000 + step % 3} img/s", flush=True)
"""


@pytest.fixture
def slurm(need: Callable[[bool, str], None], tmp_path: Path) -> Iterator[SlurmCluster]:
    need_slurm(need)
    sites = tmp_path / "config" / "corewise" / "sites.yaml"
    sites.parent.mkdir(parents=True)
    sites.write_text("default:\n  allow_local_store: true\n  query_every_s: 2\n")
    with run_slurm() as cluster:
        cluster.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
        cluster.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        yield cluster


def build_command(folder: Path, *options: str) -> list[str]:
    store = ["--store", str(folder / "store"), "--on", "slurm"]
    return [sys.executable, "-P", "-m", "corewise", "tune", *store, *options]


def test_a_script_is_tuned_in_a_job_and_its_answer_printed(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--budget", "60s", "--time", "5", "--output", "tuned.yaml")
    done = slurm.run([*build_command(tmp_path, *options), "--", "python", "train.py"], timeout_s=400, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Type:" in done.stdout
    # The log of the job is shown meanwhile.
    assert "images/s" in done.stderr
    # On a busy machine the budget may end before anything is confirmed, and the answer says so.
    assert (tmp_path / "tuned.yaml").exists() or "was not written" in done.stdout
    (job,) = JobLog(tmp_path / "store").read_jobs()
    assert (job.state, job.study) == ("COMPLETED", "tuning of python train.py")


def test_a_workload_is_tuned_in_a_job_as_json(slurm: SlurmCluster, tmp_path: Path) -> None:
    options = ("gemm", "--runtime", "numpy", "--args", "size=256", "--budget", "15s", "--json")
    done = slurm.run(build_command(tmp_path, *options), timeout_s=400, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["subject"] == "gemm infer"


def test_a_tuning_that_fails_in_the_job_says_why(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text("raise SystemExit('no data')\n")
    command = [*build_command(tmp_path, "--budget", "20s"), "--", "python", "silent.py"]
    done = slurm.run(command, timeout_s=400, cwd=tmp_path)
    assert done.returncode == 1
    assert "it wrote no answer" in done.stderr
    assert "Run the same command again" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("gemn",), "did you mean 'gemm'"),
        (("gemm", "--runtime", "numpy", "--time", "5"), "a tuning with --budget 10m needs 12 min"),
        (("gemm", "--runtime", "numpy", "--output", "/no/such/folder/x.yaml"), "cannot be written"),
        (("gemm", "--runtime", "numpy", "--set", "threds=2"), "did you mean 'threads'"),
        (("gemm", "--runtime", "numpy", "--on", "mpirun"), "a tuning runs on one node"),
    ],
)
def test_mistakes_are_refused_before_the_queue(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = subprocess.run(build_command(tmp_path, *options), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "store").exists()
