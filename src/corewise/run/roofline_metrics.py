"""Computes which fraction of the machine's ceilings a trial reaches, as metrics of its record."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import cast

from corewise.machine.ceilings.rate_format import find_rate_format
from corewise.machine.ceilings.table import Ceilings, Roof
from corewise.measured.cache_sizes import Cache
from corewise.measured.parameters import Device
from corewise.measured.trial import Trial
from corewise.measured.workloads.base import is_counted_by_dtype, is_kernel
from corewise.measured.workloads.custom import is_custom
from corewise.measured.workloads.kernels.kernel import Kernel
from corewise.measured.workloads.registry import UnknownName, find_workload
from corewise.study.record import IN_CACHE_NOTE

FLOAT32_BYTES = 4.0
STORED_BYTES = {"float64": 8.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0}
# Inference reads the weights; training also writes gradients and weights.
PARAMETER_PASSES = {"train": 3, "infer": 1}
# A higher fraction of the ceiling is more than measurement error.
ABOVE = 1.05
ABOVE_NOTE = (
    "fraction_of_ceiling is above 1: the data stay in a cache, are only read, or the ceilings were measured "
    "on a busy machine"
)
BUSY_NOTE = (
    "the ceilings were measured on a busy machine and are too low, so fraction_of_ceiling is too high: "
    "`corewise doctor --ceilings` raises them when it is quiet"
)


def compute_ceiling_metrics(trial: Trial, metrics: Mapping[str, float], ceilings: Ceilings | None) -> dict[str, float]:
    """Compute the trial's ceilings, the attained fraction and the limiting resource; empty when unknown.

    `fraction_of_ceiling` is the minimum time per sample that the roofline allows, divided by the time taken.
    """
    rate, flops = _compute_work_rate(trial, metrics), trial.work.get("flops_per_sample", 0.0)
    num_bytes = compute_bytes_per_sample(trial, metrics)
    if ceilings is None or rate <= 0 or (flops <= 0 and num_bytes <= 0):
        return {}
    roof = find_roof(trial, ceilings)
    attainable = roof.compute_attainable(flops, num_bytes)
    if attainable is None:
        return {}
    ceiling_values = {
        "fraction_of_ceiling": attainable.seconds * rate,
        "memory_bound": float(attainable.limit == "memory"),
    }
    if roof.gflop_per_s is not None and flops > 0:
        ceiling_values["ceiling_gflop_per_s"] = roof.gflop_per_s
    if roof.gbyte_per_s is not None and num_bytes > 0:
        ceiling_values["ceiling_gbyte_per_s"] = roof.gbyte_per_s
    if flops > 0 and num_bytes > 0:
        ceiling_values["flops_per_byte"] = flops / num_bytes
    ceiling_values["ceilings_busy"] = float(ceilings.is_busy(trial.params.device.value))
    # The figures are valid even if their time stamp cannot be parsed.
    with suppress(ValueError):
        ceiling_values["ceilings_measured_at"] = _parse_posix_s(ceilings.measured_at)
    return ceiling_values


def list_ceiling_notes(trial: Trial, metrics: Mapping[str, float], caches: Sequence[Cache]) -> list[str]:
    """List what a reader must know to interpret the fraction."""
    notes = []
    if metrics.get("memory_bound") and _is_in_cache(trial, metrics, caches):
        notes.append(IN_CACHE_NOTE)
    elif metrics.get("fraction_of_ceiling", 0.0) > ABOVE:
        notes.append(ABOVE_NOTE)
    if metrics.get("ceilings_busy"):
        notes.append(BUSY_NOTE)
    return notes


def compute_last_level_bytes(caches: Sequence[Cache], cpus: Collection[int]) -> int:
    """Compute the total size of the last-level caches that these CPUs use; 0 when unknown."""
    last = max((cache.level for cache in caches), default=0)
    used = [c for c in caches if c.level == last and not set(c.shared_cpus).isdisjoint(cpus)]
    return sum(cache.size_bytes for cache in used)


def _is_in_cache(trial: Trial, metrics: Mapping[str, float], caches: Sequence[Cache]) -> bool:
    """Return True when one step of all processes fits in their last-level caches."""
    if trial.params.device != Device.CPU:
        return False
    touched = compute_bytes_per_sample(trial, metrics) * metrics.get("samples_per_step", 1.0)
    name, dtype = trial.params.workload, trial.params.dtype.value
    # A step of a kernel may pass over the same data many times.
    if _is_kernel(name):
        kernel = cast(Kernel, find_workload(name)).share_among(trial.num_ranks)
        touched = min(touched, trial.num_ranks * kernel.estimate_memory_bytes(trial.params.arguments, dtype))
    return touched <= compute_last_level_bytes(caches, {cpu for rank in trial.ranks for cpu in rank.cpus})


def _parse_posix_s(moment: str) -> float:
    read = datetime.fromisoformat(moment)
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def _compute_work_rate(trial: Trial, metrics: Mapping[str, float]) -> float:
    """Compute the samples per second that gflop_per_s and gbyte_per_s are based on."""
    for metric, work in (("gbyte_per_s", "bytes_per_sample"), ("gflop_per_s", "flops_per_sample")):
        if metrics.get(metric, 0.0) > 0 and trial.work.get(work, 0.0) > 0:
            return metrics[metric] * 1e9 / trial.work[work]
    return metrics.get("samples_per_s", 0.0)


def compute_bytes_per_sample(trial: Trial, metrics: Mapping[str, float]) -> float:
    """Compute the minimum traffic of a sample in the trial's dtype, including its share of the weights."""
    own = _count_memory_traffic(trial)
    if own <= 0:
        return 0.0
    dtype, is_exact = trial.params.dtype.value, _is_counted_by_dtype(trial.params.workload)
    shrink = 1.0 if is_exact else STORED_BYTES.get(dtype, FLOAT32_BYTES) / FLOAT32_BYTES
    passes = PARAMETER_PASSES.get(trial.params.mode.value, 1)
    weights = trial.work.get("num_parameters", 0.0) * FLOAT32_BYTES * passes * trial.num_ranks
    return shrink * (own + weights / max(1.0, metrics.get("samples_per_step", 1.0)))


def find_roof(trial: Trial, ceilings: Ceilings) -> Roof:
    """Find the roof of a trial, for all its threads or all its GPUs together."""
    params = trial.params
    cpus = {cpu for rank in trial.ranks for cpu in rank.cpus}
    threads = min(params.processes * params.threads, len(cpus) or 1)
    return ceilings.find_roof(
        find_rate_format(params.to_mapping()),
        params.device.value,
        threads=threads,
        placement=params.placement.value,
        gpus=trial.num_ranks,
    )


def _count_memory_traffic(trial: Trial) -> float:
    """Count the bytes of a sample, without the weights; for messages, what they move in memory."""
    counted = trial.work.get("bytes_per_sample", 0.0)
    name = trial.params.workload
    if not _is_kernel(name):
        return counted
    traffic = find_workload(name).count_memory_traffic(trial.params)
    return counted if traffic is None else traffic


def _is_counted_by_dtype(name: str) -> bool:
    try:
        return not is_custom(name) and is_counted_by_dtype(find_workload(name))
    except UnknownName:
        return True


def _is_kernel(name: str) -> bool:
    try:
        return not is_custom(name) and is_kernel(find_workload(name))
    except UnknownName:
        return False
