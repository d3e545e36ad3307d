"""Runs the commands of Slurm: the only module that does."""

import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from corewise.errors import UserError

# A controller that is restarting answers late.
COMMAND_LIMIT_S = 60.0
# The states in which a job has not ended; Slurm may add others, which count as ended only if they are below.
ENDED_STATES = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT", "UNKNOWN"),
    }
)
_FORMAT = "%i|%T|%r|%N"


class SlurmUnreachable(Exception):
    """The controller did not answer; it may be restarting."""


@dataclass(frozen=True)
class JobState:
    """What the scheduler says about a job."""

    state: str
    reason: str = ""
    hosts: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED_STATES


@dataclass(frozen=True)
class PartitionLimits:
    """The limits of a partition; None where there is none."""

    name: str
    num_nodes: int | None
    max_nodes: int | None
    max_time_s: int | None


def require_slurm() -> None:
    """Raise a UserError if this host has no Slurm client."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "--on slurm: there is no `sbatch` on this host: run on a login node of the cluster, "
            "load the module that has Slurm, or leave out --on"
        )


def submit_script(script: Path) -> str:
    """Submit a batch script and return the id of the job; a UserError has the text of sbatch."""
    done = _run(["sbatch", "--parsable", str(script)])
    if done.returncode != 0:
        raise UserError(_explain_refusal(done.stderr.strip()))
    # A federation adds the name of its cluster after a semicolon.
    job_id = done.stdout.strip().partition(";")[0]
    if not re.fullmatch(r"[0-9]+", job_id):
        raise UserError(f"sbatch answered {done.stdout.strip()!r:.200} and no job id; check with `squeue --me`")
    return job_id


def query_jobs(job_ids: Collection[str]) -> dict[str, JobState]:
    """Ask the scheduler once for all jobs; those that it has forgotten are missing.

    Raises:
        SlurmUnreachable: the controller did not answer.
    """
    done = _run(["squeue", "--noheader", "--states=all", f"--jobs={','.join(sorted(job_ids))}", f"--format={_FORMAT}"])
    if done.returncode != 0:
        # With a single id that it has forgotten, squeue fails.
        if "Invalid job id" in done.stderr:
            return {}
        raise SlurmUnreachable(done.stderr.strip())
    return parse_queue(done.stdout, job_ids)


def query_ended_jobs(job_ids: Collection[str]) -> dict[str, JobState]:
    """Ask the accounting for jobs that the scheduler has forgotten; UNKNOWN without accounting."""
    command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={','.join(sorted(job_ids))}"]
    try:
        done = _run([*command, "--format=JobID,State,Reason,NodeList"])
        answer = parse_queue(done.stdout, job_ids) if done.returncode == 0 else {}
    except SlurmUnreachable:
        answer = {}
    forgotten = JobState("UNKNOWN", "the scheduler no longer knows the job")
    return {job_id: answer.get(job_id, forgotten) for job_id in job_ids}


def parse_queue(text: str, job_ids: Collection[str]) -> dict[str, JobState]:
    """Parse lines of `id|state|reason|nodes`; the state of a cancelled job may name who did it."""
    states = {}
    for line in text.splitlines():
        job_id, _, rest = line.partition("|")
        fields = rest.split("|")
        if job_id in job_ids and len(fields) == 3:
            word, _, detail = fields[0].partition(" ")
            reason = "" if fields[1] in ("None", "") else fields[1]
            states[job_id] = JobState(word.rstrip("+"), " ".join(filter(None, (reason, detail))), fields[2])
    return states


def read_partition(name: str) -> PartitionLimits | None:
    """Return the limits of a partition; None if the controller does not answer.

    Raises:
        UserError: there is no such partition; the message lists those that exist.
    """
    try:
        done = _run(["scontrol", "show", "partition", "--oneliner", *([name] if name else [])])
    except SlurmUnreachable:
        return None
    if done.returncode != 0:
        if "not found" in done.stderr:
            raise UserError(f"--partition {name}: {done.stderr.strip()}.{_describe_partitions()}")
        return None
    entries = [parse_partition(line) for line in done.stdout.splitlines() if line.strip()]
    if name:
        return entries[0] if entries else None
    return next(
        (each for each, line in zip(entries, done.stdout.splitlines(), strict=False) if "Default=YES" in line), None
    )


def parse_partition(line: str) -> PartitionLimits:
    """Parse a line of `scontrol show partition --oneliner`."""
    values: Mapping[str, str] = dict(word.partition("=")[::2] for word in line.split())
    return PartitionLimits(
        values.get("PartitionName", ""),
        _to_count(values.get("TotalNodes", "")),
        _to_count(values.get("MaxNodes", "")),
        _to_seconds(values.get("MaxTime", "")),
    )


def _to_count(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _to_seconds(text: str) -> int | None:
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _explain_refusal(text: str) -> str:
    hint = _describe_partitions() if "partition" in text.lower() else ""
    return f"sbatch refused the job: {text or 'it gave no reason'}.{hint}"


def _describe_partitions() -> str:
    """Describe the partitions that exist, for the end of a message; empty if Slurm does not answer."""
    try:
        done = _run(["sinfo", "--noheader", "--format=%R"])
    except SlurmUnreachable:
        return ""
    names = list(dict.fromkeys(done.stdout.split()))
    return f" Partitions of this cluster: {', '.join(names)}." if done.returncode == 0 and names else ""


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=COMMAND_LIMIT_S
        )
    except FileNotFoundError:
        raise SlurmUnreachable(f"there is no `{command[0]}` on this host") from None
    except subprocess.TimeoutExpired:
        raise SlurmUnreachable(f"`{command[0]}` did not answer within {COMMAND_LIMIT_S:.0f} s") from None
