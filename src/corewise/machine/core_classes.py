"""Recognise hybrid processors: classes of cores with different speeds, such as performance and efficiency cores."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from corewise.machine.machine_model import Topology
from corewise.measured.sysfs import read_cpu_list, read_int, read_text
from corewise.measured.trial import RankPlacement

CPU_DIR = "sys/devices/system/cpu"
# The kernel's counters of hybrid Intel processors, fastest cores first. Each lists its CPUs.
INTEL_COUNTERS = ("cpu_core", "cpu_atom", "cpu_lowpower")
# Types of cores in topology/core_type, with their order.
CORE_TYPES = {"intel_core": 0, "performance": 0, "intel_atom": 1, "efficiency": 1}
# Cores of one class have at least this fraction of its highest capacity. Favoured cores differ by less.
MIN_CAPACITY_FRACTION = 0.9
# The same for the maximum frequency, which varies more between equal cores.
MIN_FREQUENCY_FRACTION = 0.8


@dataclass(frozen=True)
class CoreClass:
    """The online CPUs of cores of one speed; `evidence` is the file that distinguishes them."""

    name: str
    cpus: tuple[int, ...]
    evidence: str


def read_core_classes(online: Collection[int], root: Path = Path("/")) -> tuple[CoreClass, ...]:
    """Read the classes of cores, fastest first; empty if all cores are equal or nothing is known."""
    for read in (_read_counters, _read_capacities, _read_core_types, _read_frequencies):
        groups = [(sorted(set(cpus) & set(online)), evidence) for cpus, evidence in read(sorted(online), root)]
        groups = [(cpus, evidence) for cpus, evidence in groups if cpus]
        if len(groups) > 1:
            return tuple(
                CoreClass(name_core_class(index, len(groups)), tuple(cpus), evidence)
                for index, (cpus, evidence) in enumerate(groups)
            )
    return ()


def name_core_class(index: int, num_classes: int) -> str:
    """Return the name of a class: the fastest is performance, the slowest efficiency."""
    if index == 0:
        return "performance"
    if index == num_classes - 1:
        return "efficiency"
    return "middle" if num_classes == 3 else f"middle {index}"


def describe_core_classes(topology: Topology, cpus: Collection[int], ranks: Sequence[RankPlacement]) -> str:
    """Describe which types of cores the ranks have; empty if all have only the fastest of the allocation.

    Args:
        topology: The whole machine.
        cpus: The CPUs of the allocation.
        ranks: The placement of each rank.
    """
    cpu_of, num_classes = {cpu.number: cpu for cpu in topology.cpus}, len(topology.core_classes)
    fastest = min((cpu_of[cpu].core_class for cpu in cpus if cpu in cpu_of), default=0)
    # The numbers of cores of each class, for each rank.
    counts = [Counter({cpu_of[cpu].core: cpu_of[cpu].core_class for cpu in rank.cpus}.values()) for rank in ranks]
    if all(set(each) == {fastest} for each in counts):
        return ""
    texts = Counter(_describe_counts(each, num_classes) for each in counts)
    shown = [f"{'a process has' if num == 1 else f'{num} processes have'} {text}" for text, num in texts.items()]
    is_mixed = any(len(each) > 1 for each in counts)
    reason = "; a process mixes types only if none of them has enough free cores" if is_mixed else ""
    return f"cores of different speed: {', '.join(shown)}{reason}"


def _describe_counts(counts: Mapping[int, int], num_classes: int) -> str:
    parts = [f"{counts[each]} {name_core_class(each, num_classes)}" for each in sorted(counts)]
    return f"{' + '.join(parts)} {'core' if sum(counts.values()) == 1 else 'cores'}"


Groups = list[tuple[Collection[int], str]]


def _read_counters(online: Sequence[int], root: Path) -> Groups:
    groups: Groups = []
    for name in INTEL_COUNTERS:
        path = f"sys/devices/{name}/cpus"
        groups.append((read_cpu_list(root / path) or (), f"/{path}"))
    listed = {cpu for cpus, _ in groups for cpu in cpus}
    # A CPU that no counter lists is of an unknown, slower type.
    return [*groups, (set(online) - listed, "not listed in /sys/devices/cpu_core/cpus")] if listed else []


def _read_capacities(online: Sequence[int], root: Path) -> Groups:
    values = _read_values(online, lambda cpu: read_int(root / CPU_DIR / f"cpu{cpu}/cpu_capacity"))
    return _group_by_speed(values, MIN_CAPACITY_FRACTION, "cpu_capacity")


def _read_core_types(online: Sequence[int], root: Path) -> Groups:
    def read(cpu: int) -> int | None:
        return CORE_TYPES.get(read_text(root / CPU_DIR / f"cpu{cpu}/topology/core_type") or "")

    values = _read_values(online, read)
    return [
        ([cpu for cpu, value in values.items() if value == order], f"/{CPU_DIR}/cpu*/topology/core_type")
        for order in sorted(set(values.values()))
    ]


def _read_frequencies(online: Sequence[int], root: Path) -> Groups:
    values = _read_values(online, lambda cpu: read_int(root / CPU_DIR / f"cpu{cpu}/cpufreq/cpuinfo_max_freq"))
    return _group_by_speed(values, MIN_FREQUENCY_FRACTION, "cpufreq/cpuinfo_max_freq")


def _read_values(online: Sequence[int], read: Callable[[int], int | None]) -> dict[int, int]:
    """Read a value of every CPU; empty if one has none."""
    values: dict[int, int] = {}
    for cpu in online:
        value = read(cpu)
        if value is None or value < 0:
            return {}
        values[cpu] = value
    return values


def _group_by_speed(values: Mapping[int, int], min_fraction: float, file: str) -> Groups:
    """Group CPUs whose values are close to the highest of their group, fastest first."""
    groups: list[list[int]] = []
    for cpu in sorted(values, key=lambda number: (-values[number], number)):
        if not groups or values[cpu] < min_fraction * values[groups[-1][0]]:
            groups.append([])
        groups[-1].append(cpu)
    return [(group, f"/{CPU_DIR}/cpu{min(group)}/{file} = {values[min(group)]}") for group in groups]
