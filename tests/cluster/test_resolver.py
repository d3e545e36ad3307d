"""The resolver describes jobs of every launcher, and agrees with TensorFlow's resolver for Slurm."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

import corewise
from corewise.cluster import ClusterError, resolve

SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "4711",
}


def test_a_slurm_step_is_described_for_torch_and_jax() -> None:
    job = corewise.cluster.resolve(SLURM)
    assert (job.source, job.hosts, job.ranks_per_host) == ("slurm", ("n1", "n2"), (2, 2))
    assert (job.rank, job.num_ranks, job.local_rank, job.node_rank) == (3, 4, 1, 1)
    assert job.rank_gpus == ("2", "3")
    assert job.list_ranks("n2") == (2, 3)
    port = job.torch_variables()["MASTER_PORT"]
    assert job.torch_variables() == {
        "MASTER_ADDR": "n1",
        "MASTER_PORT": port,
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "CUDA_VISIBLE_DEVICES": "2,3",
    }
    assert job.jax_arguments() == {
        "coordinator_address": f"n1:{port}",
        "num_processes": 4,
        "process_id": 3,
        "local_device_ids": [2, 3],
    }
    other_rank = {**SLURM, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    assert resolve(other_rank).choose_port() == int(port)
    assert resolve({**SLURM, "SLURM_JOB_ID": "78"}).choose_port() != int(port)


def test_gpus_that_slurm_gave_to_one_task_are_not_divided_again() -> None:
    job = resolve({**SLURM, "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "1"})
    assert job.rank_gpus == ("1",)
    assert job.jax_arguments()["local_device_ids"] == [0]


def test_gpus_that_slurm_bound_to_one_task_without_saying_so_are_not_divided_again() -> None:
    job = resolve({**SLURM, "SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "2,3"})
    assert job.rank_gpus == ("2", "3")
    shared = resolve({**SLURM, "SLURM_GPUS_ON_NODE": "4"})
    assert shared.rank_gpus == ("2", "3")
    assert not shared.has_own_gpus


def test_mpi_names_no_other_hosts_so_they_are_given() -> None:
    job = resolve(OPENMPI)
    assert (job.source, job.rank, job.node_rank, job.hosts) == ("openmpi", 1, 1, ("", ""))
    with pytest.raises(ClusterError, match=r"openmpi does not name the host of node 0; pass the hosts"):
        job.torch_variables()
    assert resolve(OPENMPI, hosts=["a", "b"]).torch_variables()["MASTER_ADDR"] == "a"
    on_one_host = resolve(PMI)
    assert (on_one_host.source, on_one_host.hosts) == ("pmi", (socket.gethostname(),))
    in_slurm_job = resolve({**OPENMPI, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "5"})
    assert (in_slurm_job.source, in_slurm_job.hosts) == ("openmpi", ("n1", "n2"))


def test_slurm_with_pmi_variables_is_a_slurm_step() -> None:
    assert resolve({**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4"}).source == "slurm"


def test_torchrun_inside_a_slurm_step_is_asked_first() -> None:
    job = resolve({**SLURM, **TORCHRUN, "COREWISE_HOSTS": "n1,n2"})
    assert (job.source, job.rank, job.node_rank, job.hosts, job.choose_port()) == ("torchrun", 2, 1, ("n1", "n2"), 4711)
    assert resolve(TORCHRUN).hosts == ("n1", "")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "no launcher started this process"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4"}, "counts the tasks of 1 hosts, and SLURM_STEP_NODELIST"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "5"}, "Slurm states 5 tasks"),
        ({**SLURM, "SLURM_PROCID": "9"}, "SLURM_PROCID=9 is not below the number of ranks, 4"),
        ({**SLURM, "SLURM_PROCID": "x"}, "SLURM_PROCID='x' is not a number"),
        ({**SLURM, "SLURM_LOCALID": "0"}, "--distribution=block"),
        ({**SLURM, "SLURM_STEP_NODELIST": "n[1-"}, "cannot be read"),
        ({**SLURM, "SLURM_STEP_NODELIST": "-x,$y"}, "not a host name: '-x'"),
        ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "do not divide"),
        ({**TORCHRUN, "GROUP_RANK": "0"}, "GROUP_RANK=0, and RANK=2 is on node 1"),
        ({**TORCHRUN, "LOCAL_RANK": "1"}, "contradict ranks in blocks of 2"),
    ],
)
def test_contradictions_are_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError) as problem:
        resolve(env)
    assert message in str(problem.value)


def test_jobs_must_use_every_rank() -> None:
    with pytest.raises(ClusterError, match="need 5 ranks, and the job has 4"):
        resolve(SLURM).tensorflow_cluster({"ps": 1, "worker": 4})


def test_importing_the_package_does_not_import_the_resolver() -> None:
    code = "import sys, corewise; assert 'corewise.cluster' not in sys.modules; corewise.cluster.resolve"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


ENVIRONMENTS = [
    (SLURM, {"ps": 1, "worker": 3}),
    (SLURM, {"worker": 4}),
    (SLURM, {"chief": 1, "evaluator": 1, "ps": 1, "worker": 1}),
    (
        {
            "SLURM_PROCID": "4",
            "SLURM_STEP_NUM_TASKS": "6",
            "SLURM_STEP_NODELIST": "a[08-10],b1",
            "SLURM_STEP_TASKS_PER_NODE": "2(x2),1(x2)",
            "CUDA_VISIBLE_DEVICES": "0,1",
        },
        {"ps": 2, "worker": 4},
    ),
    (
        {
            "SLURM_PROCID": "9",
            "SLURM_STEP_NUM_TASKS": "14",
            "SLURM_STEP_NODELIST": "gpu[001-003,010],login2,rack7-n[5-6]",
            "SLURM_STEP_TASKS_PER_NODE": "2(x4),1,3,2",
            "CUDA_VISIBLE_DEVICES": "0,1,2",
        },
        {"chief": 1, "ps": 3, "worker": 10},
    ),
    (
        {
            "SLURM_PROCID": "5",
            "SLURM_STEP_NUM_TASKS": "7",
            "SLURM_STEP_NODELIST": "n[1,3-4]",
            "SLURM_STEP_TASKS_PER_NODE": "4,2,1",
            "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        },
        {"worker": 7},
    ),
    (
        {
            "SLURM_PROCID": "0",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_STEP_NODELIST": "n7",
            "SLURM_STEP_TASKS_PER_NODE": "1",
            "CUDA_VISIBLE_DEVICES": "0",
        },
        {"worker": 1},
    ),
]
THEIRS = """
import json, os, sys
import tensorflow as tf
SlurmClusterResolver = tf.distribute.cluster_resolver.SlurmClusterResolver
found = []
for env, jobs in json.loads(sys.argv[1]):
    os.environ.update(env)
    theirs = SlurmClusterResolver(jobs=jobs)
    spec = theirs.cluster_spec().as_dict()
    job, index = theirs.get_task_info()
    found.append([spec, {"type": job, "index": index}, os.environ["CUDA_VISIBLE_DEVICES"]])
    for name in env:
        del os.environ[name]
print("THEIRS" + json.dumps(found))
"""


def test_the_cluster_specification_equals_that_of_tensorflow(need: Callable[[bool, str], None]) -> None:
    need(importlib.util.find_spec("tensorflow") is not None, "TensorFlow")
    # One process for all environments: importing TensorFlow takes seconds.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    command = [sys.executable, "-c", THEIRS, json.dumps(ENVIRONMENTS)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.rpartition("THEIRS")[2])
    for (variables, jobs), (cluster, task, gpus) in zip(ENVIRONMENTS, theirs, strict=True):
        job = resolve(variables)
        assert job.tensorflow_cluster(jobs) == {"cluster": cluster, "task": task}
        if len(set(job.ranks_per_host)) == 1:
            assert tuple(gpus.split(",")) == job.rank_gpus
        else:
            # TensorFlow divides by the fullest host; we by this host, so that its ranks use all GPUs.
            assert len(gpus.split(",")) <= len(job.rank_gpus)
