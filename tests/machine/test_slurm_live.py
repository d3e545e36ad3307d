"""The grant of a real Slurm, started for this test on loopback: one node that does not bind its tasks."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CONF = """
ClusterName=corewise
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.pid
SlurmdSpoolDir={dir}/spool
StateSaveLocation={dir}/state
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=cw1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def slurm(tmp_path: Path, need: Callable[[bool, str], None]) -> Iterator[dict[str, str]]:
    """The environment in which srun reaches a controller and one node of our own."""
    parts = ("slurmctld", "slurmd", "srun", "munged", "munge")
    need(all(shutil.which(part, path=f"{os.environ['PATH']}:/usr/sbin") for part in parts), "Slurm and munge")
    need(os.geteuid() == 0, "root, to start slurmd")
    conf = tmp_path / "slurm.conf"
    host = socket.gethostname().split(".")[0]
    conf.write_text(CONF.format(dir=tmp_path, host=host, controller_port=free_port(), node_port=free_port()))
    for name in ("state", "spool"):
        (tmp_path / name).mkdir()
    env = {**os.environ, "SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    started = [*_start_munge(env)]
    try:
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "cw1"]):
            started.append(subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL))
        _wait_until_idle(env)
        yield env
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=60)


def _start_munge(env: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A munge daemon, unless one answers already."""
    if _is_munge_running(env):
        return
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")
    started = subprocess.Popen(["runuser", "-u", "munge", "--", "munged", "--foreground"], env=env)
    # Slurm's daemons do not wait long for it.
    for _ in range(300):
        if _is_munge_running(env):
            break
        time.sleep(0.2)
    yield started


def _is_munge_running(env: dict[str, str]) -> bool:
    return subprocess.run(["munge", "-n"], env=env, capture_output=True).returncode == 0


def _wait_until_idle(env: dict[str, str]) -> None:
    for _ in range(300):
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True)
        if done.stdout.strip() == "idle":
            return
        time.sleep(0.2)
    pytest.fail("the node did not become idle")


def test_a_grant_that_slurm_does_not_enforce_is_kept_all_the_same(slurm: dict[str, str]) -> None:
    doctor = [sys.executable, "-m", "corewise", "doctor", "--json"]
    done = subprocess.run(["srun", "-n1", "-c1", *doctor], env=slurm, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    allocation = json.loads(done.stdout)["allocation"]
    assert len(allocation["cpus"]) == 1
    if len(os.sched_getaffinity(0)) > 1:
        assert any(limit["source"] == "slurm" for limit in allocation["limits"])
