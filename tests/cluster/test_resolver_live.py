"""The resolver in processes of real launchers (Slurm, MPICH, Open MPI, torchrun), and frameworks that use it."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.slurm_cluster import SlurmCluster, need_slurm, run_slurm

pytestmark = pytest.mark.slow

DESCRIBE = """
import dataclasses, json, os
import corewise
try:
    job = corewise.cluster.resolve()
    shown = {**dataclasses.asdict(job), "rank_gpus": job.rank_gpus, "jax": job.jax_arguments()["local_device_ids"]}
except corewise.cluster.ClusterError as problem:
    shown = {"problem": str(problem)}
os.write(1, (json.dumps(shown) + chr(10)).encode())
"""
# The scripts get a free port, because tests may run at the same time.
RESOLVE = """
import dataclasses, json, os, sys
import corewise
job = dataclasses.replace(corewise.cluster.resolve(hosts=["127.0.0.1"]), master_port=int(sys.argv[1]))
def show(*values):
    os.write(1, (json.dumps(values) + chr(10)).encode())
"""
TORCH = """
os.environ.update(job.torch_variables())
import torch, torch.distributed as distributed
distributed.init_process_group("gloo")
total = torch.tensor([job.rank + 1.0])
distributed.all_reduce(total)
distributed.destroy_process_group()
show(job.rank, job.num_ranks, total.item())
"""
JAX = """
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy
jax.distributed.initialize(**job.jax_arguments())
from jax.experimental import multihost_utils
gathered = multihost_utils.process_allgather(numpy.array([jax.process_index() + 1.0]))
show(jax.process_index(), jax.process_count(), float(gathered.sum()))
"""
TENSORFLOW = """
cluster = job.tensorflow_cluster(port_base=int(sys.argv[1]))
os.environ.update({"TF_CONFIG": json.dumps(cluster), **job.gpu_variables()})
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def add():
    def add_in_replica():
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(job.rank + 1.0))
    return strategy.run(add_in_replica)
show(cluster["task"]["index"], strategy.num_replicas_in_sync, float(add()))
"""
FRAMEWORKS = {"torch": TORCH, "jax": JAX, "tensorflow": TENSORFLOW}
LAUNCHERS = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
    "mpich": ["mpirun.mpich", "-n", "2"],
}


def find_ports() -> int:
    """Return a port that is free, and so is the next one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except (OSError, OverflowError):
                continue
            return port


def read_lines(output: str) -> list[Any]:
    return sorted(
        (json.loads(line) for line in output.splitlines() if line.startswith(("[", "{")) and "Gloo" not in line),
        key=lambda shown: shown[0] if isinstance(shown, list) else shown.get("rank", -1),
    )


def run_script(command: Sequence[str], code: str, *arguments: str) -> list[Any]:
    done = subprocess.run(
        [*command, sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return read_lines(done.stdout)


def require_launcher(name: str, need: Callable[[bool, str], None]) -> list[str]:
    need(shutil.which(LAUNCHERS[name][0]) is not None, name)
    return LAUNCHERS[name]


@pytest.mark.parametrize(("launcher", "source"), [("openmpi", "openmpi"), ("mpich", "pmi")])
def test_ranks_of_an_mpirun_are_described(launcher: str, source: str, need: Callable[[bool, str], None]) -> None:
    ranks = run_script(require_launcher(launcher, need), DESCRIBE)
    assert [(rank["source"], rank["rank"], rank["local_rank"], rank["node_rank"]) for rank in ranks] == [
        (source, 0, 0, 0),
        (source, 1, 1, 0),
    ]
    assert ranks[0]["hosts"] == [socket.gethostname()]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_one_rank_is_described(launcher: str, need: Callable[[bool, str], None]) -> None:
    command = [*require_launcher(launcher, need)]
    command[command.index("-n") + 1] = "1"
    (rank,) = run_script(command, DESCRIBE)
    assert (rank["rank"], rank["ranks_per_host"]) == (0, [1])


@pytest.mark.torch
def test_ranks_of_torchrun_are_described(need: Callable[[bool, str], None]) -> None:
    need(importlib.util.find_spec("torch") is not None, "torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={find_ports()}"]
    code = "import sys\nexec(sys.argv[1])"
    done = subprocess.run(
        [*command, "--no-python", sys.executable, "-c", code, DESCRIBE], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    ranks = read_lines(done.stdout)
    assert [(rank["source"], rank["rank"], rank["local_rank"]) for rank in ranks] == [
        ("torchrun", 0, 0),
        ("torchrun", 1, 1),
    ]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_meet_by_what_the_resolver_says(
    framework: str, launcher: str, need: Callable[[bool, str], None]
) -> None:
    need(importlib.util.find_spec(framework) is not None, framework)
    command = require_launcher(launcher, need)
    shown = run_script(command, RESOLVE + FRAMEWORKS[framework], str(find_ports()))
    assert shown == [[0, 2, 3.0], [1, 2, 3.0]]


def describe_step(cluster: SlurmCluster, *options: str) -> list[Any]:
    done = cluster.run(["srun", *options, sys.executable, "-c", DESCRIBE])
    return read_lines(done.stdout)


def test_steps_of_a_real_slurm_are_described_with_their_gpus(need: Callable[[bool, str], None]) -> None:
    need_slurm(need)
    with run_slurm(cpus_per_node=4, gpus_per_node=4) as cluster:
        cluster.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        two_each = ("-N2", "--ntasks-per-node=2")
        shared = describe_step(cluster, *two_each, "--gpus-per-node=4")
        assert [rank["rank_gpus"] for rank in shared] == [["0", "1"], ["2", "3"]] * 2
        assert [rank["jax"] for rank in shared] == [[0, 1], [2, 3]] * 2
        assert [(rank["node_rank"], rank["local_rank"]) for rank in shared] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        bound = describe_step(cluster, *two_each, "--gpus-per-task=2")
        assert [rank["rank_gpus"] for rank in bound] == [["0", "1"], ["2", "3"]] * 2
        assert [rank["jax"] for rank in bound] == [[0, 1]] * 4
        left_over = describe_step(cluster, *two_each, "--gpus-per-node=3")
        assert [rank["rank_gpus"] for rank in left_over] == [["0"], ["1"]] * 2
        uneven = describe_step(cluster, "-N2", "-n3")
        assert [(rank["ranks_per_host"], rank["node_rank"]) for rank in uneven] == [
            ([2, 1], 0),
            ([2, 1], 0),
            ([2, 1], 1),
        ]
        dealt = describe_step(cluster, "-N2", "-n4", "--distribution=cyclic")
        assert any("srun --distribution=block" in rank.get("problem", "") for rank in dealt)
        (alone,) = describe_step(cluster, "-N1", "-n1")
        assert (alone["rank"], alone["hosts"], alone["rank_gpus"]) == (0, ["cw1"], [])
