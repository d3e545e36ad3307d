"""The ceilings of a machine: its highest bandwidths and flop rates by precision, threads, node and GPU.

These are pure values: `run/ceiling_trials.py` measures them and `machine/ceilings/cache.py` stores them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corewise.machine.ceilings.rate_format import SAME_RATE

CEILINGS_SCHEMA = 1
BANDWIDTH_OPERATIONS = ("triad", "copy", "read", "to_device", "from_device")
# Bandwidths that bound workloads: most of them read and write. Read-only bandwidth is only reported.
ROOF_OPERATIONS = ("triad", "copy")
PRODUCT = "product"
# The placements of each device.
PLACEMENTS = {"cpu": ("compact", "spread", "node"), "cuda": ("gpu",)}
BUSY_NOTE = "the machine was busy, so these are too low: measure again when it is quiet"


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """One measured ceiling: the best and the median of several samples.

    `operation` is one of BANDWIDTH_OPERATIONS, in GB/s, or PRODUCT, in Gflop/s. `threads` are those of the
    host, `nodes` the NUMA nodes of their CPUs. `size` is the bytes of each array, or the rows and columns of
    a product. `measured_at` is ISO 8601, UTC. `is_busy` says that every measurement was disturbed by others.
    """

    operation: str
    dtype: str
    device: str
    threads: int
    placement: str
    nodes: tuple[int, ...]
    gpu: int | None
    best: float
    median: float
    num_samples: int
    size: int
    measured_at: str = ""
    is_busy: bool = False

    @property
    def spread(self) -> float:
        """The distance of the median from the best, as a fraction of the best."""
        return (self.best - self.median) / self.best if self.best else 0.0

    @property
    def is_product(self) -> bool:
        return self.operation == PRODUCT

    @property
    def identity(self) -> tuple[Any, ...]:
        """What was measured and where; ceilings of equal identity measure the same thing."""
        place = (self.device, self.gpu, self.placement, self.threads, self.nodes)
        return (self.operation, self.dtype, *place)

    def merge_higher(self, other: "Ceiling") -> "Ceiling":
        """Return the higher of two measurements of one ceiling; it is busy only if both were."""
        higher = self if self.best >= other.best else other
        return replace(higher, is_busy=self.is_busy and other.is_busy)

    def to_json(self) -> dict[str, Any]:
        """Return the ceiling as JSON values, its figure under the name of its unit."""
        unit, size = ("gflop_per_s", "size") if self.is_product else ("gbyte_per_s", "array_bytes")
        return {
            "kind": self.operation,
            "dtype": self.dtype,
            "device": self.device,
            "gpu": self.gpu,
            "threads": self.threads,
            "placement": self.placement,
            "nodes": list(self.nodes),
            unit: self.best,
            f"median_{unit}": self.median,
            "spread": self.spread,
            "num_samples": self.num_samples,
            size: self.size,
            "measured_at": self.measured_at,
            "busy": self.is_busy,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], measured_at: str = "") -> "Ceiling":
        """Build a ceiling from parsed JSON, or raise KeyError, TypeError or ValueError."""
        is_product = data["kind"] == PRODUCT
        unit, size = ("gflop_per_s", "size") if is_product else ("gbyte_per_s", "array_bytes")
        ceiling = cls(
            operation=str(data["kind"]),
            dtype=str(data["dtype"]),
            device=str(data["device"]),
            gpu=None if data["gpu"] is None else _read_whole_number(data, "gpu", 0),
            threads=_read_whole_number(data, "threads"),
            placement=str(data["placement"]),
            nodes=tuple(_read_whole_number({"node": node}, "node", 0) for node in data["nodes"]),
            best=float(data[unit]),
            median=float(data[f"median_{unit}"]),
            num_samples=_read_whole_number(data, "num_samples"),
            size=_read_whole_number(data, size),
            measured_at=str(data.get("measured_at") or measured_at),
            is_busy=bool(data.get("busy", False)),
        )
        ceiling._check_consistency()
        return ceiling

    def _check_consistency(self) -> None:
        if self.operation not in (*BANDWIDTH_OPERATIONS, PRODUCT):
            raise ValueError(f"unknown kind {self.operation!r}")
        if self.placement not in PLACEMENTS.get(self.device, ()):
            raise ValueError(f"device {self.device!r} has no placement {self.placement!r}")
        if (self.gpu is None) != (self.device == "cpu"):
            raise ValueError(f"device {self.device!r} does not match GPU {self.gpu}")
        if not 0 < self.median <= self.best < math.inf:
            raise ValueError(f"{self.operation}: impossible best {self.best} and median {self.median}")


@dataclass(frozen=True)
class Roof:
    """The flop rate and bandwidth that bound a workload; None where not measured."""

    gflop_per_s: float | None
    gbyte_per_s: float | None

    def compute_attainable(self, flops: float, num_bytes: float) -> "AttainableTime | None":
        """Return the shortest time for this work under the roof, or None if a needed rate is unknown."""
        times = []
        if num_bytes > 0 and self.gbyte_per_s is not None:
            times.append((num_bytes / self.gbyte_per_s / 1e9, "memory"))
        if flops > 0 and self.gflop_per_s is not None:
            times.append((flops / self.gflop_per_s / 1e9, "compute"))
        # A bandwidth alone does not bound flops.
        if not times or (flops > 0 and self.gflop_per_s is None):
            return None
        if num_bytes > 0 and self.gbyte_per_s is None:
            return None
        return AttainableTime(*max(times))


@dataclass(frozen=True)
class AttainableTime:
    """The shortest time in which the machine can do some work, and its limit: memory or compute."""

    seconds: float
    limit: str


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """All ceilings of one allocation on one class of machine, measured with one framework.

    `allocation` holds the cores and CPUs of each NUMA node, largest first; on hybrid machines of each class of
    cores in it. `measured_at` is ISO 8601, UTC.
    """

    runtime: str
    version: str
    host_class: str
    allocation: tuple[tuple[int, int], ...]
    hostname: str
    cpu_model: str
    measured_at: str
    took_s: float
    figures: tuple[Ceiling, ...]
    notes: tuple[str, ...] = ()

    def is_busy(self, device: str = "") -> bool:
        """Return whether a ceiling of this device, or of any, was only measured on a busy machine."""
        return any(each.is_busy for each in self.figures if device in ("", each.device))

    def merge_higher(self, other: "Ceilings") -> "Ceilings":
        """Return these ceilings, each the higher of both measurements with its own date.

        A rate that was reached once can be reached again. Each side may lack figures that the other has.
        """
        merged = {each.identity: each for each in other.figures}
        for each in self.figures:
            earlier = merged.get(each.identity)
            merged[each.identity] = each if earlier is None else each.merge_higher(earlier)
        result = replace(self, figures=tuple(sorted(merged.values(), key=compute_sort_key)))
        notes = [note for note in self.notes if note != BUSY_NOTE]
        return replace(result, notes=(*([BUSY_NOTE] if result.is_busy() else []), *notes))

    def to_json(self) -> dict[str, Any]:
        """Return the ceilings as JSON values, with separate lists `bandwidth` and `peak`."""
        return {
            "schema": CEILINGS_SCHEMA,
            "measured_at": self.measured_at,
            "took_s": round(self.took_s, 1),
            "runtime": self.runtime,
            "version": self.version,
            "hostname": self.hostname,
            "cpu_model": self.cpu_model,
            "host_class": self.host_class,
            "allocation": [list(node) for node in self.allocation],
            "bandwidth": [each.to_json() for each in self.figures if not each.is_product],
            "peak": [each.to_json() for each in self.figures if each.is_product],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Ceilings":
        """Build ceilings from parsed JSON, or raise KeyError, TypeError or ValueError."""
        if data["schema"] != CEILINGS_SCHEMA:
            raise ValueError(f"schema {data['schema']!r}; this Corewise reads {CEILINGS_SCHEMA}")
        measured_at = str(data["measured_at"])
        figures = tuple(Ceiling.from_json(each, measured_at) for each in (*data["bandwidth"], *data["peak"]))
        if not figures:
            raise ValueError("no figures")
        return cls(
            runtime=str(data["runtime"]),
            version=str(data["version"]),
            host_class=str(data["host_class"]),
            allocation=tuple((int(cores), int(cpus)) for cores, cpus in data["allocation"]),
            hostname=str(data["hostname"]),
            cpu_model=str(data["cpu_model"]),
            measured_at=measured_at,
            took_s=float(data["took_s"]),
            figures=figures,
            notes=tuple(str(note) for note in data["notes"]),
        )

    def find_roof(self, dtype: str, device: str, *, threads: int, placement: str = "compact", gpus: int = 1) -> Roof:
        """Return the roof of a trial with this total number of threads, or on this number of GPUs."""
        if device == "cuda":
            return self._find_gpu_roof(dtype, gpus)
        peak = _find_host_ceiling(self.figures, PRODUCT, SAME_RATE.get(dtype, dtype), threads, "compact")
        bandwidths = [
            _find_host_ceiling(self.figures, operation, None, threads, placement) for operation in ROOF_OPERATIONS
        ]
        return Roof(peak, max((each for each in bandwidths if each is not None), default=None))

    def _find_gpu_roof(self, dtype: str, gpus: int) -> Roof:
        wanted = SAME_RATE.get(dtype, dtype)
        on_gpu = [each for each in self.figures if each.device == "cuda"]
        rates = [each.best for each in on_gpu if each.is_product and each.dtype == wanted]
        known = sorted({each.gpu for each in on_gpu if each.gpu is not None})
        per_gpu = [
            max((e.best for e in on_gpu if e.gpu == gpu and e.operation in ROOF_OPERATIONS), default=0.0)
            for gpu in known
        ]
        num = min(gpus, len(known))
        bandwidth = sum(sorted(per_gpu, reverse=True)[:num])
        return Roof(sum(sorted(rates, reverse=True)[:num]) or None, bandwidth or None)


def compute_sort_key(figure: Ceiling) -> tuple[Any, ...]:
    """Return a sort key: host before GPUs, whole allocation before single nodes, few threads first."""
    placements = [*PLACEMENTS["cpu"], *PLACEMENTS["cuda"]]
    gpu = -1 if figure.gpu is None else figure.gpu
    return figure.device != "cpu", gpu, placements.index(figure.placement), figure.threads, figure.nodes


def _read_whole_number(data: Mapping[str, Any], name: str, minimum: int = 1) -> int:
    """Return the whole number under this name, or raise ValueError if it is too small or another type."""
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} is {value!r}, not a whole number of at least {minimum}")
    return value


def find_effective_value(figure: Ceiling, figures: Sequence[Ceiling]) -> float:
    """Return the ceiling that applies at this figure: at least what fewer threads reached."""
    if figure.placement not in ("compact", "spread"):
        return figure.best
    envelope = _find_host_ceiling(figures, figure.operation, figure.dtype, figure.threads, figure.placement)
    return max(figure.best, envelope or 0.0)


def _find_host_ceiling(
    figures: Sequence[Ceiling], operation: str, dtype: str | None, threads: int, placement: str
) -> float | None:
    """Return the ceiling at this number of threads; compact figures fill in for missing spread ones."""
    curve: dict[int, float] = {}
    for over in ("compact",) if placement == "compact" else ("spread", "compact"):
        for each in figures:
            fits = each.device == "cpu" and each.operation == operation and each.placement == over
            if fits and dtype in (None, each.dtype):
                curve.setdefault(each.threads, each.best)
    return interpolate_curve(curve, threads)


def interpolate_curve(curve: Mapping[int, float], threads: int) -> float | None:
    """Return the interpolated value at this number of threads, or None for an empty curve.

    More threads can do no less than fewer, so a disturbed figure takes the value of fewer threads.
    """
    if not curve:
        return None
    curve = {num: max(value for other, value in curve.items() if other <= num) for num in curve}
    below = [num for num in curve if num <= threads]
    above = [num for num in curve if num >= threads]
    # Below the smallest measured number of threads, the curve grows linearly from zero.
    if not below:
        return curve[min(above)] * threads / min(above)
    if not above:
        return curve[max(below)]
    low, high = max(below), min(above)
    if low == high:
        return curve[low]
    return curve[low] + (curve[high] - curve[low]) * (threads - low) / (high - low)
