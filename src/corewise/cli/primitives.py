"""`corewise primitives MODEL`: measure each operator of a model, in the model and alone."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corewise.cli.common_options import JsonOption, PythonOption, QuietOption
from corewise.cli.exit_codes import SOME_FAILED
from corewise.cli.process.interrupts import compute_exit_code
from corewise.cli.render.chart_packages import require_chart_packages
from corewise.errors import UserError

if TYPE_CHECKING:
    from corewise.explain.ceiling_verdicts import PrimitivesAnswer
    from corewise.tuning.question import Question

MIN_ROUNDS = 1


def primitives(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model by name, or your own as FILE.py:FUNCTION.")],
    mode: Annotated[str, typer.Option("--mode", metavar="train|infer", help="Training or inference.")] = "infer",
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Samples per step.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", metavar="N", help="Threads; default: all cores.")] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="AXIS=VALUE", help="Fix an axis such as dtype; may be repeated."),
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Option("--args", metavar="NAME=VALUE", help="Set a parameter of the model; may be repeated."),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="How often steps and primitives are measured in turn.")
    ] = 3,
    runtime: Annotated[str, typer.Option("--runtime", metavar="NAME", help="Only torch is supported.")] = "torch",
    python: PythonOption = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Also write a page with a chart.")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every primitive, not only the slowest.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Break a model down: the time of each operator in the model, alone, and at the machine's ceiling.

    The model runs in eager mode. Then each distinct operator runs alone on random inputs of the same shapes,
    layout and data type. The sum of the operators should equal the step. Ceilings come from the last
    `corewise doctor --ceilings`. Exit codes: 0 done, 1 the model failed, 2 an error in the command.

    Examples:

      corewise primitives resnet50 --batch 16

      corewise primitives resnet50 --mode train --set memory_format=channels_last --set dtype=bfloat16

      corewise primitives my.py:make --batch 32 --threads 4 --report primitives.html

      corewise primitives transformer --args tokens=256 --json
    """
    from corewise.explain.measurement import BreakdownFailed
    from corewise.tuning.question import read_assignments

    if rounds < MIN_ROUNDS:
        raise UserError(f"--rounds {rounds}: at least {MIN_ROUNDS} is needed")
    if report is not None:
        from corewise.report.comparison.files import check_place

        require_chart_packages("--report")
        check_place(report, "--report")
    question = _make_question(
        model,
        mode=mode,
        batch=batch,
        threads=threads,
        fixed=read_assignments(fixed or [], "--set"),
        args=read_assignments(args or [], "--args", "args."),
        runtime=runtime,
        python=python,
    )
    with _show_progress(quiet or as_json) as show:
        try:
            answer = measure_primitives(model, question, rounds, show)
        except BreakdownFailed as problem:
            print(f"corewise: {problem}", file=sys.stderr)
            raise typer.Exit(SOME_FAILED) from None
        except KeyboardInterrupt:
            print("corewise: interrupted; nothing was saved", file=sys.stderr)
            raise typer.Exit(compute_exit_code()) from None
    _print_answer(answer, show_all, as_json)
    if report is not None:
        _write_report(answer, report)
        if not as_json:
            print(f"written: {report}")


def measure_primitives(
    model: str, question: "Question", rounds: int, show: Callable[[str], None]
) -> "PrimitivesAnswer":
    """Measure the model and its primitives."""
    from corewise.explain.ceiling_verdicts import PrimitivesAnswer, judge_primitives, judge_shares
    from corewise.explain.measurement import PROTOCOL, measure_breakdown, plan_trial
    from corewise.run.plan import Planner
    from corewise.text_format import format_count

    show("reading the machine")
    params = {**question.fixed, "batch": question.batch}
    study = question.build_study(params, PROTOCOL)
    planner = Planner.from_study(study)
    _require_torch(planner.interpreter.packages, planner.interpreter.command)
    taken = measure_breakdown(planner, plan_trial(planner, study, {"num_rounds": rounds}), show)
    breakdown, trial = taken.breakdown, taken.trial
    judged = judge_primitives(breakdown, trial.params, taken.ceilings)
    facts, allocation = planner.host.facts, planner.host.allocation
    ceilings = taken.ceilings
    return PrimitivesAnswer(
        subject=model,
        asked=(*_describe_question(question), format_count(breakdown.num_threads, "thread")),
        options=_make_options(question),
        machine=f"{allocation.num_cores} cores of {facts.cpu_model}",
        versions=taken.versions,
        params=trial.params,
        breakdown=breakdown,
        primitives=judged,
        shares=judge_shares(breakdown, judged),
        ceilings_of=(
            f"of {ceilings.hostname}, through {ceilings.runtime} {ceilings.version}, {ceilings.measured_at}"
            if ceilings
            else ""
        ),
        ceilings_are_busy=ceilings is not None and ceilings.is_busy(trial.params.device.value),
    )


def _make_question(
    model: str,
    *,
    mode: str,
    batch: int | None,
    threads: int | None,
    fixed: dict[str, Any],
    args: dict[str, Any],
    runtime: str,
    python: str | None,
) -> "Question":
    """Check the options and return the question."""
    from corewise.tuning.question import build_question

    if runtime != "torch":
        raise UserError(f"--runtime {runtime}: only models on torch can be broken down into operators")
    if threads is not None:
        if threads < 1:
            raise UserError(f"--threads {threads}: at least 1")
        if fixed.get("threads", threads) != threads:
            raise UserError(f"--threads {threads} and --set threads={fixed['threads']} differ; pass only one")
        fixed = {**fixed, "threads": threads}
    if str(fixed.get("execution", "eager")) != "eager":
        raise UserError(
            f"--set execution={fixed['execution']}: fused kernels cannot run alone as operators; "
            "leave it out: primitives are measured in eager mode"
        )
    if fixed.get("processes", 1) != 1:
        raise UserError(f"--set processes={fixed['processes']}: primitives are measured in one process")
    return build_question(model, mode=mode, batch=batch, fixed={**fixed, **args}, python=python)


def _describe_question(question: "Question") -> list[str]:
    """Return the settings of the question for headings."""
    own = [f"{name.removeprefix('args.')} {value}" for name, value in question.fixed.items() if name != "threads"]
    return [question.mode, f"batch {question.batch}", *own]


def _make_options(question: "Question") -> list[str]:
    """Return the command-line options that ask the same question."""
    options = ["--mode", question.mode, "--batch", str(question.batch)]
    for name, value in question.fixed.items():
        own = name.removeprefix("args.")
        options += ["--args" if own != name else "--set", f"{own}={value}"]
    return [*options, "--python", question.python] if question.python else options


def _require_torch(packages: Any, command: Sequence[str]) -> None:
    if "torch" not in packages:
        raise UserError(
            f"torch is not installed for {' '.join(command)}.\n"
            "Install it with: pip install 'corewise[torch]', or choose another interpreter with --python."
        )


def _print_answer(answer: "PrimitivesAnswer", show_all: bool, dump_json: bool) -> None:
    if dump_json:
        from corewise.explain.explanation_text import suggest_commands, summarize_answer

        values = answer.to_json()
        values["summary"] = summarize_answer(answer)
        values["next"] = [command for command, _ in suggest_commands(answer)]
        print(json.dumps(values))
        return
    from corewise.cli.render.console import make_console
    from corewise.cli.render.primitives_table import draw_answer

    draw_answer(make_console(), answer, show_all)


def _write_report(answer: "PrimitivesAnswer", path: Path) -> None:
    from corewise.explain.primitives_page import build_primitives_report
    from corewise.report.page import render_page
    from corewise.store.atomic_files import write_atomically

    data = render_page(build_primitives_report(answer)).encode()
    with write_atomically(path, "choose another file with --report") as aside:
        aside.write_bytes(data)


@contextmanager
def _show_progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; yields a function that changes the text."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    texts = {"importing": "importing torch", "check": "checking the model's numbers", "warm-up": "warming up"}
    # No automatic refresh: a spinner would take CPU time from the measurement.
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield lambda text: live.update(Text(texts.get(text, text)), refresh=True)
