"""What is worth knowing about a machine before measuring on it, each with its evidence and remedy."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from corewise.machine.facts import MachineFacts
from corewise.machine.libraries import ALLOCATORS, Software, install_hint
from corewise.machine.model import Allocation, Finding, Limit, Topology
from corewise.machine.sysfs import to_int
from corewise.machine.topology import format_cpu_list

GIB = 1 << 30
BUSY_CPUS = 0.5  # less than this of others' work drowns in the clock ticks of the sample
SWAPPED_BYTES = 64 << 20
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True)
class _Machine:
    topology: Topology
    allocation: Allocation
    facts: MachineFacts
    env: Mapping[str, str]

    @property
    def num_cpus(self) -> int:
        return len(self.allocation.cpus)


def machine_findings(
    topology: Topology,
    allocation: Allocation,
    facts: MachineFacts,
    software: Software | None = None,
    env: Mapping[str, str] = os.environ,
) -> tuple[Finding, ...]:
    """Findings about the machine and, where given, its software; the gravest first."""
    machine = _Machine(topology, allocation, facts, env)
    found = [
        *_limits(machine),
        *_fractional_quota(machine),
        *_thread_variables(machine),
        *_load(machine),
        *_memory(machine),
        *_frequency(machine),
        *_pages(machine),
        *_hardware(machine),
        *(_software(software) if software is not None else ()),
    ]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def _limits(machine: _Machine) -> Iterator[Finding]:
    visible = len(machine.topology.cpus)
    for limit in machine.allocation.limits:
        if limit.source == "memory":
            yield _memory_limit(machine, limit)
            continue
        yield _cpu_limit(limit, visible, machine.num_cpus)
        visible = limit.num_cpus


def _cpu_limit(limit: Limit, visible: int, used: int) -> Finding:
    allowed = _count(limit.num_cpus, "CPU")
    if limit.source == "quota":
        return Finding(
            "cpu-quota",
            "warning",
            f"The cgroup allows {allowed} but {visible} are visible: "
            f"frameworks will start {visible} threads; Corewise uses {used}.",
            limit.detail,
            f"Outside Corewise set OMP_NUM_THREADS={limit.num_cpus}. A quota names no CPUs: where jobs share "
            "this machine, start each under `taskset -c` with CPUs of its own, or ask for a cpuset.",
        )
    if limit.source == "slurm":
        return Finding(
            "slurm-grant",
            "warning",
            f"Slurm granted {allowed} but {visible} are visible: "
            f"frameworks will start {visible} threads; Corewise uses {used}.",
            limit.detail,
            "Start with `srun --cpu-bind=cores`; the site can enforce grants with task/cgroup and "
            "ConstrainCores=yes.",
        )
    if limit.source == "cpuset":
        return Finding(
            "cpuset",
            "warning",
            f"The cgroup allows {allowed} but {visible} are visible: whatever counts the machine's CPUs "
            f"(lscpu, os.cpu_count()) will start {visible} threads; Corewise uses {used}.",
            limit.detail,
            "Give tools that count for themselves their number of threads by hand; for more CPUs ask the "
            "container runtime or batch system (docker --cpuset-cpus, sbatch --cpus-per-task).",
        )
    return Finding(
        "affinity",
        "info",
        f"This process is bound to {limit.num_cpus} of {visible} CPUs; Corewise stays within them.",
        limit.detail,
        "Nothing, if intended (taskset, numactl, srun, isolcpus); otherwise start from an unbound shell.",
    )


def _fractional_quota(machine: _Machine) -> Iterator[Finding]:
    quota = machine.facts.cpu_quota_cpus
    if quota is None or quota.is_integer() or quota >= machine.num_cpus + 1:
        return
    if quota < 1:
        yield Finding(
            "quota-below-one",
            "error",
            f"The CPU quota is {quota:g} of one CPU: every process will be stopped part of the time, "
            "and no timing taken here says what the machine can do.",
            f"cgroup CPU quota = {quota:g} CPUs",
            "Raise the quota to a whole number of CPUs (docker --cpus=1, Kubernetes limits.cpu: 1).",
        )
    else:
        yield Finding(
            "quota-fraction",
            "info",
            f"The CPU quota is {quota:g}: Corewise rounds it down to {_count(int(quota), 'CPU')}, because a "
            "thread too many gets the whole group throttled in the middle of a step.",
            f"cgroup CPU quota = {quota:g} CPUs",
            "Ask for a whole number of CPUs (docker --cpus, Kubernetes limits.cpu).",
        )


def _thread_variables(machine: _Machine) -> Iterator[Finding]:
    num_cores = machine.allocation.num_cores
    for name in THREAD_VARIABLES:
        first_level = machine.env.get(name, "").partition(",")[0]
        num_threads = to_int(first_level)
        if num_threads is None:
            continue
        evidence = f"{name}={machine.env[name]} in the environment"
        if num_threads > machine.num_cpus:
            yield Finding(
                "threads-oversubscribed",
                "warning",
                f"{name} asks for {num_threads} threads on {_count(machine.num_cpus, 'CPU')}: "
                "they will take turns, and every parallel region waits for the last of them.",
                evidence,
                f"`unset {name}`, or set it to {num_cores}. Corewise sets it for each trial by itself.",
            )
        elif num_threads == 1 and num_cores > 1:
            yield Finding(
                "threads-single",
                "warning",
                f"{name}=1 keeps every process on one core of {num_cores} (torchrun sets it, "
                "and so do many sites).",
                evidence,
                f"`unset {name}`, or set it to {num_cores} divided by the processes per node. "
                "Corewise sets it for each trial by itself.",
            )


def _load(machine: _Machine) -> Iterator[Finding]:
    load = machine.facts.load
    if load.others_cpus >= BUSY_CPUS:
        yield Finding(
            "load-by-others",
            "warning",
            f"Other processes keep {load.others_cpus:.1f} of {len(machine.topology.cpus)} CPUs busy now: "
            "they take cache, memory bandwidth and boost frequency even from CPUs they do not run on.",
            f"/proc/stat over {load.sample_s * 1000:.0f} ms; load average {load.load_1min:g}",
            "See `top`; stop them, wait, or take the node exclusively (sbatch --exclusive). "
            "Corewise marks the trials they disturb.",
        )


def _memory(machine: _Machine) -> Iterator[Finding]:
    memory = machine.facts.memory
    if memory.swap_used_bytes >= SWAPPED_BYTES:
        yield Finding(
            "swap-in-use",
            "warning",
            f"{_gib(memory.swap_used_bytes)} lie in swap: a trial that touches them waits for the disk.",
            f"/proc/meminfo: {_gib(memory.swap_used_bytes)} of {_gib(memory.swap_total_bytes)} swap used, "
            f"{_gib(memory.available_bytes)} memory available",
            "`sudo swapoff -a && sudo swapon -a` brings them back when memory is free; "
            "`sudo sysctl vm.swappiness=1` keeps them there.",
        )
    if memory.numa_balancing and len(machine.topology.nodes) > 1:
        yield Finding(
            "numa-balancing",
            "info",
            f"Automatic NUMA balancing is on over {len(machine.topology.nodes)} nodes: "
            "the kernel samples page faults and moves pages while trials run.",
            "/proc/sys/kernel/numa_balancing is not 0",
            "`sudo sysctl kernel.numa_balancing=0`; pinned ranks do not need it.",
        )


def _memory_limit(machine: _Machine, limit: Limit) -> Finding:
    total, allowed = machine.facts.memory.total_bytes, machine.allocation.memory_bytes
    return Finding(
        "memory-limit",
        "info",
        f"We may use {_gib(allowed)} of the machine's {_gib(total)}: what needs more is killed, "
        "though `free` shows plenty.",
        limit.detail,
        "Raise the limit where it was set (docker --memory, sbatch --mem) if trials run out of memory.",
    )


def _frequency(machine: _Machine) -> Iterator[Finding]:
    frequency = machine.facts.frequency
    others = [governor for governor in frequency.governors if governor != "performance"]
    if others:
        yield Finding(
            "governor",
            "warning",
            f"The frequency governor is {' and '.join(others)}: cores speed up only after work has arrived, "
            "which blurs short steps and first samples.",
            f"scaling_governor = {', '.join(frequency.governors)}; driver {frequency.driver or 'unknown'}",
            "`sudo cpupower frequency-set -g performance` (on Slurm: srun --cpu-freq=performance).",
        )


def _pages(machine: _Machine) -> Iterator[Finding]:
    mode = machine.facts.memory.transparent_huge_pages
    evidence = f"/sys/kernel/mm/transparent_hugepage/enabled = {mode}"
    if mode == "never":
        yield Finding(
            "huge-pages-never",
            "warning",
            "Transparent huge pages are off: large tensors pay for 4 KiB pages in faults and TLB misses.",
            evidence,
            "`echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`, "
            "then THP_MEM_ALLOC_ENABLE=1 for PyTorch.",
        )
    elif mode == "madvise":
        yield Finding(
            "huge-pages-madvise",
            "info",
            "Transparent huge pages come only on request, which plain malloc does not make: "
            "large tensors live on 4 KiB pages.",
            evidence,
            "See what they give: `corewise run quick --set huge_pages=default,transparent`. "
            "In a program of yours: THP_MEM_ALLOC_ENABLE=1 (PyTorch) or "
            "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (glibc 2.35 on).",
        )
    elif mode == "always":
        yield Finding(
            "huge-pages-always",
            "info",
            "Transparent huge pages are always on: good for large tensors, but memory use rounds up "
            "and compaction can stall a step.",
            evidence,
            "Nothing, unless steps stall: then `echo defer+madvise | sudo tee "
            "/sys/kernel/mm/transparent_hugepage/defrag`.",
        )


def _hardware(machine: _Machine) -> Iterator[Finding]:
    topology = machine.topology
    if topology.num_cores < len(topology.cpus):
        yield Finding(
            "smt-on",
            "info",
            f"SMT is on: {len(topology.cpus)} CPUs are {_count(topology.num_cores, 'core')}. "
            "Dense arithmetic rarely gains from a second thread on a core.",
            f"thread siblings of CPU {topology.cpus[0].number}: {_siblings(topology)}",
            "Corewise uses one CPU of each core; `smt: true` in a study measures the rest.",
        )
    if topology.offline:
        yield Finding(
            "cpus-offline",
            "info",
            f"{_count(len(topology.offline), 'CPU')} of the machine "
            f"{'is' if len(topology.offline) == 1 else 'are'} offline and cannot be used.",
            f"offline: {format_cpu_list(topology.offline)}",
            f"Nothing, if intended; otherwise `sudo chcpu -e {format_cpu_list(topology.offline)}`.",
        )
    if machine.facts.virtualised:
        yield Finding(
            "virtual-machine",
            "info",
            "This is a virtual machine: its CPUs may be shared, its topology invented, "
            "and hardware counters are usually missing.",
            "the CPU reports a hypervisor",
            "Timings: none needed, Corewise interleaves trials and records steal time. Counters: bare metal.",
        )


def _software(software: Software) -> Iterator[Finding]:
    if not software.frameworks:
        yield Finding(
            "no-framework",
            "warning",
            "No framework is installed beside Corewise: only numpy workloads can run here.",
            f"none of torch, tensorflow, jax in Python {software.python}",
            "`pip install 'corewise[torch]'` (or [tensorflow], [jax]), or name your own interpreter "
            "with `python:` in a study.",
        )
    missing = [name for name in ALLOCATORS if software.libraries.get(name) is None]
    for name in missing:
        yield Finding(
            f"no-{name}",
            "info",
            f"{name} is not installed: the axis `allocator: {name}` will be skipped.",
            "not in LD_LIBRARY_PATH, the Python prefix or the system's library folders",
            f"{install_hint(name)}.",
        )


def _siblings(topology: Topology) -> str:
    core = topology.cpus[0].core
    return format_cpu_list(cpu.number for cpu in topology.cpus if cpu.core == core)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
