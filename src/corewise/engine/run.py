"""plan -> launch -> collect -> store, interleaved over rounds, going on where an earlier run stopped."""

import errno
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from corewise.engine.collect import collect_run
from corewise.engine.estimate import run_estimate_s
from corewise.engine.heartbeat import Heartbeat
from corewise.engine.neighbours import Neighbours
from corewise.engine.plan import Plan
from corewise.engine.progress import TrialProgress, is_settled, must_repeat
from corewise.engine.provisional import earlier_runs
from corewise.engine.recording import skipped_record, trial_record
from corewise.engine.warm_parent import MAX_PARENTS, ParentFailed, ParentKey, ParentPool
from corewise.spec.record import Record
from corewise.spec.run import Run
from corewise.spec.trial import NOT_NOW, Trial, to_json, write_json_aside
from corewise.store.brief import brief, outline
from corewise.store.leases import Lease, LeaseHeld, acquire
from corewise.store.store import Store

POLL_OTHERS_S = 5.0
MAX_TOGETHER = 32  # trials interleaved with each other; the rest is left to other hosts meanwhile
MAX_PARENT_STARTS = 2  # a warm parent that dies twice under one trial fails the trial
CANARY_LIMIT = 1.25  # slower than is usual here by this much: the CPU itself was slow
MIN_CANARIES = 5  # runs before anything can be called usual


class Observer(Protocol):
    """Who watches a run; every call comes between measurements."""

    def planned(self, trials: Sequence[Trial]) -> None: ...
    def started(self, trial: Trial, run_index: int) -> None: ...
    def ran(self, trial: Trial, run: Run, seconds_left: float) -> None: ...
    def finished(self, record: Record) -> None: ...
    def waiting(self, num_trials: int) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    num_ok: int
    num_failed: int
    num_skipped: int
    num_already_done: int

    def to_json(self) -> dict[str, int]:
        """The counts as plain values."""
        return asdict(self)


class StudyRun:
    """One `corewise run`: owns the warm parents and the leases while it lasts."""

    def __init__(self, plan: Plan, store: Store, observer: Observer, *, retry_failed: bool = False) -> None:
        self.plan, self.store, self.observer = plan, store, observer
        self._planned_ids = {t.trial_id for t in plan.trials}
        self._own_failures: set[str] = set()
        records = [r for r in store.records(brief).records if r.trial_id in self._planned_ids]
        old_failures = {r.trial_id for r in records if r.status == "failed"}
        skipped = {r.trial_id for r in records if r.status == "skipped"}
        possible_now = {
            r.trial_id for r in records if r.status == "skipped" and (not r.runs or r.kind == NOT_NOW)
        }
        self._again = old_failures | skipped if retry_failed else possible_now
        self._old_end = {r.trial_id: r.finished_at for r in records if r.trial_id in self._again}
        self.counts = {"ok": 0, "failed": 0, "skipped": 0}
        self._canaries_s: dict[tuple[int, bool], list[float]] = {}
        self._rng = random.Random(plan.study.name)

    def execute(self) -> Outcome:
        """Run what is missing; every trial leaves exactly one record."""
        try:
            return self._execute()
        except BrokenPipeError:  # whoever watched has gone, as in `corewise run STUDY | head`
            raise
        except OSError as problem:  # a full disk, a lost mount: what is recorded is safe
            raise self.store.write_error(problem) from problem

    def _execute(self) -> Outcome:
        with ExitStack() as stack:
            host = acquire(self.store.leases_folder, f"host-{self.plan.host.facts.hostname}", self._who())
            stack.callback(host.release)
            beating = Heartbeat(host)
            stack.callback(beating.stop)
            self._record_skipped()
            done = self._done_ids()
            mine = {t.trial_id: t for t in self.plan.trials if t.trial_id not in done}
            before = {t.trial_id for t in self.plan.trials} - mine.keys()
            already = len(before)
            logs = self.store.path / "logs"
            for folder in (logs, self.store.path / "trials"):
                folder.mkdir(exist_ok=True)
            pool = ParentPool(self.plan.worker, logs)
            stack.callback(pool.close)
            self._clear_finished_work()
            self.observer.planned(list(mine.values()))
            self._run_rounds(mine, pool, beating)
        elsewhere = self._failed_elsewhere()
        num_failed = self.counts["failed"] + len(elsewhere)
        done_before = already - len(elsewhere & before)
        return Outcome(self.counts["ok"], num_failed, self.counts["skipped"], done_before)

    def _failed_elsewhere(self) -> set[str]:
        """Trials of the study whose record says failed and was written by an earlier run or another host."""
        return {
            r.trial_id
            for r in self.store.records(outline).records
            if r.status == "failed"
            and r.trial_id in self._planned_ids
            and r.trial_id not in self._own_failures
        }

    def _who(self) -> dict[str, str]:
        return {"study": self.plan.study.name}

    def _clear_finished_work(self) -> None:
        """Remove what a kill between a record and its cleaning left behind."""
        for trial_id in self._done_ids().intersection(self.store.work_ids()):
            shutil.rmtree(self.store.work_dir(trial_id), ignore_errors=True)

    def _done_ids(self) -> set[str]:
        return self.store.done_ids() - self._again

    def _record_skipped(self) -> None:
        done = self._done_ids()
        for point in self.plan.skipped:
            if point.trial_id not in done:
                self._append(skipped_record(self.plan, point))

    def _run_rounds(self, waiting: dict[str, Trial], pool: ParentPool, beating: Heartbeat) -> None:
        """Round after round over the trials at hand, so that drift falls on all of them alike."""
        active: dict[str, TrialProgress] = {}
        while waiting or active:
            if not active:
                active.update(self._claim(waiting, beating))
                pool.warm(each.trial for each in active.values() if not is_settled(each))
            if not active:
                self.observer.waiting(len(waiting))
                time.sleep(POLL_OTHERS_S)
                continue
            order = sorted(active)
            self._rng.shuffle(order)
            for trial_id in order:
                progress = active[trial_id]
                if self._step(progress, pool, lambda: self._seconds_left(active, waiting)):
                    del active[trial_id]
                    if progress.lease is not None:
                        beating.drop(progress.lease)
                        progress.lease.release()

    def _claim(self, waiting: dict[str, Trial], beating: Heartbeat) -> dict[str, TrialProgress]:
        """Some waiting trials that nobody else holds, with what earlier runs left of them."""
        leases: dict[str, Lease] = {}
        kinds: set[ParentKey] = set()
        for trial_id, trial in waiting.items():
            kinds.add(ParentKey.of(trial))
            if len(leases) == MAX_TOGETHER or len(kinds) > MAX_PARENTS:  # else parents start again and again
                break
            with suppress(LeaseHeld):
                leases[trial_id] = acquire(self.store.leases_folder, f"trial-{trial_id}", self._who())
        self._forget_mended(leases)
        done = self._done_ids() if leases else set()
        claimed: dict[str, TrialProgress] = {}
        for trial_id, lease in leases.items():
            trial = waiting.pop(trial_id)
            if trial_id in done:
                lease.release()
            else:
                beating.add(lease)
                claimed[trial_id] = self._resume(trial, lease)
        return claimed

    def _forget_mended(self, held: Iterable[str]) -> None:
        """What another host has retried since this run began is not to be tried again."""
        again = self._again.intersection(held)
        if again:
            ended = {
                r.trial_id: r.finished_at for r in self.store.records(outline).records if r.trial_id in again
            }
            self._again -= {each for each in again if ended.get(each) != self._old_end[each]}

    def _resume(self, trial: Trial, lease: Lease) -> TrialProgress:
        folder = self.store.work_dir(trial.trial_id)
        if trial.trial_id in self._again:
            shutil.rmtree(folder, ignore_errors=True)  # of the run that failed
        folder.mkdir(parents=True, exist_ok=True)
        write_json_aside(self.store.trial_file(trial.trial_id), to_json(trial))
        return replace(earlier_runs(folder, trial), lease=lease)

    def _step(self, progress: TrialProgress, pool: ParentPool, seconds_left: Callable[[], float]) -> bool:
        """One more run of the trial; True when the trial has its record."""
        trial = progress.trial
        self._run_if_needed(progress, pool, seconds_left)
        if not is_settled(progress):
            return False
        trials = str(self.store.trial_file(trial.trial_id).parent)
        self._append(trial_record(self.plan, progress, trials))
        shutil.rmtree(self.store.work_dir(trial.trial_id), ignore_errors=True)
        return True

    def _run_if_needed(
        self, progress: TrialProgress, pool: ParentPool, seconds_left: Callable[[], float]
    ) -> None:
        trial = progress.trial
        if not is_settled(progress):
            index = len(progress.runs) + len(progress.disturbed)
            self.observer.started(trial, index)
            began = time.monotonic()
            run = self._run_once(trial, index, pool)
            progress.run_s.append(time.monotonic() - began)
            self._keep(progress, run, index)
            self.observer.ran(trial, run, seconds_left())

    def _run_once(self, trial: Trial, index: int, pool: ParentPool) -> Run:
        folder = self.store.work_dir(trial.trial_id)
        out_dir = folder / f"run-{index:03d}.part"
        for attempt in range(MAX_PARENT_STARTS):
            shutil.rmtree(out_dir, ignore_errors=True)
            out_dir.mkdir(parents=True)
            try:
                trial_file = self.store.trial_file(trial.trial_id)
                parent = pool.get(trial)
                with Neighbours(self._idle_cpus(trial)) as beside:
                    results = parent.run(trial, trial_file, out_dir, lambda _phase: None)
                run = collect_run(trial, results)
                if run.kind == "disk":
                    raise OSError(errno.ENOSPC, run.reason)
                run = replace(run, disturbances=(*run.disturbances, *beside.told))
                return self._with_canary(trial, run)
            except ParentFailed as problem:
                pool.drop(trial)
                if problem.kind != "crash" or attempt + 1 == MAX_PARENT_STARTS:
                    return Run(status="failed", kind=problem.kind, reason=str(problem))
        raise AssertionError("unreachable")

    def _idle_cpus(self, trial: Trial) -> set[int]:
        """CPUs that are ours and that nobody should use now; reserved cores are the system's."""
        if trial.params["bind"] == "none" or int(trial.params["reserved_cores"]) > 0:
            return set()
        used = {cpu for rank in trial.ranks for cpu in rank.cpus}
        return set(self.plan.host.allocation.cpus) - used

    def _with_canary(self, trial: Trial, run: Run) -> Run:
        """The run, marked when the CPU itself was slower than usual."""
        canary_s = run.metrics.get("canary_s")
        if canary_s is None:
            return run
        shape = (sum(len(rank.cpus) for rank in trial.ranks), bool(trial.params["smt"]))
        usual_s = self._canaries_s.setdefault(shape, [])  # the more cores are at work, the lower their clock
        usual_s.append(canary_s)
        ratio = canary_s / statistics.median(usual_s)
        if len(usual_s) < MIN_CANARIES or ratio <= CANARY_LIMIT:
            return run
        told = f"a fixed loop took {ratio:.2f} times as long as is usual here: the CPU was slow"
        return replace(run, disturbances=(*run.disturbances, told))

    def _keep(self, progress: TrialProgress, run: Run, index: int) -> None:
        """Set the run aside on disk; a disturbed one is repeated while that may help."""
        folder = self.store.work_dir(progress.trial.trial_id)
        repeat = must_repeat(progress, run)
        suffix = "-disturbed" if repeat else ""
        write_json_aside(folder / f"run-{index:03d}{suffix}.json", run.to_json())
        shutil.rmtree(folder / f"run-{index:03d}.part", ignore_errors=True)
        (progress.disturbed if repeat else progress.runs).append(run)

    def _append(self, record: Record) -> None:
        self.store.append(record)
        self.counts[record.status] += 1
        if record.status == "failed":
            self._own_failures.add(record.trial_id)
        self.observer.finished(record)

    def _seconds_left(self, active: dict[str, TrialProgress], waiting: dict[str, Trial]) -> float:
        """Seconds the rest is likely to take, from the runs so far."""
        total = sum(run_estimate_s(trial) * trial.protocol.min_runs for trial in waiting.values())
        for progress in active.values():
            missing = max(0, progress.trial.protocol.min_runs - len(progress.runs))
            one_s = statistics.fmean(progress.run_s) if progress.run_s else run_estimate_s(progress.trial)
            total += missing * one_s
        return total
