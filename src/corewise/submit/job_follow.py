"""Follows the jobs of a store: progress from its records, and rare questions to the scheduler for all jobs at once."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from corewise.store.store import Store
from corewise.submit.batch_script import NOT_FOUND, NOT_SHARED
from corewise.submit.job_log import Job, JobLog, write_json_file
from corewise.submit.job_report import ENDED, JobReport, read_report
from corewise.submit.slurm_commands import JobState, SlurmUnreachable, query_ended_jobs, query_jobs

# The last answer of the scheduler, which all processes that follow the store share.
ANSWER_FILE = "scheduler.json"
# A running job has written its report after this time, unless it does not see the store.
REPORT_EXPECTED_S = 180.0
# A job that ends regularly is asked for at once, but its end in the store comes first.
LOG_TAIL_LINES = 15
_MAX_LOG_BYTES = 2**16
# Outcomes that a job writes itself.
DONE, OUT_OF_TIME = "done", "time"
# The beginning of the reason of a job that returned to the queue.
REQUEUED = "requeued"
# States after which a follow-up job resumes, if the job made progress.
_RESUMED_STATES = frozenset({"TIMEOUT", "DEADLINE", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED", "UNKNOWN"})


@dataclass(frozen=True)
class JobProgress:
    """A job with its report and the records of its trials.

    Attributes:
        num_trials: None until the job has written its plan.
    """

    job: Job
    report: JobReport | None = None
    num_trials: int | None = None
    num_done: int = 0

    @property
    def is_complete(self) -> bool:
        return self.num_trials is not None and self.num_done >= self.num_trials

    @property
    def shown_job(self) -> Job:
        """The job as it is shown: the store says that it runs before the scheduler is asked again."""
        is_waiting = self.job.state == "PENDING" and not self.job.reason.startswith(REQUEUED)
        return replace(self.job, state="RUNNING", reason="") if self.report is not None and is_waiting else self.job

    @property
    def has_advanced(self) -> bool:
        return self.num_done > 0 or (self.report is not None and self.report.num_runs > 0)


@dataclass
class JobFollower:
    """Follows the jobs of one store.

    Attributes:
        query_every_s: Seconds between two questions to the scheduler.
        messages: What happened since the last call of `take_messages`.
    """

    store: Store
    log: JobLog
    query_every_s: float
    messages: list[str] = field(default_factory=list)
    num_queries: int = 0
    _is_unreachable: bool = False
    _forgotten: set[str] = field(default_factory=set)
    _warned: set[str] = field(default_factory=set)
    _queried_at_s: float | None = None
    _started_at_s: float = field(default_factory=time.time)
    _seen_open: set[str] = field(default_factory=set)

    def has_ended_before(self, job: Job) -> bool:
        """Return whether an ended job was never seen open since this process follows the store."""
        return job.job_id not in self._seen_open

    def read_progress(self, jobs: list[Job]) -> list[JobProgress]:
        """Read the progress of jobs; asks the scheduler only if the last answer is old enough."""
        self.store.refresh()
        done = self.store.read_done_ids()
        current = {job.job_id: job for job in self.log.read_jobs()}
        read = [self._read_one(current.get(job.job_id, job), done) for job in jobs]
        open_jobs = [each.job for each in read if each.job.is_open]
        states = self._ask_scheduler([job.job_id for job in open_jobs]) if open_jobs else {}
        return [self._apply_state(each, states.get(each.job.job_id)) for each in read]

    def take_messages(self) -> list[str]:
        """Return what happened since the last call."""
        taken, self.messages = self.messages, []
        return taken

    def _read_one(self, job: Job, done: set[str]) -> JobProgress:
        report = read_report(self.store.path, job.name)
        if report is None or (not report.trial_ids and report.phase != ENDED):
            return JobProgress(job, report)
        num_trials: int | None = len(report.trial_ids)
        num_done = sum(each in done for each in report.trial_ids)
        if report.phase == ENDED and job.is_open:
            state = "COMPLETED" if report.outcome in (DONE, OUT_OF_TIME) else "FAILED"
            reason = {DONE: "", OUT_OF_TIME: "stopped before its time limit"}.get(report.outcome, report.outcome)
            job = self.log.record_state(job, state, reason, has_ended=True)
            # A job that failed before it had a plan has not done all of its zero trials.
            num_trials = num_trials if report.outcome in (DONE, OUT_OF_TIME) else num_trials or None
            self._seen_open.add(job.job_id)
        return JobProgress(job, report, num_trials, num_done)

    def _apply_state(self, progress: JobProgress, state: JobState | None) -> JobProgress:
        """Record a new state of an open job."""
        job, report = progress.job, progress.report
        if state is None or not job.is_open:
            return progress
        if state.has_ended:
            reason = self._explain_end(job, report, state)
            job = self.log.record_state(job, state.state, reason, has_ended=True)
            self.messages.append(job.describe())
            return replace(progress, job=job)
        is_requeued = job.state == "RUNNING" and state.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD")
        if state.state != job.state or (state.reason and state.reason != job.reason):
            reason = f"{REQUEUED}: {state.reason}" if is_requeued else state.reason
            if is_requeued:
                self.messages.append(f"job {job.job_id} returned to the queue ({state.reason or 'no reason given'})")
            job = self.log.record_state(job, state.state, reason, has_ended=False)
        self._warn_unseen(job, report, state)
        return replace(progress, job=job)

    def _warn_unseen(self, job: Job, report: JobReport | None, state: JobState) -> None:
        """Say once that a job runs for long and the store shows nothing of it."""
        key = f"{job.job_id}-running"
        if state.state != "RUNNING" or report is not None:
            return
        if key not in self._warned:
            self._warned.add(key)
        elif f"{key}-warned" not in self._warned:
            self._warned.add(f"{key}-warned")
            self.messages.append(
                f"job {job.job_id} runs on {state.hosts}, but the store {self.store.path} shows nothing of it: "
                f"is the folder shared with that node? Its log: {self._get_log_path(job)}"
            )

    def _explain_end(self, job: Job, report: JobReport | None, state: JobState) -> str:
        if report is not None:
            return state.reason
        tail = read_log_tail(self._get_log_path(job))
        if f"does not see the store {self.store.path}" in tail or (not tail and state.state == "FAILED"):
            return (
                f"{state.reason or f'exit {NOT_SHARED}'}: the node does not see the store {self.store.path}; "
                "choose a folder with --store that all nodes share"
            )
        hint = f"exit {NOT_FOUND}: is Python or a module missing there?" if "not found" in tail.lower() else ""
        said = f"; the log {self._get_log_path(job)} ends with:\n{tail}" if tail else ""
        return f"{state.reason or 'ended'} before the first trial{f' ({hint})' if hint else ''}{said}"

    def _get_log_path(self, job: Job) -> Path:
        return self.log.folder / f"{job.name}.log"

    def _ask_scheduler(self, job_ids: list[str]) -> Mapping[str, JobState]:
        """Return states from the last answer or, if that is old, ask once for all jobs."""
        if self._queried_at_s is not None and time.monotonic() - self._queried_at_s < self.query_every_s:
            return {}
        # At most one command per interval, also if several processes follow the store.
        shared, answered_at_s = _read_answer(self.log.folder / ANSWER_FILE, self.query_every_s)
        if shared is not None and all(job_id in shared for job_id in job_ids):
            # The next question is due when the answer is old, not one interval after this look at it.
            self._queried_at_s = time.monotonic() - max(0.0, time.time() - answered_at_s)
            if answered_at_s >= self._started_at_s:
                self._note_open(shared)
            return shared
        self._queried_at_s = time.monotonic()
        if shared is not None:
            # Another process asked just now, for other jobs.
            self._queried_at_s = time.monotonic() - self.query_every_s / 2
            return {}
        self.num_queries += 1
        forgotten = self._forgotten.intersection(job_ids)
        try:
            states = query_ended_jobs(forgotten) if forgotten else query_jobs(job_ids)
        except SlurmUnreachable as problem:
            if not self._is_unreachable:
                self._is_unreachable = True
                self.messages.append(f"the scheduler does not answer ({problem}); the jobs are followed in the store")
            return {}
        if self._is_unreachable:
            self._is_unreachable = False
            self.messages.append("the scheduler answers again")
        self._forgotten = set(job_ids) - states.keys() - forgotten if not forgotten else set()
        write_json_file(self.log.folder / ANSWER_FILE, {"at_s": time.time(), "jobs": _states_to_json(states)})
        self._note_open(states)
        return states

    def _note_open(self, states: Mapping[str, JobState]) -> None:
        self._seen_open.update(job_id for job_id, state in states.items() if not state.has_ended)


def decide_follow_up(progress: JobProgress, *, has_ended_before: bool = False) -> str:
    """Return `resume` if a follow-up job should run the missing trials, else why none is needed or useful.

    The text is empty if all trials of the job have a record.

    Args:
        has_ended_before: Whether the job of an earlier command had ended before this command began.
    """
    job, report = progress.job, progress.report
    if progress.is_complete:
        return ""
    if has_ended_before:
        return RESUME
    if job.state == "CANCELLED":
        return f"job {job.job_id} was cancelled; run the same command again for what is missing"
    is_out_of_time = report is not None and report.outcome == OUT_OF_TIME
    if not is_out_of_time and job.state not in _RESUMED_STATES:
        reason = f": {job.reason}" if job.reason else ""
        return f"job {job.job_id} ended as {job.state.lower()}{reason}"
    if not progress.has_advanced:
        return (
            f"job {job.job_id} ended as {job.state.lower()} and finished no run in its time: "
            "give a longer --time, then run the same command again"
        )
    return RESUME


RESUME = "resume"


def read_log_tail(path: Path) -> str:
    """Return the last lines of a job's log; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _MAX_LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in text.splitlines()[-LOG_TAIL_LINES:])


def _states_to_json(states: Mapping[str, JobState]) -> dict[str, dict[str, str]]:
    return {job_id: asdict(state) for job_id, state in states.items()}


def _read_answer(path: Path, max_age_s: float) -> tuple[dict[str, JobState] | None, float]:
    """Read the last answer of the scheduler and its time in Unix seconds; None if it is too old."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        at_s = float(values["at_s"])
        if not 0 <= time.time() - at_s < max_age_s:
            return None, 0.0
        return {job_id: JobState(**state) for job_id, state in values["jobs"].items()}, at_s
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None, 0.0
