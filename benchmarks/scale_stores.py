"""Make large stores of synthetic trials for `at_scale.py`, in the real format and shaped like real records."""

import hashlib
import json
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice, product
from multiprocessing import Process
from pathlib import Path
from typing import Any

from corewise.store.line_writer import build_file_name
from corewise.store.sealed_lines import seal
from corewise.store.store import Store
from corewise.study.record import Record

REAL_STORE = Path(__file__).resolve().parent / "data" / "xeon-16-cores" / "store"
NUM_RUNS = 5
NUM_FILES = 2
_NUM_CORES = 16
_BEGAN = datetime(2026, 11, 1, tzinfo=UTC)

# The seconds one sample costs on one core, by study, workload and mode.
_STUDIES = (
    ("thread-scaling", "alexnet", "train", 0.05),
    ("thread-scaling", "resnet50", "train", 0.32),
    ("processes-by-threads", "resnet50", "infer", 0.09),
    ("allocators", "vgg16", "train", 0.70),
    ("memory-formats", "inception3", "train", 0.25),
)
_THREADS = (1, 2, 4, 8, 16)
_BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
# Each value has its factor on the time; the first axis varies fastest.
_OTHER_AXES: dict[str, dict[Any, float]] = {
    "memory_format": {"contiguous": 1.0, "channels_last": 0.87},
    "allocator": {"default": 1.0, "jemalloc": 0.93, "tcmalloc": 0.95},
    "dtype": {"float32": 1.0, "bfloat16": 0.61},
    "math": {"vendor": 1.0, "vanilla": 1.8},
    "openmp": {"default": 1.0, "intel": 0.98},
    "wait_policy": {"default": 1.0, "active": 0.97, "passive": 1.06},
    "placement": {"compact": 1.0, "spread": 1.02},
    "execution": {"eager": 1.0, "compile": 0.8},
    "args.image_size": {64: 0.1, 128: 0.35, 224: 1.0, 320: 2.1},
    "loader_workers": {0: 1.0, 2: 1.0, 4: 1.0},
    "args.num_classes": {10: 0.99, 100: 0.995, 1000: 1.0},
    "memory_policy": {"default": 1.0, "interleave": 1.01},
}


@dataclass(frozen=True)
class Point:
    """One point of a study and the undisturbed time of its step."""

    study: str
    params: dict[str, Any]
    step_s: float

    @property
    def width(self) -> int:
        return int(self.params["processes"]) * int(self.params["threads"])


@dataclass(frozen=True)
class StoreRecipe:
    """How to make a store: noise, version, and the share of slowed trials."""

    num_records: int
    num_samples: int
    seed: int
    torch_version: str = "2.11.0"
    slowed_share: float = 0.0
    slowed_by: float = 0.0


def make_store(path: Path, making: StoreRecipe) -> None:
    """Write a store with two record files, in parallel."""
    store = Store.open(path)
    store.records_folder.mkdir(exist_ok=True)
    writers = [Process(target=_write_file, args=(path, making, part)) for part in range(NUM_FILES)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    if any(writer.exitcode for writer in writers):
        raise SystemExit(f"{path} could not be written")


def _write_file(path: Path, making: StoreRecipe, part: int) -> None:
    template = Store.open(REAL_STORE, create=False).read_records().records[0]
    with open(path / "records" / build_file_name(), "wb") as file:
        for i, point in enumerate(islice(_generate_points(template.params), making.num_records)):
            if i % NUM_FILES == part:
                file.write(seal(_build_record(template, point, making, i).to_json()))


def _generate_points(base: Mapping[str, Any]) -> Iterator[Point]:
    """Generate distinct points endlessly, all studies in turn; keep one in ten of those too wide for the machine."""
    endless = [_generate_study_points(base, *study) for study in _STUDIES]
    for turn in count():
        for i, points in enumerate(endless):
            point = next(points)
            while point.width > _NUM_CORES and (turn + i) % 10:
                point = next(points)
            yield point


def _generate_study_points(
    base: Mapping[str, Any], study: str, workload: str, mode: str, sample_s: float
) -> Iterator[Point]:
    widths = (1, 2, 4) if study == "processes-by-threads" else (1,)
    others = product(*(factors.items() for factors in reversed(_OTHER_AXES.values())))
    for chosen in others:
        values = dict(zip(reversed(_OTHER_AXES), (value for value, _ in chosen), strict=True))
        factor = math.prod(each for _, each in chosen)
        for processes, batch, threads in product(widths, _BATCHES, _THREADS):
            params = {**base, "workload": workload, "mode": mode, "processes": processes}
            params |= {"threads": threads, "batch": batch, **values}
            speed_up = threads / (1 + 0.03 * (threads - 1)) * min(1.0, 0.4 + 0.2 * math.log2(batch + 1))
            step_s = factor * sample_s * batch * (1 + 0.05 * (processes - 1)) / speed_up
            yield Point(study, params, step_s)


def _build_record(template: Record, point: Point, making: StoreRecipe, place: int) -> Record:
    """Build the record of a point: most are ok, a few failed, too wide ones are skipped."""
    versions = {**template.versions, "torch": making.torch_version}
    named = json.dumps([point.study, point.params, versions], sort_keys=True).encode()
    began = _BEGAN + timedelta(seconds=20 * place)
    common: dict[str, Any] = {
        "trial_id": hashlib.sha256(named).hexdigest()[:16],
        "study": point.study,
        "question": f"What does {point.study} do to the throughput, and where does it stop paying?",
        "params": point.params,
        "command": template.command,
        "env": template.env,
        "machine": template.machine,
        "versions": versions,
        "protocol": template.protocol,
        "work": template.work,
        "started_at": _format_time(began),
        "finished_at": _format_time(began + timedelta(seconds=19)),
        "corewise_version": template.corewise_version,
    }
    if point.width > _NUM_CORES:
        reason = f"{point.width} cores are needed, {_NUM_CORES} are allowed"
        return Record(status="skipped", kind="cores", reason=reason, **common)
    dice = random.Random(f"{making.seed} {place}")
    if place % 97 == 96:
        reason = "out of memory: the kernel ended rank 0"
        failed = {"status": "failed", "kind": "memory", "reason": reason, "samples_s": [], "metrics": {}}
        return Record(status="failed", kind="memory", reason=reason, runs=(failed,), **common)
    step_s = point.step_s * (1 + making.slowed_by * _is_slowed(place, making.slowed_share))
    runs = [_build_run(template, point, step_s, making.num_samples // NUM_RUNS, dice) for _ in range(NUM_RUNS)]
    notes = ("warm-up ended by its time limit, not steady",) if place % 7 == 0 else ()
    disturbed = (_mark_disturbed(runs[0]),) if place % 20 == 3 else ()
    metrics = _summarize_runs(template, runs, len(disturbed))
    return Record(status="ok", runs=runs, disturbed=disturbed, notes=notes, metrics=metrics, **common)


def _is_slowed(place: int, share: float) -> bool:
    return bool(share) and place % round(1 / share) == 1


def _build_run(template: Record, point: Point, step_s: float, num_samples: int, dice: random.Random) -> dict[str, Any]:
    """Build one run: processes differ by about 1 %, their samples by another 1 %, a few samples by much more."""
    like = template.runs[0]
    process_s = step_s * dice.lognormvariate(0.0, 0.01)
    samples_s = [round(process_s * (1 + abs(dice.gauss(0.0, 0.012))), 9) for _ in range(num_samples)]
    samples_s[dice.randrange(num_samples)] *= 1.15
    median_s = statistics.median(samples_s)
    metrics = {name: value * dice.uniform(0.97, 1.03) for name, value in like["metrics"].items()}
    batch = point.params["batch"] * point.params["processes"]
    metrics |= {"step_s": median_s, "latency_p50_s": median_s, "samples_per_s": batch / median_s}
    metrics |= {"samples_per_step": float(batch), "num_steps": float(num_samples)}
    metrics["peak_memory_bytes"] = float(2**29 + batch * 12 * 2**20 + dice.randrange(2**24))
    num_ranks, num_threads = point.params["processes"], point.params["threads"]
    ranks = [_build_rank(like["ranks"][0], number, num_threads) for number in range(num_ranks)]
    disturbances = ["other processes used 12 % of a core"] if dice.random() < 0.02 else []
    return {**like, "samples_s": samples_s, "metrics": metrics, "disturbances": disturbances, "ranks": ranks}


def _build_rank(like: dict[str, Any], number: int, num_threads: int) -> dict[str, Any]:
    cpus = list(range(number * num_threads, (number + 1) * num_threads))
    pids = range(500 + 50 * number, 505 + 50 * number + num_threads)
    own = {"rank": number, "cpus": cpus, "num_threads": num_threads, "pid": pids[0]}
    return {**like, **own, "thread_cpus": {str(pid): cpus for pid in pids}}


def _mark_disturbed(run: dict[str, Any]) -> dict[str, Any]:
    return {**run, "disturbances": ["the canary loop took 21 % longer than when the machine was quiet"]}


def _summarize_runs(template: Record, runs: Sequence[dict[str, Any]], num_disturbed: int) -> dict[str, float]:
    """Compute the metrics of a record, as a real one has them: medians over the runs and derived values."""
    metrics = dict(template.metrics)
    metrics |= {name: statistics.median(run["metrics"][name] for run in runs) for name in runs[0]["metrics"]}
    medians_s = [run["metrics"]["step_s"] for run in runs]
    spread = statistics.stdev(medians_s) / statistics.fmean(medians_s)
    half = 2.776 * spread / math.sqrt(len(runs))
    for name in ("step_s", "samples_per_s"):
        metrics |= {f"{name}_low": metrics[name] * (1 - half), f"{name}_high": metrics[name] * (1 + half)}
    metrics |= {"between_process_cv": spread, "num_runs": float(len(runs))}
    return metrics | {"num_disturbed_runs": float(num_disturbed)}


def _format_time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
