"""A launch inside a Slurm job uses the grant, even if the node does not bind its tasks."""

import json
import os
import subprocess
import sys

from tests.machine.test_slurm_live import slurm as slurm

from .conftest import Bench
from .test_launch import REPORT, write_script


def test_a_launch_uses_only_the_grant_of_slurm(slurm: dict[str, str], bench: Bench) -> None:
    arguments = [sys.executable, "-m", "corewise", "launch", "--verify", *write_script(bench, REPORT)]
    env = {**bench.env, **{name: slurm[name] for name in ("SLURM_CONF", "PATH")}}
    done = subprocess.run(
        ["srun", "-n1", "-c1", *arguments], env=env, cwd=bench.folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (len(report["cpus"]), report["OMP_NUM_THREADS"]) == (1, "1")
    too_many = subprocess.run(
        ["srun", "-n1", "-c1", *arguments[:4], "-p", "2", "--", "true"],
        env=env, cwd=bench.folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert too_many.returncode == 2
    unbound = subprocess.run(
        ["srun", "-n2", "-c1", *arguments[:4], "--", "true"],
        env=env, cwd=bench.folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert unbound.returncode == 0
    if len(os.sched_getaffinity(0)) > 1:
        assert "SLURM_" in too_many.stderr
        assert unbound.stderr.count("Slurm runs 2 tasks on this node and binds none") == 1
