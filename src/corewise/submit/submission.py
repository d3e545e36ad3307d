"""Checks a request against the cluster and the store, writes its script and submits it once."""

import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corewise.errors import UserError
from corewise.store.leases import Lease, LeaseHeld, acquire_when_free
from corewise.store.store import Store
from corewise.study.durations import format_duration
from corewise.study.record import format_utc_now
from corewise.submit.batch_script import JobRequest, build_batch_script, compute_stop_margin_s
from corewise.submit.job_log import Job, JobLog
from corewise.submit.slurm_commands import read_partition, submit_script

# Folders that every node has for itself.
LOCAL_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")
# The lease under which jobs are submitted, so that two processes do not submit the same.
SUBMIT_LEASE = "submit"
_LEASE_POLL_S = 0.5
_MAX_LEASE_WAIT_S = 120.0


@dataclass(frozen=True)
class Submission:
    """The jobs of one command: those that it submitted, and those that were queued or running before."""

    submitted: tuple[Job, ...]
    already_open: tuple[Job, ...]

    @property
    def jobs(self) -> tuple[Job, ...]:
        return (*self.already_open, *self.submitted)


def build_job_name(study: str, nodes: int) -> str:
    """Build a unique name for a job, which also names its files."""
    short = re.sub(r"[^A-Za-z0-9_.-]+", "-", study).strip("-.")[:40] or "study"
    return f"corewise-{short}-{nodes}n-{secrets.token_hex(3)}"


def check_store_path(store: Path, *, allow_local: bool) -> None:
    """Raise a UserError if compute nodes cannot share the store."""
    place = os.path.realpath(store)
    local = next((each for each in LOCAL_FOLDERS if place == each or place.startswith(f"{each}/")), None)
    if local is not None and not allow_local:
        raise UserError(
            f"the store {store} is below {local}, which every node has for itself: choose a folder with --store that "
            "all nodes share. On a cluster of one machine, set `allow_local_store: true` in the site file."
        )


def list_size_problems(requests: Sequence[JobRequest]) -> list[str]:
    """List what makes jobs too large for their partition; empty if they fit or Slurm does not answer.

    Raises:
        UserError: there is no such partition.
    """
    limits = read_partition(requests[0].site.partition) if requests else None
    if limits is None:
        return []
    problems = []
    for each in requests:
        if limits.num_nodes is not None and each.nodes > limits.num_nodes:
            problems.append(f"{each.nodes} nodes: partition {limits.name} has {limits.num_nodes}")
        elif limits.max_nodes is not None and each.nodes > limits.max_nodes:
            problems.append(f"{each.nodes} nodes: partition {limits.name} allows {limits.max_nodes} per job")
    limit_s = requests[0].time_limit_s
    if limit_s is not None and limits.max_time_s is not None and limit_s > limits.max_time_s:
        allowed = format_duration(limits.max_time_s)
        problems.append(f"--time {format_duration(limit_s)}: partition {limits.name} allows {allowed}")
    return problems


def check_time_limit(time_limit_s: int | None, shortest_s: float | None) -> None:
    """Raise a UserError if not even the shortest trial fits into a job."""
    if time_limit_s is None or shortest_s is None:
        return
    usable_s = time_limit_s - compute_stop_margin_s(time_limit_s)
    if shortest_s > usable_s:
        raise UserError(
            f"--time {format_duration(time_limit_s)}: one run of the shortest trial takes about "
            f"{format_duration(shortest_s)}, and {format_duration(usable_s)} are usable: give a longer --time"
        )


def submit_requests(store: Store, log: JobLog, requests: Sequence[JobRequest]) -> Submission:
    """Submit the requests that no open job of the store serves already."""
    submitted: list[Job] = []
    already_open: list[Job] = []
    with _acquire_submit_lease(store):
        open_jobs = {job.purpose: job for job in log.read_jobs() if job.is_open}
        for each in requests:
            known = open_jobs.get(each.purpose)
            if known is not None:
                already_open.append(known)
                continue
            submitted.append(_submit(log, each))
    return Submission(tuple(submitted), tuple(already_open))


def _submit(log: JobLog, request: JobRequest) -> Job:
    script = request.script_path
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        aside = script.with_name(f".{script.name}.part")
        aside.write_text(build_batch_script(request), encoding="utf-8")
        aside.chmod(0o700)
        os.replace(aside, script)
    except OSError as error:
        raise UserError(f"{script} cannot be written: {error.strerror or error}; fix this and run again") from error
    job = Job(
        job_id=submit_script(script),
        name=request.name,
        study=request.study,
        nodes=request.nodes,
        purpose=request.purpose,
        submitted_at=format_utc_now(),
    )
    log.record_submission(job)
    return job


def _acquire_submit_lease(store: Store) -> Lease:
    until_s = time.monotonic() + _MAX_LEASE_WAIT_S
    while True:
        try:
            return acquire_when_free(store.leases_folder, SUBMIT_LEASE)
        except LeaseHeld:
            if time.monotonic() > until_s:
                raise
            time.sleep(_LEASE_POLL_S)
