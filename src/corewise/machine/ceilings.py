"""What a machine can do at the most: bandwidth and flop rates by precision, threads, node and GPU.

Pure values; `engine/ceilings.py` measures them and `machine/kept_ceilings.py` keeps them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corewise.spec.rate_format import SAME_RATE

CEILINGS_SCHEMA = 1
BANDWIDTH_KINDS = ("triad", "copy", "read", "to_device", "from_device")
ROOF_KINDS = ("triad", "copy")  # read and write as most workloads do; reading alone is told, not used
PRODUCT = "product"
PLACEMENTS = {"cpu": ("compact", "spread", "node"), "cuda": ("gpu",)}  # of each device
BUSY = "the machine was busy, so these are too low: measure again when it is quiet"


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """One measured ceiling: the best of several samples, with their median beside it."""

    kind: str  # of BANDWIDTH_KINDS, or PRODUCT
    dtype: str
    device: str  # cpu | cuda
    threads: int  # on the host
    placement: str  # compact | spread | node, or gpu
    nodes: tuple[int, ...]  # NUMA nodes whose CPUs computed
    gpu: int | None
    best: float  # GB/s, of products Gflop/s
    median: float
    num_samples: int
    size: int  # bytes of each array, of products rows and columns
    measured_at: str = ""  # ISO 8601, UTC
    is_busy: bool = False  # others computed meanwhile, whenever it was measured

    @property
    def spread(self) -> float:
        """How far the median lies below the best, as a share of it."""
        return (self.best - self.median) / self.best if self.best else 0.0

    @property
    def is_product(self) -> bool:
        return self.kind == PRODUCT

    @property
    def what(self) -> tuple[Any, ...]:
        """What was measured and where: two ceilings that agree in this are the same one."""
        place = (self.device, self.gpu, self.placement, self.threads, self.nodes)
        return (self.kind, self.dtype, *place)

    def or_higher(self, other: "Ceiling") -> "Ceiling":
        """The higher of two measurings of one ceiling; a quiet one of them vouches for it."""
        higher = self if self.best >= other.best else other
        return replace(higher, is_busy=self.is_busy and other.is_busy)

    def to_json(self) -> dict[str, Any]:
        """The ceiling as JSON values, its figure under the name of its unit."""
        unit, size = ("gflop_per_s", "size") if self.is_product else ("gbyte_per_s", "array_bytes")
        return {
            "kind": self.kind,
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
        """The ceiling described by parsed JSON; KeyError, TypeError or ValueError where it is none."""
        is_product = data["kind"] == PRODUCT
        unit, size = ("gflop_per_s", "size") if is_product else ("gbyte_per_s", "array_bytes")
        made = cls(
            kind=str(data["kind"]),
            dtype=str(data["dtype"]),
            device=str(data["device"]),
            gpu=None if data["gpu"] is None else _whole(data, "gpu", 0),
            threads=_whole(data, "threads"),
            placement=str(data["placement"]),
            nodes=tuple(_whole({"node": node}, "node", 0) for node in data["nodes"]),
            best=float(data[unit]),
            median=float(data[f"median_{unit}"]),
            num_samples=_whole(data, "num_samples"),
            size=_whole(data, size),
            measured_at=str(data.get("measured_at") or measured_at),
            is_busy=bool(data.get("busy", False)),
        )
        made._require_sense()
        return made

    def _require_sense(self) -> None:
        if self.kind not in (*BANDWIDTH_KINDS, PRODUCT):
            raise ValueError(f"an unknown kind {self.kind!r}")
        if self.placement not in PLACEMENTS.get(self.device, ()):
            raise ValueError(f"a placement {self.placement!r} on a device {self.device!r}")
        if (self.gpu is None) != (self.device == "cpu"):
            raise ValueError(f"a GPU {self.gpu} on a device {self.device!r}")
        if not 0 < self.median <= self.best < math.inf:
            raise ValueError(f"a {self.kind} of {self.best} with a median of {self.median}")


@dataclass(frozen=True)
class Roof:
    """What bounds a workload at one point: a flop rate and a bandwidth; None where it was not measured."""

    gflop_per_s: float | None
    gbyte_per_s: float | None

    def attainable(self, flops: float, num_bytes: float) -> "Attainable | None":
        """The least time that so much work takes under the roof; None where the roof lacks what it needs."""
        times = []
        if num_bytes > 0 and self.gbyte_per_s is not None:
            times.append((num_bytes / self.gbyte_per_s / 1e9, "memory"))
        if flops > 0 and self.gflop_per_s is not None:
            times.append((flops / self.gflop_per_s / 1e9, "compute"))
        if not times or (flops > 0 and self.gflop_per_s is None):  # a bandwidth alone is no roof for flops
            return None
        if num_bytes > 0 and self.gbyte_per_s is None:
            return None
        return Attainable(*max(times))


@dataclass(frozen=True)
class Attainable:
    """The least time that the machine allows for some work, and what limits it."""

    seconds: float
    limit: str  # memory | compute


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """All ceilings of one allocation on one class of machine, measured through one framework."""

    runtime: str
    version: str
    host_class: str
    allocation: tuple[tuple[int, int], ...]  # cores and CPUs of each NUMA node, largest first
    hostname: str
    cpu_model: str
    measured_at: str  # ISO 8601, UTC
    took_s: float
    figures: tuple[Ceiling, ...]
    notes: tuple[str, ...] = ()

    def is_busy(self, device: str = "") -> bool:
        """True where a ceiling of this device, or of any, is known only from a busy machine."""
        return any(each.is_busy for each in self.figures if device in ("", each.device))

    def raised_by(self, other: "Ceilings") -> "Ceilings":
        """These ceilings, each the higher of both measurings with its own date: what was reached once can be.

        `other` may lack some of them, as where time ran out, and have some that these lack.
        """
        found = {each.what: each for each in other.figures}
        for each in self.figures:
            found[each.what] = each.or_higher(found[each.what]) if each.what in found else each
        figures = tuple(sorted(found.values(), key=told_order))
        raised = replace(self, figures=figures)
        notes = [note for note in self.notes if note != BUSY]
        return replace(raised, notes=(*([BUSY] if raised.is_busy() else []), *notes))

    def to_json(self) -> dict[str, Any]:
        """The ceilings as JSON values: `bandwidth` and `peak` apart, each a list."""
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
        """The ceilings described by parsed JSON; KeyError, TypeError or ValueError where they are none."""
        if data["schema"] != CEILINGS_SCHEMA:
            raise ValueError(f"schema {data['schema']!r}; this Corewise reads {CEILINGS_SCHEMA}")
        told = str(data["measured_at"])
        figures = tuple(Ceiling.from_json(each, told) for each in (*data["bandwidth"], *data["peak"]))
        if not figures:
            raise ValueError("no figures")
        return cls(
            runtime=str(data["runtime"]),
            version=str(data["version"]),
            host_class=str(data["host_class"]),
            allocation=tuple((int(cores), int(cpus)) for cores, cpus in data["allocation"]),
            hostname=str(data["hostname"]),
            cpu_model=str(data["cpu_model"]),
            measured_at=told,
            took_s=float(data["took_s"]),
            figures=figures,
            notes=tuple(str(note) for note in data["notes"]),
        )

    def roof(
        self, dtype: str, device: str, *, threads: int, placement: str = "compact", gpus: int = 1
    ) -> Roof:
        """The roof over a trial with so many threads in all, or on so many GPUs."""
        if device == "cuda":
            return self._gpu_roof(dtype, gpus)
        peak = _on_host(self.figures, PRODUCT, SAME_RATE.get(dtype, dtype), threads, "compact")
        bandwidths = [_on_host(self.figures, kind, None, threads, placement) for kind in ROOF_KINDS]
        return Roof(peak, max((each for each in bandwidths if each is not None), default=None))

    def _gpu_roof(self, dtype: str, gpus: int) -> Roof:
        wanted = SAME_RATE.get(dtype, dtype)
        on_gpu = [each for each in self.figures if each.device == "cuda"]
        rates = [each.best for each in on_gpu if each.is_product and each.dtype == wanted]
        known = sorted({each.gpu for each in on_gpu if each.gpu is not None})
        per_gpu = [
            max((e.best for e in on_gpu if e.gpu == gpu and e.kind in ROOF_KINDS), default=0.0)
            for gpu in known
        ]
        num = min(gpus, len(known))
        bandwidth = sum(sorted(per_gpu, reverse=True)[:num])
        return Roof(sum(sorted(rates, reverse=True)[:num]) or None, bandwidth or None)


def told_order(figure: Ceiling) -> tuple[Any, ...]:
    """Host before GPUs, the whole allocation before single nodes, few threads before many."""
    placements = [*PLACEMENTS["cpu"], *PLACEMENTS["cuda"]]
    gpu = -1 if figure.gpu is None else figure.gpu
    return figure.device != "cpu", gpu, placements.index(figure.placement), figure.threads, figure.nodes


def _whole(data: Mapping[str, Any], name: str, least: int = 1) -> int:
    """The whole number under this name; ValueError where there is another thing or a smaller one."""
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}, not a whole number from {least} on")
    return value


def value_used(figure: Ceiling, figures: Sequence[Ceiling]) -> float:
    """The value that is used where this was measured: what a narrower place reached, if that is more."""
    if figure.placement not in ("compact", "spread"):
        return figure.best
    found = _on_host(figures, figure.kind, figure.dtype, figure.threads, figure.placement)
    return max(figure.best, found or 0.0)


def _on_host(
    figures: Sequence[Ceiling], kind: str, dtype: str | None, threads: int, placement: str
) -> float | None:
    """The ceiling at so many threads; widths that were not measured spread come from compact ones."""
    curve: dict[int, float] = {}
    for over in ("compact",) if placement == "compact" else ("spread", "compact"):
        for each in figures:
            fits = each.device == "cpu" and each.kind == kind and each.placement == over
            if fits and dtype in (None, each.dtype):
                curve.setdefault(each.threads, each.best)
    return interpolated(curve, threads)


def interpolated(curve: Mapping[int, float], threads: int) -> float | None:
    """The value at so many threads, between its neighbours where they lie on both sides; None without any.

    More threads can do no less than fewer, so a width that was disturbed takes the value of a narrower one.
    """
    if not curve:
        return None
    curve = {num: max(value for other, value in curve.items() if other <= num) for num in curve}
    below = [num for num in curve if num <= threads]
    above = [num for num in curve if num >= threads]
    if not below:  # as if it grew from nothing
        return curve[min(above)] * threads / min(above)
    if not above:
        return curve[max(below)]
    low, high = max(below), min(above)
    if low == high:
        return curve[low]
    return curve[low] + (curve[high] - curve[low]) * (threads - low) / (high - low)
