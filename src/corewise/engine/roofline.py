"""How much of what the machine attains a trial reaches: metrics of its record, where ceilings are kept."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import cast

from corewise.machine.ceilings import Ceilings, Roof
from corewise.machine.topology import Cache
from corewise.spec.rate_format import rate_format
from corewise.spec.record import IN_CACHE_NOTE
from corewise.spec.trial import Trial
from corewise.workloads.base import counts_by_dtype, is_kernel, workload_args
from corewise.workloads.custom import is_custom
from corewise.workloads.kernels.base import Kernel
from corewise.workloads.registry import UnknownName, find_workload

FLOAT32_BYTES = 4.0
STORED_BYTES = {"float64": 8.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0}
PARAMETER_PASSES = {"train": 3, "infer": 1}  # weights read; in training gradients and weights written too
ABOVE = 1.05  # of the ceiling: more is no measuring error
ABOVE_NOTE = (
    "fraction_of_ceiling is above 1: the data stay in a cache, are only read, or the ceilings were measured "
    "on a busy machine"
)
BUSY_NOTE = (
    "the ceilings were measured on a busy machine and are too low, so fraction_of_ceiling is too high: "
    "`corewise doctor --ceilings` raises them when it is quiet"
)


def ceiling_metrics(
    trial: Trial, metrics: Mapping[str, float], ceilings: Ceilings | None
) -> dict[str, float]:
    """The trial's ceilings, its fraction of what is attainable and what limits; nothing where unknown.

    `fraction_of_ceiling` is the least time that the roofline allows for a sample, over the time it took.
    """
    rate, flops = _work_rate(trial, metrics), trial.work.get("flops_per_sample", 0.0)
    num_bytes = bytes_per_sample(trial, metrics)
    if ceilings is None or rate <= 0 or (flops <= 0 and num_bytes <= 0):
        return {}
    roof = roof_of(trial, ceilings)
    attainable = roof.attainable(flops, num_bytes)
    if attainable is None:
        return {}
    found = {
        "fraction_of_ceiling": attainable.seconds * rate,
        "memory_bound": float(attainable.limit == "memory"),
    }
    if roof.gflop_per_s is not None and flops > 0:
        found["ceiling_gflop_per_s"] = roof.gflop_per_s
    if roof.gbyte_per_s is not None and num_bytes > 0:
        found["ceiling_gbyte_per_s"] = roof.gbyte_per_s
    if flops > 0 and num_bytes > 0:
        found["flops_per_byte"] = flops / num_bytes
    found["ceilings_busy"] = float(ceilings.is_busy(str(trial.params["device"])))
    with suppress(ValueError):  # the figures are what they are, whenever it was
        found["ceilings_measured_at"] = _posix_s(ceilings.measured_at)
    return found


def ceiling_notes(trial: Trial, metrics: Mapping[str, float], caches: Sequence[Cache]) -> list[str]:
    """What a reader must know before believing the fraction."""
    notes = []
    if metrics.get("memory_bound") and _fits_cache(trial, metrics, caches):
        notes.append(IN_CACHE_NOTE)
    elif metrics.get("fraction_of_ceiling", 0.0) > ABOVE:
        notes.append(ABOVE_NOTE)
    if metrics.get("ceilings_busy"):
        notes.append(BUSY_NOTE)
    return notes


def last_level_bytes(caches: Sequence[Cache], cpus: Collection[int]) -> int:
    """The last-level caches that these CPUs use, together; 0 where none is known."""
    last = max((cache.level for cache in caches), default=0)
    used = [c for c in caches if c.level == last and not set(c.shared_cpus).isdisjoint(cpus)]
    return sum(cache.size_bytes for cache in used)


def _fits_cache(trial: Trial, metrics: Mapping[str, float], caches: Sequence[Cache]) -> bool:
    """True where a step of all processes touches no more than their last-level caches hold."""
    if trial.params["device"] != "cpu":
        return False
    touched = bytes_per_sample(trial, metrics) * metrics.get("samples_per_step", 1.0)
    name, dtype = str(trial.params["workload"]), str(trial.params.get("dtype", "float32"))
    if _is_kernel(name):  # its step may pass over the same data many times
        kernel = cast(Kernel, find_workload(name))
        touched = min(touched, trial.num_ranks * kernel.needed_bytes(workload_args(trial.params), dtype))
    return touched <= last_level_bytes(caches, {cpu for rank in trial.ranks for cpu in rank.cpus})


def _posix_s(moment: str) -> float:
    read = datetime.fromisoformat(moment)
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def _work_rate(trial: Trial, metrics: Mapping[str, float]) -> float:
    """Samples a second as gflop_per_s and gbyte_per_s count them, so that all three tell the same."""
    for metric, work in (("gbyte_per_s", "bytes_per_sample"), ("gflop_per_s", "flops_per_sample")):
        if metrics.get(metric, 0.0) > 0 and trial.work.get(work, 0.0) > 0:
            return metrics[metric] * 1e9 / trial.work[work]
    return metrics.get("samples_per_s", 0.0)


def bytes_per_sample(trial: Trial, metrics: Mapping[str, float]) -> float:
    """The least traffic of a sample in the trial's number format, its share of the weights included."""
    own = trial.work.get("bytes_per_sample", 0.0)
    if own <= 0:
        return 0.0
    dtype, is_exact = (
        str(trial.params.get("dtype", "float32")),
        _counts_its_format(str(trial.params["workload"])),
    )
    shrink = 1.0 if is_exact else STORED_BYTES.get(dtype, FLOAT32_BYTES) / FLOAT32_BYTES
    passes = PARAMETER_PASSES.get(str(trial.params["mode"]), 1)
    weights = trial.work.get("num_parameters", 0.0) * FLOAT32_BYTES * passes * trial.num_ranks
    return shrink * (own + weights / max(1.0, metrics.get("samples_per_step", 1.0)))


def roof_of(trial: Trial, ceilings: Ceilings) -> Roof:
    """The roof over a trial: all its threads together, or all its GPUs."""
    params = trial.params
    cpus = {cpu for rank in trial.ranks for cpu in rank.cpus}
    threads = min(int(params["processes"]) * int(params["threads"]), len(cpus) or 1)
    return ceilings.roof(
        rate_format(params),
        str(params["device"]),
        threads=threads,
        placement=str(params["placement"]),
        gpus=trial.num_ranks,
    )


def _counts_its_format(name: str) -> bool:
    try:
        return not is_custom(name) and counts_by_dtype(find_workload(name))
    except UnknownName:
        return True


def _is_kernel(name: str) -> bool:
    try:
        return not is_custom(name) and is_kernel(find_workload(name))
    except UnknownName:
        return False
