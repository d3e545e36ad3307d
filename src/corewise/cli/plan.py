"""`corewise plan STUDY`: show what a run would do, without running anything."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corewise.cli.common_options import JsonOption, SetOption, StudyArgument

if TYPE_CHECKING:
    from corewise.run.plan import Plan


def plan(
    study: StudyArgument,
    overrides: SetOption = None,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print the command and environment of each trial.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="DIR", help="Write the trial files that the commands need.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the trials of a study, the skipped points with reasons, and the estimated time. Runs nothing.

    Examples:

      corewise plan quick

      corewise plan thread-scaling --set threads=1,2 --set workload=alexnet --commands

      corewise plan my.yaml --write trials/   (then run any printed command by hand)
    """
    from corewise.run.duration_estimate import estimate_plan_s
    from corewise.run.plan import plan_study
    from corewise.run.record_builder import format_manual_command
    from corewise.study.study import load_study

    made = plan_study(load_study(study, overrides or []))
    folder = write or Path("TRIALS")
    lines = {trial.trial_id: format_manual_command(made, trial, str(folder)) for trial in made.trials}
    if write is not None:
        _write_trials(made, write)
    estimate_s = estimate_plan_s(made)
    if as_json:
        print(json.dumps(_plan_to_json(made, lines, estimate_s), indent=2))
        return
    _print_plan(made, lines, estimate_s, commands, write)


def _write_trials(made: "Plan", folder: Path) -> None:
    from corewise.measured.trial import to_json, write_json_atomically
    from corewise.store.atomic_files import explain_write_error

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for trial in made.trials:
            write_json_atomically(folder / f"{trial.trial_id}.json", to_json(trial))
    except OSError as error:
        raise explain_write_error(folder, error, "choose another folder with --write") from error


def _plan_to_json(made: "Plan", lines: dict[str, str], estimate_s: float) -> dict[str, Any]:
    return {
        "study": made.study.name,
        "question": made.study.question,
        "estimated_s": estimate_s,
        "num_excluded": made.num_excluded,
        "trials": [
            {
                "trial_id": t.trial_id,
                "params": t.params.to_mapping(),
                "ranks": [list(r.cpus) for r in t.ranks],
                "env": dict(t.env),
                "command": lines[t.trial_id],
            }
            for t in made.trials
        ],
        "skipped": [{"trial_id": s.trial_id, "params": dict(s.params), "reason": s.reason} for s in made.skipped],
    }


def _print_plan(made: "Plan", lines: dict[str, str], estimate_s: float, commands: bool, write: Path | None) -> None:
    from rich.markup import escape

    from corewise.cli.render.console import make_console
    from corewise.cli.render.plan_points import make_points_table, split_constants
    from corewise.study.durations import format_duration

    console = make_console(markup=True)
    console.print(f"[bold]{escape(made.study.name)}[/]: {escape(made.study.question)}")
    points = [t.params.to_mapping() for t in made.trials]
    constant, varying = split_constants(points)
    console.print(f"[dim]always: {escape(constant)}[/]")
    rows = [
        ({k: point.get(k, "-") for k in varying}, {"trial": t.trial_id, "CPUs": _format_cpus(t.ranks)})
        for t, point in zip(made.trials, points, strict=True)
    ]
    console.print(make_points_table(rows))
    for reason in dict.fromkeys(s.reason for s in made.skipped):
        count = sum(s.reason == reason for s in made.skipped)
        console.print(f"[yellow]skipped[/] {count}: {escape(reason)}")
    if commands or write is not None:
        for trial in made.trials:
            console.print(f"\n[bold]{trial.trial_id}[/]")
            console.print(lines[trial.trial_id], markup=False, soft_wrap=True, highlight=False)
    runs = sum(t.protocol.min_runs for t in made.trials)
    most = sum(t.protocol.max_runs for t in made.trials)
    excluded = f", {made.num_excluded} points excluded by constraints" if made.num_excluded else ""
    trials = "1 trial" if len(made.trials) == 1 else f"{len(made.trials)} trials"
    console.print(
        f"\n{trials}, {runs if runs == most else f'{runs} to {most}'} runs in fresh processes, "
        f"{len(made.skipped)} skipped{excluded}; about {format_duration(estimate_s)} (rough estimate)."
    )
    if not commands and write is None:
        console.print("[dim]--commands prints the command of each trial; `corewise run` runs them.[/]")


def _format_cpus(ranks: Any) -> str:
    from corewise.machine.topology import format_cpu_list

    shown = [format_cpu_list(r.cpus) for r in ranks[:4]]
    return " | ".join(shown) + (" | …" if len(ranks) > 4 else "")
