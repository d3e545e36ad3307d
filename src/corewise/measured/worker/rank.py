"""One rank of one run: pin, prepare, check, warm up, sample, write a result file.

Measured side: standard library, numpy and the runtime's framework only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence

from corewise.cache_folder import create_own_folder
from corewise.measured import pinning
from corewise.measured.parameters import Binding, HugePages
from corewise.measured.probes import cpu_canary, memory_use
from corewise.measured.probes.counters import CounterProbe
from corewise.measured.probes.disturbances import DisturbanceProbe, describe_disturbances
from corewise.measured.runtimes.base import (
    Check,
    Infeasible,
    Job,
    MissingPart,
    NoEffect,
    NotNow,
    RankContext,
    Runtime,
    WorkloadError,
    is_lost_connection,
    is_out_of_memory,
)
from corewise.measured.trial import (
    INFEASIBLE,
    NO_EFFECT,
    NOT_NOW,
    ONE_NODE,
    NodePart,
    RankResult,
    Trial,
    to_json,
    write_json_atomically,
)
from corewise.measured.worker.control_pipe import Channel
from corewise.measured.worker.library_proof import find_missing_libraries
from corewise.measured.worker.sampling import SamplingPlan, take_samples
from corewise.measured.worker.steady_state import WarmUp
from corewise.measured.workloads.custom import load_imports

# With steps of microseconds, caches and clock have not settled after a dozen steps.
MIN_WARM_UP_S = 0.01
STEPS_AFTER_PAUSE = 1
# Ways to execute a model that leave code or plans behind for the next run of the trial.
CACHED_EXECUTIONS = ("compile", "malleable")
NOT_STEADY = "the steps were not steady when the time limit of the warm-up ended"
# For longer steps, two windows of three steps are enough.
LONG_STEP_S = 0.1


class TrialFailure(Exception):
    """Ends the rank with a failure of the given category."""

    def __init__(self, category: str, reason: str) -> None:
        super().__init__(reason)
        self.category = category


@dataclasses.dataclass(frozen=True)
class RankPlan:
    """The trial of a rank, its number and its files.

    Attributes:
        asked_at_ns: when the control side asked for the run, on the monotonic clock of the machine.
        held: the rank stays alive between samplings.
        host_free_bytes: free host memory before any rank of the run started.
        part: the node of the rank among those of the trial.
    """

    trial: Trial
    rank: int
    rendezvous: str
    result_file: Path
    asked_at_ns: int
    held: bool = False
    host_free_bytes: Optional[int] = None
    part: NodePart = ONE_NODE


def build_segment_path(result_file: Path, number: int) -> Path:
    """Build the path of the result of one sampling, numbered from 0."""
    return result_file.with_suffix(f".{number}.json")


def run_rank(plan: RankPlan, get_runtime: Callable[[], Runtime], channel: Channel) -> None:
    """Run the rank and write its result file, unless the process is killed."""
    try:
        result = _measure(plan, get_runtime, channel)
    except BaseException as problem:
        # A failure is a result too, including SystemExit.
        result = _describe_failure(plan.rank, problem)
    try:
        write_json_atomically(plan.result_file, to_json(result))
    except (TypeError, ValueError) as problem:
        # A plug-in returned facts that are not valid JSON.
        write_json_atomically(
            plan.result_file, to_json(build_failure(plan.rank, "error", f"the result is not valid JSON: {problem}"))
        )


def build_failure(rank: int, category: str, reason: str, log_tail: str = "") -> RankResult:
    """Build the result of a failed rank."""
    return RankResult(status="failed", rank=rank, kind=category, reason=reason, traceback=log_tail)


def _describe_failure(rank: int, problem: BaseException) -> RankResult:
    text = str(problem).strip() or type(problem).__name__
    if isinstance(problem, TrialFailure):
        return build_failure(rank, problem.category, text)
    if isinstance(problem, NotNow):
        return build_failure(rank, NOT_NOW, text)
    if isinstance(problem, Infeasible):
        return build_failure(rank, NO_EFFECT if isinstance(problem, NoEffect) else INFEASIBLE, text)
    if isinstance(problem, MissingPart):
        return build_failure(rank, "missing", text)
    if isinstance(problem, SystemExit):
        category, text = "exit", f"the workload called sys.exit({problem.code!r})"
    elif isinstance(problem, WorkloadError):
        category = "factory"
    elif is_out_of_memory(problem):
        category, text = "memory", f"out of memory: {text.splitlines()[0]}"
    else:
        category, text = "error", f"{type(problem).__name__}: {text.splitlines()[0]}"
    where = "".join(traceback.format_exception(None, problem, problem.__traceback__))
    return dataclasses.replace(build_failure(rank, category, text, where), lost_peer=is_lost_connection(problem))


def _measure(plan: RankPlan, get_runtime: Callable[[], Runtime], channel: Channel) -> RankResult:
    trial, placement = plan.trial, plan.trial.ranks[plan.rank]
    bind = trial.params.bind.value
    if bind == "none":
        pinning.set_memory_policy(placement)
    else:
        pinning.apply_placement(placement)
    runtime = get_runtime()
    cache, cache_note = _choose_cache(plan)
    context = RankContext(
        plan.rank,
        trial.num_ranks,
        plan.rendezvous,
        len(placement.cpus),
        cache,
        plan.host_free_bytes,
        trial.protocol.timeout_s,
        trial.references,
        plan.part.node_rank,
        plan.part.num_nodes,
        plan.part.address,
        plan.part.port,
        plan.part.hosts,
    )
    num_import_threads = _load_imports(trial)
    began = time.perf_counter()
    job = runtime.prepare(trial.params, context)
    prepared = time.perf_counter()
    try:
        channel.send(event="phase", phase="check")
        check = job.check()
        checked = time.perf_counter()
        # The reference of the check does not count as memory of the workload.
        memory_use.reset_peak()
        if not check.passed:
            raise TrialFailure(
                "check",
                f"wrong numbers: error {check.error:.3g} against {check.reference}; {check.tolerance:.3g} is allowed",
            )
        channel.send(event="phase", phase="warm-up")
        first_step_s, warm_up, expected_s = _warm_up(job, trial, placement.cpus)
        facts = {**_verify_process(job, trial, plan.rank), "num_import_threads": num_import_threads}
        first_loss = job.read_loss()
        gc.collect()
        # Allocate little between warm-up and sampling: small objects in heap holes make it grow again.
        times_s = (prepared - began, checked - prepared, first_step_s, expected_s)
        before = _BeforeSampling(check, times_s, warm_up, first_loss, facts, runtime, cache_note)
        if plan.held:
            return _sample_repeatedly(plan, job, channel, before)
        return _sample_once(plan, job, channel, before)
    finally:
        job.close()


def _load_imports(trial: Trial) -> int:
    """Import what the user's file imports; return how many threads that started."""
    num_before = len(pinning.read_thread_masks())
    load_imports(trial.imports)
    return len(pinning.read_thread_masks()) - num_before


def _choose_cache(plan: RankPlan) -> tuple[str, str]:
    """Choose the folder for compiled code and plans; with a note if others can change that of the trial."""
    if plan.trial.params.execution not in CACHED_EXECUTIONS:
        return "", ""
    cache = plan.result_file.parent.parent / "cache"
    problem = create_own_folder(cache)
    if not problem:
        return str(cache), ""
    return os.path.join(plan.rendezvous, "cache"), f"each run compiled and planned alone, because {problem}"


def _collect_sampled_facts(job: Job, channel: Channel) -> Mapping[str, Any]:
    """Collect the facts that a job found during sampling."""
    job.report_phases(lambda phase: channel.send(event="phase", phase=phase))
    return job.collect_sampled_facts()


def _drop_shared_cpu_time(plan: RankPlan, metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Clear the CPU time of other processes if ranks share CPUs, because it would include other ranks."""
    trial = plan.trial
    local = [trial.ranks[rank] for rank in plan.part.select_ranks(trial.num_ranks)]
    cpus = [cpu for rank in local for cpu in rank.cpus]
    is_loose = trial.params.bind == Binding.NONE and len(local) > 1
    shared = len(set(cpus)) < len(cpus) or is_loose
    return {**metrics, "other_cpu_s": 0.0} if shared else metrics


def _warm_up(job: Job, trial: Trial, cpus: Sequence[int]) -> tuple[float, WarmUp, float]:
    """Warm up; return the time of the first step, the warm-up, and the expected step time."""
    protocol = trial.protocol
    started = time.perf_counter()
    job.step()
    first_step_s = time.perf_counter() - started
    # The first step has started the threads.
    if trial.params.bind == Binding.CORE:
        pinning.bind_threads(cpus)
    window = 3 if first_step_s > LONG_STEP_S else 5
    warm_up = WarmUp(protocol.min_warmup_steps, protocol.max_warmup_s, protocol.steady_tolerance, window)
    # A step that takes the whole time limit is warm-up enough.
    if job.agree(first_step_s >= protocol.max_warmup_s):
        return first_step_s, warm_up, first_step_s
    recent: list[float] = []
    while True:
        started = time.perf_counter()
        job.step()
        step_s = time.perf_counter() - started
        warm_up.add(step_s)
        recent = [*recent[-4:], step_s]
        if job.agree(warm_up.finished and warm_up.total_s >= MIN_WARM_UP_S):
            return first_step_s, warm_up, sorted(recent)[len(recent) // 2]


def _verify_process(job: Job, trial: Trial, rank: int) -> dict[str, Any]:
    """Read facts back after warm-up; raise if a thread breaks its binding or a library is missing."""
    placement, bind = trial.ranks[rank], trial.params.bind.value
    masks = pinning.read_thread_masks()
    violations = pinning.find_violations(masks, placement.cpus, bind)
    if violations:
        raise TrialFailure("placement", "; ".join(violations))
    missing = find_missing_libraries(trial.env, trial.params.openmp.value)
    if missing:
        raise TrialFailure("missing", f"requested but not loaded into the process: {', '.join(missing)}")
    if trial.params.huge_pages == HugePages.TRANSPARENT and not memory_use.read_memory()["huge_page_bytes"]:
        raise Infeasible("huge_pages transparent: the kernel provided none; glibc requests them from version 2.35 on")
    return {
        **job.read_facts(),
        "pid": os.getpid(),
        "num_process_threads": len(masks),
        "thread_cpus": {str(tid): list(mask.cpus) for tid, mask in masks.items()},
    }


@dataclasses.dataclass(frozen=True)
class _BeforeSampling:
    """The state of a warm rank; times are those of prepare, check, first step, and the expected step."""

    check: Check
    times_s: tuple[float, float, float, float]
    warm_up: WarmUp
    first_loss: Optional[float]
    proofs: Mapping[str, Any]
    runtime: Runtime
    cache_note: str

    @property
    def expected_s(self) -> float:
        return self.times_s[3]

    def list_notes(self) -> list[str]:
        return [note for note in (self.cache_note, "" if self.warm_up.is_steady else NOT_STEADY) if note]

    def collect_metrics(self, job: Job) -> dict[str, float]:
        prepare_s, check_s, first_step_s, expected_s = self.times_s
        return {
            "check_error": self.check.error,
            "prepare_s": prepare_s,
            "check_s": check_s,
            "shared_check_s": self.check.shared_s,
            "first_step_s": first_step_s,
            "warmup_s": self.warm_up.total_s,
            "num_warmup_steps": float(self.warm_up.num_steps),
            **job.collect_metrics(expected_s),
        }

    def collect_facts(self, job: Job) -> dict[str, Any]:
        return {
            **self.proofs,
            "check_reference": self.check.reference,
            "versions": dict(self.runtime.read_versions()),
            "warm_up_ended": self.warm_up.reason or "time limit",
            "independent": job.independent,
        }


def _sample_repeatedly(plan: RankPlan, job: Job, channel: Channel, before: _BeforeSampling) -> RankResult:
    """Sample a held rank on command, each time to a separate file; return the last result."""
    number = 0
    while True:
        result = _sample_once(plan, job, channel, before)
        write_json_atomically(build_segment_path(plan.result_file, number), to_json(result))
        channel.send(event="sampled", number=number)
        message = channel.receive()
        if message is None or message["cmd"] != "wake":
            return result
        # Threads and caches recover from the pause.
        for _ in range(STEPS_AFTER_PAUSE):
            job.step()
        number += 1


def _sample_once(plan: RankPlan, job: Job, channel: Channel, before: _BeforeSampling) -> RankResult:
    """Wait until every rank is ready, sample once under the probes, and return the result."""
    cpus = plan.trial.ranks[plan.rank].cpus
    canary_s = cpu_canary.run_canary()
    # Opening a counter for each thread takes time, and every rank starts at the same moment.
    with CounterProbe(plan.trial.protocol.counters) as counters:
        channel.send(event="ready", expected_s=before.expected_s, independent=job.independent)
        message = channel.receive()
        if message is None or message["cmd"] != "go":
            raise TrialFailure("stopped", "the run was stopped before sampling")
        with DisturbanceProbe(cpus) as probe:
            sampled = take_samples(job.step, SamplingPlan.from_message(message), counters.start)
            counters.stop()
    metrics = {
        **memory_use.read_memory(),
        **probe.metrics,
        **counters.metrics,
        **before.collect_metrics(job),
        "canary_s": max(canary_s, cpu_canary.run_canary()),
        "start_s": (sampled.started_ns - plan.asked_at_ns) / 1e9,
        "num_steps": float(sampled.num_steps),
        "minor_faults_per_step": probe.metrics.get("minor_faults", 0.0) / max(1, sampled.num_steps),
        "window_s": sampled.window_s,
        "window_samples": sampled.window_steps * job.samples_per_step,
    }
    # Ranks that train together exchange figures here, so it comes before anything that may fail on one rank.
    metrics.update(job.collect_sampled_metrics(sampled.num_steps))
    for name, loss in (("loss_first", before.first_loss), ("loss", job.read_loss())):
        if loss is not None:
            metrics[name] = loss
    if "loss" in metrics and not abs(metrics["loss"]) < float("inf"):
        raise TrialFailure("check", f"the training loss became {metrics['loss']} during sampling")
    return RankResult(
        status="ok",
        rank=plan.rank,
        samples_s=tuple(sampled.samples_s),
        steps_per_sample=sampled.steps_per_sample,
        samples_per_step=float(job.samples_per_step),
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        facts={**before.collect_facts(job), **counters.facts, **_collect_sampled_facts(job, channel)},
        disturbances=tuple(describe_disturbances(_drop_shared_cpu_time(plan, probe.metrics), len(cpus))),
        notes=(*job.collect_notes(), *before.list_notes(), *filter(None, [counters.note])),
    )
