"""Measures a machine's ceilings: trials of one workload at every width, node and GPU, by warm parents."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corewise.engine.machine_view import Host, Interpreter, probe_interpreter
from corewise.engine.roofline import last_level_bytes
from corewise.engine.warm_parent import ParentFailed, ParentPool
from corewise.launcher.environment import trial_environment
from corewise.launcher.measured_side import build_worker
from corewise.launcher.ranks import place_params
from corewise.machine.ceilings import BUSY, Ceiling, Ceilings, told_order, value_used
from corewise.machine.gpus import num_visible
from corewise.machine.kept_ceilings import allocation_shape
from corewise.machine.model import Topology
from corewise.machine.placement import PlacementError
from corewise.machine.topology import Cache, format_cpu_list
from corewise.spec.axes import AXES, Word
from corewise.spec.errors import UserError
from corewise.spec.record import utc_now
from corewise.spec.trial import Protocol, RankPlacement, RankResult, Trial, to_json, write_json_aside

RUNTIMES = ("torch", "numpy")  # the first that is installed measures
MIN_ARRAY_BYTES = 2**26
MAX_ARRAY_BYTES = 2**32
GPU_ARRAY_BYTES = 2**30  # many times the cache of any GPU
CACHES_OVER = 4  # STREAM's rule: arrays of at least four times the last-level caches
UNKNOWN_CACHE_BYTES = 2**26
SAMPLING_S = 24.0  # all places together; the rest of the minute starts processes and fills arrays
SHORTEST_S, LONGEST_S = 0.4, 6.0  # of one place
PROBE_S = 0.03
LAST_START_S = 50.0  # no place is begun later
LAST_END_S = 50.0  # what is measured again is over by then
MAX_AGAIN = 3  # times that a place is measured again
BELOW = 0.97  # of what a narrower place reached: less was disturbed
PLACE_LIMIT_S = 45.0
MAX_NODES_WITH_PRODUCTS = 4
MAX_GPU_THREADS = 4
MIN_SAMPLES = 5


@dataclass(frozen=True)
class Place:
    """Where ceilings are measured: CPUs, or a GPU for each rank."""

    device: str
    placement: str  # compact | spread | node | gpu
    threads: int
    ranks: tuple[RankPlacement, ...]
    has_products: bool = True

    @property
    def words(self) -> str:
        if self.device == "cuda":
            return "the GPU" if len(self.ranks) == 1 else f"{len(self.ranks)} GPUs"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        where = {"node": f" on node {format_cpu_list(self.ranks[0].memory_nodes)}", "spread": ", spread"}
        return threads + where.get(self.placement, "")


Tell = Callable[[int, int, str], None]  # how many are done, of how many, what is next


def measure_ceilings(host: Host, tell: Tell = lambda done, total, words: None) -> Ceilings:
    """The ceilings of this allocation; UserError where nothing can be measured."""
    began = time.monotonic()
    worker = build_worker()
    interpreter = probe_interpreter((sys.executable,), worker, {})
    runtime = next((name for name in RUNTIMES if name in interpreter.packages), None)
    if runtime is None:
        raise UserError(
            "ceilings need a framework that computes, and neither torch nor numpy is installed: "
            "pip install 'corewise[torch]', or numpy"
        )
    places = places_of(host, with_gpus=runtime == "torch")
    with tempfile.TemporaryDirectory(prefix="corewise-ceilings-") as folder:
        session = _Session(host, interpreter, runtime, worker, Path(folder))
        try:
            session.measure(places, began, tell)
        finally:
            session.pool.close()
    if not session.figures:
        raise UserError(
            f"no ceiling could be measured: {'; '.join(session.notes) or 'no place to measure at'}"
        )
    measured_at = utc_now()
    figures = [replace(each, measured_at=measured_at) for each in session.figures.values()]
    return Ceilings(
        runtime=runtime,
        version=interpreter.packages[runtime],
        host_class=host.class_hash,
        allocation=allocation_shape(host.topology, host.allocation),
        hostname=host.facts.hostname,
        cpu_model=host.facts.cpu_model,
        measured_at=measured_at,
        took_s=time.monotonic() - began,
        figures=tuple(sorted(figures, key=told_order)),
        notes=tuple(dict.fromkeys(session.notes)),
    )


def places_of(host: Host, with_gpus: bool) -> tuple[Place, ...]:
    """Every width of the allocation, each NUMA node filled where there are several, and the GPUs."""
    usable = host.usable
    places = [_host_place(usable, threads, "compact") for threads in widths(usable.num_cores)]
    taken = {place.threads: set(place.ranks[0].cpus) for place in places}
    for threads in list(taken):
        spread = _host_place(usable, threads, "spread")
        if set(spread.ranks[0].cpus) != taken[threads]:
            places.append(replace(spread, has_products=False))
    nodes = usable.nodes
    for node in nodes if len(nodes) > 1 else ():
        own = usable.restricted(tuple(cpu.number for cpu in usable.cpus if cpu.node == node))
        filled = _host_place(own, own.num_cores, "compact")
        products = len(nodes) <= MAX_NODES_WITH_PRODUCTS
        places.append(replace(filled, placement="node", has_products=products))
    return (*places, *(_gpu_places(host) if with_gpus else ()))


def _most_wanted_first(places: Sequence[Place]) -> list[Place]:
    """All cores, the GPUs, one thread, the nodes, then what lies between: where time runs out, these go."""
    widest = max((place.threads for place in places if place.device == "cpu"), default=0)

    def weight(place: Place) -> int:
        if place.placement == "compact":
            return {widest: 0, 1: 2}.get(place.threads, 4)
        return {"gpu": 1, "node": 3, "spread": 5}[place.placement]

    return sorted(places, key=weight)


def widths(num_cores: int) -> tuple[int, ...]:
    """1, 2, 4 and so on up to the number of cores, which is among them."""
    return Word("powers-of-two").numbers(num_cores)


def array_bytes(caches: Sequence[Cache], cpus: Sequence[int]) -> int:
    """Bytes of each array: four times the last-level caches that these CPUs use."""
    total = last_level_bytes(caches, cpus) or UNKNOWN_CACHE_BYTES
    return min(MAX_ARRAY_BYTES, max(MIN_ARRAY_BYTES, CACHES_OVER * total))


def _host_place(topology: Topology, threads: int, placement: str) -> Place:
    params = _params("cpu", 1, threads, placement)
    cpus = tuple(cpu.number for cpu in topology.cpus)
    return Place("cpu", placement, threads, place_params(topology, cpus, params))


def _gpu_places(host: Host) -> tuple[Place, ...]:
    """One place for all GPUs: each rank has one, and they are measured at a time."""
    num = num_visible(host.facts.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    cores = host.usable.num_cores
    if num == 0:
        return ()
    threads = max(1, min(MAX_GPU_THREADS, cores // num))
    params = {**_params("cuda", num, threads, "compact"), "oversubscribe": True}
    try:
        ranks = place_params(host.topology, host.allocation.cpus, params)
    except PlacementError:
        return ()
    return (Place("cuda", "gpu", threads, ranks),)


def _params(device: str, processes: int, threads: int, placement: str) -> dict[str, Any]:
    """A whole point: every axis at its default but these."""
    params: dict[str, Any] = {name: axis.default for name, axis in AXES.items()}
    params.update(
        workload="ceilings",
        mode="infer",
        device=device,
        processes=processes,
        threads=threads,
        batch=1,
        placement=placement,
        bind="core" if device == "cpu" else "rank",
    )
    return params


class _Session:
    """One measuring: its warm parents, what it found, and what it has to say of it."""

    def __init__(
        self, host: Host, interpreter: Interpreter, runtime: str, worker: Path, folder: Path
    ) -> None:
        self.host, self.interpreter, self.runtime, self.folder = host, interpreter, runtime, folder
        self.pool = ParentPool(worker, folder)
        self.figures: dict[tuple[Any, ...], Ceiling] = {}
        self.notes: list[str] = []
        self.took_s: dict[Place, float] = {}

    def measure(self, places: Sequence[Place], began: float, tell: Tell) -> None:
        """Measure at each place in turn; what fails or comes too late is noted and left out."""
        places = _most_wanted_first(places)
        each_s = min(LONGEST_S, max(SHORTEST_S, SAMPLING_S / max(1, len(places))))
        trials = [self._trial(place, f"{number}", each_s) for number, place in enumerate(places)]
        tell(0, len(places), f"importing {self.runtime}")
        self.pool.warm(trials)
        for number, (place, trial) in enumerate(zip(places, trials, strict=True)):
            tell(number, len(places), place.words)
            if time.monotonic() - began > LAST_START_S:
                self.notes.append(f"{place.words}: left out, for want of time")
                continue
            self._measure_at(place, trial)
        for turn in range(MAX_AGAIN):
            for place in _below_narrower(places, list(self.figures.values())):
                if time.monotonic() - began + self.took_s.get(place, LAST_END_S) < LAST_END_S:
                    tell(len(places) - 1, len(places), f"{place.words}, again")
                    name = f"{places.index(place)}-again-{turn}"
                    self._measure_at(place, self._trial(place, name, each_s))
        if any(each.is_busy for each in self.figures.values()):
            self.notes.insert(0, BUSY)

    def _measure_at(self, place: Place, trial: Trial) -> None:
        started = time.monotonic()
        for result in self._run(trial):
            self._take(place, result)
        self.took_s[place] = time.monotonic() - started

    def _trial(self, place: Place, name: str, sample_s: float) -> Trial:
        params = _params(place.device, len(place.ranks), place.threads, place.placement)
        cpus = [cpu for rank in place.ranks for cpu in rank.cpus]
        size = GPU_ARRAY_BYTES if place.device == "cuda" else array_bytes(self.host.facts.caches, cpus)
        params.update(
            {
                "runtime": self.runtime,
                "args.array_bytes": size,
                "args.products": place.has_products,
                "args.probe_s": PROBE_S,
            }
        )
        protocol = Protocol(
            min_runs=1,
            max_runs=1,
            min_warmup_steps=1,
            max_warmup_s=0.01,  # one round of all probes is enough
            min_samples=MIN_SAMPLES,
            min_sample_s=sample_s,
            timeout_s=PLACE_LIMIT_S,
        )
        return Trial(
            trial_id=f"ceilings-{name}",
            params=params,
            protocol=protocol,
            ranks=place.ranks,
            env=trial_environment(params, {}, {}),
            python=self.interpreter.words,
        )

    def _run(self, trial: Trial) -> Sequence[RankResult]:
        trial_file, out_dir = self.folder / f"{trial.trial_id}.json", self.folder / trial.trial_id
        out_dir.mkdir()
        write_json_aside(trial_file, to_json(trial))
        try:
            return self.pool.get(trial).run(trial, trial_file, out_dir, lambda _phase: None)
        except ParentFailed as problem:
            self.pool.drop(trial)
            return [RankResult(status="failed", rank=0, kind=problem.kind, reason=str(problem))]

    def _take(self, place: Place, result: RankResult) -> None:
        if result.status != "ok":
            self.notes.append(f"{place.words}: {result.reason}")
            return
        told = (*result.facts["ceiling_notes"], *result.disturbances)
        self.notes += [f"{place.words}: {note}" for note in told]
        gpu = result.facts.get("gpu_index")
        known = {each.gpu for each in self.figures.values()}
        if place.device == "cuda" and gpu in known:  # CUDA_VISIBLE_DEVICES hides some: ranks share the others
            return
        nodes = place.ranks[result.rank].memory_nodes
        for figure in result.facts["figures"]:
            made = _ceiling(place, nodes, gpu, figure, is_busy=bool(result.disturbances))
            before = self.figures.get(made.what)
            self.figures[made.what] = made if before is None else made.or_higher(before)


def _below_narrower(places: Sequence[Place], figures: Sequence[Ceiling]) -> list[Place]:
    """The places where fewer threads reached clearly more, so that something was in the way."""
    low = [each for each in figures if each.best < BELOW * value_used(each, figures)]
    slow = {(each.device, each.placement, each.threads) for each in low}
    return [place for place in places if (place.device, place.placement, place.threads) in slow]


def _ceiling(
    place: Place, nodes: Sequence[int], gpu: int | None, figure: Mapping[str, Any], is_busy: bool
) -> Ceiling:
    return Ceiling(
        kind=str(figure["kind"]),
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
