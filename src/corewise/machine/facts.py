"""What a machine is and what state it is in, from /proc and /sys."""

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corewise.machine.allocation import read_hostname
from corewise.machine.cgroups import read_cpu_quota
from corewise.machine.gpus import Gpu, GpuQuery, merge_gpus, read_driver_gpus
from corewise.machine.model import Topology
from corewise.machine.processor import cpu_model, first_cpu
from corewise.machine.sysfs import kib_to_bytes, read_int, read_table, read_text, to_int
from corewise.machine.topology import NODE_DIR, Cache, read_caches, read_topology

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
    """The machine's memory and its page settings."""

    total_bytes: int
    available_bytes: int
    swap_total_bytes: int
    swap_used_bytes: int
    transparent_huge_pages: str  # always | madvise | never, empty where unknown
    num_free_huge_pages: int
    huge_page_bytes: int
    nodes: tuple[NodeMemory, ...]
    numa_balancing: bool


@dataclass(frozen=True)
class Frequency:
    """How CPU frequency is governed; empty where the kernel does not say, as in most virtual machines."""

    governors: tuple[str, ...]
    driver: str


@dataclass(frozen=True)
class Load:
    """What else runs on the machine now."""

    load_1min: float
    others_cpus: float  # CPUs that other processes kept busy during the sample
    sample_s: float


@dataclass(frozen=True)
class MachineFacts:
    """What a machine is and what state it is in."""

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
    cpu_quota_cpus: float | None  # the cgroup's CPU quota, fraction and all

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON values."""
        return asdict(self)


def read_facts(
    root: Path = Path("/"), topology: Topology | None = None, sample_s: float = LOAD_SAMPLE_S
) -> MachineFacts:
    """The machine's facts; looks at the load for `sample_s` seconds while it reads the rest."""
    sampler, query = _LoadSampler(root), GpuQuery(root)
    cpu = first_cpu(root)
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    quota = read_cpu_quota(root)
    return MachineFacts(
        hostname=read_hostname(root),
        kernel=read_text(root / "proc/sys/kernel/osrelease") or "",
        cpu_model=cpu_model(cpu),
        cpu_vendor=cpu.get("vendor_id") or cpu.get("CPU implementer") or "",
        microarchitecture=_microarchitecture(root),
        instruction_sets=tuple(name for name in INSTRUCTION_SETS if name in flags),
        virtualised="hypervisor" in flags or (root / "sys/hypervisor/type").exists(),
        caches=read_caches(topology or read_topology(root), root),
        memory=_memory(root),
        frequency=_frequency(root),
        cpu_quota_cpus=None if quota is None else quota.cpus,
        gpus=merge_gpus(read_driver_gpus(root), query.answer()),
        load=sampler.load(sample_s),
    )


def host_class(facts: MachineFacts, topology: Topology) -> str:
    """A short hash that hosts of the same hardware share."""
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
    return hashlib.sha256(json.dumps(traits, sort_keys=True).encode()).hexdigest()[:12]


class _LoadSampler:
    """Machine-wide and own CPU time from when it was made."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._start = self._now()

    def load(self, sample_s: float) -> Load:
        """The load since the start, waiting until that is at least `sample_s` ago."""
        live = self._root == Path("/")
        time.sleep(max(0.0, self._start[0] + sample_s - time.monotonic()) if live else 0.0)
        end = self._now()
        wall, busy, own = (after - before for before, after in zip(self._start, end, strict=True))
        words = (read_text(self._root / "proc/loadavg") or "0").split()
        others = max(0.0, busy - (own if live else 0.0)) / wall if wall > 0 else 0.0
        try:
            return Load(float(words[0]), round(others, 2), round(wall, 3))
        except ValueError:
            return Load(0.0, round(others, 2), round(wall, 3))

    def _now(self) -> tuple[float, float, float]:
        first_line = (read_text(self._root / "proc/stat") or "").partition("\n")[0].split()
        ticks = [to_int(word) or 0 for word in first_line[1:9]]
        user, nice, system, _idle, _wait, irq, softirq, _steal = [*ticks, *[0] * 8][:8]
        busy_s = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy_s, sum(os.times()[:4])


def _microarchitecture(root: Path) -> str:
    if root != Path("/"):
        return ""
    try:
        import archspec.cpu  # lazily: it takes a tenth of what doctor may take

        return str(archspec.cpu.host().name)
    except Exception:  # detection looks into corners of many machines; a name is not worth a crash
        return ""


def _memory(root: Path) -> Memory:
    table = read_table(root / "proc/meminfo")
    size = {key: kib_to_bytes(value) or 0 for key, value in table.items()}
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
        nodes=_node_memories(root),
        numa_balancing=(read_int(root / "proc/sys/kernel/numa_balancing") or 0) > 0,
    )


def _node_memories(root: Path) -> tuple[NodeMemory, ...]:
    nodes = []
    for folder in (root / NODE_DIR).glob("node[0-9]*"):
        number = to_int(folder.name.removeprefix("node"))
        # Each line reads "Node 0 MemTotal:  123 kB".
        table = {key.split()[-1]: value for key, value in read_table(folder / "meminfo").items() if key}
        total = kib_to_bytes(table.get("MemTotal"))
        if number is not None and total is not None:
            nodes.append(NodeMemory(number, total, kib_to_bytes(table.get("MemFree")) or 0))
    return tuple(sorted(nodes, key=lambda node: node.node))


def _frequency(root: Path) -> Frequency:
    policies = sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*"))
    governors = {read_text(policy / "scaling_governor") for policy in policies} - {None, ""}
    drivers = sorted({read_text(policy / "scaling_driver") or "" for policy in policies} - {""})
    return Frequency(tuple(sorted(str(g) for g in governors)), drivers[0] if drivers else "")
