"""Submits a study to Slurm, follows its jobs in the store, and submits follow-up jobs while trials are missing."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.cli.exit_codes import SOME_FAILED
from corewise.cli.submitting.options import ClusterOptions
from corewise.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from corewise.store.store import Store
    from corewise.submit.batch_script import JobRequest
    from corewise.submit.job_follow import JobFollower, JobProgress
    from corewise.submit.job_log import Job
    from corewise.submit.submission import Submission

# Seconds between two looks at the store.
POLL_STORE_S = 1.0


def submit_study(
    study: str,
    overrides: Sequence[str],
    arguments: tuple[str, ...],
    store: Path,
    options: ClusterOptions,
    *,
    detach: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Submit the jobs of a study and follow them; return the exit code."""
    from corewise.store.store import Store
    from corewise.submit.job_follow import JobFollower
    from corewise.submit.job_log import JobLog
    from corewise.submit.submission import submit_requests

    requests = build_requests(study, overrides, arguments, store, options)
    require_submittable(requests)
    site = requests[0].site
    record_store = Store.open(store.absolute(), create=True)
    log = JobLog(record_store.path)
    follower = JobFollower(record_store, log, site.query_every_s)
    _settle_old_jobs(follower)
    submission = submit_requests(record_store, log, requests)
    for job in submission.submitted:
        say(f"submitted job {job.job_id} ({_count_nodes(job.nodes)}), log {log.folder / f'{job.name}.log'}", quiet)
    for job in submission.already_open:
        say(f"not submitted twice: {job.describe()}", quiet)
    by_purpose = {each.purpose: each for each in requests}
    code = 0
    if detach:
        say(describe_detached(store, submission.jobs), quiet)
    else:
        try:
            code = _follow(follower, submission, by_purpose, record_store, quiet or as_json)
        except KeyboardInterrupt:
            print(f"\ncorewise: {describe_detached(store, submission.jobs)}", file=sys.stderr)
    log.close()
    if as_json:
        first = min(int(job.job_id) for job in submission.jobs)
        jobs = [job for job in log.read_jobs() if job.purpose in by_purpose and int(job.job_id) >= first]
        print(json.dumps({"store": str(store), "jobs": [job.to_json() for job in jobs]}))
    return code


def require_submittable(requests: Sequence["JobRequest"]) -> None:
    """Raise a UserError if there is no Slurm, the nodes cannot share the store, or a job is too large."""
    from corewise.submit.slurm_commands import require_slurm
    from corewise.submit.submission import check_store_path, list_size_problems

    require_slurm()
    check_store_path(requests[0].store, allow_local=requests[0].site.allow_local_store)
    problems = list_size_problems(requests)
    if problems:
        raise UserError("the job is too large:\n" + "\n".join(f"  {problem}" for problem in problems))


def build_requests(
    study: str, overrides: Sequence[str], arguments: tuple[str, ...], store: Path, options: ClusterOptions
) -> list["JobRequest"]:
    """Check the study and the options, and build one request per number of nodes."""
    from corewise.run.duration_estimate import estimate_run_s
    from corewise.run.plan import plan_study
    from corewise.study.study import load_study
    from corewise.submit.batch_script import JobRequest, override_site, parse_node_counts, parse_time_limit_s
    from corewise.submit.site_file import load_site
    from corewise.submit.submission import build_job_name, check_time_limit

    given = {"partition": options.partition, "account": options.account, "constraint": options.constraint}
    site = override_site(load_site(options.site), **given)
    limit_s = parse_time_limit_s(options.time_limit) if options.time_limit else None
    loaded = load_study(study, overrides)
    # The trials depend on the compute node. Those of this host only show whether the time can suffice.
    is_trusted = "--trust-environment" in arguments
    trials = plan_study(loaded, probe=False, trust_environment=is_trusted).trials
    check_time_limit(limit_s, min(map(estimate_run_s, trials), default=None))
    return [
        JobRequest(
            name=build_job_name(loaded.name, nodes),
            study=loaded.name,
            nodes=nodes,
            arguments=arguments,
            store=store.absolute(),
            folder=Path.cwd(),
            python=sys.executable,
            site=site,
            time_limit_s=limit_s,
        )
        for nodes in parse_node_counts(options.nodes or "1")
    ]


def print_scripts(
    study: str, overrides: Sequence[str], arguments: tuple[str, ...], store: Path, options: ClusterOptions
) -> None:
    """Print the batch scripts of a submission, and what would make it fail; submit nothing."""
    from corewise.submit.batch_script import build_batch_script
    from corewise.submit.submission import check_store_path, list_size_problems

    requests = build_requests(study, overrides, arguments, store, options)
    try:
        problems = list_size_problems(requests)
        check_store_path(store, allow_local=requests[0].site.allow_local_store)
    except UserError as refusal:
        problems = [str(refusal)]
    for each in requests:
        print(build_batch_script(each))
    for problem in problems:
        print(f"corewise: `corewise run` would refuse this: {problem}", file=sys.stderr)


def follow_jobs(store: "Store", query_every_s: float, show: Callable[[str], None]) -> None:
    """Show the progress of all open jobs of a store until they have ended; submits nothing."""
    from corewise.submit.job_follow import JobFollower
    from corewise.submit.job_log import JobLog

    log = JobLog(store.path)
    follower = JobFollower(store, log, query_every_s)
    jobs = [job for job in log.read_jobs() if job.is_open]
    last = ""
    while jobs:
        progress = follower.read_progress(jobs)
        lines = [*follower.take_messages(), *(describe_progress(each) for each in progress)]
        if (text := "\n".join(lines)) != last:
            show(last := text)
        jobs = [each.job for each in progress if each.job.is_open]
        if jobs:
            time.sleep(POLL_STORE_S)


def describe_progress(progress: "JobProgress") -> str:
    """Describe a job and how many of its trials are done."""
    done = "" if progress.num_trials is None else f", {progress.num_done}/{progress.num_trials} trials"
    if progress.num_trials == 0:
        done = "" if progress.job.is_tuning else ", nothing was left to do"
    return f"{progress.shown_job.describe()}{done}"


def _settle_old_jobs(follower: "JobFollower") -> None:
    """Record the end of earlier jobs, so that what they left is submitted again."""
    old = [job for job in follower.log.read_jobs() if job.is_open]
    if old:
        follower.read_progress(old)
        for message in follower.take_messages():
            print(f"corewise: {message}", file=sys.stderr)


def _follow(
    follower: "JobFollower", submission: "Submission", requests: "dict[str, JobRequest]", store: "Store", quiet: bool
) -> int:
    from corewise.submit.job_follow import RESUME, decide_follow_up
    from corewise.submit.submission import build_job_name, submit_requests

    stopped: list[str] = []
    num_failed = 0
    # The first answer of the scheduler may say that a job of an earlier command had ended by then.
    earlier = {job.job_id for job in submission.already_open}
    jobs = list(submission.jobs)
    with _show_progress(quiet) as show:
        while jobs:
            progress = follower.read_progress(jobs)
            for message in follower.take_messages():
                say(message, quiet)
            show(progress)
            jobs = [each.job for each in progress if each.job.is_open]
            for each in (each for each in progress if not each.job.is_open):
                num_failed += each.report.num_failed if each.report is not None else 0
                is_old = each.job.job_id in earlier and follower.has_ended_before(each.job)
                verdict = decide_follow_up(each, has_ended_before=is_old)
                if verdict != RESUME:
                    stopped += [verdict] if verdict else []
                    continue
                request = requests[each.job.purpose]
                again = replace(request, name=build_job_name(request.study, request.nodes))
                follow_up = submit_requests(store, follower.log, [again])
                left = "" if each.num_trials is None else f" {each.num_trials - each.num_done} trials left,"
                say(f"{each.job.describe()};{left} job {follow_up.jobs[0].job_id} resumes", quiet)
                jobs += follow_up.jobs
            if jobs:
                time.sleep(POLL_STORE_S)
    for reason in stopped:
        print(f"corewise: {reason}", file=sys.stderr)
    say(f"Show the results: corewise show --store {shlex.quote(str(store.path))}", quiet)
    return SOME_FAILED if stopped or num_failed else 0


@contextmanager
def _show_progress(quiet: bool) -> Iterator[Callable[[Sequence["JobProgress"]], None]]:
    """Yield a function that shows progress: a bar on a terminal, lines elsewhere, or nothing."""
    if quiet:
        yield lambda progress: None
        return
    if not sys.stdout.isatty():
        seen: dict[str, str] = {}

        def print_changes(progress: Sequence["JobProgress"]) -> None:
            for each in progress:
                if seen.get(each.job.job_id) != (line := describe_progress(each)):
                    seen[each.job.job_id] = line
                    print(line, flush=True)

        yield print_changes
        return
    from rich.live import Live

    with Live(auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(_draw_bars(progress), refresh=True)


def _draw_bars(progress: Sequence["JobProgress"]) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    for each in progress:
        bar = ProgressBar(total=max(1, each.num_trials or 1), completed=each.num_done, width=30)
        grid.add_row(bar, Text(describe_progress(each)))
    return grid


def describe_detached(store: Path, jobs: Sequence["Job"]) -> str:
    """Describe how jobs are followed and cancelled that nobody waits for."""
    ids = " ".join(job.job_id for job in jobs)
    where = shlex.quote(str(store))
    return f"the jobs stay queued. Follow: corewise status --follow --store {where}. Cancel: scancel {ids}"


def _count_nodes(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def say(text: str, quiet: bool) -> None:
    """Print a message on standard error unless quiet."""
    if not quiet:
        print(f"corewise: {text}", file=sys.stderr, flush=True)
