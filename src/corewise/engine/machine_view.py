"""The machine and the interpreter under test, read once per plan."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corewise.launcher.environment import inherited_environment
from corewise.launcher.local import probe_command
from corewise.machine.allocation import read_allocation
from corewise.machine.facts import MachineFacts, host_class, read_facts
from corewise.machine.gpus import num_visible
from corewise.machine.kept_ceilings import allocation_shape
from corewise.machine.libraries import find_library
from corewise.machine.model import Allocation, Topology
from corewise.machine.topology import format_cpu_list, read_topology
from corewise.spec.errors import UserError
from corewise.spec.expand import MachineView
from corewise.spec.study import Study

PRELOADABLE = ("tcmalloc", "jemalloc", "libiomp5")
PROBE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Interpreter:
    """Whose Python runs the trials, and what lies beside it."""

    words: tuple[str, ...]
    version: str
    prefix: str
    packages: Mapping[str, str]


@dataclass(frozen=True)
class Host:
    """What a plan needs to know of this machine."""

    topology: Topology
    allocation: Allocation
    facts: MachineFacts
    class_hash: str

    @property
    def usable(self) -> Topology:
        return self.topology.restricted(self.allocation.cpus)

    def allocation_shape(self) -> list[list[int]]:
        """Cores and CPUs per NUMA node, largest first: equal for equivalent grants on equal machines."""
        return [list(node) for node in allocation_shape(self.topology, self.allocation)]

    def describe(self) -> dict[str, Any]:
        """What a record says of the machine."""
        return {
            "hostname": self.facts.hostname,
            "host_class": self.class_hash,
            "cpu_model": self.facts.cpu_model,
            "microarchitecture": self.facts.microarchitecture,
            "num_sockets": len(self.topology.sockets),
            "num_nodes": len(self.topology.nodes),
            "num_cores": self.topology.num_cores,
            "allocation_cpus": format_cpu_list(self.allocation.cpus),
            "allocation_cores": self.allocation.num_cores,
            "memory_bytes": self.allocation.memory_bytes,
            "kernel": self.facts.kernel,
        }


def read_host(root: Path = Path("/")) -> Host:
    """This machine as it is now."""
    topology = read_topology(root)
    facts = read_facts(root)
    return Host(topology, read_allocation(topology, root), facts, host_class(facts, topology))


def interpreter_words(study: Study) -> tuple[str, ...]:
    """Prefix and interpreter a study asks for; our own Python by default."""
    return (*study.prefix, study.python or sys.executable)


def probe_interpreter(words: Sequence[str], worker: Path, environment: Mapping[str, str]) -> Interpreter:
    """Versions under an interpreter, read by running it; nothing is imported there."""
    command = probe_command(words, worker)
    shown = " ".join(words)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT_S,
            check=False,
            env={**inherited_environment(os.environ), **environment},
        )
    except OSError as problem:
        raise UserError(f"cannot start the interpreter `{shown}`: {problem.strerror}") from problem
    except subprocess.TimeoutExpired as problem:
        raise UserError(f"the interpreter `{shown}` gave no answer in {PROBE_LIMIT_S:g} s") from problem
    try:
        told = json.loads(done.stdout)
        return Interpreter(tuple(words), told["python"], told["prefix"], told["packages"])
    except (ValueError, KeyError) as problem:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        advice = "It must be Python 3.9 or newer."
        if len(words) > 1:
            advice += f" Behind a prefix, name the Python found there: `python: python3`, not {words[-1]}."
        raise UserError(
            f"the interpreter `{shown}` cannot run Corewise's worker "
            f"(exit {done.returncode}): {last}\n{advice}"
        ) from problem


def preloadable_libraries(interpreter: Interpreter) -> dict[str, Path]:
    """The allocators and OpenMP runtimes found here, by name."""
    found = {name: find_library(name, python_prefix=Path(interpreter.prefix)) for name in PRELOADABLE}
    return {name: path for name, path in found.items() if path is not None}


def planning_view(host: Host, libraries: Mapping[str, Path]) -> MachineView:
    """The few numbers that axes and constraints speak of."""
    usable = host.usable
    return MachineView(
        num_cores=host.allocation.num_cores,
        num_cpus=len(host.allocation.cpus),
        num_numa_nodes=len(usable.nodes),
        num_sockets=len(usable.sockets),
        has_cuda=bool(host.facts.gpus),
        num_gpus=num_visible(host.facts.gpus, os.environ.get("CUDA_VISIBLE_DEVICES")),
        cores_near_gpu=usable.near_gpu(0).num_cores,
        libraries=frozenset(libraries) | {"libgomp"},
        memory_bytes=host.allocation.memory_bytes,
        instruction_sets=frozenset(host.facts.instruction_sets) if host.facts.instruction_sets else None,
        transparent_huge_pages=host.facts.memory.transparent_huge_pages,
    )
