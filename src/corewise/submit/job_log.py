"""The jobs of a store: an append-only log of what was submitted and how it ended.

Every process writes to a file of its own in the folder `jobs`, in sealed lines as records are, so that several
processes can share a store on any file system.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from corewise.errors import UserError
from corewise.measured.trial import write_json_atomically
from corewise.store.line_writer import RecordWriter
from corewise.store.sealed_lines import scan_file
from corewise.store.sealed_lines import seal as seal_line
from corewise.study.record import format_utc_now
from corewise.submit.slurm_commands import ENDED_STATES

SCHEMA = 1
# Events of the log. A noticed job changed its state and may still run.
SUBMITTED, NOTICED, ENDED = "submitted", "noticed", "ended"
# The beginning of the field `study` of jobs that tune.
TUNING = "tuning of "
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A submitted job, as the log describes it.

    Attributes:
        purpose: The arguments of the run; an open job with the same purpose is not submitted twice.
        state: The last state that was noticed, in the terms of the scheduler.
        ended_at: Empty while the job waits or runs.
    """

    job_id: str
    name: str
    study: str
    nodes: int
    purpose: str
    submitted_at: str
    state: str = "PENDING"
    reason: str = ""
    ended_at: str = ""

    @property
    def is_open(self) -> bool:
        return not self.ended_at

    @property
    def is_tuning(self) -> bool:
        return self.study.startswith(TUNING)

    def to_json(self) -> dict[str, Any]:
        """Convert the job to plain JSON values, with its description as `text`."""
        return {**asdict(self), "text": self.describe()}

    def describe(self) -> str:
        """Describe the job and its state in one line."""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        reason = f" ({self.reason})" if self.reason else ""
        what = self.study if self.is_tuning else f"study {self.study}"
        return f"job {self.job_id} on {nodes}, {what}: {self.state.lower()}{reason}"


class JobLog:
    """Reads and extends the log of a store."""

    def __init__(self, store: Path) -> None:
        self.folder = store / "jobs"
        self._writer: RecordWriter | None = None

    def record_submission(self, job: Job) -> None:
        """Record a job that the scheduler has accepted."""
        fields = ("job_id", "name", "study", "nodes", "purpose", "submitted_at")
        self._append(SUBMITTED, {name: getattr(job, name) for name in fields})

    def record_state(self, job: Job, state: str, reason: str, *, has_ended: bool) -> Job:
        """Record a new state of a job and return the job with it."""
        now = format_utc_now()
        event = {"job_id": job.job_id, "state": state, "reason": reason, "at": now}
        self._append(ENDED if has_ended else NOTICED, event)
        return replace(job, state=state, reason=reason, ended_at=now if has_ended else "")

    def read_jobs(self) -> list[Job]:
        """Read all jobs, in the order of their submission; damaged lines are skipped."""
        events = list(self._read_events())
        jobs: dict[str, Job] = {}
        for each in events:
            if each.get("event") == SUBMITTED and (job := _parse_job(each)) is not None:
                jobs[job.job_id] = job
        for each in sorted(events, key=lambda each: str(each.get("at", ""))):
            known = jobs.get(str(each.get("job_id")))
            # The first recorded end counts: two processes may have noticed it.
            if known is None or each.get("event") == SUBMITTED or not known.is_open:
                continue
            ended_at = str(each.get("at", "")) if each.get("event") == ENDED else ""
            state, reason = str(each.get("state", "")), str(each.get("reason", ""))
            jobs[known.job_id] = replace(known, state=state, reason=reason, ended_at=ended_at)
        return sorted(jobs.values(), key=lambda job: (job.submitted_at, job.job_id.zfill(20)))

    def close(self) -> None:
        """Close the file of this process."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _append(self, event: str, values: Mapping[str, Any]) -> None:
        try:
            if self._writer is None:
                self._writer = RecordWriter(self.folder)
            self._writer.append(seal_line({"schema": SCHEMA, "event": event, **values}))
        except OSError as error:
            raise UserError(
                f"the jobs of {self.folder.parent} cannot be recorded: {error.strerror or error}; "
                "fix this before you submit again, or the same job may run twice"
            ) from error

    def _read_events(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.glob("*.jsonl")):
            try:
                with open(path, "rb") as file:
                    yield from (entry.value for entry in scan_file(file) if entry.value is not None)
            except OSError:
                continue


def _parse_job(event: Mapping[str, Any]) -> Job | None:
    try:
        job = Job(
            job_id=str(event["job_id"]),
            name=str(event["name"]),
            study=str(event["study"]),
            nodes=int(event["nodes"]),
            purpose=str(event["purpose"]),
            submitted_at=str(event["submitted_at"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
    # The name becomes part of paths.
    return job if _NAME.fullmatch(job.name) and job.job_id.isdigit() else None


def is_ended_state(state: str) -> bool:
    """Return whether a job in this state of the scheduler has ended."""
    return state in ENDED_STATES


def write_json_file(path: Path, values: Mapping[str, Any]) -> None:
    """Write a small file of the folder `jobs` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomically(path, values)
