"""`corewise primitives MODEL`: where a model's time goes, operator by operator, in the model and alone."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from corewise.cli.drawing import require_drawing
from corewise.cli.exit_codes import INTERRUPTED, SOME_FAILED
from corewise.spec.errors import UserError

if TYPE_CHECKING:
    from corewise.breakdown.judged import Answer
    from corewise.tuner.question import Question

MIN_ROUNDS = 1


def primitives(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model by name, or your own as FILE.py:FUNCTION.")
    ],
    mode: Annotated[str, typer.Option("--mode", metavar="train|infer", help="What it does.")] = "infer",
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Samples per step.")] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="Threads; by default all cores.")
    ] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="AXIS=VALUE", help="Layout, precision and the like, as in a study."),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Option("--args", metavar="NAME=VALUE", help="A parameter of the model.")
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Rounds of steps and primitives in turn.")
    ] = 3,
    runtime: Annotated[
        str, typer.Option("--runtime", metavar="NAME", help="torch, and no other yet.")
    ] = "torch",
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="The interpreter that runs it.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page with a chart, too.")
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every primitive, not only the costliest.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Take a model apart: each operator's time in the model, alone, and at the machine's ceiling.

    The model runs as it is, eager; then every distinct operator runs alone, with the model's shapes, layout
    and number formats on new random numbers. Their sum should be the step. Ceilings are those that
    `corewise doctor --ceilings` has kept. Exit codes: 0 done, 1 the model failed, 2 a mistake in the command.

    Examples:

      corewise primitives resnet50 --batch 16

      corewise primitives resnet50 --mode train --set memory_format=channels_last --set dtype=bfloat16

      corewise primitives my.py:make --batch 32 --threads 4 --report primitives.html

      corewise primitives transformer --args tokens=256 --json
    """
    from corewise.engine.primitives import NotTakenApart
    from corewise.tuner.question import read_assignments

    if rounds < MIN_ROUNDS:
        raise UserError(f"--rounds {rounds}: at least {MIN_ROUNDS}")
    if report is not None:
        from corewise.comparison.files import check_place

        require_drawing("--report")
        check_place(report, "--report")
    signal.signal(signal.SIGTERM, _interrupt)
    question = _question(
        model,
        mode=mode,
        batch=batch,
        threads=threads,
        fixed=read_assignments(fixed or [], "--set"),
        args=read_assignments(args or [], "--args", "args."),
        runtime=runtime,
        python=python,
    )
    with _progress(quiet or as_json) as tell:
        try:
            answer = find(model, question, rounds, tell)
        except NotTakenApart as problem:
            print(f"corewise: {problem}", file=sys.stderr)
            raise typer.Exit(SOME_FAILED) from None
        except KeyboardInterrupt:
            print("corewise: interrupted; nothing was kept", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
    _print_answer(answer, show_all, as_json)
    if report is not None:
        _write_report(answer, report)
        if not as_json:
            print(f"written: {report}")


def find(model: str, question: "Question", rounds: int, tell: Callable[[str], None]) -> "Answer":
    """The answer, measured."""
    from corewise.breakdown.judged import Answer, judged_primitives, judged_shares
    from corewise.engine.plan import Planner
    from corewise.engine.primitives import PROTOCOL, plan_trial, take_apart
    from corewise.report.words import counted

    tell("reading the machine")
    params = {**question.fixed, "batch": question.batch}
    study = question.study(params, PROTOCOL)
    planner = Planner.of(study)
    _require_torch(planner.interpreter.packages, planner.interpreter.words)
    taken = take_apart(planner, plan_trial(planner, study, {"num_rounds": rounds}), tell)
    found, trial = taken.breakdown, taken.trial
    judged = judged_primitives(found, trial.params, taken.ceilings)
    facts, allocation = planner.host.facts, planner.host.allocation
    kept = taken.ceilings
    return Answer(
        subject=model,
        asked=(*_asked(question), counted(found.num_threads, "thread")),
        options=_options(question),
        machine=f"{allocation.num_cores} cores of {facts.cpu_model}",
        versions=taken.versions,
        params=trial.params,
        breakdown=found,
        primitives=judged,
        shares=judged_shares(found, judged),
        ceilings_of=f"of {kept.hostname}, through {kept.runtime} {kept.version}, {kept.measured_at}"
        if kept
        else "",
        ceilings_are_busy=kept is not None and kept.is_busy(str(trial.params["device"])),
    )


def _question(
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
    """What is asked, checked as far as words can be."""
    from corewise.tuner.question import make_question

    if runtime != "torch":
        raise UserError(
            f"--runtime {runtime}: models are taken apart on torch only, whose operators are watched"
        )
    if threads is not None:
        if threads < 1:
            raise UserError(f"--threads {threads}: at least 1")
        if fixed.get("threads", threads) != threads:
            raise UserError(f"--threads {threads} and --set threads={fixed['threads']}: give one of them")
        fixed = {**fixed, "threads": threads}
    if str(fixed.get("execution", "eager")) != "eager":
        raise UserError(
            f"--set execution={fixed['execution']}: fused kernels are no operators that could be run alone; "
            "primitives are taken from eager execution"
        )
    if fixed.get("processes", 1) != 1:
        raise UserError(f"--set processes={fixed['processes']}: a model is taken apart in one process")
    return make_question(model, mode=mode, batch=batch, fixed={**fixed, **args}, python=python)


def _asked(question: "Question") -> list[str]:
    """What sets it apart, in words for headings."""
    own = [
        f"{name.removeprefix('args.')} {value}" for name, value in question.fixed.items() if name != "threads"
    ]
    return [question.mode, f"batch {question.batch}", *own]


def _options(question: "Question") -> list[str]:
    """The words after the model that ask the same again."""
    words = ["--mode", question.mode, "--batch", str(question.batch)]
    for name, value in question.fixed.items():
        own = name.removeprefix("args.")
        words += ["--args" if own != name else "--set", f"{own}={value}"]
    return [*words, "--python", question.python] if question.python else words


def _require_torch(packages: Any, words: Sequence[str]) -> None:
    if "torch" not in packages:
        raise UserError(
            f"torch is not installed for {' '.join(words)}.\n"
            "Install it with: pip install 'corewise[torch]', or name another interpreter with --python."
        )


def _print_answer(answer: "Answer", show_all: bool, as_json: bool) -> None:
    if as_json:
        from corewise.breakdown.words import next_commands, summary

        told = answer.to_json()
        told["summary"] = summary(answer)
        told["next"] = [command for command, _ in next_commands(answer)]
        print(json.dumps(told))
        return
    from corewise.cli.drawn_primitives import draw_answer
    from corewise.cli.terminal import make_console

    draw_answer(make_console(), answer, show_all)


def _write_report(answer: "Answer", path: Path) -> None:
    from corewise.breakdown.page import as_report
    from corewise.report.page import render_page
    from corewise.store.aside import written_aside

    data = render_page(as_report(answer)).encode()
    with written_aside(path, "name another file with --report") as aside:
        aside.write_bytes(data)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Says on a terminal what takes its time, on standard error."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    words = {
        "importing": "importing torch",
        "check": "checking the model's numbers",
        "warm-up": "warming up",
    }
    # Drawn when something is told and at no other time: a spinner would take CPU from what is measured.
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield lambda text: live.update(Text(words.get(text, text)), refresh=True)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
