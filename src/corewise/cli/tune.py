"""`corewise tune SUBJECT`: find the fastest settings that keep the results correct."""

import json
import shlex
import sys
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import typer

from corewise.cli import tune_options as options
from corewise.cli.common_options import DEFAULT_STORE, JsonOption, PythonOption, QuietOption, StoreOption
from corewise.cli.exit_codes import SOME_FAILED
from corewise.cli.process.interrupts import compute_exit_code
from corewise.cli.render.chart_packages import require_chart_packages
from corewise.cli.submitting.options import (
    AccountOption,
    ConstraintOption,
    DetachOption,
    JobOption,
    PartitionOption,
    SiteOption,
    TimeOption,
    TuneOnOption,
    gather_tuning_options,
)
from corewise.cli.verb_classes import COMMAND_HINT
from corewise.errors import UserError

if TYPE_CHECKING:
    from corewise.tuning.result.tuning_result import TuneResult

NO_RESULT = "corewise: stopped before the default was measured: there is no result yet"


def tune(
    subject: options.Subject,
    mode: options.Mode = "infer",
    budget: options.Budget = "10m",
    batch: options.Batch = None,
    allow: options.Allow = None,
    fixed: options.Fixed = None,
    args: options.Args = None,
    store: StoreOption = DEFAULT_STORE,
    output: options.Output = Path("tuned.yaml"),
    report: options.Report = None,
    runtime: options.Runtime = "torch",
    python: PythonOption = None,
    throughput: options.Throughput = None,
    step_time: options.StepTime = None,
    check: options.Check = None,
    distributed: options.Distributed = False,
    workdir: options.Workdir = "private",
    again: options.Again = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    on: TuneOnOption = None,
    partition: PartitionOption = None,
    time_limit: TimeOption = None,
    account: AccountOption = None,
    constraint: ConstraintOption = None,
    site: SiteOption = None,
    detach: DetachOption = False,
    job: JobOption = None,
) -> None:
    """Find the fastest settings that keep the results the same, and confirm them in fresh processes.

    The baseline is plain `python`: one process, all cores, no pinning. Run
    the same command again to resume an interrupted search. A script after --
    needs no option if it prints a known format: bars of tqdm, Lightning and
    Keras, the Hugging Face Trainer, nanoGPT, ms/batch, img/s. Exit codes: 0
    done, 1 all other settings failed or a file could not be written, 2 an
    error in the command, 130 interrupted.

    Examples:

      corewise tune resnet50 --mode train --budget 10m

      corewise tune my.py:make --batch 32 --output tuned.yaml

      corewise tune resnet18 --args image_size=128 --set threads=4 --json

      corewise tune resnet50 --allow lower-precision --budget 15m

      corewise tune -- python train.py --epochs 1

      corewise tune --throughput '{} img/s' -- python train.py --epochs 1

      corewise tune --step-time 'time {}ms' -- python train.py

      corewise tune --workdir here -- python train.py

      corewise tune --check 'loss {}' -- python train.py --epochs 1

      corewise tune --distributed --batch 64 -- python t.py {batch_per_rank}

      corewise tune resnet50 --set device=cuda --report tuned.html

      corewise tune resnet50 --budget 10m --on slurm --partition cpu --time 20m
    """
    from corewise.tuning.question import read_assignments

    if report is not None:
        require_chart_packages("--report")
    subject_or_command = parse_subject(subject)
    options = gather_tuning_options(on, partition, time_limit, account, constraint, site)
    if options is not None:
        from corewise.cli.submitting.submit_tuning import TuningOptions, submit_tuning

        given = TuningOptions(
            subject=subject_or_command,
            budget=budget,
            output=output,
            report=report,
            python=python,
            values=(
                *(("--mode", mode), ("--batch", None if batch is None else str(batch)), ("--runtime", runtime)),
                *(("--throughput", throughput), ("--step-time", step_time), ("--check", check), ("--workdir", workdir)),
            ),
            lists=(("--allow", allow), ("--set", fixed), ("--args", args)),
            switches=(("--distributed", distributed), ("--again", again)),
        )
        raise typer.Exit(submit_tuning(given, store, options, detach=detach, as_json=as_json, quiet=quiet))
    arguments = {
        "mode": mode,
        "budget": budget,
        "batch": batch,
        "allow": allow or [],
        "fixed": read_assignments(fixed or [], "--set"),
        "args": read_assignments(args or [], "--args"),
        "store": store,
        "output": output,
        "report": report,
        "python": python,
        "runtime": runtime,
        "throughput": throughput,
        "step_time": step_time,
        "check": check,
        "distributed": distributed,
        "workdir": workdir,
        "again": again,
    }
    code = _tune_here(subject_or_command, arguments, job=job, as_json=as_json, quiet=quiet)
    if code:
        raise typer.Exit(code)


def _tune_here(
    subject: str | list[str], arguments: dict[str, Any], *, job: str | None, as_json: bool, quiet: bool
) -> int:
    """Tune on this machine and print the answer, or write it to the store inside a job; return the exit code."""
    from corewise.analysis.tuning_results import NOT_MEASURED
    from corewise.cli.submitting.tuning_job import TuningJob
    from corewise.tuning.api import tune as find_best
    from corewise.tuning.progress_output import open_follower
    from corewise.tuning.session import Interrupted

    code = 0
    tuning_job = TuningJob(arguments["store"], job)
    with tuning_job.report_errors(), open_follower(quiet=quiet or as_json) as follower:
        try:
            result = find_best(subject, **arguments, follower=follower)
        except Interrupted as stopped:
            result, code = stopped.result, compute_exit_code()
        except KeyboardInterrupt:
            result, code = None, compute_exit_code()
    if result is None:
        print(NO_RESULT, file=sys.stderr)
        return code
    if not code:
        is_incomplete = not has_all_files(result, arguments["output"], arguments["report"])
        code_of_result = SOME_FAILED if result.verdict == NOT_MEASURED or is_incomplete else 0
        if not tuning_job.report_answer(result, code_of_result):
            print(json.dumps(result.to_json()) if as_json else result)
        return code_of_result
    print(json.dumps(result.to_json()) if as_json else result)
    print(
        f"\ncorewise: stopped. Results are in {arguments['store']}. Run the same command again to resume.",
        file=sys.stderr,
    )
    return code


def has_all_files(result: "TuneResult", output: Path | None, report: Path | None) -> bool:
    """Return whether every requested file was written."""
    # Without a confirmed setting there is nothing to write.
    has_output = output is None or bool(result.output) or result.found_nothing
    return has_output and (report is None or bool(result.report))


def parse_subject(arguments: list[str]) -> str | list[str]:
    """Return the name of a workload, or a command; raise a UserError for several names or for both."""
    if "--" in sys.argv:
        command = sys.argv[sys.argv.index("--") + 1 :]
        names = arguments[: len(arguments) - len(command)]
        if not names:
            return arguments
        if command:
            raise UserError(
                f"{shlex.join(names)} before -- and a command after it: tune only one of them. A workload: "
                f"corewise tune {shlex.join(names)}. A script: corewise tune -- {shlex.join(command)}, with "
                "options before --"
            )
    if len(arguments) == 1:
        return arguments[0]
    if which(arguments[0]) is None:
        raise UserError(f"{shlex.join(arguments)}: tune one workload at a time; {COMMAND_HINT}")
    return arguments
