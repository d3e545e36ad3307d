"""Inside a real Slurm job, whose node does not bind its tasks, a launch uses the grant."""

import json
import os
import subprocess
import sys

from tests.machine.test_slurm_live import slurm as slurm

from .conftest import Bench
from .test_launch import TELL, python


def test_a_launch_keeps_to_the_grant_of_slurm(slurm: dict[str, str], bench: Bench) -> None:
    words = [sys.executable, "-m", "corewise", "launch", "--verify", *python(bench, TELL)]
    env = {**bench.env, **{name: slurm[name] for name in ("SLURM_CONF", "PATH")}}
    done = subprocess.run(
        ["srun", "-n1", "-c1", *words], env=env, cwd=bench.folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (len(told["cpus"]), told["OMP_NUM_THREADS"]) == (1, "1")
    too_many = subprocess.run(
        ["srun", "-n1", "-c1", *words[:4], "-p", "2", "--", "true"],
        env=env, cwd=bench.folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert too_many.returncode == 2
    unbound = subprocess.run(
        ["srun", "-n2", "-c1", *words[:4], "--", "true"],
        env=env, cwd=bench.folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert unbound.returncode == 0
    if len(os.sched_getaffinity(0)) > 1:
        assert "SLURM_" in too_many.stderr
        assert unbound.stderr.count("Slurm runs 2 tasks on this node and binds none") == 1
