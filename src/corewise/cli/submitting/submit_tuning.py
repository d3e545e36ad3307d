"""Submits a tuning to Slurm as one job on one node, follows its log, and prints its answer."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.cli.exit_codes import SOME_FAILED
from corewise.cli.submitting.options import ClusterOptions
from corewise.cli.submitting.submit_study import POLL_STORE_S, describe_detached, require_submittable, say
from corewise.errors import UserError

if TYPE_CHECKING:
    from corewise.submit.batch_script import JobRequest
    from corewise.submit.job_follow import JobFollower
    from corewise.submit.job_log import Job

# A tuning may exceed its budget by the run that is being measured, and starts its framework first.
MIN_SPARE_S = 60
# The part of the budget by which the limit of the job must exceed it.
SPARE_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """The options of `corewise tune` that a job gets, as they were given; those left out keep their defaults."""

    subject: str | Sequence[str]
    budget: str
    output: Path
    report: Path | None
    python: str | None
    values: tuple[tuple[str, str | None], ...]
    lists: tuple[tuple[str, Sequence[str] | None], ...]
    switches: tuple[tuple[str, bool], ...]

    @property
    def command(self) -> tuple[str, ...]:
        """The words of a script; empty for a workload."""
        return () if isinstance(self.subject, str) else tuple(self.subject)

    @property
    def name(self) -> str:
        """What is tuned, in a few words."""
        return self.subject if isinstance(self.subject, str) else " ".join(self.subject)[:60]

    def build_arguments(self) -> tuple[str, ...]:
        """Build the arguments of `corewise tune` in the job."""
        subject = [self.subject] if isinstance(self.subject, str) else []
        report = None if self.report is None else str(self.report.absolute())
        files = (("--output", str(self.output.absolute())), ("--report", report))
        words = [*subject, "--budget", self.budget]
        for name, value in (*self.values, *files, ("--python", self.python)):
            words += [name, value] if value is not None else []
        for name, values in self.lists:
            words += [word for value in values or () for word in (name, value)]
        return (*words, *(name for name, is_set in self.switches if is_set))


def submit_tuning(
    tuning: TuningOptions, store: Path, options: ClusterOptions, *, detach: bool, as_json: bool, quiet: bool
) -> int:
    """Submit the job of a tuning and follow it; return the exit code."""
    from corewise.store.store import Store
    from corewise.submit.job_follow import JobFollower
    from corewise.submit.job_log import JobLog
    from corewise.submit.submission import submit_requests

    check_question(tuning)
    request = build_request(tuning, store, options)
    require_submittable([request])
    record_store = Store.open(store.absolute(), create=True)
    log = JobLog(record_store.path)
    follower = JobFollower(record_store, log, request.site.query_every_s)
    submission = submit_requests(record_store, log, [request])
    [job] = submission.jobs
    was_open = bool(submission.already_open)
    say(f"not submitted twice: {job.describe()}" if was_open else f"submitted job {job.job_id}", quiet)
    if detach:
        say(describe_detached(store, [job]), quiet)
        return 0
    try:
        job = _follow(follower, job, quiet=quiet or as_json)
        if was_open and follower.has_ended_before(job):
            # The job of an earlier command had ended before this command began.
            say(job.describe(), quiet)
            [job] = submit_requests(record_store, log, [request]).jobs
            say(f"submitted job {job.job_id}, which resumes", quiet)
            job = _follow(follower, job, quiet=quiet or as_json)
    except KeyboardInterrupt:
        print(f"\ncorewise: {describe_detached(store, [job])}", file=sys.stderr)
        return 0
    finally:
        log.close()
    return _print_answer(job, record_store.path, tuning, as_json=as_json)


def check_question(tuning: TuningOptions) -> None:
    """Raise a UserError for what the job would refuse, before the queue is waited for."""
    from corewise.tuning.api import check_call
    from corewise.tuning.question import build_question, read_assignments
    from corewise.tuning.result.output_files import ResultFiles

    ResultFiles(tuning.output, tuning.report).require_writable()
    values, lists = dict(tuning.values), {name: list(given or ()) for name, given in tuning.lists}
    fixed = read_assignments(lists["--set"], "--set")
    args = read_assignments(lists["--args"], "--args", "args.")
    batch = None if values["--batch"] is None else int(values["--batch"])
    check_call(tuning.subject, batch=batch, allow=lists["--allow"], fixed=fixed, args=args)
    if isinstance(tuning.subject, str):
        build_question(
            tuning.subject,
            mode=str(values["--mode"]),
            batch=batch,
            runtime=str(values["--runtime"]),
            fixed={**fixed, **args},
            allow=lists["--allow"],
        )


def build_request(tuning: TuningOptions, store: Path, options: ClusterOptions) -> "JobRequest":
    """Check the options and build the request for the job."""
    from corewise.study.durations import format_duration, parse_duration_s
    from corewise.submit.batch_script import JobRequest, override_site, parse_time_limit_s
    from corewise.submit.job_log import TUNING
    from corewise.submit.site_file import load_site
    from corewise.submit.submission import build_job_name

    given = {"partition": options.partition, "account": options.account, "constraint": options.constraint}
    site = override_site(load_site(options.site), **given)
    limit_s = parse_time_limit_s(options.time_limit) if options.time_limit else None
    budget_s = parse_duration_s(tuning.budget, "--budget")
    needed_s = budget_s + max(MIN_SPARE_S, SPARE_SHARE * budget_s)
    if limit_s is not None and limit_s < needed_s:
        raise UserError(
            f"--time {format_duration(limit_s)}: a tuning with --budget {tuning.budget} needs "
            f"{format_duration(needed_s)}; give a longer --time or a shorter --budget"
        )
    return JobRequest(
        name=build_job_name(f"tune-{tuning.name}", 1),
        study=f"{TUNING}{tuning.name}",
        nodes=1,
        arguments=tuning.build_arguments(),
        store=store.absolute(),
        folder=Path.cwd(),
        python=sys.executable,
        site=site,
        time_limit_s=limit_s,
        verb="tune",
        command=tuning.command,
    )


def _follow(follower: "JobFollower", job: "Job", *, quiet: bool) -> "Job":
    """Show the log of the job until it ends; return the job with its end."""
    with _open_tail(follower.log.folder / f"{job.name}.log", quiet) as tail:
        while True:
            [progress] = follower.read_progress([job])
            for message in follower.take_messages():
                say(message, quiet)
            next(tail)
            if not progress.job.is_open:
                return progress.job
            job = progress.job
            time.sleep(POLL_STORE_S)


@contextmanager
def _open_tail(path: Path, quiet: bool) -> Iterator[Iterator[None]]:
    """Yield an iterator that copies the new lines of a log to standard error at each step."""

    def copy() -> Iterator[None]:
        offset = 0
        while True:
            if not quiet and path.exists():
                with open(path, "rb") as file:
                    file.seek(offset)
                    # A line that is not complete is shown at the next step.
                    text, end, _ = file.read().rpartition(b"\n")
                offset += len(text) + len(end)
                sys.stderr.write((text + end).decode("utf-8", "replace"))
                sys.stderr.flush()
            yield

    steps = copy()
    yield steps
    # The last lines may appear after the end of the job.
    next(steps)


def _print_answer(job: "Job", store: Path, tuning: TuningOptions, *, as_json: bool) -> int:
    from corewise.submit.tuning_answer import read_answer

    answer = read_answer(store, job.name)
    if answer is None:
        print(
            f"corewise: {job.describe()}; it wrote no answer. Its log: {store / 'jobs' / job.name}.log. "
            "Run the same command again to resume.",
            file=sys.stderr,
        )
        return SOME_FAILED
    print(json.dumps(answer.result) if as_json else answer.text)
    if answer.result.get("output") and not tuning.output.exists():
        print(
            f"corewise: the job wrote {tuning.output.absolute()}, which this host does not see; choose a folder with "
            "--output that all nodes share",
            file=sys.stderr,
        )
        return SOME_FAILED
    return answer.exit_code
