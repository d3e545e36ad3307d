"""`corewise plan STUDY`: what a run would do, and nothing done."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from corewise.engine.plan import Plan

StudyArgument = Annotated[str, typer.Argument(help="A study file, or the name of a ready-made study.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="AXIS=V1,V2", help="Override an axis or a fixed value.")
]


def plan(
    study: StudyArgument,
    overrides: SetOption = None,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print each trial's command and environment.")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="DIR", help="Write the trial files, so that commands run."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")] = False,
) -> None:
    """List a study's trials, the skipped points with reasons, and the time it will take. Runs nothing.

    Examples:

      corewise plan quick

      corewise plan thread-scaling --set threads=1,2 --set workload=alexnet --commands

      corewise plan my.yaml --write trials/   (then run any printed command by hand)
    """
    from corewise.engine.estimate import plan_estimate_s
    from corewise.engine.plan import make_plan
    from corewise.engine.recording import by_hand
    from corewise.spec.study import load_study

    made = make_plan(load_study(study, overrides or []))
    folder = write or Path("TRIALS")
    lines = {trial.trial_id: by_hand(made, trial, str(folder)) for trial in made.trials}
    if write is not None:
        _write(made, write)
    estimate_s = plan_estimate_s(made)
    if as_json:
        print(json.dumps(_as_json(made, lines, estimate_s), indent=2))
        return
    _print(made, lines, estimate_s, commands, write)


def _write(made: "Plan", folder: Path) -> None:
    from corewise.spec.trial import to_json, write_json_aside
    from corewise.store.aside import cannot_write

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for trial in made.trials:
            write_json_aside(folder / f"{trial.trial_id}.json", to_json(trial))
    except OSError as error:
        raise cannot_write(folder, error, "name another folder with --write") from error


def _as_json(made: "Plan", lines: dict[str, str], estimate_s: float) -> dict[str, Any]:
    return {
        "study": made.study.name,
        "question": made.study.question,
        "estimated_s": estimate_s,
        "num_excluded": made.num_excluded,
        "trials": [
            {
                "trial_id": t.trial_id,
                "params": dict(t.params),
                "ranks": [list(r.cpus) for r in t.ranks],
                "env": dict(t.env),
                "command": lines[t.trial_id],
            }
            for t in made.trials
        ],
        "skipped": [
            {"trial_id": s.trial_id, "params": dict(s.params), "reason": s.reason} for s in made.skipped
        ],
    }


def _print(
    made: "Plan", lines: dict[str, str], estimate_s: float, commands: bool, write: Path | None
) -> None:
    from rich.markup import escape

    from corewise.cli.durations import spoken
    from corewise.cli.points import constant_and_varying, points_table
    from corewise.cli.terminal import make_console

    console = make_console(markup=True)
    console.print(f"[bold]{escape(made.study.name)}[/]: {escape(made.study.question)}")
    constant, varying = constant_and_varying([t.params for t in made.trials])
    console.print(f"[dim]always: {escape(constant)}[/]")
    rows = [
        ({k: t.params.get(k, "-") for k in varying}, {"trial": t.trial_id, "CPUs": _cpus(t.ranks)})
        for t in made.trials
    ]
    console.print(points_table(rows))
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
        f"{len(made.skipped)} skipped{excluded}; about {spoken(estimate_s)} (a rough guess)."
    )
    if not commands and write is None:
        console.print("[dim]--commands prints each trial's command; `corewise run` measures them.[/]")


def _cpus(ranks: Any) -> str:
    from corewise.machine.topology import format_cpu_list

    shown = [format_cpu_list(r.cpus) for r in ranks[:4]]
    return " | ".join(shown) + (" | …" if len(ranks) > 4 else "")
