"""The arena of this machine: entrants are held runs, started by warm parents."""

import itertools
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from corewise.engine.held_run import HeldRun
from corewise.engine.machine_view import planning_view
from corewise.engine.warm_parent import ParentFailed, ParentKey, ParentPool
from corewise.spec.run import Run
from corewise.spec.trial import Protocol, Trial, to_json, write_json_aside
from corewise.tuner.arena import Rejected, Sampling
from corewise.tuner.confirm import OTHER_SHAPES, lacks_check
from corewise.tuner.question import Tunable
from corewise.tuner.space import Setting
from corewise.tuner.steal import Disturbances, stolen_share

SAMPLE_S = 0.4
SHORT_STEP_S = 0.2  # from here on one sampling is a few steps, whatever they take
WARM_UP_S = 1.0
MAX_SAMPLED_AGAIN = 2
MAX_SIDE_BY_SIDE = 8  # warm parents started at a time; fewer than are kept


def racing_protocol(limit_s: float) -> Protocol:
    """How an entrant is warmed up: briefly, for it is only compared with another warmed up alike."""
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
    """Starts entrants in a folder of its own; `close` leaves nothing behind."""

    def __init__(self, tunable: Tunable, folder: Path) -> None:
        self.tunable, self.folder = tunable, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._pool = ParentPool(tunable.planner.worker, folder)
        num_cores = planning_view(tunable.planner.host, tunable.planner.libraries).num_cores
        self._num_side_by_side = min(MAX_SIDE_BY_SIDE, max(1, num_cores // 2))
        self._numbers = itertools.count()
        self._alive: list[LiveEntrant] = []
        self._shapes = ""  # of what a factory returned first
        self.disturbances = Disturbances()

    def now(self) -> float:
        return time.monotonic()

    def expect(self, settings: Iterable[Setting]) -> None:
        """Start the warm parents these settings need side by side, as soon as the first of them has none."""
        trials: list[Trial] = []
        for setting in settings:
            trials += self.tunable.plan(setting, racing_protocol(0.0)).trials
            if trials and self._pool.has(trials[0]):
                return
            if len({ParentKey.of(trial) for trial in trials}) >= self._num_side_by_side:
                break
        self._keep_warm()
        self._pool.warm(trials)

    def enter(self, setting: Setting, limit_s: float) -> "LiveEntrant":
        """The setting's ranks, checked and warm; raises Rejected with the reason."""
        plan = self.tunable.plan(setting, racing_protocol(limit_s))
        if plan.skipped:
            raise Rejected("infeasible", plan.skipped[0].reason)
        [trial] = plan.trials
        began = time.monotonic()
        try:
            self._keep_warm()
            held = self._hold(trial)
        except ParentFailed as problem:
            raise Rejected(problem.kind, str(problem)) from problem
        failed = held.wait_until_ready()
        if failed is not None:
            held.close()
            raise Rejected(failed.kind, failed.reason)
        entrant = LiveEntrant(self, setting, held, time.monotonic() - began)
        self._alive.append(entrant)
        return entrant

    def _keep_warm(self) -> None:
        """The least recently used parent ends first: not that of one who is alive."""
        for entrant in self._alive:
            self._pool.get(entrant.held.trial)

    def require_same_shapes(self, run: Run) -> None:
        """A factory that returns something else at every start has nothing that could be compared."""
        told = {str(rank["shapes"]) for rank in run.ranks if "shapes" in rank}
        self._shapes = self._shapes or next(iter(told), "")
        other = next((each for each in told if each != self._shapes), "")
        if other:
            raise Rejected(
                "factory", f"{OTHER_SHAPES} ({self._shapes}, then {other}): fix its seed, or its sizes"
            )

    def forget(self, entrant: "LiveEntrant") -> None:
        """The entrant has left."""
        with suppress(ValueError):
            self._alive.remove(entrant)

    def close(self) -> None:
        """End every process."""
        for entrant in list(self._alive):
            entrant.held.kill()
        self._alive.clear()
        self._pool.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _hold(self, trial: Trial) -> HeldRun:
        number = next(self._numbers)
        file = self.folder / f"trial-{number}.json"
        write_json_aside(file, to_json(trial))
        return HeldRun(self._pool.get(trial), trial, file, self.folder / f"held-{number}")


class LiveEntrant:
    """A held run in the race."""

    def __init__(self, arena: LiveArena, setting: Setting, held: HeldRun, start_s: float) -> None:
        self.setting, self.start_s, self.held = setting, start_s, held
        self._arena = arena
        self._step_s = 0.0

    def sample(self) -> Sampling:
        """One more short measurement; raises Rejected when a rank has failed.

        What the hypervisor has disturbed is sampled again, so many times; the least disturbed one counts.
        """
        last = run = self._sampled()
        for _ in range(MAX_SAMPLED_AGAIN):
            if not self._arena.disturbances.is_one(_stolen(last), last.metrics["step_s"]):
                break
            last = self._sampled()
            run = min(run, last, key=_stolen)
        self._step_s = run.metrics["step_s"]
        return Sampling(
            throughput=run.metrics["samples_per_s"],
            latency_s=run.metrics["latency_p50_s"],
            check_error=None if lacks_check(run.ranks) else run.metrics.get("check_error", 0.0),
            memory_bytes=run.metrics.get("peak_memory_bytes", 0.0),
            compile_s=run.metrics.get("compile_s", run.metrics.get("planning_s", 0.0)),
        )

    def _sampled(self) -> Run:
        run = self.held.sample(SAMPLE_S, 3 if 0.0 < self._step_s < SHORT_STEP_S else 1)
        if run.status != "ok":
            raise Rejected(run.kind, run.reason)
        _require_together(run, self.held.trial)
        self._arena.require_same_shapes(run)
        return run

    def leave(self) -> None:
        """End the ranks."""
        self._arena.forget(self)
        self.held.close()
        shutil.rmtree(self.held.folder, ignore_errors=True)


def _stolen(run: Run) -> float:
    return stolen_share(run.metrics)


def _require_together(run: Run, trial: Trial) -> None:
    """Several processes of a step that trains are several trainings, not one."""
    if trial.params["mode"] == "train" and trial.num_ranks > 1 and _independent(run.ranks):
        raise Rejected("infeasible", "processes of a custom step do not train together")


def _independent(ranks: Iterable[object]) -> bool:
    return any(isinstance(rank, dict) and rank.get("independent") for rank in ranks)
