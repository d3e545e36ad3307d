"""`corewise plan STUDY`: show what a run would do, without running anything."""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corewise.cli.common_options import (
    DEFAULT_STORE,
    JsonOption,
    SetOption,
    StoreOption,
    StudyArgument,
    TrustEnvironmentOption,
)
from corewise.cli.submitting.options import (
    AccountOption,
    ConstraintOption,
    NodesOption,
    OnOption,
    PartitionOption,
    SiteOption,
    TimeOption,
    gather_options,
)
from corewise.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from corewise.measured.trial import Trial
    from corewise.run.plan import Plan

PROBE_HINT = "pass --probe to find out by running it"


@dataclass(frozen=True)
class _ShownPlan:
    """A plan with what is shown about it.

    Attributes:
        lines: The command of each trial, in their order.
        done: The ids that have a record in the store.
        untrusted: Variables of the study that `corewise run` accepts only with --trust-environment.
    """

    plan: "Plan"
    lines: tuple[str, ...]
    done: frozenset[str]
    untrusted: Mapping[str, str]
    estimate_s: float

    @property
    def num_done(self) -> int:
        return sum(trial.trial_id in self.done for trial in self.plan.trials)

    def list_unknown_ids(self) -> list[str]:
        """List the reasons why ids are unknown, each once."""
        trials = [each.params.to_mapping() for each in self.plan.trials]
        reasons = [self.plan.explain_unknown_id(params) for params in trials]
        return [reason for reason in dict.fromkeys(reasons) if reason]


def plan(
    study: StudyArgument,
    overrides: SetOption = None,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print the command and environment of each trial.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="DIR", help="Write the trial files that the commands need.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    probe: Annotated[
        bool, typer.Option("--probe", help="Start the interpreter and import plug-ins, if files do not give all ids.")
    ] = False,
    trust_environment: TrustEnvironmentOption = False,
    as_json: JsonOption = False,
    on: OnOption = None,
    nodes: NodesOption = None,
    partition: PartitionOption = None,
    time_limit: TimeOption = None,
    account: AccountOption = None,
    constraint: ConstraintOption = None,
    site: SiteOption = None,
) -> None:
    """List the trials of a study, the skipped points with reasons, and the estimated time. Runs nothing.

    Nothing of the study is run: no `python:`, no `prefix:`, none of your files. Versions of packages are read from
    their metadata. Where that is not enough, ids are unknown, with the reason; --probe finds them out.

    Examples:

      corewise plan quick

      corewise plan thread-scaling --set threads=1,2 --set workload=alexnet --commands

      corewise plan my.yaml --write trials/   (then run any printed command by hand)

      corewise plan container.yaml --probe   (runs its `prefix:` and `python:` to read versions)

      corewise plan hybrid --on slurm --partition cpu --nodes 1,2 --time 30m   (prints the batch scripts)
    """
    from corewise.run.plan import plan_study
    from corewise.study.study import load_study

    options = gather_options(on, nodes, partition, time_limit, account, constraint, site)
    if options is not None:
        from corewise.cli.submitting.run_arguments import build_run_arguments
        from corewise.cli.submitting.submit_study import print_scripts

        arguments = build_run_arguments(study, overrides, trust_environment, retry_failed=False)
        print_scripts(study, overrides or [], arguments, store, options)
        return
    made = plan_study(load_study(study, overrides or []), probe=probe, trust_environment=trust_environment)
    shown = _prepare_plan(made, store, str(write or "TRIALS"))
    if write is not None:
        _write_trials(shown, write)
    if as_json:
        print(json.dumps(_plan_to_json(shown), indent=2))
        if shown.untrusted and not trust_environment:
            print(f"corewise: {_describe_trust(shown)}", file=sys.stderr)
        return
    _print_plan(shown, show_commands=commands or write is not None, is_trusted=trust_environment)


def _prepare_plan(made: "Plan", store: Path, folder: str) -> _ShownPlan:
    from corewise.run.duration_estimate import estimate_plan_s
    from corewise.run.identity.legacy_identity import keep_old_ids
    from corewise.run.record_builder import format_manual_command
    from corewise.store.store import Store
    from corewise.study.environment_trust import select_untrusted

    done: set[str] = set()
    # `corewise run` creates the store if there is none.
    if store.exists():
        record_store = Store.open(store, create=False)
        made, done = keep_old_ids(made, record_store), record_store.read_done_ids()
    lines = tuple(format_manual_command(made, trial, folder) for trial in made.trials)
    return _ShownPlan(made, lines, frozenset(done), select_untrusted(made.study.environment), estimate_plan_s(made))


def _write_trials(shown: _ShownPlan, folder: Path) -> None:
    from corewise.measured.trial import to_json, write_json_atomically
    from corewise.store.atomic_files import explain_write_error

    for reason in shown.list_unknown_ids():
        raise UserError(f"--write: the files are named by ids, which are unknown: {reason}; {PROBE_HINT}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for trial in shown.plan.trials:
            write_json_atomically(folder / f"{trial.trial_id}.json", to_json(trial))
    except OSError as error:
        raise explain_write_error(folder, error, "choose another folder with --write") from error


def _plan_to_json(shown: _ShownPlan) -> dict[str, Any]:
    made = shown.plan
    return {
        "study": made.study.name,
        "question": made.study.question,
        "estimated_s": shown.estimate_s,
        "num_excluded": made.num_excluded,
        "untrusted_environment": dict(shown.untrusted),
        "trials": [
            {
                **_id_to_json(shown, trial.trial_id, trial.params.to_mapping()),
                "params": trial.params.to_mapping(),
                "ranks": [list(rank.cpus) for rank in trial.ranks],
                "notes": [note] if (note := made.describe_cores(trial)) else [],
                "env": dict(trial.env),
                "command": line,
            }
            for trial, line in zip(made.trials, shown.lines, strict=True)
        ],
        "skipped": [
            {**_id_to_json(shown, each.trial_id, each.params), "params": dict(each.params), "reason": each.reason}
            for each in made.skipped
        ],
    }


def _id_to_json(shown: _ShownPlan, trial_id: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "trial_id": trial_id or None,
        "unknown_id_reason": shown.plan.explain_unknown_id(params) or None,
        "is_done": trial_id in shown.done if trial_id else None,
    }


def _print_plan(shown: _ShownPlan, *, show_commands: bool, is_trusted: bool) -> None:
    from rich.markup import escape

    from corewise.cli.render.console import make_console
    from corewise.cli.render.plan_points import make_points_table, split_constants

    made = shown.plan
    console = make_console(markup=True)
    console.print(f"[bold]{escape(made.study.name)}[/]: {escape(made.study.question)}")
    points = [t.params.to_mapping() for t in made.trials]
    constant, varying = split_constants(points)
    console.print(f"[dim]always: {escape(constant)}[/]")
    rows = [
        ({k: point.get(k, "-") for k in varying}, _make_columns(shown, trial))
        for trial, point in zip(made.trials, points, strict=True)
    ]
    console.print(make_points_table(rows))
    for reason in dict.fromkeys(s.reason for s in made.skipped):
        count = sum(s.reason == reason for s in made.skipped)
        console.print(f"[yellow]skipped[/] {count}: {escape(reason)}")
    for note, count in Counter(filter(None, map(made.describe_cores, made.trials))).items():
        console.print(f"[yellow]core types[/] {count}: {escape(note)}")
    for reason in shown.list_unknown_ids():
        console.print(f"[yellow]unknown ids[/]: {escape(reason)}; {PROBE_HINT}")
    if shown.untrusted and not is_trusted:
        console.print(f"[yellow]environment[/]: {escape(_describe_trust(shown))}")
    if show_commands:
        for trial, line in zip(made.trials, shown.lines, strict=True):
            console.print(f"\n[bold]{trial.trial_id or 'unknown'}[/]")
            console.print(line, markup=False, soft_wrap=True, highlight=False)
    _print_summary(shown, console)
    if not show_commands:
        console.print("[dim]--commands prints the command of each trial; `corewise run` runs them.[/]")


def _print_summary(shown: _ShownPlan, console: "Console") -> None:
    from corewise.measured.probes.counter_names import CACHEGRIND
    from corewise.study.durations import format_duration

    made = shown.plan
    runs = sum(t.protocol.min_runs for t in made.trials)
    most = sum(t.protocol.max_runs for t in made.trials)
    excluded = f", {made.num_excluded} points excluded by constraints" if made.num_excluded else ""
    trials = "1 trial" if len(made.trials) == 1 else f"{len(made.trials)} trials"
    done = f" ({shown.num_done} already done)" if shown.num_done else ""
    counts = " cachegrind adds minutes for each trial." if made.study.protocol.counters == CACHEGRIND else ""
    console.print(
        f"\n{trials}{done}, {runs if runs == most else f'{runs} to {most}'} runs in fresh processes, "
        f"{len(made.skipped)} skipped{excluded}; about {format_duration(shown.estimate_s)} (rough estimate).{counts}"
    )


def _make_columns(shown: _ShownPlan, trial: "Trial") -> dict[str, str]:
    columns = {"trial": trial.trial_id or "unknown", "CPUs": _format_cpus(trial.ranks)}
    return {**columns, "done": "yes" if trial.trial_id in shown.done else "-"} if shown.num_done else columns


def _describe_trust(shown: _ShownPlan) -> str:
    from corewise.study.environment_trust import describe_untrusted

    return describe_untrusted(shown.untrusted, str(shown.plan.study.path))


def _format_cpus(ranks: Any) -> str:
    from corewise.machine.topology import format_cpu_list

    shown = [format_cpu_list(r.cpus) for r in ranks[:4]]
    return " | ".join(shown) + (" | …" if len(ranks) > 4 else "")
