"""Measures a machine's ceilings: trials of one workload at every width, NUMA node and GPU."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corewise.errors import UserError
from corewise.launch.environment import build_trial_environment
from corewise.launch.ranks import place_trial_ranks
from corewise.launch.worker_archive import build_worker
from corewise.machine.ceilings.cache import compute_allocation_shape
from corewise.machine.ceilings.table import BUSY_NOTE, Ceiling, Ceilings, compute_sort_key, find_effective_value
from corewise.machine.gpus import count_visible_gpus
from corewise.machine.machine_model import Topology
from corewise.machine.placement import PlacementError
from corewise.machine.topology import format_cpu_list
from corewise.measured.cache_sizes import Cache
from corewise.measured.parameters import Binding, Device, Mode, PlacementPolicy, TrialParameters
from corewise.measured.trial import Protocol, RankPlacement, RankResult, Trial
from corewise.owned_files import build_owned_prefix
from corewise.run.machine_view import Host, Interpreter, probe_interpreter
from corewise.run.roofline_metrics import compute_last_level_bytes
from corewise.run.warm_parent import ParentFailure, ParentPool
from corewise.study.axes import Keyword
from corewise.study.record import format_utc_now

# The first runtime that is installed measures.
RUNTIMES = ("torch", "numpy")
MIN_ARRAY_BYTES = 2**26
MAX_ARRAY_BYTES = 2**32
# Many times the cache of any GPU.
GPU_ARRAY_BYTES = 2**30
# STREAM's rule: each array has at least four times the size of the last-level caches.
CACHE_MULTIPLE = 4
UNKNOWN_CACHE_BYTES = 2**26
# The sampling time of all places together. The rest of a minute starts processes and fills arrays.
SAMPLING_S = 24.0
# Bounds of the sampling time of one place.
SHORTEST_S, LONGEST_S = 0.4, 6.0
PROBE_S = 0.03
# No place is started later than this.
LAST_START_S = 50.0
# Repeated measurements must end by this time.
LAST_END_S = 50.0
MAX_RETRIES = 3
# A place that reaches less than this fraction of a narrower place was disturbed.
DISTURBED_BELOW = 0.97
PLACE_LIMIT_S = 45.0
MAX_NODES_WITH_PRODUCTS = 4
MAX_GPU_THREADS = 4
MIN_SAMPLES = 5


@dataclass(frozen=True)
class CeilingPlace:
    """Where ceilings are measured: CPUs, or one GPU per rank; `placement` is compact, spread, node or gpu."""

    device: str
    placement: str
    threads: int
    ranks: tuple[RankPlacement, ...]
    has_products: bool = True

    @property
    def label(self) -> str:
        if self.device == "cuda":
            return "the GPU" if len(self.ranks) == 1 else f"{len(self.ranks)} GPUs"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        where = {"node": f" on node {format_cpu_list(self.ranks[0].memory_nodes)}", "spread": ", spread"}
        return threads + where.get(self.placement, "")


# Gets the number of places done, their total number, and a label of the next one.
ProgressCallback = Callable[[int, int, str], None]


def measure_ceilings(host: Host, report: ProgressCallback = lambda done, total, label: None) -> Ceilings:
    """Measure the ceilings of this allocation; raises UserError when nothing can be measured."""
    began = time.monotonic()
    worker = build_worker()
    interpreter = probe_interpreter((sys.executable,), worker, {})
    runtime = next((name for name in RUNTIMES if name in interpreter.packages), None)
    if runtime is None:
        raise UserError(
            "measuring ceilings needs torch or numpy, and neither is installed: pip install 'corewise[torch]', or numpy"
        )
    places = plan_places(host, with_gpus=runtime == "torch")
    with tempfile.TemporaryDirectory(prefix=build_owned_prefix("corewise-ceilings")) as folder:
        session = _Session(host, interpreter, runtime, worker, Path(folder))
        try:
            session.measure(places, began, report)
        finally:
            session.pool.close()
    if not session.figures:
        raise UserError(f"no ceiling could be measured: {'; '.join(session.notes) or 'no CPU or GPU to measure'}")
    measured_at = format_utc_now()
    figures = [replace(each, measured_at=measured_at) for each in session.figures.values()]
    return Ceilings(
        runtime=runtime,
        version=interpreter.packages[runtime],
        host_class=host.class_hash,
        allocation=compute_allocation_shape(host.topology, host.allocation),
        hostname=host.facts.hostname,
        cpu_model=host.facts.cpu_model,
        measured_at=measured_at,
        took_s=time.monotonic() - began,
        figures=tuple(sorted(figures, key=compute_sort_key)),
        notes=tuple(dict.fromkeys(session.notes)),
    )


def plan_places(host: Host, with_gpus: bool) -> tuple[CeilingPlace, ...]:
    """List the places: every width of the allocation, each full NUMA node if there are several, the GPUs."""
    usable = host.usable
    places = [_build_host_place(usable, threads, "compact") for threads in list_widths(usable.num_cores)]
    taken = {place.threads: set(place.ranks[0].cpus) for place in places}
    for threads in list(taken):
        spread = _build_host_place(usable, threads, "spread")
        if set(spread.ranks[0].cpus) != taken[threads]:
            places.append(replace(spread, has_products=False))
    nodes = usable.nodes
    for node in nodes if len(nodes) > 1 else ():
        own = usable.select_cpus(tuple(cpu.number for cpu in usable.cpus if cpu.node == node))
        filled = _build_host_place(own, own.num_cores, "compact")
        products = len(nodes) <= MAX_NODES_WITH_PRODUCTS
        places.append(replace(filled, placement="node", has_products=products))
    return (*places, *(_build_gpu_places(host) if with_gpus else ()))


def _order_places(places: Sequence[CeilingPlace]) -> list[CeilingPlace]:
    """Sort the places by importance, so the least important ones are left out when time runs out."""
    widest = max((place.threads for place in places if place.device == "cpu"), default=0)

    def compute_rank(place: CeilingPlace) -> int:
        if place.placement == "compact":
            return {widest: 0, 1: 2}.get(place.threads, 4)
        return {"gpu": 1, "node": 3, "spread": 5}[place.placement]

    return sorted(places, key=compute_rank)


def list_widths(num_cores: int) -> tuple[int, ...]:
    """List 1, 2, 4 and so on up to the number of cores, which is included."""
    return Keyword("powers-of-two").resolve(num_cores)


def compute_array_bytes(caches: Sequence[Cache], cpus: Sequence[int]) -> int:
    """Compute the size of each array: four times the last-level caches that these CPUs use."""
    total = compute_last_level_bytes(caches, cpus) or UNKNOWN_CACHE_BYTES
    return min(MAX_ARRAY_BYTES, max(MIN_ARRAY_BYTES, CACHE_MULTIPLE * total))


def _build_host_place(topology: Topology, threads: int, placement: str) -> CeilingPlace:
    params = _build_params("cpu", 1, threads, placement)
    cpus = tuple(cpu.number for cpu in topology.cpus)
    return CeilingPlace("cpu", placement, threads, place_trial_ranks(topology, cpus, params))


def _build_gpu_places(host: Host) -> tuple[CeilingPlace, ...]:
    """Build one place for all GPUs: each rank has one, and all are measured at the same time."""
    num = count_visible_gpus(host.facts.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    cores = host.usable.num_cores
    if num == 0:
        return ()
    threads = max(1, min(MAX_GPU_THREADS, cores // num))
    params = replace(_build_params("cuda", num, threads, "compact"), oversubscribe=True)
    try:
        ranks = place_trial_ranks(host.topology, host.allocation.cpus, params)
    except PlacementError:
        return ()
    return (CeilingPlace("cuda", "gpu", threads, ranks),)


def _build_params(device: str, processes: int, threads: int, placement: str) -> TrialParameters:
    """Build trial parameters with all other axes at their defaults."""
    return TrialParameters(
        workload="ceilings",
        mode=Mode.INFER,
        device=Device(device),
        processes=processes,
        threads=threads,
        batch=1,
        placement=PlacementPolicy(placement),
        bind=Binding.CORE if device == Device.CPU else Binding.RANK,
    )


class _Session:
    """One measurement of all places: its warm parents, figures and notes."""

    def __init__(self, host: Host, interpreter: Interpreter, runtime: str, worker: Path, folder: Path) -> None:
        self.host, self.interpreter, self.runtime, self.folder = host, interpreter, runtime, folder
        self.pool = ParentPool(worker, folder)
        self.figures: dict[tuple[Any, ...], Ceiling] = {}
        self.notes: list[str] = []
        self.took_s: dict[CeilingPlace, float] = {}

    def measure(self, places: Sequence[CeilingPlace], began: float, report: ProgressCallback) -> None:
        """Measure each place; places that fail or start too late are noted and left out."""
        places = _order_places(places)
        each_s = min(LONGEST_S, max(SHORTEST_S, SAMPLING_S / max(1, len(places))))
        trials = [self._build_trial(place, f"{number}", each_s) for number, place in enumerate(places)]
        report(0, len(places), f"importing {self.runtime}")
        self.pool.warm(trials)
        for number, (place, trial) in enumerate(zip(places, trials, strict=True)):
            report(number, len(places), place.label)
            if time.monotonic() - began > LAST_START_S:
                self.notes.append(f"{place.label}: left out, time limit reached")
                continue
            self._measure_at(place, trial)
        for turn in range(MAX_RETRIES):
            for place in _find_disturbed_places(places, list(self.figures.values())):
                if time.monotonic() - began + self.took_s.get(place, LAST_END_S) < LAST_END_S:
                    report(len(places) - 1, len(places), f"{place.label}, again")
                    name = f"{places.index(place)}-again-{turn}"
                    self._measure_at(place, self._build_trial(place, name, each_s))
        if any(each.is_busy for each in self.figures.values()):
            self.notes.insert(0, BUSY_NOTE)

    def _measure_at(self, place: CeilingPlace, trial: Trial) -> None:
        started = time.monotonic()
        for result in self._run(trial):
            self._add_figures(place, result)
        self.took_s[place] = time.monotonic() - started

    def _build_trial(self, place: CeilingPlace, name: str, sample_s: float) -> Trial:
        params = _build_params(place.device, len(place.ranks), place.threads, place.placement)
        cpus = [cpu for rank in place.ranks for cpu in rank.cpus]
        size = GPU_ARRAY_BYTES if place.device == "cuda" else compute_array_bytes(self.host.facts.caches, cpus)
        params = replace(
            params,
            runtime=self.runtime,
            arguments={"array_bytes": size, "products": place.has_products, "probe_s": PROBE_S},
        )
        protocol = Protocol(
            min_runs=1,
            max_runs=1,
            min_warmup_steps=1,
            # One round of all probes is enough warm-up.
            max_warmup_s=0.01,
            min_samples=MIN_SAMPLES,
            min_sample_s=sample_s,
            timeout_s=PLACE_LIMIT_S,
        )
        return Trial(
            trial_id=f"ceilings-{name}",
            params=params,
            protocol=protocol,
            ranks=place.ranks,
            env=build_trial_environment(params, {}, {}),
            python=self.interpreter.command,
        )

    def _run(self, trial: Trial) -> Sequence[RankResult]:
        out_dir = self.folder / trial.trial_id
        out_dir.mkdir()
        try:
            return self.pool.get(trial).run(trial, out_dir, lambda _phase: None)
        except ParentFailure as problem:
            self.pool.drop(trial)
            return [RankResult(status="failed", rank=0, kind=problem.category, reason=str(problem))]

    def _add_figures(self, place: CeilingPlace, result: RankResult) -> None:
        if result.status != "ok":
            self.notes.append(f"{place.label}: {result.reason}")
            return
        notes = (*result.facts["ceiling_notes"], *result.disturbances)
        self.notes += [f"{place.label}: {note}" for note in notes]
        gpu = result.facts.get("gpu_index")
        measured_gpus = {each.gpu for each in self.figures.values()}
        # If CUDA_VISIBLE_DEVICES hides some GPUs, ranks share the others.
        if place.device == "cuda" and gpu in measured_gpus:
            return
        nodes = place.ranks[result.rank].memory_nodes
        for figure in result.facts["figures"]:
            ceiling = _build_ceiling(place, nodes, gpu, figure, is_busy=bool(result.disturbances))
            before = self.figures.get(ceiling.identity)
            self.figures[ceiling.identity] = ceiling if before is None else ceiling.merge_higher(before)


def _find_disturbed_places(places: Sequence[CeilingPlace], figures: Sequence[Ceiling]) -> list[CeilingPlace]:
    """Find the places where fewer threads reached clearly more, so other load disturbed them."""
    low = [each for each in figures if each.best < DISTURBED_BELOW * find_effective_value(each, figures)]
    slow = {(each.device, each.placement, each.threads) for each in low}
    return [place for place in places if (place.device, place.placement, place.threads) in slow]


def _build_ceiling(
    place: CeilingPlace, nodes: Sequence[int], gpu: int | None, figure: Mapping[str, Any], is_busy: bool
) -> Ceiling:
    return Ceiling(
        operation=str(figure["kind"]),
        dtype=str(figure["dtype"]),
        device=place.device,
        threads=place.threads,
        placement=place.placement,
        nodes=tuple(nodes),
        gpu=gpu,
        best=float(f"{figure['best']:.5g}"),
        median=float(f"{figure['median']:.5g}"),
        num_samples=int(figure["num_samples"]),
        size=int(figure["size"]),
        is_busy=is_busy,
    )
