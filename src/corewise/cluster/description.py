"""One description of a distributed job, and what each framework expects of it.

Travels to the nodes: standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The port that torchrun uses when nobody chose one.
DEFAULT_PORT = 29500
# Ports derived from a job id lie below the range that Linux gives to outgoing connections (32768 and above).
FIRST_DERIVED_PORT, NUM_DERIVED_PORTS = 10000, 20000
# The first port of TensorFlow's own resolver for Slurm.
TENSORFLOW_PORT = 8888


class ClusterError(ValueError):
    """The environment does not describe a job, or contradicts itself."""


@dataclass(frozen=True)
class ClusterDescription:
    """The hosts and ranks of a job, seen from one of its ranks.

    Attributes:
        source: Who started the ranks: `slurm`, `openmpi`, `pmi` or `torchrun`.
        hosts: One name per node, in the order of the ranks; empty for a host that the launcher does not name.
        ranks_per_host: The number of ranks of each host.
        gpus: The GPUs of this host, as CUDA_VISIBLE_DEVICES writes them.
        has_own_gpus: Whether the launcher has restricted `gpus` to this rank already.
        job_id: The identifier of the job, empty where the launcher gives none.
        master_port: The port that the launcher chose, None for one derived from the job.
    """

    source: str
    hosts: tuple[str, ...]
    ranks_per_host: tuple[int, ...]
    rank: int
    local_rank: int
    node_rank: int
    gpus: tuple[str, ...] = ()
    has_own_gpus: bool = False
    job_id: str = ""
    master_port: int | None = None

    @property
    def num_ranks(self) -> int:
        return sum(self.ranks_per_host)

    @property
    def num_local_ranks(self) -> int:
        return self.ranks_per_host[self.node_rank]

    @property
    def rank_gpus(self) -> tuple[str, ...]:
        """The GPUs of this rank: an equal share of those of the host. GPUs that remain are used by no rank."""
        if self.has_own_gpus:
            return self.gpus
        share = len(self.gpus) // self.num_local_ranks
        return self.gpus[self.local_rank * share : (self.local_rank + 1) * share]

    def list_ranks(self, host: str) -> tuple[int, ...]:
        """Return the global ranks of a host.

        Raises:
            ClusterError: the job has no such host.
        """
        if host not in self.hosts:
            raise ClusterError(f"the job has no host {host!r}; its hosts are {', '.join(map(repr, self.hosts))}")
        node = self.hosts.index(host)
        first = sum(self.ranks_per_host[:node])
        return tuple(range(first, first + self.ranks_per_host[node]))

    def choose_port(self) -> int:
        """Return the rendezvous port: that of the launcher, else one derived from the job id."""
        if self.master_port is not None:
            return self.master_port
        if not self.job_id:
            return DEFAULT_PORT
        return FIRST_DERIVED_PORT + zlib.crc32(self.job_id.encode()) % NUM_DERIVED_PORTS

    def torch_variables(self) -> dict[str, str]:
        """Return the variables that `torch.distributed.init_process_group("env://")` reads.

        Raises:
            ClusterError: the launcher does not name the first host.
        """
        variables = {
            "MASTER_ADDR": self._require_host(0),
            "MASTER_PORT": str(self.choose_port()),
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.num_ranks),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.num_local_ranks),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(len(self.hosts)),
        }
        return {**variables, **self.gpu_variables()}

    def gpu_variables(self) -> dict[str, str]:
        """Return CUDA_VISIBLE_DEVICES with the GPUs of this rank; nothing on a host without a list of GPUs."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.rank_gpus)} if self.gpus else {}

    def tensorflow_cluster(
        self, jobs: Mapping[str, int] | None = None, port_base: int = TENSORFLOW_PORT
    ) -> dict[str, Any]:
        """Return the cluster specification of TF_CONFIG: jobs with their tasks, and the task of this rank.

        Args:
            jobs: The number of tasks of each job. Ranks are dealt out in the order of the jobs' names, as
                TensorFlow's resolver for Slurm does. By default, every rank is a `worker`.
            port_base: The port of the first rank of each host; the next rank uses the next port.

        Raises:
            ClusterError: the tasks are more or fewer than the ranks, or the launcher does not name a host.
        """
        wanted = dict(jobs) if jobs is not None else {"worker": self.num_ranks}
        if any(count < 1 for count in wanted.values()) or sum(wanted.values()) != self.num_ranks:
            raise ClusterError(f"jobs {wanted} need {sum(wanted.values())} ranks, and the job has {self.num_ranks}")
        addresses = [
            f"{self._require_host(node)}:{port_base + local_rank}"
            for node, num_ranks in enumerate(self.ranks_per_host)
            for local_rank in range(num_ranks)
        ]
        cluster, task, first = {}, {}, 0
        for name, count in sorted(wanted.items()):
            cluster[name] = addresses[first : first + count]
            if first <= self.rank < first + count:
                task = {"type": name, "index": self.rank - first}
            first += count
        return {"cluster": cluster, "task": task}

    def tensorflow_variables(self, jobs: Mapping[str, int] | None = None) -> dict[str, str]:
        """Return TF_CONFIG and the GPUs of this rank as environment variables."""
        return {"TF_CONFIG": json.dumps(self.tensorflow_cluster(jobs)), **self.gpu_variables()}

    def jax_arguments(self) -> dict[str, Any]:
        """Return the arguments of `jax.distributed.initialize`.

        Raises:
            ClusterError: the launcher does not name the first host.
        """
        # JAX counts the devices that are visible to the process.
        if self.has_own_gpus:
            local_devices: list[int] | None = list(range(len(self.gpus)))
        else:
            share = len(self.rank_gpus)
            local_devices = list(range(self.local_rank * share, (self.local_rank + 1) * share))
        return {
            "coordinator_address": f"{self._require_host(0)}:{self.choose_port()}",
            "num_processes": self.num_ranks,
            "process_id": self.rank,
            "local_device_ids": local_devices or None,
        }

    def _require_host(self, node: int) -> str:
        if not self.hosts[node]:
            raise ClusterError(
                f"{self.source} does not name the host of node {node}; pass the hosts in the order of the ranks, "
                "as in resolve(hosts=['n1', 'n2'])"
            )
        return self.hosts[node]
