"""`corewise run STUDY`: run the trials that have no record yet."""

import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corewise.cli.common_options import (
    DEFAULT_STORE,
    JsonOption,
    QuietOption,
    SetOption,
    StoreOption,
    StudyArgument,
    TrustEnvironmentOption,
)
from corewise.cli.exit_codes import SOME_FAILED
from corewise.cli.process.interrupts import compute_exit_code
from corewise.cli.render.chart_packages import require_chart_packages
from corewise.cli.submitting.options import (
    AccountOption,
    ConstraintOption,
    DetachOption,
    HostfileOption,
    JobOption,
    NodesOption,
    OnOption,
    PartitionOption,
    SiteOption,
    StopAtOption,
    TimeOption,
    gather_options,
)
from corewise.errors import UserError

if TYPE_CHECKING:
    from corewise.run.plan import Plan
    from corewise.run.study_runner import RunObserver
    from corewise.store.store import Store


def run(
    study: StudyArgument,
    store: StoreOption = DEFAULT_STORE,
    overrides: SetOption = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed and skipped trials again.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Update a report page while the study runs: DIR/report.html.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write the report page.")
    ] = None,
    trust_environment: TrustEnvironmentOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    on: OnOption = None,
    nodes: NodesOption = None,
    partition: PartitionOption = None,
    time_limit: TimeOption = None,
    account: AccountOption = None,
    constraint: ConstraintOption = None,
    site: SiteOption = None,
    detach: DetachOption = False,
    hostfile: HostfileOption = None,
    stop_at: StopAtOption = None,
    job: JobOption = None,
) -> None:
    """Run a study and store its records; resume where an earlier run stopped.

    Exit codes: 0 done, 1 some trials failed or all were skipped, 2 an error in the study or the command, 130
    interrupted, 129 terminal closed.

    Examples:

      corewise run quick

      corewise run thread-scaling --store results --set workload=resnet18 --set batch=8,32

      corewise run hybrid --store results --report

      corewise run my.yaml --store results --json

      corewise run theirs.yaml --trust-environment   (after `corewise plan theirs.yaml`)

      corewise run hybrid --store results --on slurm --partition cpu --nodes 1,2 --time 30m

      corewise run my.yaml --store results --on mpirun --hostfile hosts --nodes 2 --set nodes=1,2
    """
    from corewise.cli.launching.node_group_start import choose_nodes, open_node_group
    from corewise.cli.render.load_warning import LoadWarner
    from corewise.cli.render.run_progress import make_observer
    from corewise.cli.submitting.job_limits import JobLimits
    from corewise.cli.submitting.run_arguments import build_run_arguments
    from corewise.run.identity.legacy_identity import keep_old_ids
    from corewise.run.plan import plan_study
    from corewise.run.study_runner import StudyRun
    from corewise.store.record_reader import describe_damage
    from corewise.store.store import Store
    from corewise.study.environment_trust import describe_accepted
    from corewise.study.study import load_study

    options = gather_options(on, nodes, partition, time_limit, account, constraint, site)
    if options is not None:
        from corewise.cli.submitting.submit_study import submit_study

        _refuse_local_options(report or output is not None, hostfile)
        arguments = build_run_arguments(study, overrides, trust_environment, retry_failed)
        code = submit_study(
            study, overrides or [], arguments, store, options, detach=detach, as_json=as_json, quiet=quiet
        )
        raise typer.Exit(code)
    limits = JobLimits(store, job, stop_at)
    if report or output:
        require_chart_packages("--report and -o")
    with limits.report_errors(), ExitStack() as stack:
        loaded = load_study(study, overrides or [])
        wanted = choose_nodes(on, nodes, hostfile, os.environ)
        group = stack.enter_context(open_node_group(wanted, store, quiet=quiet)) if wanted is not None else None
        host, num_nodes = (group.host, group.num_nodes) if group is not None else (None, 1)
        made = plan_study(loaded, host, trust_environment=trust_environment, num_nodes=num_nodes)
        _require_trials(made)
        _require_framework(made)
        if group is not None:
            group.require_interpreter(made.interpreter, made.study.environment)
        accepted = describe_accepted(made.study.environment, str(made.study.path))
        if accepted and not quiet:
            print(f"corewise: {accepted}", file=sys.stderr)
        record_store = Store.open(store, create=True)
        made = keep_old_ids(made, record_store)
        page = output or (store / "report.html" if report else None)
        _require_folder(page)
        with make_observer(quiet=quiet or as_json) as shown, _observe(shown, made, record_store, page) as updated:
            # The load of this machine says nothing about other nodes.
            observer = updated if quiet or group else LoadWarner(updated, made.host.allocation.cpus)
            observer = limits.observe(observer)
            study_run = StudyRun(
                made, record_store, observer, retry_failed=retry_failed, pool=group, stop_at=limits.stop_at
            )
            for damage in describe_damage(study_run.damage):
                print(f"corewise: skipped a damaged record: {damage}", file=sys.stderr)
            try:
                outcome = limits.execute(study_run)
            except KeyboardInterrupt:
                if limits.is_out_of_time:
                    print(f"\ncorewise: stopped at the time of --stop-at. Results are in {store}.", file=sys.stderr)
                    raise typer.Exit(0) from None
                print(
                    f"\ncorewise: stopped. Results are in {store}. Run the same command again to resume.",
                    file=sys.stderr,
                )
                raise typer.Exit(compute_exit_code()) from None
    skip_reasons = _list_skip_reasons(made, record_store)
    if skip_reasons:
        print(
            f"corewise: nothing was measured: all {sum(skip_reasons.values())} trials of the study were skipped:\n"
            + "\n".join(f"  {num} × {reason}" for reason, num in skip_reasons.items()),
            file=sys.stderr,
        )
    if as_json:
        print(json.dumps({"store": str(store), **outcome.to_json()}))
    elif not quiet:
        done = f", {outcome.num_already_done} done before" if outcome.num_already_done else ""
        print(f"{outcome.num_ok} ok, {outcome.num_failed} failed, {outcome.num_skipped} skipped{done}.")
        print(f"Show the results: corewise show --store {shlex.quote(str(store))}")
        if outcome.num_failed:
            print("Failed trials are not retried automatically: fix the cause, then add --retry-failed.")
        if page is not None:
            print(f"Report: {page}")
    if outcome.num_failed or skip_reasons:
        raise typer.Exit(SOME_FAILED)


def _refuse_local_options(wants_page: bool, hostfile: Path | None) -> None:
    """Raise a UserError for options that have no meaning for jobs."""
    if wants_page:
        raise UserError(
            "--report and -o: not with --on slurm; type `corewise report` while the jobs run, or afterwards"
        )
    if hostfile is not None:
        raise UserError(f"--hostfile {hostfile}: Slurm chooses the hosts; leave it out")


def _list_skip_reasons(made: "Plan", record_store: "Store") -> dict[str, int]:
    """Count the reasons if every trial of the study was skipped, now or earlier; empty if one was measured."""
    from corewise.store.brief_records import extract_brief

    planned_ids = {trial.trial_id for trial in made.trials}
    records = [each for each in record_store.read_records(extract_brief).records if each.trial_id in planned_ids]
    if any(each.status != "skipped" for each in records):
        return {}
    return dict(Counter(each.reason for each in records).most_common())


@contextmanager
def _observe(shown: "RunObserver", made: "Plan", record_store: "Store", page: Path | None) -> Iterator["RunObserver"]:
    """Yield the observer; if a page is wanted, it also updates the page."""
    if page is None:
        yield shown
        return
    from corewise.cli.render.live_report import ReportUpdater

    updater = ReportUpdater(shown, made, record_store, page)
    try:
        yield updater
    finally:
        problem = updater.close()
        if problem:
            print(f"corewise: the report {page} was not written: {problem}", file=sys.stderr)


def _require_folder(page: Path | None) -> None:
    """Raise a UserError before anything is measured if the page cannot be written."""
    if page is not None and (page.is_dir() or not page.absolute().parent.is_dir()):
        raise UserError(f"{page}: no file can be written there; choose a file in an existing folder with -o")


def _require_trials(made: "Plan") -> None:
    """Raise a UserError if no point of the study can run on this machine."""
    if not made.trials:
        reasons = "\n".join(f"  {reason}" for reason in dict.fromkeys(s.reason for s in made.skipped))
        raise UserError(f"{made.study.path}: none of its {len(made.skipped)} points can run here:\n{reasons}")


def _require_framework(made: "Plan") -> None:
    """Raise a UserError if none of the frameworks of the study is installed."""
    from corewise.run.identity.framework_packages import suggest_install

    hints = [suggest_install(runtime, made.interpreter) for runtime in made.study.runtimes]
    if all(hints):
        names, are = " and ".join(made.study.runtimes), "is" if len(hints) == 1 else "are"
        raise UserError(
            f"{names} {are} not installed for {' '.join(made.interpreter.command)}.\n"
            f"Install it with: {' or '.join(hints)}, "
            "or name another interpreter with `python:` in the study."
        )
