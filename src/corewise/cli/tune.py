"""`corewise tune SUBJECT`: the fastest correct way to run it here, and the command to type."""

import json
import shlex
import signal
import sys
from pathlib import Path
from shutil import which
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from corewise.cli import tune_options as options
from corewise.cli.drawing import require_drawing
from corewise.cli.exit_codes import INTERRUPTED, SOME_FAILED
from corewise.cli.pipes import Verb
from corewise.spec.errors import UserError

if TYPE_CHECKING:
    from corewise.tuner.result import TuneResult

NOTHING_YET = "corewise: stopped before the default was measured: there is nothing to tell or to write yet"
AFTER_DASHES = "the command of a script stands after --, as in corewise tune -- python train.py"


class TuneVerb(Verb):
    """The verb; an option that it does not have may be that of a script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words."""
        is_command = any(which(word) for word in args if not word.startswith("-"))
        try:
            return super().parse_args(ctx, args)
        except Exception as problem:
            is_unknown_option = hasattr(problem, "possibilities")  # it has no public name
            if is_command and is_unknown_option:
                problem.message = f"{problem}; {AFTER_DASHES}"  # type: ignore[attr-defined]
            raise


def tune(
    subject: options.Subject,
    mode: options.Mode = "infer",
    budget: options.Budget = "10m",
    batch: options.Batch = None,
    allow: options.Allow = None,
    fixed: options.Fixed = None,
    args: options.Args = None,
    store: options.Store = Path("corewise-store"),
    output: options.Output = Path("tuned.yaml"),
    report: options.Report = None,
    runtime: options.Runtime = "torch",
    python: options.Python = None,
    throughput: options.Throughput = None,
    check: options.Check = None,
    distributed: options.Distributed = False,
    again: options.Again = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Search the fastest settings whose numbers stay the same, and confirm them by fresh runs.

    The stock default is what plain `python` does: one process, all cores,
    nothing pinned. The same command goes on where an interrupted one
    stopped. Exit codes: 0 done, 1 a file could not be written, 2 a mistake
    in the command, 130 interrupted.

    Examples:

      corewise tune resnet50 --mode train --budget 10m

      corewise tune my.py:make --batch 32 --output tuned.yaml

      corewise tune resnet18 --args image_size=128 --set threads=4 --json

      corewise tune resnet50 --allow lower-precision --budget 15m

      corewise tune --throughput '{} img/s' -- python train.py --epochs 1

      corewise tune --check 'loss {}' -- python train.py --epochs 1

      corewise tune --distributed --batch 64 -- python t.py {batch_per_rank}

      corewise tune resnet50 --set device=cuda --report tuned.html
    """
    from corewise.tuner.api import tune as find_best
    from corewise.tuner.progress import make_follower
    from corewise.tuner.question import read_assignments
    from corewise.tuner.session import Interrupted

    if report is not None:
        require_drawing("--report")
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _interrupt)
    code = 0
    with make_follower(quiet=quiet or as_json) as follower:
        try:
            result = find_best(
                subject_of(subject),
                mode=mode,
                budget=budget,
                batch=batch,
                allow=allow or [],
                fixed=read_assignments(fixed or [], "--set"),
                args=read_assignments(args or [], "--args"),
                store=store,
                output=output,
                report=report,
                python=python,
                runtime=runtime,
                throughput=throughput,
                check=check,
                distributed=distributed,
                again=again,
                follower=follower,
            )
        except Interrupted as stopped:
            result, code = stopped.result, INTERRUPTED
        except KeyboardInterrupt:
            result, code = None, INTERRUPTED
    if result is None:
        print(NOTHING_YET, file=sys.stderr)
        raise typer.Exit(code)
    print(json.dumps(result.to_json()) if as_json else result)
    if not code and not all_written(result, output, report):
        raise typer.Exit(SOME_FAILED)
    if code:
        print(
            f"\ncorewise: stopped; what was found is in {store}. The same command goes on.", file=sys.stderr
        )
        raise typer.Exit(code)


def all_written(result: "TuneResult", output: Path | None, report: Path | None) -> bool:
    """Whether every file that was asked for is there."""
    return (output is None or bool(result.output)) and (report is None or bool(result.report))


def subject_of(words: list[str]) -> str | list[str]:
    """A name, or the words of a command; a UserError for several names, or for both."""
    if "--" in sys.argv:
        command = sys.argv[sys.argv.index("--") + 1 :]
        names = words[: len(words) - len(command)]
        if not names:
            return words
        if command:
            raise UserError(
                f"{shlex.join(names)} before -- and a command after it: tune one of them. A workload: "
                f"corewise tune {shlex.join(names)}. A script: corewise tune -- {shlex.join(command)}, with "
                "options before --"
            )
    if len(words) == 1:
        return words[0]
    if which(words[0]) is None:
        raise UserError(f"{shlex.join(words)}: tune one workload at a time; {AFTER_DASHES}")
    return words


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
