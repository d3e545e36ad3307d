"""Reads the machine and the interpreter under test, once per plan."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corewise.errors import UserError
from corewise.launch.environment import strip_controlled_variables
from corewise.launch.worker_commands import build_probe_command
from corewise.machine.allocation import read_allocation
from corewise.machine.ceilings.cache import compute_allocation_shape
from corewise.machine.facts import MachineFacts, compute_host_class, read_facts
from corewise.machine.gpus import count_visible_gpus
from corewise.machine.machine_model import Allocation, Topology
from corewise.machine.software import find_library
from corewise.machine.topology import format_cpu_list, read_topology
from corewise.study.planning.expansion import MachineView
from corewise.study.study import Study

PRELOADABLE = ("tcmalloc", "jemalloc", "libiomp5")
PROBE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs the trials: its command, version, prefix and installed packages.

    `problem` says why they are not known, if it was not started and its files do not say.
    """

    command: tuple[str, ...]
    version: str
    prefix: str
    packages: Mapping[str, str]
    problem: str = ""


@dataclass(frozen=True)
class Host:
    """What a plan needs to know about this machine."""

    topology: Topology
    allocation: Allocation
    facts: MachineFacts
    class_hash: str

    @property
    def usable(self) -> Topology:
        return self.topology.select_cpus(self.allocation.cpus)

    def find_whole_socket(self) -> Topology:
        """Return the first socket whose online CPUs are all part of the allocation; empty if there is none."""
        allowed = set(self.allocation.cpus)
        for socket in self.topology.sockets:
            cpus = tuple(cpu for cpu in self.topology.cpus if cpu.socket == socket)
            if allowed.issuperset(cpu.number for cpu in cpus):
                return Topology(cpus)
        return Topology(())

    def compute_allocation_shape(self) -> list[list[int]]:
        """List cores and CPUs per NUMA node, largest first; equal for equivalent grants on equal machines."""
        return [list(node) for node in compute_allocation_shape(self.topology, self.allocation)]

    def describe(self) -> dict[str, Any]:
        """Describe the machine for a record."""
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
    """Read this machine's topology, allocation and facts."""
    topology = read_topology(root)
    facts = read_facts(root)
    return Host(topology, read_allocation(topology, root), facts, compute_host_class(facts, topology))


def build_interpreter_command(study: Study) -> tuple[str, ...]:
    """Build the prefix and interpreter that a study asks for; the current Python by default."""
    return (*study.prefix, study.python or sys.executable)


def build_interpreter_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Build the environment in which an interpreter starts: that of the user and the variables of the study."""
    return {**strip_controlled_variables(os.environ), **environment}


def probe_interpreter(command: Sequence[str], worker: Path, environment: Mapping[str, str]) -> Interpreter:
    """Run an interpreter to read its versions; no package is imported there."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            build_probe_command(command, worker),
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT_S,
            check=False,
            env=build_interpreter_environment(environment),
        )
    except OSError as problem:
        raise UserError(f"cannot start the interpreter `{shown}`: {problem.strerror}") from problem
    except subprocess.TimeoutExpired as problem:
        raise UserError(f"the interpreter `{shown}` did not answer within {PROBE_LIMIT_S:g} s") from problem
    try:
        answer = json.loads(done.stdout)
        return Interpreter(tuple(command), answer["python"], answer["prefix"], answer["packages"])
    except (ValueError, KeyError) as problem:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        advice = "It must be Python 3.9 or newer."
        if len(command) > 1:
            advice += f" With a prefix, name the Python behind it: `python: python3`, not {command[-1]}."
        raise UserError(
            f"the interpreter `{shown}` cannot run Corewise's worker (exit {done.returncode}): {last}\n{advice}"
        ) from problem


def find_preloadable_libraries(interpreter: Interpreter) -> dict[str, Path]:
    """Find the installed allocators and OpenMP runtimes, by name."""
    prefix = Path(interpreter.prefix) if interpreter.prefix else None
    found = {name: find_library(name, python_prefix=prefix) for name in PRELOADABLE}
    return {name: path for name, path in found.items() if path is not None}


def build_machine_view(host: Host, libraries: Mapping[str, Path]) -> MachineView:
    """Build the machine figures that axes and constraints refer to."""
    usable = host.usable
    socket = host.find_whole_socket()
    return MachineView(
        num_cores=host.allocation.num_cores,
        num_cpus=len(host.allocation.cpus),
        num_numa_nodes=len(usable.nodes),
        num_sockets=len(usable.sockets),
        has_cuda=bool(host.facts.gpus),
        num_gpus=count_visible_gpus(host.facts.gpus, os.environ.get("CUDA_VISIBLE_DEVICES")),
        cores_near_gpu=usable.select_near_gpu(0).num_cores,
        libraries=frozenset(libraries) | {"libgomp"},
        memory_bytes=host.allocation.memory_bytes,
        instruction_sets=frozenset(host.facts.instruction_sets) if host.facts.instruction_sets else None,
        transparent_huge_pages=host.facts.memory.transparent_huge_pages,
        socket_cores=socket.num_cores,
        socket_cpus=len(socket.cpus),
    )
