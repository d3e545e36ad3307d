"""Read the hardware and the current state of a machine from /proc and /sys."""

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corewise.machine.allocation import read_hostname
from corewise.machine.core_classes import CoreClass, read_core_classes
from corewise.machine.gpus import Gpu, GpuQuery, merge_gpus, read_driver_gpus
from corewise.machine.machine_model import Topology
from corewise.machine.processor import extract_cpu_model, read_first_cpu
from corewise.machine.topology import CPU_DIR, NODE_DIR, read_topology
from corewise.measured.cache_sizes import Cache, read_caches
from corewise.measured.cgroups import read_cpu_quota
from corewise.measured.sysfs import parse_kib, read_int, read_table, read_text, to_int

GIB = 1 << 30
LOAD_SAMPLE_S = 0.05
INSTRUCTION_SETS = (
    *("sse4_2", "avx", "fma", "f16c", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "avx10"),
    *("asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2", "svei8mm", "svebf16", "sme", "sme2"),
)


@dataclass(frozen=True)
class NodeMemory:
    """The memory of one NUMA node."""

    node: int
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Memory:
    """The machine's memory and page settings; `transparent_huge_pages` is always, madvise, never or empty."""

    total_bytes: int
    available_bytes: int
    swap_total_bytes: int
    swap_used_bytes: int
    transparent_huge_pages: str
    num_free_huge_pages: int
    huge_page_bytes: int
    nodes: tuple[NodeMemory, ...]
    numa_balancing: bool


@dataclass(frozen=True)
class Frequency:
    """The governors and driver of CPU frequency; empty if unknown, as in most virtual machines."""

    governors: tuple[str, ...]
    driver: str


@dataclass(frozen=True)
class Load:
    """The current load; `others_cpus` is the number of CPUs that other processes kept busy."""

    load_1min: float
    others_cpus: float
    sample_s: float


@dataclass(frozen=True)
class MachineFacts:
    """The hardware and state of a machine; `cpu_quota_cpus` is the cgroup's quota, with its fraction.

    `core_classes` are the types of cores of a hybrid processor, fastest first; empty if all cores are equal.
    """

    hostname: str
    kernel: str
    cpu_model: str
    cpu_vendor: str
    microarchitecture: str
    instruction_sets: tuple[str, ...]
    virtualised: bool
    caches: tuple[Cache, ...]
    memory: Memory
    gpus: tuple[Gpu, ...]
    frequency: Frequency
    load: Load
    cpu_quota_cpus: float | None
    core_classes: tuple[CoreClass, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return asdict(self)


def read_facts(
    root: Path = Path("/"), topology: Topology | None = None, sample_s: float = LOAD_SAMPLE_S
) -> MachineFacts:
    """Read the machine's facts, and sample the load for `sample_s` seconds meanwhile."""
    sampler, query = _LoadSampler(root), GpuQuery(root)
    cpu = read_first_cpu(root)
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    quota = read_cpu_quota(root)
    numbers = [each.number for each in (topology or read_topology(root)).cpus]
    return MachineFacts(
        hostname=read_hostname(root),
        kernel=read_text(root / "proc/sys/kernel/osrelease") or "",
        cpu_model=extract_cpu_model(cpu),
        cpu_vendor=cpu.get("vendor_id") or cpu.get("CPU implementer") or "",
        microarchitecture=_detect_microarchitecture(root),
        instruction_sets=tuple(name for name in INSTRUCTION_SETS if name in flags),
        virtualised="hypervisor" in flags or (root / "sys/hypervisor/type").exists(),
        caches=read_caches(numbers, root / CPU_DIR),
        memory=_read_memory(root),
        frequency=_read_frequency(root),
        cpu_quota_cpus=None if quota is None else quota.cpus,
        core_classes=read_core_classes(numbers, root),
        gpus=merge_gpus(read_driver_gpus(root), query.collect_gpus()),
        load=sampler.measure_load(sample_s),
    )


def compute_host_class(facts: MachineFacts, topology: Topology) -> str:
    """Return a short hash that is equal for hosts of the same hardware."""
    shape = [
        (sum(c.node == node for c in topology.cpus), len({c.core for c in topology.cpus if c.node == node}))
        for node in topology.nodes
    ]
    traits = {
        "cpu_model": facts.cpu_model,
        "sockets": len(topology.sockets),
        "cores": topology.num_cores,
        "nodes": shape,
        "memory_gib": round(facts.memory.total_bytes / GIB),
        "gpus": sorted(gpu.name for gpu in facts.gpus),
    }
    # Only hybrid machines have this trait, so that all others keep their hash.
    if len(topology.core_classes) > 1:
        traits["core_classes"] = [
            len({c.core for c in topology.cpus if c.core_class == each}) for each in topology.core_classes
        ]
    return hashlib.sha256(json.dumps(traits, sort_keys=True).encode()).hexdigest()[:12]


class _LoadSampler:
    """Measures the CPU time of the machine and of this process since its creation."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._start = self._read_times()

    def measure_load(self, sample_s: float) -> Load:
        """Return the load since the start, after waiting until `sample_s` has passed."""
        live = self._root == Path("/")
        time.sleep(max(0.0, self._start[0] + sample_s - time.monotonic()) if live else 0.0)
        end = self._read_times()
        wall, busy, own = (after - before for before, after in zip(self._start, end, strict=True))
        averages = (read_text(self._root / "proc/loadavg") or "0").split()
        others = max(0.0, busy - (own if live else 0.0)) / wall if wall > 0 else 0.0
        try:
            return Load(float(averages[0]), round(others, 2), round(wall, 3))
        except ValueError:
            return Load(0.0, round(others, 2), round(wall, 3))

    def _read_times(self) -> tuple[float, float, float]:
        first_line = (read_text(self._root / "proc/stat") or "").partition("\n")[0].split()
        ticks = [to_int(field) or 0 for field in first_line[1:9]]
        user, nice, system, _idle, _wait, irq, softirq, _steal = [*ticks, *[0] * 8][:8]
        busy_s = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy_s, sum(os.times()[:4])


def _detect_microarchitecture(root: Path) -> str:
    if root != Path("/"):
        return ""
    # The import is lazy because it takes a tenth of the time that `corewise doctor` may take. Detection reads
    # many unusual files, and a name is not worth a crash.
    try:
        import archspec.cpu

        return str(archspec.cpu.host().name)
    except Exception:
        return ""


def _read_memory(root: Path) -> Memory:
    table = read_table(root / "proc/meminfo")
    size = {key: parse_kib(value) or 0 for key, value in table.items()}
    modes = (read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or "").split()
    chosen = [mode.strip("[]") for mode in modes if mode.startswith("[")]
    return Memory(
        total_bytes=size.get("MemTotal", 0),
        available_bytes=size.get("MemAvailable", size.get("MemFree", 0)),
        swap_total_bytes=size.get("SwapTotal", 0),
        swap_used_bytes=max(0, size.get("SwapTotal", 0) - size.get("SwapFree", 0)),
        transparent_huge_pages=chosen[0] if chosen else "",
        num_free_huge_pages=to_int(table.get("HugePages_Free")) or 0,
        huge_page_bytes=size.get("Hugepagesize", 0),
        nodes=_read_node_memories(root),
        numa_balancing=(read_int(root / "proc/sys/kernel/numa_balancing") or 0) > 0,
    )


def _read_node_memories(root: Path) -> tuple[NodeMemory, ...]:
    nodes = []
    for folder in (root / NODE_DIR).glob("node[0-9]*"):
        number = to_int(folder.name.removeprefix("node"))
        # Each line reads "Node 0 MemTotal:  123 kB".
        table = {key.split()[-1]: value for key, value in read_table(folder / "meminfo").items() if key}
        total = parse_kib(table.get("MemTotal"))
        if number is not None and total is not None:
            nodes.append(NodeMemory(number, total, parse_kib(table.get("MemFree")) or 0))
    return tuple(sorted(nodes, key=lambda node: node.node))


def _read_frequency(root: Path) -> Frequency:
    policies = sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*"))
    governors = {read_text(policy / "scaling_governor") for policy in policies} - {None, ""}
    drivers = sorted({read_text(policy / "scaling_driver") or "" for policy in policies} - {""})
    return Frequency(tuple(sorted(str(g) for g in governors)), drivers[0] if drivers else "")
