"""Rank results -> a run -> a record's metrics; pure functions."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corewise.spec.run import Run
from corewise.spec.trial import NOT_NOW, Protocol, RankResult, Trial
from corewise.stats.estimate import quantile
from corewise.stats.sequential import Decision, should_stop
from corewise.stats.variance import variance_components

SUMMED = ("peak_memory_bytes", "window_samples")  # over ranks; everything else takes the worst rank
JUDGED = ("step_s", "samples_per_s")  # both are reported, so both must be known well enough
# Over runs; the first run compiles or plans, later ones may find its result in the trial's cache.
WORST = ("peak_memory_bytes", "peak_rss_bytes", "compile_s", "planning_s")
FAILURE_ORDER = (
    *("memory", "crash", "exit", "check", "placement", "factory", "missing", "infeasible"),
    *(NOT_NOW, "error"),
)


def collect_run(trial: Trial, results: Sequence[RankResult]) -> Run:
    """What the ranks of one run did together."""
    bad = sorted((r for r in results if r.status != "ok"), key=_telling)
    disturbances = tuple(dict.fromkeys(text for r in results for text in r.disturbances))
    ranks = tuple(_rank_facts(trial, result) for result in results)
    if bad:
        who = f"rank {bad[0].rank}: " if trial.num_ranks > 1 else ""
        return Run(
            status="failed",
            kind=bad[0].kind,
            reason=who + bad[0].reason,
            disturbances=disturbances,
            ranks=ranks,
        )
    samples_s = _samples_together(results)
    metrics = _run_metrics(trial, results, samples_s)
    return Run(
        status="ok", samples_s=tuple(samples_s), metrics=metrics, disturbances=disturbances, ranks=ranks
    )


def record_metrics(trial: Trial, runs: Sequence[Run]) -> dict[str, float]:
    """A record's metrics from its good runs: medians over processes, intervals over process medians."""
    metrics: dict[str, float] = {}
    for name in sorted({name for run in runs for name in run.metrics}):
        values = [run.metrics[name] for run in runs if name in run.metrics]
        metrics[name] = max(values) if name in WORST else statistics.median(values)
    for name in JUDGED:
        estimate = judge(trial.protocol, runs, name).interval
        if estimate is None:
            continue
        metrics[name] = estimate.value
        if estimate.low is not None and estimate.high is not None:
            metrics[f"{name}_low"], metrics[f"{name}_high"] = estimate.low, estimate.high
    metrics["num_runs"] = float(len(runs))
    metrics["num_disturbed_runs"] = float(sum(bool(run.disturbances) for run in runs))
    metrics.update(_variances([run.samples_s for run in runs], metrics["step_s"]))
    rate = _work_rate(trial, runs, metrics["samples_per_s"])
    flops = trial.work.get("flops_per_sample", 0.0)
    if flops:
        metrics["gflop_per_s"] = flops * rate / 1e9
    if is_traffic_known(trial.work):
        metrics.update(_bandwidths(trial, runs, rate))
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def is_traffic_known(work: Mapping[str, float]) -> bool:
    """True where the bytes of a sample are all that a step moves: nothing is read once for many samples."""
    return work.get("bytes_per_sample", 0.0) > 0 and not work.get("num_parameters", 0.0)


def _work_rate(trial: Trial, runs: Sequence[Run], samples_per_s: float) -> float:
    """The samples of a second that flops and bytes are counted with.

    Of kernels and primitives those of the median step, added over replicas: one step that was held up must
    not pass for what the machine gives. Of models the throughput.
    """
    if not is_traffic_known(trial.work):
        return samples_per_s
    return statistics.median(_median_rate(run) for run in runs)


def _median_rate(run: Run) -> float:
    of_ranks = [rank["samples_s"] for rank in run.ranks if rank.get("samples_s")]
    if len(of_ranks) < 2 or not run.ranks[0].get("independent", True):
        return run.metrics["samples_per_step"] / run.metrics["step_s"]
    each = run.metrics["samples_per_step"] / len(of_ranks)
    return float(sum(each / statistics.median(samples_s) for samples_s in of_ranks))


def _bandwidths(trial: Trial, runs: Sequence[Run], rate: float) -> dict[str, float]:
    """The bytes moved in a second; where one rank ran, in its best sample too, as STREAM reports it."""
    gbyte = trial.work["bytes_per_sample"] / 1e9
    found = {"gbyte_per_s": gbyte * rate}
    if trial.num_ranks == 1:
        best = max(run.metrics["samples_per_step"] / min(run.samples_s) for run in runs)
        found["best_gbyte_per_s"] = gbyte * best
    return found


def judge(protocol: Protocol, runs: Sequence[Run], name: str) -> Decision:
    """Whether the runs say enough of a metric, and its interval corrected for having looked."""
    return should_stop(
        [run.metrics[name] for run in runs],
        min_runs=protocol.min_runs,
        max_runs=protocol.max_runs,
        target=protocol.target_interval,
        confidence=protocol.confidence,
    )


def _rank_facts(trial: Trial, result: RankResult) -> dict[str, Any]:
    facts: dict[str, Any] = {"rank": result.rank, "cpus": list(trial.ranks[result.rank].cpus), **result.facts}
    facts["steps_per_sample"] = result.steps_per_sample
    if trial.num_ranks > 1:  # of a single rank, the run's own figures are these
        facts["samples_s"], facts["metrics"] = list(result.samples_s), dict(result.metrics)
    if result.notes:
        facts["notes"] = list(result.notes)
    if result.traceback:
        facts["traceback"] = result.traceback
    return facts


def _telling(result: RankResult) -> tuple[int, bool]:
    """Failures that explain others come first; a lost connection is what the others see of one."""
    order = FAILURE_ORDER.index(result.kind) if result.kind in FAILURE_ORDER else len(FAILURE_ORDER)
    return order, any(word in result.reason.lower() for word in ("connection", "gloo", "peer"))


def _in_step(results: Sequence[RankResult]) -> bool:
    return len(results) > 1 and not results[0].facts.get("independent", True)


def _samples_together(results: Sequence[RankResult]) -> list[float]:
    """Ranks in step finish with the slowest; independent ranks each have their own samples."""
    if _in_step(results):
        return [max(step) for step in zip(*(r.samples_s for r in results), strict=False)]
    return [s for r in results for s in r.samples_s]


def _run_metrics(trial: Trial, results: Sequence[RankResult], samples_s: Sequence[float]) -> dict[str, float]:
    names = {name for r in results for name in r.metrics}
    metrics = {
        name: _over_ranks(name, (r.metrics[name] for r in results if name in r.metrics)) for name in names
    }
    step_s = statistics.median(samples_s)
    metrics["step_s"] = metrics["latency_p50_s"] = step_s
    slow_s = quantile(samples_s, 0.99).value
    if slow_s is not None:
        metrics["latency_p99_s"] = slow_s
    per_step = sum(r.samples_per_step for r in results)
    if trial.params["mode"] == "infer" or (len(results) > 1 and not _in_step(results)):
        metrics["samples_per_s"] = sum(r.metrics["window_samples"] / r.metrics["window_s"] for r in results)
    else:
        metrics["samples_per_s"] = per_step / step_s
    metrics["samples_per_step"] = per_step
    if trial.params["mode"] == "train" and len(results) > 1 and "loss" in metrics:
        metrics["loss"] = statistics.fmean(r.metrics["loss"] for r in results)
    return metrics


def _over_ranks(name: str, values: Iterable[float]) -> float:
    return sum(values) if name in SUMMED else max(values)


def _variances(groups: Sequence[Sequence[float]], step_s: float) -> dict[str, float]:
    if len(groups) < 2 or any(len(g) < 2 for g in groups):
        return {}
    components = variance_components(groups)
    found = {"between_process_cv": components.between, "within_process_cv": components.within}
    return {name: math.sqrt(value) / step_s for name, value in found.items() if value is not None}
