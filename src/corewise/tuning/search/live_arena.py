"""The arena on this machine: entrants are paused runs, forked from warm parents."""

import itertools
import math
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from corewise.measured.parameters import Mode
from corewise.measured.trial import INFEASIBLE, Protocol, Trial
from corewise.run.held_run import HeldRun
from corewise.run.machine_view import build_machine_view
from corewise.run.warm_parent import ParentFailure, ParentKey, ParentPool
from corewise.study.trial_run import TrialRun
from corewise.tuning.confirm.confirmation_runs import SHAPES_DIFFER, is_check_missing
from corewise.tuning.question import Tunable
from corewise.tuning.search.arena import Rejection, Sampling
from corewise.tuning.search.cpu_steal import StealDetector, compute_stolen_share
from corewise.tuning.search.setting_space import Setting

SAMPLE_S = 0.4
# Below this step time, one sampling takes at least three steps.
SHORT_STEP_S = 0.2
WARM_UP_S = 1.0
MAX_RESAMPLES = 2
# The parts of a start that every run has: neither imports, nor warm-up, nor the reference of the check.
SETUP_METRICS = ("prepare_s", "check_s", "first_step_s")
# Warm parents that are started at the same time; fewer than the pool keeps.
MAX_CONCURRENT_STARTS = 8


def build_racing_protocol(limit_s: float) -> Protocol:
    """Build the protocol of an entrant: a short warm-up, since both sides of a race have the same."""
    return Protocol(
        min_runs=1,
        max_runs=1,
        min_warmup_steps=2,
        max_warmup_s=WARM_UP_S,
        steady_tolerance=0.1,
        min_samples=1,
        min_sample_s=SAMPLE_S,
        timeout_s=max(1.0, limit_s),
    )


class LiveArena:
    """Starts entrants in a private folder; `close` removes all processes and files."""

    def __init__(self, tunable: Tunable, folder: Path) -> None:
        self.tunable, self.folder = tunable, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.pool = ParentPool(tunable.planner.worker, folder)
        num_cores = build_machine_view(tunable.planner.host, tunable.planner.libraries).num_cores
        self._num_concurrent_starts = min(MAX_CONCURRENT_STARTS, max(1, num_cores // 2))
        self._numbers = itertools.count()
        self._alive: list[LiveEntrant] = []
        # The shapes that the factory returned first.
        self._shapes = ""
        # What the model says about itself; empty for a step.
        self.traits: Mapping[str, Any] = {}
        self._imports = tunable.list_imports()
        self._is_import_known, self._is_import_safe = False, False
        # No sampling takes longer than until then, on the monotonic clock.
        self.deadline = math.inf
        self.steal_detector = StealDetector()

    def read_clock(self) -> float:
        return time.monotonic()

    def prepare(self, settings: Iterable[Setting]) -> None:
        """Start the warm parents of these settings concurrently if the first setting has none yet."""
        trials: list[Trial] = []
        for setting in settings:
            trials += self.tunable.plan(setting, build_racing_protocol(0.0)).trials
            if trials and self.pool.has_parent(trials[0]):
                return
            if len({ParentKey.from_trial(trial) for trial in trials}) >= self._num_concurrent_starts:
                break
        self._keep_warm()
        self.pool.warm(trials)

    def enter(self, setting: Setting, limit_s: float) -> "LiveEntrant":
        """Start the ranks of a setting, check and warm them; raise Rejection if that fails."""
        plan = self.tunable.plan(setting, build_racing_protocol(limit_s))
        if plan.skipped:
            raise Rejection(INFEASIBLE, plan.skipped[0].reason)
        [trial] = plan.trials
        began = time.monotonic()
        try:
            self._keep_warm()
            held = self._hold(trial)
        except ParentFailure as problem:
            raise Rejection(problem.category, str(problem)) from problem
        try:
            failed = held.wait_until_ready()
        except BaseException:
            # The user stops the search; `close` does not know this run yet.
            held.kill()
            raise
        if failed is not None:
            held.close()
            raise Rejection(failed.kind, failed.reason)
        entrant = LiveEntrant(self, setting, held, time.monotonic() - began)
        self._alive.append(entrant)
        return entrant

    def _keep_warm(self) -> None:
        """Mark the parents of live entrants as used, since the least recently used one is evicted first."""
        for entrant in self._alive:
            self.pool.get(entrant.held.trial)

    def inspect_model(self, run: TrialRun) -> None:
        """Read what the model says about itself.

        Raises:
            Rejection: The factory returns different shapes, whose times cannot be compared.
        """
        if not self._is_import_known:
            # Threads do not survive a fork, so parents import only what starts none.
            self._is_import_known = True
            self._is_import_safe = all(not rank.get("num_import_threads") for rank in run.ranks)
        self.traits = self.traits or next((rank["traits"] for rank in run.ranks if "traits" in rank), {})
        shapes = {str(rank["shapes"]) for rank in run.ranks if "shapes" in rank}
        self._shapes = self._shapes or next(iter(shapes), "")
        other = next((each for each in shapes if each != self._shapes), "")
        if other:
            raise Rejection("factory", f"{SHAPES_DIFFER} ({self._shapes}, then {other}): fix its seed, or its sizes")

    def remove(self, entrant: "LiveEntrant") -> None:
        """Remove an entrant that has left."""
        with suppress(ValueError):
            self._alive.remove(entrant)

    def close(self) -> None:
        """Terminate all processes and remove the folder."""
        for entrant in list(self._alive):
            entrant.held.kill()
        self._alive.clear()
        self.pool.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _hold(self, trial: Trial) -> HeldRun:
        number = next(self._numbers)
        return HeldRun(self.pool.get(trial), self.prepare_trial(trial), self.folder / f"held-{number}")

    def prepare_trial(self, trial: Trial) -> Trial:
        """Return the trial with what makes its start cheaper, but changes no result.

        Warm parents import what the user's file imports, if that is safe. Checks share their reference.
        """
        references = str(self.folder / "references")
        return replace(trial, imports=self._imports, warms_imports=self._is_import_safe, references=references)


class LiveEntrant:
    """A paused run that takes part in a race."""

    def __init__(self, arena: LiveArena, setting: Setting, held: HeldRun, start_s: float) -> None:
        self.setting, self.start_s, self.held = setting, start_s, held
        self._arena = arena
        self._step_s = 0.0

    def sample(self) -> Sampling:
        """Take one more short measurement; raise Rejection if a rank has failed.

        A sampling with much CPU steal is repeated; the one with the least steal counts.
        """
        last = run = self._take_sample()
        for _ in range(MAX_RESAMPLES):
            if not self._arena.steal_detector.is_disturbed(_compute_run_steal(last), last.metrics["step_s"]):
                break
            last = self._take_sample()
            run = min(run, last, key=_compute_run_steal)
        self._step_s = run.metrics["step_s"]
        return Sampling(
            throughput=run.metrics["samples_per_s"],
            latency_s=run.metrics["latency_p50_s"],
            check_error=None if is_check_missing(run.ranks) else run.metrics.get("check_error", 0.0),
            memory_bytes=run.metrics.get("peak_memory_bytes", 0.0),
            compile_s=run.metrics.get("compile_s", run.metrics.get("planning_s", 0.0)),
            setup_s=sum(run.metrics.get(name, 0.0) for name in SETUP_METRICS) - run.metrics.get("shared_check_s", 0.0),
        )

    def _take_sample(self) -> TrialRun:
        limit_s = max(1.0, self._arena.deadline - time.monotonic())
        run = self.held.sample(
            SAMPLE_S, 3 if 0.0 < self._step_s < SHORT_STEP_S else 1, limit_s if math.isfinite(limit_s) else None
        )
        if run.status != "ok":
            raise Rejection(run.kind, run.reason)
        _require_joint_training(run, self.held.trial)
        self._arena.inspect_model(run)
        return run

    def leave(self) -> None:
        """Terminate the ranks."""
        self._arena.remove(self)
        self.held.close()
        shutil.rmtree(self.held.folder, ignore_errors=True)


def _compute_run_steal(run: TrialRun) -> float:
    return compute_stolen_share(run.metrics)


def _require_joint_training(run: TrialRun, trial: Trial) -> None:
    """Raise Rejection if several processes train independent models instead of one."""
    if trial.params.mode == Mode.TRAIN and trial.num_ranks > 1 and _has_independent_ranks(run.ranks):
        raise Rejection(INFEASIBLE, "processes of a custom step do not train together")


def _has_independent_ranks(ranks: Iterable[object]) -> bool:
    return any(isinstance(rank, dict) and rank.get("independent") for rank in ranks)
