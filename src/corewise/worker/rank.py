"""One rank of one run: pin, prepare, check, warm up, sample, leave a result file.

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

from corewise.machine import pinning
from corewise.probes import canary, memory
from corewise.probes.processes import Disturbance, disturbances
from corewise.runtimes.base import (
    Check,
    Infeasible,
    Job,
    MissingPart,
    NotNow,
    RankContext,
    Runtime,
    WorkloadError,
)
from corewise.spec.trial import NOT_NOW, RankResult, Trial, to_json, write_json_aside
from corewise.worker.channel import Channel
from corewise.worker.libraries import missing_libraries
from corewise.worker.sampling import Go, sample
from corewise.worker.steady import WarmUp

MIN_WARM_UP_S = 0.01  # steps of microseconds: caches and clock have not settled after a dozen
STEPS_AFTER_PAUSE = 1
NOT_STEADY = "warm-up ended by its time limit, not steady"
PEER_PREFIX = "benchdnn_"  # figures of another program on the same cores, which a job has asked
LONG_STEP_S = 0.1  # from here on two windows of three steps say enough


class TrialFailed(Exception):
    """Ends the rank with a failure of a given kind."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclasses.dataclass(frozen=True)
class RankPlan:
    """Where this rank stands and where it writes."""

    trial: Trial
    rank: int
    rendezvous: str
    result_file: Path
    asked_at_ns: int  # when the engine read the trial, on the machine's monotonic clock
    held: bool = False  # kept alive between samplings, each told by the control side
    host_free_bytes: Optional[int] = None  # before any rank of the run began


def segment_file(result_file: Path, number: int) -> Path:
    """Where a rank with this result file leaves its sampling of this number, from 0."""
    return result_file.with_suffix(f".{number}.json")


def run_rank(plan: RankPlan, get_runtime: Callable[[], Runtime], channel: Channel) -> None:
    """Run the rank and write its result file, whatever happens short of death."""
    try:
        result = _measure(plan, get_runtime, channel)
    except BaseException as problem:  # a failure is a result too, SystemExit included
        result = _failure(plan.rank, problem)
    try:
        write_json_aside(plan.result_file, to_json(result))
    except (TypeError, ValueError) as problem:  # facts of a plug-in that JSON cannot hold
        write_json_aside(
            plan.result_file, to_json(failed(plan.rank, "error", f"not a JSON result: {problem}"))
        )


def failed(rank: int, kind: str, reason: str, log_tail: str = "") -> RankResult:
    """The result of a rank that could not speak for itself."""
    return RankResult(status="failed", rank=rank, kind=kind, reason=reason, traceback=log_tail)


def _failure(rank: int, problem: BaseException) -> RankResult:
    text = str(problem).strip() or type(problem).__name__
    if isinstance(problem, TrialFailed):
        return failed(rank, problem.kind, text)
    if isinstance(problem, Infeasible):
        return failed(rank, NOT_NOW if isinstance(problem, NotNow) else "infeasible", text)
    if isinstance(problem, MissingPart):
        return failed(rank, "missing", text)
    if isinstance(problem, SystemExit):
        kind, text = "exit", f"the workload called sys.exit({problem.code!r})"
    elif isinstance(problem, WorkloadError):
        kind = "factory"
    elif isinstance(problem, MemoryError) or "allocate memory" in text or "out of memory" in text.lower():
        kind, text = "memory", f"out of memory: {text.splitlines()[0]}"
    else:
        kind, text = "error", f"{type(problem).__name__}: {text.splitlines()[0]}"
    return failed(rank, kind, text, "".join(traceback.format_exception(None, problem, problem.__traceback__)))


def _measure(plan: RankPlan, get_runtime: Callable[[], Runtime], channel: Channel) -> RankResult:
    trial, placement = plan.trial, plan.trial.ranks[plan.rank]
    bind = str(trial.params["bind"])
    if bind == "none":
        pinning.set_memory_policy(placement)
    else:
        pinning.apply(placement)
    runtime = get_runtime()
    cache = str(plan.result_file.parent.parent / "cache")
    context = RankContext(
        plan.rank, trial.num_ranks, plan.rendezvous, len(placement.cpus), cache, plan.host_free_bytes
    )
    began = time.perf_counter()
    job = runtime.prepare(trial.params, context)
    prepared = time.perf_counter()
    try:
        channel.send(event="phase", phase="check")
        check = job.check()
        checked = time.perf_counter()
        memory.reset_peak()  # the check's reference is not the workload's memory
        if not check.passed:
            raise TrialFailed(
                "check",
                f"wrong numbers: error {check.error:.3g} against {check.reference}; "
                f"{check.tolerance:.3g} is allowed",
            )
        channel.send(event="phase", phase="warm-up")
        first_step_s, warm_up, expected_s = _warm_up(job, trial, placement.cpus)
        facts = _proofs(job, trial, plan.rank)
        first_loss = job.loss()
        gc.collect()
        # Little is made between warm-up and sampling: small things in the heap's holes make it grow again.
        times_s = (prepared - began, checked - prepared, first_step_s, expected_s)
        before = _BeforeSampling(check, times_s, warm_up, first_loss, facts, runtime)
        if plan.held:
            return _sample_again_and_again(plan, job, channel, before)
        return _sampled(plan, job, channel, before)
    finally:
        job.close()


def _sampled_facts(job: Job, channel: Channel) -> Mapping[str, Any]:
    """What a job found while it was sampled; nothing, unless it has a method `sampled_facts`.

    One that takes long tells what it does, by the method `tell_phases`.
    """
    hear = getattr(job, "tell_phases", None)
    if hear is not None:
        hear(lambda phase: channel.send(event="phase", phase=phase))
    say = getattr(job, "sampled_facts", None)
    return say() if say is not None else {}


def _notes(job: Job) -> Sequence[str]:
    """What a job has to say beside its figures; nothing, unless it has a method `notes`."""
    say = getattr(job, "notes", None)
    return tuple(say()) if say is not None else ()


def _of_others(trial: Trial, metrics: Mapping[str, float]) -> Mapping[str, float]:
    """The metrics without what cannot be told from other ranks, which then use the same CPUs."""
    cpus = [cpu for rank in trial.ranks for cpu in rank.cpus]
    is_loose = trial.params["bind"] == "none" and trial.num_ranks > 1
    shared = len(set(cpus)) < len(cpus) or is_loose
    return {**metrics, "other_cpu_s": 0.0} if shared else metrics


def _warm_up(job: Job, trial: Trial, cpus: Sequence[int]) -> tuple[float, WarmUp, float]:
    """First step's time, the finished warm-up, and the step time to expect."""
    protocol = trial.protocol
    started = time.perf_counter()
    job.step()
    first_step_s = time.perf_counter() - started
    if trial.params["bind"] == "core":  # the first step has started the threads
        pinning.bind_threads(cpus)
    window = 3 if first_step_s > LONG_STEP_S else 5
    warm_up = WarmUp(protocol.min_warmup_steps, protocol.max_warmup_s, protocol.steady_tolerance, window)
    if job.agree(first_step_s >= protocol.max_warmup_s):  # one such step was warm-up enough
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


def _proofs(job: Job, trial: Trial, rank: int) -> dict[str, Any]:
    """What was read back after warm-up; raises when a thread or a library is not where it should be."""
    placement, bind = trial.ranks[rank], str(trial.params["bind"])
    masks = pinning.read_thread_masks()
    astray = pinning.violations(masks, placement.cpus, bind)
    if astray:
        raise TrialFailed("placement", "; ".join(astray))
    absent = missing_libraries(trial.env, str(trial.params["openmp"]))
    if absent:
        raise TrialFailed("missing", f"asked for but not loaded into the process: {', '.join(absent)}")
    if trial.params.get("huge_pages") == "transparent" and not memory.read_memory()["huge_page_bytes"]:
        raise Infeasible("huge_pages transparent: the kernel gave none; glibc asks for them from 2.35 on")
    return {
        **job.facts(),
        "pid": os.getpid(),
        "num_process_threads": len(masks),
        "thread_cpus": {str(tid): list(mask.cpus) for tid, mask in masks.items()},
    }


@dataclasses.dataclass(frozen=True)
class _BeforeSampling:
    """What a rank knows of itself once it is warm."""

    check: Check
    times_s: tuple[float, float, float, float]  # prepare, check, first step, the step to expect
    warm_up: WarmUp
    first_loss: Optional[float]
    proofs: Mapping[str, Any]
    runtime: Runtime

    @property
    def expected_s(self) -> float:
        return self.times_s[3]

    def metrics(self, trial: Trial) -> dict[str, float]:
        prepare_s, check_s, first_step_s, expected_s = self.times_s
        found = {
            "check_error": self.check.error,
            "prepare_s": prepare_s,
            "check_s": check_s,
            "first_step_s": first_step_s,
            "warmup_s": self.warm_up.total_s,
            "num_warmup_steps": float(self.warm_up.num_steps),
        }
        if trial.params["execution"] == "malleable":
            found["planning_s"] = float(self.proofs.get("planning_s", 0.0))
        elif trial.params["execution"] not in ("eager", "quickened"):
            first_call_s = float(self.proofs.get("first_call_s", first_step_s))
            found["compile_s"] = max(0.0, first_call_s - expected_s)
        peers = (name for name in self.proofs if name.startswith(PEER_PREFIX) and name.endswith("_s"))
        return {**found, **{name: float(self.proofs[name]) for name in peers}}

    def facts(self, job: Job) -> dict[str, Any]:
        return {
            **self.proofs,
            "check_reference": self.check.reference,
            "versions": dict(self.runtime.versions()),
            "warm_up_ended": self.warm_up.reason or "time limit",
            "independent": job.independent,
        }


def _sample_again_and_again(
    plan: RankPlan, job: Job, channel: Channel, before: _BeforeSampling
) -> RankResult:
    """The last of the results of a held rank; every sampling leaves a file of its own."""
    number = 0
    while True:
        result = _sampled(plan, job, channel, before)
        write_json_aside(segment_file(plan.result_file, number), to_json(result))
        channel.send(event="sampled", number=number)
        message = channel.receive()
        if message is None or message["cmd"] != "wake":
            return result
        for _ in range(STEPS_AFTER_PAUSE):  # threads and caches come back
            job.step()
        number += 1


def _sampled(plan: RankPlan, job: Job, channel: Channel, before: _BeforeSampling) -> RankResult:
    """The result of one sampling, with the probes that watched it; it begins when every rank is ready."""
    trial, cpus = plan.trial, plan.trial.ranks[plan.rank].cpus
    canary_s = canary.run_canary()
    channel.send(event="ready", expected_s=before.expected_s, independent=job.independent)
    message = channel.receive()
    if message is None or message["cmd"] != "go":
        raise TrialFailed("stopped", "the run was stopped before sampling")
    with Disturbance(cpus) as probe:
        sampled = sample(job.step, Go.from_message(message))
    metrics = {
        **memory.read_memory(),
        **probe.metrics,
        **before.metrics(trial),
        "canary_s": max(canary_s, canary.run_canary()),
        "start_s": (sampled.started_ns - plan.asked_at_ns) / 1e9,
        "num_steps": float(sampled.num_steps),
        "minor_faults_per_step": probe.metrics.get("minor_faults", 0.0) / max(1, sampled.num_steps),
        "window_s": sampled.window_s,
        "window_samples": sampled.window_steps * job.samples_per_step,
    }
    for name, loss in (("loss_first", before.first_loss), ("loss", job.loss())):
        if loss is not None:
            metrics[name] = loss
    if "loss" in metrics and not abs(metrics["loss"]) < float("inf"):
        raise TrialFailed("check", f"the training loss became {metrics['loss']} during sampling")
    return RankResult(
        status="ok",
        rank=plan.rank,
        samples_s=tuple(sampled.samples_s),
        steps_per_sample=sampled.steps_per_sample,
        samples_per_step=float(job.samples_per_step),
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        facts={**before.facts(job), **_sampled_facts(job, channel)},
        disturbances=tuple(disturbances(_of_others(trial, probe.metrics), len(cpus))),
        notes=(*_notes(job), *(() if before.warm_up.reason == "steady" else (NOT_STEADY,))),
    )
