"""Find what affects measurements on a machine, each finding with its evidence and remedy."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from corewise.machine.facts import MachineFacts
from corewise.machine.foreign_load import ForeignLoad
from corewise.machine.machine_model import Allocation, Limit, MachineFinding, Topology
from corewise.machine.software import ALLOCATORS, Software, find_install_hint
from corewise.machine.topology import format_cpu_list
from corewise.measured.sysfs import to_int

GIB = 1 << 30
# CPUs in use by others. Less than this is within the clock-tick resolution of the sample.
BUSY_CPUS = 0.5
SWAPPED_BYTES = 64 << 20
# A finding shows the load of this many CPUs, the busiest ones.
MAX_SHARES = 8
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True)
class _Machine:
    topology: Topology
    allocation: Allocation
    facts: MachineFacts
    env: Mapping[str, str]
    load: ForeignLoad | None

    @property
    def num_cpus(self) -> int:
        return len(self.allocation.cpus)


def collect_machine_findings(
    topology: Topology,
    allocation: Allocation,
    facts: MachineFacts,
    software: Software | None = None,
    env: Mapping[str, str] = os.environ,
    load: ForeignLoad | None = None,
) -> tuple[MachineFinding, ...]:
    """Return findings about the machine and, if given, its software and load, most severe first."""
    machine = _Machine(topology, allocation, facts, env, load)
    findings = [
        *_check_limits(machine),
        *_check_fractional_quota(machine),
        *_check_thread_variables(machine),
        *_check_load(machine),
        *_check_memory(machine),
        *_check_frequency(machine),
        *_check_huge_pages(machine),
        *_check_hardware(machine),
        *(_check_software(software) if software is not None else ()),
    ]
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _check_limits(machine: _Machine) -> Iterator[MachineFinding]:
    visible = len(machine.topology.cpus)
    for limit in machine.allocation.limits:
        if limit.source == "memory":
            yield _describe_memory_limit(machine, limit)
            continue
        yield _describe_cpu_limit(limit, visible, machine.num_cpus)
        visible = limit.num_cpus


def _describe_cpu_limit(limit: Limit, visible: int, used: int) -> MachineFinding:
    allowed = _format_count(limit.num_cpus, "CPU")
    if limit.source == "quota":
        return MachineFinding(
            "cpu-quota",
            "warning",
            f"The cgroup allows {allowed} but {visible} are visible: "
            f"frameworks will start {visible} threads; Corewise uses {used}.",
            limit.detail,
            f"Outside Corewise set OMP_NUM_THREADS={limit.num_cpus}. A quota does not reserve CPUs: if jobs "
            "share this machine, start each under `taskset -c` with separate CPUs, or request a cpuset.",
        )
    if limit.source == "slurm":
        return MachineFinding(
            "slurm-grant",
            "warning",
            f"Slurm granted {allowed} but {visible} are visible: "
            f"frameworks will start {visible} threads; Corewise uses {used}.",
            limit.detail,
            "Start with `srun --cpu-bind=cores`; the site can enforce grants with task/cgroup and ConstrainCores=yes.",
        )
    if limit.source == "cpuset":
        return MachineFinding(
            "cpuset",
            "warning",
            f"The cgroup allows {allowed} but {visible} are visible: programs that count the machine's CPUs "
            f"(lscpu, os.cpu_count()) will start {visible} threads; Corewise uses {used}.",
            limit.detail,
            "Set the number of threads of such programs explicitly. For more CPUs, ask the container runtime "
            "or batch system (docker --cpuset-cpus, sbatch --cpus-per-task).",
        )
    return MachineFinding(
        "affinity",
        "info",
        f"This process is bound to {limit.num_cpus} of {visible} CPUs; Corewise stays within them.",
        limit.detail,
        "Nothing, if intended (taskset, numactl, srun, isolcpus); otherwise start from an unbound shell.",
    )


def _check_fractional_quota(machine: _Machine) -> Iterator[MachineFinding]:
    quota = machine.facts.cpu_quota_cpus
    if quota is None or quota.is_integer() or quota >= machine.num_cpus + 1:
        return
    if quota < 1:
        yield MachineFinding(
            "quota-below-one",
            "error",
            f"The CPU quota is {quota:g} of one CPU: the kernel pauses every process part of the time, "
            "so timings do not show what the machine can do.",
            f"cgroup CPU quota = {quota:g} CPUs",
            "Raise the quota to a whole number of CPUs (docker --cpus=1, Kubernetes limits.cpu: 1).",
        )
    else:
        yield MachineFinding(
            "quota-fraction",
            "info",
            f"The CPU quota is {quota:g}: Corewise rounds it down to {_format_count(int(quota), 'CPU')}, "
            "because one extra thread makes the kernel throttle the whole group during a step.",
            f"cgroup CPU quota = {quota:g} CPUs",
            "Ask for a whole number of CPUs (docker --cpus, Kubernetes limits.cpu).",
        )


def _check_thread_variables(machine: _Machine) -> Iterator[MachineFinding]:
    num_cores = machine.allocation.num_cores
    for name in THREAD_VARIABLES:
        first_level = machine.env.get(name, "").partition(",")[0]
        num_threads = to_int(first_level)
        if num_threads is None:
            continue
        evidence = f"{name}={machine.env[name]} in the environment"
        if num_threads > machine.num_cpus:
            yield MachineFinding(
                "threads-oversubscribed",
                "warning",
                f"{name} asks for {num_threads} threads on {_format_count(machine.num_cpus, 'CPU')}: "
                "they share CPUs, and every parallel region waits for the slowest thread.",
                evidence,
                f"`unset {name}`, or set it to {num_cores}. Corewise sets it for each trial.",
            )
        elif num_threads == 1 and num_cores > 1:
            yield MachineFinding(
                "threads-single",
                "warning",
                f"{name}=1 limits every process to one of {num_cores} cores. torchrun and many sites set it.",
                evidence,
                f"`unset {name}`, or set it to {num_cores} divided by the processes per node. "
                "Corewise sets it for each trial.",
            )


def _check_load(machine: _Machine) -> Iterator[MachineFinding]:
    if machine.load is not None and machine.load.is_busy:
        yield _describe_shared_cpus(machine.load)
        return
    load = machine.facts.load
    if load.others_cpus >= BUSY_CPUS:
        yield MachineFinding(
            "load-by-others",
            "warning",
            f"Other processes keep {load.others_cpus:.1f} of {len(machine.topology.cpus)} CPUs busy now: "
            "they take cache, memory bandwidth and boost frequency even from CPUs they do not run on.",
            f"/proc/stat over {load.sample_s * 1000:.0f} ms; load average {load.load_1min:g}",
            "See `top`; stop them, wait, or take the node exclusively (sbatch --exclusive). "
            "Corewise marks the trials they disturb.",
        )


def _describe_shared_cpus(load: ForeignLoad) -> MachineFinding:
    described = load.describe()
    shares = ", ".join(f"CPU {cpu} {100 * share:.0f} %" for cpu, share in _list_busiest(load))
    waiting = "" if load.waiting_share is None else f"; tasks waited for a CPU {100 * load.waiting_share:.0f} % of it"
    return MachineFinding(
        "cpus-shared",
        "warning",
        f"{described[0].upper()}{described[1:]}. Idle OpenMP threads spin on CPUs that others need, and every "
        "parallel region waits for the thread that lost its CPU: programs can run several times slower.",
        f"/proc/stat over {load.window_s * 1000:.0f} ms: {shares}{waiting}",
        "Wait until they end, or ask for an exclusive node (sbatch --exclusive). Otherwise let idle threads sleep: "
        "`corewise launch --wait-policy passive -- python your_script.py`, or OMP_WAIT_POLICY=passive. "
        "Corewise marks the trials they disturb.",
    )


def _list_busiest(load: ForeignLoad) -> list[tuple[int, float]]:
    busiest = sorted(load.busy_shares.items(), key=lambda item: -item[1])[:MAX_SHARES]
    return sorted(busiest)


def _check_memory(machine: _Machine) -> Iterator[MachineFinding]:
    memory = machine.facts.memory
    swapped, available = _format_gib(memory.swap_used_bytes), _format_gib(memory.available_bytes)
    if memory.swap_used_bytes >= SWAPPED_BYTES:
        yield MachineFinding(
            "swap-in-use",
            "warning",
            f"{swapped} are in swap: a trial that accesses them waits for the disk.",
            f"/proc/meminfo: {swapped} of {_format_gib(memory.swap_total_bytes)} swap used, "
            f"{available} memory available",
            "`sudo swapoff -a && sudo swapon -a` moves them back if enough memory is free; "
            "`sudo sysctl vm.swappiness=1` avoids swapping.",
        )
    if memory.numa_balancing and len(machine.topology.nodes) > 1:
        yield MachineFinding(
            "numa-balancing",
            "info",
            f"Automatic NUMA balancing is on over {len(machine.topology.nodes)} nodes: "
            "the kernel samples page faults and moves pages while trials run.",
            "/proc/sys/kernel/numa_balancing is not 0",
            "`sudo sysctl kernel.numa_balancing=0`: pinned ranks do not need it.",
        )


def _describe_memory_limit(machine: _Machine, limit: Limit) -> MachineFinding:
    total, allowed = machine.facts.memory.total_bytes, machine.allocation.memory_bytes
    return MachineFinding(
        "memory-limit",
        "info",
        f"The limit is {_format_gib(allowed)} of the machine's {_format_gib(total)}: processes that need "
        "more are killed, although `free` shows more memory.",
        limit.detail,
        "Raise the limit where it was set (docker --memory, sbatch --mem) if trials run out of memory.",
    )


def _check_frequency(machine: _Machine) -> Iterator[MachineFinding]:
    frequency = machine.facts.frequency
    others = [governor for governor in frequency.governors if governor != "performance"]
    if others:
        yield MachineFinding(
            "governor",
            "warning",
            f"The frequency governor is {' and '.join(others)}: cores speed up only after work arrives, "
            "which distorts short steps and first samples.",
            f"scaling_governor = {', '.join(frequency.governors)}; driver {frequency.driver or 'unknown'}",
            "`sudo cpupower frequency-set -g performance` (on Slurm: srun --cpu-freq=performance).",
        )


def _check_huge_pages(machine: _Machine) -> Iterator[MachineFinding]:
    mode = machine.facts.memory.transparent_huge_pages
    evidence = f"/sys/kernel/mm/transparent_hugepage/enabled = {mode}"
    if mode == "never":
        yield MachineFinding(
            "huge-pages-never",
            "warning",
            "Transparent huge pages are off: large tensors on 4 KiB pages cost page faults and TLB misses.",
            evidence,
            "`echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`, "
            "then THP_MEM_ALLOC_ENABLE=1 for PyTorch.",
        )
    elif mode == "madvise":
        yield MachineFinding(
            "huge-pages-madvise",
            "info",
            "Transparent huge pages need a request, which plain malloc does not make: large tensors use 4 KiB pages.",
            evidence,
            "Measure their effect: `corewise run quick --set huge_pages=default,transparent`. "
            "In your own programs set THP_MEM_ALLOC_ENABLE=1 (PyTorch) or "
            "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (glibc 2.35 or later).",
        )
    elif mode == "always":
        yield MachineFinding(
            "huge-pages-always",
            "info",
            "Transparent huge pages are always on: good for large tensors, but memory use increases "
            "and compaction can stall a step.",
            evidence,
            "Nothing unless steps stall; then `echo defer+madvise | sudo tee "
            "/sys/kernel/mm/transparent_hugepage/defrag`.",
        )


def _check_hardware(machine: _Machine) -> Iterator[MachineFinding]:
    topology = machine.topology
    if topology.num_cores < len(topology.cpus):
        yield MachineFinding(
            "smt-on",
            "info",
            f"SMT is on: {len(topology.cpus)} CPUs are {_format_count(topology.num_cores, 'core')}. "
            "Dense arithmetic rarely benefits from a second thread on a core.",
            f"thread siblings of CPU {topology.cpus[0].number}: {_list_siblings(topology)}",
            "Corewise uses one CPU of each core; set `smt: true` in a study to use all.",
        )
    yield from _check_core_classes(machine)
    if topology.offline:
        yield MachineFinding(
            "cpus-offline",
            "info",
            f"{_format_count(len(topology.offline), 'CPU')} of the machine "
            f"{'is' if len(topology.offline) == 1 else 'are'} offline and cannot be used.",
            f"offline: {format_cpu_list(topology.offline)}",
            f"Nothing, if intended; otherwise `sudo chcpu -e {format_cpu_list(topology.offline)}`.",
        )
    if machine.facts.virtualised:
        yield MachineFinding(
            "virtual-machine",
            "info",
            "This is a virtual machine: its CPUs may be shared, its topology may be wrong, "
            "and hardware counters are usually missing.",
            "the CPU reports a hypervisor",
            "Nothing for timings: Corewise interleaves trials and records steal time. For counters use bare metal.",
        )


def _check_core_classes(machine: _Machine) -> Iterator[MachineFinding]:
    classes = machine.facts.core_classes
    if not classes:
        return
    usable = machine.topology.select_cpus(machine.allocation.cpus)
    fastest = usable.core_classes[0]
    num_fast = len({cpu.core for cpu in usable.cpus if cpu.core_class == fastest})
    sizes = [machine.topology.select_cpus(each.cpus).num_cores for each in classes]
    shown = " and ".join(f"{num} {each.name}" for num, each in zip(sizes, classes, strict=True))
    yield MachineFinding(
        "hybrid-cores",
        "info",
        f"The processor has cores of different speed: {shown} cores. "
        "Threads that share the work equally all wait for the slowest core.",
        "; ".join(f"{each.name}: CPUs {format_cpu_list(each.cpus)} ({each.evidence})" for each in classes),
        "Corewise fills the fastest cores first and keeps each process on one type if it fits. Compare: "
        f"`corewise run quick --set threads={num_fast},{usable.num_cores}`."
        if num_fast < usable.num_cores
        else "Nothing: all cores that you may use are of one type.",
    )


def _check_software(software: Software) -> Iterator[MachineFinding]:
    if not software.frameworks:
        yield MachineFinding(
            "no-framework",
            "warning",
            "No framework is installed with Corewise: only numpy workloads can run.",
            f"none of torch, tensorflow, jax in Python {software.python}",
            "`pip install 'corewise[torch]'` (or [tensorflow], [jax]), or name your own interpreter "
            "with `python:` in a study.",
        )
    missing = [name for name in ALLOCATORS if software.libraries.get(name) is None]
    for name in missing:
        yield MachineFinding(
            f"no-{name}",
            "info",
            f"{name} is not installed: the axis `allocator: {name}` will be skipped.",
            "not in LD_LIBRARY_PATH, the Python prefix or the system's library folders",
            f"{find_install_hint(name)}.",
        )


def _list_siblings(topology: Topology) -> str:
    core = topology.cpus[0].core
    return format_cpu_list(cpu.number for cpu in topology.cpus if cpu.core == core)


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _format_gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
