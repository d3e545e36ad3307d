"""`corewise run` on several nodes through real launchers: mpirun of Open MPI and MPICH, torchrun, srun."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from corewise.store.store import Store
from corewise.study.record import Record
from tests.network_hosts import need_network_hosts, run_two_hosts
from tests.slurm_cluster import need_slurm, run_slurm

pytestmark = pytest.mark.slow

STUDY = """
workload: stream
runtime: numpy
axes: {nodes: [1, 2]}
fixed: {threads: 1, args.operation: triad, args.size_bytes: 65536}
protocol: {min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: %s, max_warmup_s: 0.05, max_repeats_disturbed: 0}
"""


@pytest.fixture(autouse=True)
def _two_cores(need: Callable[[bool, str], None]) -> None:
    need(len(os.sched_getaffinity(0)) >= 2, "two CPUs, one for each node")


def build_command(folder: Path, *options: str, sample_s: float = 0.02) -> list[str]:
    study = folder / "study.yaml"
    study.write_text(STUDY % sample_s)
    return [sys.executable, "-P", "-m", "corewise", "run", str(study), "--store", str(folder / "store"), *options]


def run_command(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def write_hostfile(folder: Path) -> str:
    path = folder / "hosts"
    path.write_text("localhost slots=2\n")
    return str(path)


def read_records(folder: Path) -> dict[int, Record]:
    """Read the records by their number of nodes; each trial has exactly one."""
    result = Store.open(folder / "store", create=False).read_records()
    assert not result.duplicates
    return {record.params["nodes"]: record for record in result.records}


def check_two_nodes(folder: Path) -> None:
    records = read_records(folder)
    assert {nodes: record.status for nodes, record in records.items()} == {1: "ok", 2: "ok"}
    for run in records[2].runs:
        first, second = run["ranks"]
        assert [first["node"], second["node"]] == [0, 1]
        assert not set(first["cpus"]) & set(second["cpus"])


def list_agents(store: Path) -> list[str]:
    found = subprocess.run(["pgrep", "-fa", str(store)], capture_output=True, text=True).stdout
    return [line for line in found.splitlines() if "corewise.run.nodes" in line]


@pytest.mark.parametrize("launcher", ["openmpi", "mpich", "torchrun"])
def test_a_study_runs_on_two_nodes(launcher: str, tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    if launcher != "torchrun":
        need(shutil.which(f"mpirun.{launcher}") is not None, launcher)
    done = run_command(build_command(tmp_path, "--on", launcher, "--hostfile", write_hostfile(tmp_path)))
    assert done.returncode == 0, done.stderr
    check_two_nodes(tmp_path)
    assert list_agents(tmp_path / "store") == []


def test_a_study_runs_on_two_nodes_of_a_slurm_job(tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    need_slurm(need)
    with run_slurm(cpus_per_node=2) as cluster:
        cluster.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        command = build_command(tmp_path, "--nodes", "2")
        done = cluster.run(["salloc", "-N2", "--ntasks-per-node=1", "-c2", "--no-shell", "-J", "two"])
        assert done.returncode == 0, done.stderr
        job = done.stderr.split("job allocation ")[1].split()[0]
        nodes = ",".join(cluster.nodes)
        grant = {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": nodes, "SLURM_JOB_NUM_NODES": "2"}
        done = cluster.run(["env", *(f"{name}={value}" for name, value in grant.items()), *command], timeout_s=240)
        assert done.returncode == 0, done.stderr
        cluster.run(["scancel", job])
    check_two_nodes(tmp_path)


def test_two_hosts_on_a_network_run_a_study(tmp_path: Path, need: Callable[[bool, str], None]) -> None:
    need_network_hosts(need)
    with run_two_hosts() as hosts:
        hosts.limit("1gbit")
        done = hosts.run(build_command(tmp_path, "--on", "openmpi", "--hostfile", str(hosts.hostfile)))
        assert done.returncode == 0, done.stderr
    check_two_nodes(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_agent_and_resumes(
    number: signal.Signals, tmp_path: Path, need: Callable[[bool, str], None]
) -> None:
    need(shutil.which("mpirun.openmpi") is not None, "Open MPI")
    options = ("--on", "openmpi", "--hostfile", write_hostfile(tmp_path))
    process = subprocess.Popen(build_command(tmp_path, *options, sample_s=2), stderr=subprocess.DEVNULL)
    while len(list_agents(tmp_path / "store")) < 2 and process.poll() is None:
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(number)
    process.wait(60)
    deadline = time.monotonic() + 120
    while list_agents(tmp_path / "store") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list_agents(tmp_path / "store") == []
    done = run_command(build_command(tmp_path, *options, sample_s=2))
    assert done.returncode == 0, done.stderr
    check_two_nodes(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nodes", "2"), "there is no Slurm job and no host file"),
        (("--nodes", "1,2"), "several need --on slurm"),
        (("--nodes", "0"), "takes one number of nodes"),
        (("--on", "local", "--nodes", "2"), "this host is one node"),
        (("--on", "mpirum", "--nodes", "2"), "did you mean"),
        (("--on", "mpirun", "--hostfile", "/no/such/file"), "/no/such/file"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    done = run_command(build_command(tmp_path, *options))
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_host_that_does_not_resolve_is_named(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("no-such-host.invalid\nlocalhost\n")
    done = run_command(build_command(tmp_path, "--on", "mpirun", "--hostfile", str(hosts)))
    assert done.returncode == 2
    assert "no-such-host.invalid" in done.stderr
