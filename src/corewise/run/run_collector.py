"""Combines rank results into a run, and runs into the metrics of a record. Pure functions."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corewise.measured.parameters import Mode
from corewise.measured.trial import REFUSALS, Protocol, RankResult, Trial
from corewise.run.counter_metrics import COUNTED_METRICS, compute_perf_metrics
from corewise.stats.estimate import compute_quantile
from corewise.stats.sequential_stopping import Decision, should_stop
from corewise.stats.variance import estimate_variance_components
from corewise.study.trial_run import TrialRun

# These metrics are summed over ranks; all others take the worst rank.
SUMMED_METRICS = ("peak_memory_bytes", "window_samples", "cpu_migrations", *COUNTED_METRICS)
# Both metrics are reported, so both need a narrow interval.
JUDGED_METRICS = ("step_s", "samples_per_s")
# These metrics take the maximum over runs: the first run compiles or plans, later ones may use its cache.
WORST_METRICS = ("peak_memory_bytes", "peak_rss_bytes", "compile_s", "planning_s")
FAILURE_ORDER = (*("memory", "crash", "exit", "check", "placement", "factory", "missing"), *(*REFUSALS, "error"))


def collect_run(trial: Trial, results: Sequence[RankResult]) -> TrialRun:
    """Combine the results of all ranks into one run."""
    failures = sorted((r for r in results if r.status != "ok"), key=_order_failure)
    disturbances = tuple(dict.fromkeys(text for r in results for text in r.disturbances))
    ranks = tuple(_collect_rank_facts(trial, result) for result in results)
    if failures:
        prefix = f"rank {failures[0].rank}: " if trial.num_ranks > 1 else ""
        return TrialRun(
            status="failed",
            kind=failures[0].kind,
            reason=prefix + failures[0].reason,
            disturbances=disturbances,
            ranks=ranks,
        )
    samples_s = _combine_samples(results)
    metrics = _compute_run_metrics(trial, results, samples_s)
    return TrialRun(status="ok", samples_s=tuple(samples_s), metrics=metrics, disturbances=disturbances, ranks=ranks)


def compute_record_metrics(trial: Trial, runs: Sequence[TrialRun]) -> dict[str, float]:
    """Compute a record's metrics from its runs: medians over processes, intervals over process medians."""
    metrics: dict[str, float] = {}
    for name in sorted({name for run in runs for name in run.metrics}):
        values = [run.metrics[name] for run in runs if name in run.metrics]
        metrics[name] = max(values) if name in WORST_METRICS else statistics.median(values)
    for name in JUDGED_METRICS:
        estimate = judge_metric(trial.protocol, runs, name).interval
        if estimate is None:
            continue
        metrics[name] = estimate.value
        if estimate.low is not None and estimate.high is not None:
            metrics[f"{name}_low"], metrics[f"{name}_high"] = estimate.low, estimate.high
    metrics["num_runs"] = float(len(runs))
    metrics["num_disturbed_runs"] = float(sum(bool(run.disturbances) for run in runs))
    metrics.update(_compute_variances([run.samples_s for run in runs], metrics["step_s"]))
    rate = _compute_work_rate(trial, runs, metrics["samples_per_s"])
    flops = trial.work.get("flops_per_sample", 0.0)
    if flops:
        metrics["gflop_per_s"] = flops * rate / 1e9
    if is_traffic_known(trial.work):
        metrics.update(_compute_bandwidths(trial, runs, rate))
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def is_traffic_known(work: Mapping[str, float]) -> bool:
    """Return True when the bytes per sample are the whole traffic, with no weights shared by samples."""
    return work.get("bytes_per_sample", 0.0) > 0 and not work.get("num_parameters", 0.0)


def _compute_work_rate(trial: Trial, runs: Sequence[TrialRun], samples_per_s: float) -> float:
    """Compute the samples per second that flops and bytes are based on.

    For kernels and primitives it is the rate of the median step, summed over replicas, so one slow step does
    not hide what the machine attains. For models it is the throughput.
    """
    if not is_traffic_known(trial.work):
        return samples_per_s
    return statistics.median(_compute_median_rate(run) for run in runs)


def _compute_median_rate(run: TrialRun) -> float:
    rank_samples = [rank["samples_s"] for rank in run.ranks if rank.get("samples_s")]
    if len(rank_samples) < 2 or not run.ranks[0].get("independent", True):
        return run.metrics["samples_per_step"] / run.metrics["step_s"]
    each = run.metrics["samples_per_step"] / len(rank_samples)
    return float(sum(each / statistics.median(samples_s) for samples_s in rank_samples))


def _compute_bandwidths(trial: Trial, runs: Sequence[TrialRun], rate: float) -> dict[str, float]:
    """Compute the bandwidth; for one rank also that of the best sample, as STREAM reports it."""
    gbyte = trial.work["bytes_per_sample"] / 1e9
    bandwidths = {"gbyte_per_s": gbyte * rate}
    if trial.num_ranks == 1:
        best = max(run.metrics["samples_per_step"] / min(run.samples_s) for run in runs)
        bandwidths["best_gbyte_per_s"] = gbyte * best
    return bandwidths


def judge_metric(protocol: Protocol, runs: Sequence[TrialRun], name: str) -> Decision:
    """Decide whether a metric needs more runs; its interval is corrected for optional stopping."""
    return should_stop(
        [run.metrics[name] for run in runs],
        min_runs=protocol.min_runs,
        max_runs=protocol.max_runs,
        target=protocol.target_interval,
        confidence=protocol.confidence,
    )


def _collect_rank_facts(trial: Trial, result: RankResult) -> dict[str, Any]:
    facts: dict[str, Any] = {"rank": result.rank, "cpus": list(trial.ranks[result.rank].cpus), **result.facts}
    # These are figures of the rank. A fact of the same name would be taken for them.
    facts.pop("samples_s", None)
    facts.pop("metrics", None)
    facts["steps_per_sample"] = result.steps_per_sample
    # For a single rank, the figures of the run are those of the rank.
    if trial.num_ranks > 1:
        facts["samples_s"], facts["metrics"] = list(result.samples_s), dict(result.metrics)
    if result.notes:
        facts["notes"] = list(result.notes)
    if result.traceback:
        facts["traceback"] = result.traceback
    return facts


def _order_failure(result: RankResult) -> tuple[int, bool]:
    """Return a sort key: root causes first, lost connections to failed ranks last."""
    order = FAILURE_ORDER.index(result.kind) if result.kind in FAILURE_ORDER else len(FAILURE_ORDER)
    return order, result.lost_peer


def _is_synchronous(results: Sequence[RankResult]) -> bool:
    return len(results) > 1 and not results[0].facts.get("independent", True)


def _combine_samples(results: Sequence[RankResult]) -> list[float]:
    """Combine samples: synchronous ranks finish with the slowest, independent ranks contribute all theirs."""
    if _is_synchronous(results):
        return [max(step) for step in zip(*(r.samples_s for r in results), strict=False)]
    return [s for r in results for s in r.samples_s]


def _compute_run_metrics(trial: Trial, results: Sequence[RankResult], samples_s: Sequence[float]) -> dict[str, float]:
    names = {name for r in results for name in r.metrics}
    metrics = {name: _combine_ranks(name, (r.metrics[name] for r in results if name in r.metrics)) for name in names}
    step_s = statistics.median(samples_s)
    metrics["step_s"] = metrics["latency_p50_s"] = step_s
    slow_s = compute_quantile(samples_s, 0.99).value
    if slow_s is not None:
        metrics["latency_p99_s"] = slow_s
    per_step = sum(r.samples_per_step for r in results)
    if trial.params.mode == Mode.INFER or (len(results) > 1 and not _is_synchronous(results)):
        metrics["samples_per_s"] = sum(r.metrics["window_samples"] / r.metrics["window_s"] for r in results)
    else:
        metrics["samples_per_s"] = per_step / step_s
    metrics["samples_per_step"] = per_step
    metrics.update(compute_perf_metrics(trial, results))
    if trial.params.mode == Mode.TRAIN and len(results) > 1 and "loss" in metrics:
        metrics["loss"] = statistics.fmean(r.metrics["loss"] for r in results if "loss" in r.metrics)
    # The sum over ranks can be too large for a float.
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _combine_ranks(name: str, values: Iterable[float]) -> float:
    return sum(values) if name in SUMMED_METRICS else max(values)


def _compute_variances(groups: Sequence[Sequence[float]], step_s: float) -> dict[str, float]:
    if len(groups) < 2 or any(len(g) < 2 for g in groups):
        return {}
    components = estimate_variance_components(groups)
    found = {"between_process_cv": components.between, "within_process_cv": components.within}
    return {name: math.sqrt(value) / step_s for name, value in found.items() if value is not None}
