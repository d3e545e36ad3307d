"""Runs a study: plan -> launch -> collect -> store, interleaved over rounds. Resumes an earlier run."""

import errno
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from corewise.errors import UserError
from corewise.machine.foreign_load import measure_foreign_load
from corewise.measured.parameters import Binding
from corewise.measured.probes.counter_names import CACHEGRIND
from corewise.measured.trial import NOT_NOW, RankResult, Trial, to_json, write_json_atomically
from corewise.run.cachegrind_count import COUNT_LIMIT_S, CachegrindCount, build_count_request, count_with_cachegrind
from corewise.run.duration_estimate import estimate_plan_s, estimate_run_s
from corewise.run.lease_heartbeat import Heartbeat
from corewise.run.neighbour_load import NeighbourWatch
from corewise.run.plan import Plan, SkippedTrial
from corewise.run.provisional_records import read_earlier_runs
from corewise.run.record_builder import build_skipped_record, build_trial_record
from corewise.run.run_collector import collect_run
from corewise.run.trial_progress import RepeatBudget, TrialProgress, is_settled, must_repeat
from corewise.run.warm_parent import MAX_PARENTS, ParentFailure, ParentKey, ParentPool
from corewise.store.brief_records import extract_brief, extract_outline
from corewise.store.leases import (
    TRIAL_LEASE,
    Lease,
    LeaseHeld,
    LeaseLost,
    acquire_lease,
    acquire_when_free,
    remove_stale_leases,
)
from corewise.store.store import Store
from corewise.study.record import Record
from corewise.study.trial_run import TrialRun

POLL_OTHERS_S = 5.0
POLL_SKIPS_S = 0.2
# The lease under which infeasible points are recorded.
SKIP_LEASE = "skips"
# This many trials are interleaved; other hosts can claim the rest meanwhile.
MAX_INTERLEAVED = 32
# At the deadline, a trial with fewer runs has no interval.
MIN_RUNS_AT_DEADLINE = 2
# A run that has begun may exceed the deadline by this share of its time limit.
DEADLINE_GRACE = 0.1
# A trial whose warm parent dies twice fails.
MAX_PARENT_STARTS = 2
# A canary slower than the median by this factor means that the CPU itself was slow.
CANARY_LIMIT = 1.25
# The median needs at least this many canaries.
MIN_CANARIES = 5


class RunPool(Protocol):
    """Warm parents on this machine (`ParentPool`), or the agents of several nodes (`NodeGroup`)."""

    def warm(self, trials: Iterable[Trial]) -> None: ...
    def get(self, trial: Trial) -> "TrialParent": ...
    def drop(self, trial: Trial) -> None: ...


class TrialParent(Protocol):
    """What runs a trial once, and returns one result per rank."""

    def run(self, trial: Trial, out_dir: Path, on_phase: Callable[[str], None]) -> list[RankResult]: ...


class RunObserver(Protocol):
    """Follows a run; all methods are called between measurements."""

    def report_plan(self, trials: Sequence[Trial]) -> None: ...
    def report_run_start(self, trial: Trial, run_index: int) -> None: ...
    def report_run_end(self, trial: Trial, run: TrialRun, seconds_left: float) -> None: ...
    def report_record(self, record: Record) -> None: ...
    def report_waiting(self, num_trials: int) -> None: ...
    def report_counting(self, trial: Trial) -> None: ...


@dataclass(frozen=True)
class StudyOutcome:
    """How many trials of a run succeeded, failed, were skipped or were already done."""

    num_ok: int
    num_failed: int
    num_skipped: int
    num_already_done: int

    def to_json(self) -> dict[str, int]:
        """Convert the counts to JSON values."""
        return asdict(self)


class StudyRun:
    """One `corewise run`, which owns its warm parents and leases."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        observer: RunObserver,
        *,
        retry_failed: bool = False,
        pool: RunPool | None = None,
        deadline: float | None = None,
        stop_at: float | None = None,
        prepare_trial: Callable[[Trial], Trial] = lambda trial: trial,
    ) -> None:
        """Prepare a run.

        Args:
            pool: Warm parents to use, which the caller closes.
            deadline: On the monotonic clock. No run starts that would probably end later. A trial with fewer
                runs than MIN_RUNS_AT_DEADLINE then leaves no record, and a later call resumes it.
            stop_at: On the monotonic clock. No run starts that would probably end later, and the caller interrupts
                one that lasts longer. Trials that need more runs leave no record, and a later call resumes them.
            prepare_trial: Adds to a trial what makes its runs start faster; files of trials do not contain it.
        """
        self.plan, self.store, self.observer = plan, store, observer
        self._pool, self._deadline, self._prepare_trial = pool, deadline, prepare_trial
        self._stop_at, self._num_own_runs = stop_at, 0
        self._planned_ids = {t.trial_id for t in plan.trials}
        self._own_failures: set[str] = set()
        recorded_ids = store.read_done_ids()
        result = store.read_records(extract_brief)
        self.damage = result.damage
        records = [r for r in result.records if r.trial_id in self._planned_ids]
        old_failures = {r.trial_id for r in records if r.status == "failed"}
        skipped = {r.trial_id for r in records if r.status == "skipped"}
        possible_now = {r.trial_id for r in records if r.status == "skipped" and (not r.runs or r.kind == NOT_NOW)}
        # A trial whose record holds values that cannot be used is measured again.
        unusable = recorded_ids - {r.trial_id for r in result.records}
        self._retry_ids = unusable | (old_failures | skipped if retry_failed else possible_now)
        self._old_finish_times = {r.trial_id: r.finished_at for r in records if r.trial_id in self._retry_ids}
        self.counts = {"ok": 0, "failed": 0, "skipped": 0}
        self._canaries_s: dict[tuple[int, bool], list[float]] = {}
        self._rng = random.Random(plan.study.name)
        # Repeats at most double the estimated duration of the study.
        self._repeats = RepeatBudget(estimate_plan_s(plan))

    def execute(self) -> StudyOutcome:
        """Run the missing trials; every trial leaves exactly one record."""
        try:
            return self._execute()
        except BrokenPipeError:
            # The reader has closed its pipe, as in `corewise run STUDY | head`.
            raise
        except OSError as problem:
            # The disk is full or a mount is lost. Existing records are safe.
            raise self.store.explain_write_error(problem) from problem

    def _execute(self) -> StudyOutcome:
        with ExitStack() as stack:
            host = acquire_when_free(
                self.store.leases_folder,
                f"host-{self.plan.host.facts.hostname}",
                self._build_lease_owner(),
                lambda: self.observer.report_waiting(len(self.plan.trials)),
            )
            stack.callback(host.release)
            beating = Heartbeat(host)
            stack.callback(beating.stop)
            self._record_skipped(beating)
            done = self._read_done_ids()
            mine = {t.trial_id: t for t in self.plan.trials if t.trial_id not in done}
            before = {t.trial_id for t in self.plan.trials} - mine.keys()
            already = len(before)
            logs = self.store.path / "logs"
            for folder in (logs, self.store.path / "trials"):
                folder.mkdir(exist_ok=True)
            pool = self._pool
            if pool is None:
                own_pool = pool = ParentPool(self.plan.worker, logs)
                stack.callback(own_pool.close)
            self._clear_finished_work()
            self.observer.report_plan(list(mine.values()))
            self._run_rounds(mine, pool, beating, host)
        elsewhere = self._find_failed_elsewhere()
        num_failed = self.counts["failed"] + len(elsewhere)
        done_before = already - len(elsewhere & before)
        return StudyOutcome(self.counts["ok"], num_failed, self.counts["skipped"], done_before)

    def _find_failed_elsewhere(self) -> set[str]:
        """Find trials of the study that failed in an earlier run or on another host."""
        return {
            r.trial_id
            for r in self.store.read_records(extract_outline).records
            if r.status == "failed" and r.trial_id in self._planned_ids and r.trial_id not in self._own_failures
        }

    def _build_lease_owner(self) -> dict[str, str]:
        return {"study": self.plan.study.name}

    def _clear_finished_work(self) -> None:
        """Remove work folders and leases that an interrupted run left behind after writing the record."""
        done = self._read_done_ids()
        for trial_id in done.intersection(self.store.list_work_ids()):
            shutil.rmtree(self.store.get_work_dir(trial_id), ignore_errors=True)
        remove_stale_leases(self.store.leases_folder, lambda name: name.removeprefix(TRIAL_LEASE) in done)

    def _read_done_ids(self) -> set[str]:
        return self.store.read_done_ids() - self._retry_ids

    def _record_skipped(self, beating: Heartbeat) -> None:
        """Record the infeasible points that have no record; a lease keeps other hosts from doing so too."""
        while self._list_unrecorded_skips():
            try:
                lease = acquire_lease(self.store.leases_folder, SKIP_LEASE, self._build_lease_owner())
            except LeaseHeld:
                time.sleep(POLL_SKIPS_S)
                continue
            beating.add(lease)
            self.store.refresh()
            for point in self._list_unrecorded_skips():
                self._append(build_skipped_record(self.plan, point))
            beating.drop(lease)
            lease.release()

    def _list_unrecorded_skips(self) -> list[SkippedTrial]:
        done = self._read_done_ids() if self.plan.skipped else set()
        return [point for point in self.plan.skipped if point.trial_id not in done]

    def _run_rounds(self, waiting: dict[str, Trial], pool: RunPool, beating: Heartbeat, host: Lease) -> None:
        """Run the claimed trials in rounds, so drift affects all of them equally."""
        active: dict[str, TrialProgress] = {}
        while waiting or active:
            if not host.is_held():
                raise UserError(
                    "another process took over this host while this one was paused: all records are safe; "
                    "wait until that process ends, then run the same command again to resume"
                )
            if not active:
                if self._stop_at is not None and time.monotonic() > self._stop_at:
                    return
                active.update(self._claim(waiting, beating))
                pool.warm(each.trial for each in active.values() if not is_settled(each))
            if not active:
                if waiting:
                    self.observer.report_waiting(len(waiting))
                    time.sleep(POLL_OTHERS_S)
                continue
            order = sorted(active)
            self._rng.shuffle(order)
            for trial_id in order:
                progress = active[trial_id]
                try:
                    if not self._run_next(progress, pool, lambda: self._estimate_remaining_s(active, waiting)):
                        continue
                except (LeaseLost, OSError):
                    # This process was paused for long, and the new holder may have removed the trial's folder.
                    if not _has_lost_lease(progress):
                        raise
                    # The trial waits until its new holder has recorded it.
                    waiting[trial_id] = progress.trial
                del active[trial_id]
                if progress.lease is not None:
                    beating.drop(progress.lease)
                    progress.lease.release()

    def _claim(self, waiting: dict[str, Trial], beating: Heartbeat) -> dict[str, TrialProgress]:
        """Claim waiting trials that no other host holds, and read their progress."""
        leases: dict[str, Lease] = {}
        parent_keys: set[ParentKey] = set()
        for trial_id, trial in waiting.items():
            parent_keys.add(ParentKey.from_trial(trial))
            # More keys than parents in the pool would restart parents in every round.
            if len(leases) == MAX_INTERLEAVED or len(parent_keys) > MAX_PARENTS:
                break
            with suppress(LeaseHeld):
                leases[trial_id] = acquire_lease(
                    self.store.leases_folder, f"{TRIAL_LEASE}{trial_id}", self._build_lease_owner()
                )
                beating.add(leases[trial_id])
        if leases:
            self.store.refresh()
        self._drop_retried(leases)
        done = self._read_done_ids() if leases else set()
        claimed: dict[str, TrialProgress] = {}
        for trial_id, lease in leases.items():
            trial = waiting.pop(trial_id)
            if trial_id in done:
                beating.drop(lease)
                lease.release()
            else:
                claimed[trial_id] = self._resume(trial, lease)
        return claimed

    def _drop_retried(self, held: Iterable[str]) -> None:
        """Drop trials that another host has retried since this run began."""
        again = self._retry_ids.intersection(held)
        if again:
            ended = {
                r.trial_id: r.finished_at
                for r in self.store.read_records(extract_outline).records
                if r.trial_id in again
            }
            self._retry_ids -= {each for each in again if ended.get(each) != self._old_finish_times.get(each)}

    def _resume(self, trial: Trial, lease: Lease) -> TrialProgress:
        folder = self.store.get_work_dir(trial.trial_id)
        if trial.trial_id in self._old_finish_times:
            # Remove what the failed run left behind.
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        trial_file = self.store.get_trial_file(trial.trial_id)
        # A run that was killed while it wrote the trial file leaves a temporary one.
        for path in trial_file.parent.glob(f".{trial_file.name}.*.part"):
            path.unlink(missing_ok=True)
        write_json_atomically(trial_file, to_json(trial))
        return replace(read_earlier_runs(folder, trial), lease=lease)

    def _run_next(self, progress: TrialProgress, pool: RunPool, seconds_left: Callable[[], float]) -> bool:
        """Run the trial once more if needed; True when its record is written.

        Raises:
            LeaseLost: if another process took over the trial; a complete result is recorded as late.
        """
        trial = progress.trial
        if self._must_stop_before(progress) and not is_settled(progress):
            return True
        is_late = self._is_late(progress)
        if not is_late:
            self._run_if_needed(progress, pool, seconds_left)
            if not is_settled(progress):
                return False
        elif len(progress.runs) < MIN_RUNS_AT_DEADLINE and not is_settled(progress):
            return True
        trials = str(self.store.get_trial_file(trial.trial_id).parent)
        record = build_trial_record(self.plan, progress, trials, self._count_instructions(progress))
        if _has_lost_lease(progress):
            self.store.append(replace(record, replaced_leases=(*record.replaced_leases, record.lease)))
            raise LeaseLost(f"trial {trial.trial_id} was taken over by another process")
        self._append(record)
        shutil.rmtree(self.store.get_work_dir(trial.trial_id), ignore_errors=True)
        return True

    def _run_if_needed(self, progress: TrialProgress, pool: RunPool, seconds_left: Callable[[], float]) -> None:
        trial = progress.trial
        if not is_settled(progress):
            index = progress.next_index
            _require_lease(progress)
            self.observer.report_run_start(trial, index)
            began = time.monotonic()
            run = self._run_once(trial, index, pool, progress.lease)
            _require_lease(progress)
            progress.run_s.append(time.monotonic() - began)
            self._num_own_runs += 1
            self._save_run(progress, run, index)
            self.observer.report_run_end(trial, run, seconds_left())

    def _count_instructions(self, progress: TrialProgress) -> CachegrindCount | None:
        """Count a successful trial with cachegrind, if the study asks for it."""
        trial, runs = progress.trial, progress.runs
        if trial.protocol.counters != CACHEGRIND or any(run.status != "ok" for run in runs):
            return None
        ends = [end for end in (self._deadline, self._stop_at) if end is not None]
        limit_s = min([COUNT_LIMIT_S, *(end - time.monotonic() for end in ends)])
        self.observer.report_counting(trial)
        return count_with_cachegrind(build_count_request(self.plan, trial, runs, max(0.0, limit_s)))

    def _is_late(self, progress: TrialProgress) -> bool:
        """Return whether another run of the trial would probably end after the deadline."""
        expected_s = statistics.fmean(progress.run_s) if progress.run_s else 0.0
        return self._deadline is not None and time.monotonic() + expected_s > self._deadline

    def _must_stop_before(self, progress: TrialProgress) -> bool:
        """Return whether another run of the trial would probably end after the time to stop."""
        if self._stop_at is None:
            return False
        expected_s = statistics.fmean(progress.run_s) if progress.run_s else estimate_run_s(progress.trial)
        # Estimates before the first run are rough. The first run starts in any case, so that every job advances.
        return time.monotonic() + (expected_s if self._num_own_runs else 0.0) > self._stop_at

    def _limit_time(self, trial: Trial) -> Trial:
        """Return the trial with a time limit that ends soon after the deadline."""
        if self._deadline is None:
            return trial
        left_s = max(1.0, self._deadline - time.monotonic() + DEADLINE_GRACE * trial.protocol.timeout_s)
        protocol = replace(trial.protocol, timeout_s=min(trial.protocol.timeout_s, left_s))
        return replace(trial, protocol=protocol)

    def _run_once(self, trial: Trial, index: int, pool: RunPool, lease: Lease | None) -> TrialRun:
        out_dir = self._build_run_folder(trial, index, lease)
        for attempt in range(MAX_PARENT_STARTS):
            shutil.rmtree(out_dir, ignore_errors=True)
            out_dir.mkdir(parents=True)
            try:
                parent = pool.get(trial)
                with NeighbourWatch(self._find_idle_cpus(trial)) as watch:
                    results = parent.run(self._prepare_trial(self._limit_time(trial)), out_dir, lambda _phase: None)
                run = collect_run(trial, results)
                if run.kind == "disk":
                    raise OSError(errno.ENOSPC, run.reason)
                if run.kind == "timeout":
                    run = replace(run, reason=f"{run.reason}{self._explain_slow_run()}")
                run = replace(run, disturbances=(*run.disturbances, *watch.disturbances))
                return self._mark_slow_cpu(trial, run)
            except ParentFailure as problem:
                pool.drop(trial)
                if problem.category != "crash" or attempt + 1 == MAX_PARENT_STARTS:
                    return TrialRun(status="failed", kind=problem.category, reason=str(problem))
        raise AssertionError("unreachable")

    def _explain_slow_run(self) -> str:
        """Name the load of others that may have caused a timeout, and the remedy; empty without such load."""
        load = measure_foreign_load(self.plan.host.allocation.cpus)
        return f"; {load.describe()}: wait until they end, or add --set wait_policy=passive" if load.is_busy else ""

    def _build_run_folder(self, trial: Trial, index: int, lease: Lease | None) -> Path:
        """Return the folder of a run in flight; its name differs from that of a paused process."""
        token = f"-{lease.token}" if lease else ""
        return self.store.get_work_dir(trial.trial_id) / f"run-{index:03d}{token}.part"

    def _find_idle_cpus(self, trial: Trial) -> set[int]:
        """Find the CPUs of the allocation that should be idle; reserved cores are left to the system."""
        if trial.params.bind == Binding.NONE or trial.params.reserved_cores > 0 or self.plan.num_nodes > 1:
            return set()
        used = {cpu for rank in trial.ranks for cpu in rank.cpus}
        return set(self.plan.host.allocation.cpus) - used

    def _mark_slow_cpu(self, trial: Trial, run: TrialRun) -> TrialRun:
        """Mark the run as disturbed when its canary shows that the CPU was slower than usual."""
        canary_s = run.metrics.get("canary_s")
        if canary_s is None:
            return run
        shape = (sum(len(rank.cpus) for rank in trial.ranks), trial.params.smt)
        # The clock depends on the number of active cores, so each shape has its own median.
        usual_s = self._canaries_s.setdefault(shape, [])
        usual_s.append(canary_s)
        ratio = canary_s / statistics.median(usual_s)
        if len(usual_s) < MIN_CANARIES or ratio <= CANARY_LIMIT:
            return run
        note = f"a fixed loop took {ratio:.2f} times its usual time: the CPU was slow"
        return replace(run, disturbances=(*run.disturbances, note))

    def _save_run(self, progress: TrialProgress, run: TrialRun, index: int) -> None:
        """Write the run to disk; a disturbed one is repeated while the repeat budget lasts."""
        folder = self.store.get_work_dir(progress.trial.trial_id)
        repeat = must_repeat(progress, run)
        if repeat and not self._repeats.reserve_repeat(progress.run_s[-1]):
            repeat = False
            progress.num_unrepeated += 1
        suffix = "-disturbed" if repeat else ""
        write_json_atomically(folder / f"run-{index:03d}{suffix}.json", run.to_json())
        shutil.rmtree(self._build_run_folder(progress.trial, index, progress.lease), ignore_errors=True)
        (progress.disturbed if repeat else progress.runs).append(run)
        progress.next_index = index + 1

    def _append(self, record: Record) -> None:
        self.store.append(record)
        self.counts[record.status] += 1
        if record.status == "failed":
            self._own_failures.add(record.trial_id)
        self.observer.report_record(record)

    def _estimate_remaining_s(self, active: dict[str, TrialProgress], waiting: dict[str, Trial]) -> float:
        """Estimate how many seconds the remaining runs take, from the runs so far."""
        total = sum(estimate_run_s(trial) * trial.protocol.min_runs for trial in waiting.values())
        for progress in active.values():
            missing = max(0, progress.trial.protocol.min_runs - len(progress.runs))
            one_s = statistics.fmean(progress.run_s) if progress.run_s else estimate_run_s(progress.trial)
            total += missing * one_s
        return total


def _has_lost_lease(progress: TrialProgress) -> bool:
    return progress.lease is not None and not progress.lease.is_held()


def _require_lease(progress: TrialProgress) -> None:
    """Raise LeaseLost if another process took over the trial."""
    if _has_lost_lease(progress):
        raise LeaseLost(f"trial {progress.trial.trial_id} was taken over by another process")
